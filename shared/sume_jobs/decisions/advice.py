"""Why a row needs attention and what to do next, in plain words for the team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Advice(NamedTuple):
    """A reason, and the next action."""

    reason: str
    action: str


_WHERE: Final = "(./sume-jobs why, or the support route)"
_NEW_GENERATION: Final = "start a new generation (billed anew)"

_SUBMISSION: Final = {
    "attempts_exhausted": Advice(
        "All attempts to send it failed.",
        f"Read its last answer {_WHERE}, mend the cause, then send it again.",
    ),
    "idempotency_window_expired": Advice(
        "Whether Sume took it was never learned, and its key is too old to ask again without "
        "the risk of a second bill.",
        f"Look for the job in Sume's list; if it is not there, {_NEW_GENERATION}.",
    ),
    "idempotency_key_collision": Advice(
        "Sume knew its key already: another stage or a restored database uses the same prefix.",
        f"Give each stage its own IDEMPOTENCY_PREFIX, then {_NEW_GENERATION}.",
    ),
    "job_id_conflict": Advice(
        "Sume answered with a job that belongs to another row.",
        f"Look at job_conflict and ask Sume; then {_NEW_GENERATION}.",
    ),
}

_ATTENTION: Final = {
    "overdue": Advice(
        "Its job has been at Sume for longer than the deadline.",
        "Nothing is lost: it is still followed. Ask Sume with the job's id, or cancel it.",
    ),
    "job_not_found": Advice(
        "Sume no longer finds its job.",
        f"Ask Sume with the job's id; if it is gone, {_NEW_GENERATION}.",
    ),
    "result_missing": Advice(
        "Its job is completed, but Sume gives no result.",
        "Ask Sume with the job's id; it is still asked from time to time.",
    ),
}


def advise(row: Mapping[str, Any]) -> Advice:
    """Explain a row by submission_status, submission_error_code, sume_may_have_the_job, job_status,
    error_code and attention, named as in the view job_support.
    """
    submission = row["submission_status"]
    if submission == "failed":
        code = row["submission_error_code"]
        known = _SUBMISSION.get(code or "")
        if row["sume_may_have_the_job"] and code == "attempts_exhausted":
            return Advice(
                "All attempts to send it failed, and Sume may have taken one of them.",
                "Send it again with the same key soon: that costs nothing if Sume has it.",
            )
        return known or Advice(
            f"Sume refused it ({code})." if code else "It could not be sent.",
            f"Change what was refused and {_NEW_GENERATION}.",
        )
    if submission == "canceled" or row["job_status"] == "canceled":
        return Advice("It was canceled.", f"Nothing to do; if it is wanted, {_NEW_GENERATION}.")
    if row["job_status"] == "failed":
        code = row["error_code"]
        return Advice(
            f"The generation failed at Sume ({code})."
            if code
            else "The generation failed at Sume.",
            f"Read its error {_WHERE}; if it may work now, {_NEW_GENERATION}.",
        )
    return _ATTENTION.get(row["attention"] or "") or Advice(
        f"It is marked for attention ({row['attention']}).",
        f"Read what is known of it {_WHERE}.",
    )


_ITSELF: Final = "it goes on by itself."
_OPEN: Final = (
    "`./sume-jobs gate open` (update pace_gate set closed_until = now() where closed_until > now())"
)
_CLOSED: Final = (
    "Nothing is sent until a person opens the gate: read job_conflict and the runbook "
    f"(AnomalyStop), then {_OPEN}."
)
_GATES: Final = {
    "idempotency_key_collision": "Sume knew keys of ours already: another stage or a restored "
    f"database sends under the same IDEMPOTENCY_PREFIX. {_CLOSED}",
    "job_of_another_row": f"Sume answered rows with the jobs of other rows. {_CLOSED}",
    "second_job_for_row": f"Sume made two jobs of one key, and bills both. {_CLOSED}",
    "job_without_send": f"Sume has a job for a row that was not sent. {_CLOSED}",
    "unauthorized": f"Sume refuses the API key. Check the key and its secret; then {_ITSELF}",
    "insufficient_credits": f"The credits at Sume are used up. Add credits; then {_ITSELF}",
    "forbidden": f"Sume refuses access. Check the key's workspace; then {_ITSELF}",
    "wrong_address": "Sume has nothing at this address. Check SUME_BASE_URL and SUME_SUBMIT_PATH; "
    f"then {_ITSELF}",
    "outage": f"Several answers in a row were lost, Sume may be down: {_ITSELF}",
    "queue_capacity": f"Sume's queue for this key is full: {_ITSELF}",
    "queue_full": f"Sume's queue for this key is full: {_ITSELF}",
    "rate_limited": f"Sume asks to slow down: {_ITSELF}",
}
_GATES_BY_STATUS: Final = {
    "http_401": _GATES["unauthorized"],
    "http_402": _GATES["insufficient_credits"],
    "http_403": _GATES["forbidden"],
    "http_429": _GATES["rate_limited"],
    "http_503": _GATES["outage"],
}


def advise_gate(reason: str | None, status: int | None = None) -> str:
    """Explain why a gate is closed, and what to do, by the reason in pace_gate.

    Where that is a word of Sume's own, the HTTP status tells enough, if it is still known.
    """
    if (reason or "").startswith("operator:"):
        return (
            f"Somebody closed it by hand. It is tried again at its time, or at once after {_OPEN}."
        )
    return (
        _GATES.get(reason or "")
        or _GATES_BY_STATUS.get(reason or "")
        or _GATES_BY_STATUS.get(f"http_{status}")
        or f"Look at the reason; it is tried again by itself, or at once after {_OPEN}."
    )
