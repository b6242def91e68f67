"""The ways that the functions can go, each made ready for one run of one function."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from local.fake_sume import Behaviour
from local.fake_sume.picture import png
from tests.reliability import invariants
from tests.reliability.cloud import QUEUE_URL, queue_event
from tests.reliability.invariants import Violation
from tests.reliability.stage import Scenario, Stage
from tests.support.http_events import http_event

RETRYABLE = {"code": "generation_failed", "retryable": True}


def _rows(*answers: Behaviour, count: int = 1) -> Callable[[Stage], None]:
    """Rows to be submitted, and how Sume answers the first of the submits."""

    def prepare(stage: Stage) -> None:
        stage.insert(count)
        stage.fake.on_submit(*answers)

    return prepare


def _early(stage: Stage) -> None:
    """The job ends, and its webhook is answered, before the submit is."""

    def deliver(job: Any) -> None:
        stage.fake.set_status(job.id, "completed", webhook=False)
        stage.deliver(stage.event(job.id, "completed"))

    stage.insert()
    stage.fake.on_submit(Behaviour(call=deliver))


def _wish_meanwhile(stage: Stage) -> None:
    stage.insert()
    stage.fake.on_submit(Behaviour(call=lambda _job: stage.cancel()))


def _wish_before(stage: Stage) -> None:
    stage.insert()
    stage.cancel()
    stage.insert()


def _replay(stage: Stage, ended: bool = False) -> None:
    """Sume has the job already; the answer was lost."""
    stage.insert()
    stage.fake.on_submit(Behaviour(drop="after"))
    stage.call("submit")
    if ended:
        (job,) = stage.fake.jobs
        stage.fake.set_status(job, "completed", webhook=False)
    stage.age(60)


def _used_up(stage: Stage) -> None:
    stage.insert()
    stage.execute("update render_jobs set attempts = 8, unknown_since = now()")


def _half_open(stage: Stage) -> None:
    stage.insert(2)
    stage.fake.on_submit(Behaviour(status=429))
    stage.call("submit")
    stage.age(200)


def _stale(stage: Stage) -> None:
    """One claim died after Sume had accepted, another before anything arrived there."""
    stage.insert(2)
    stage.fake.on_submit(Behaviour(drop="after"), Behaviour(drop="before"))
    stage.call("submit")
    stage.execute(
        "update render_jobs set status = 'submitting', claim_token = gen_random_uuid(),"
        " claimed_at = now() - interval '20 minutes' where status = 'pending'"
    )


def _too_old(stage: Stage) -> None:
    _stale(stage)
    stage.execute("update render_jobs set unknown_since = now() - interval '2 days'")


def _failed(stage: Stage) -> None:
    (job,) = stage.submitted()
    stage.fake.set_status(job, "failed", RETRYABLE, webhook=False)
    stage.deliver(stage.event(job, "failed", error=RETRYABLE))


def _end(status: str, *reads: Behaviour, error: Any = None) -> Callable[[Stage], None]:
    """Jobs to be polled that have come to `status` at Sume."""

    def prepare(stage: Stage) -> None:
        for job in stage.submitted(2):
            stage.fake.set_status(job, status, error, webhook=False)
        stage.fake.on_read(*reads)
        stage.age(60)

    return prepare


def _result(*answers: Behaviour) -> Callable[[Stage], None]:
    def prepare(stage: Stage) -> None:
        (job,) = stage.submitted()
        stage.fake.set_status(job, "completed", webhook=False)
        stage.deliver(stage.event(job, "completed"))
        stage.fake.on_result(*answers)

    return prepare


def _held(stage: Stage) -> None:
    """An event that came early and that neither side has looked at again."""
    (job,) = stage.submitted()
    stage.fake.set_status(job, "failed", RETRYABLE, webhook=False)
    stage.execute(
        "insert into webhook_event (event_id, job_id, job_status, error, body, outcome)"
        " values ('evt_early', %s, 'failed', '{\"code\": \"generation_failed\"}', '{}', 'held')",
        (job,),
    )


def _wanted_canceled(stage: Stage) -> None:
    stage.submitted()
    stage.cancel()


def _too_late_to_cancel(stage: Stage) -> None:
    _wanted_canceled(stage)
    stage.fake.on_cancel(Behaviour(status=409, code="job_generation_already_started"))


def _event(status: str, at_sume: str | None = None, **more: Any) -> Callable[[Stage], Any]:
    def prepare(stage: Stage) -> dict[str, Any]:
        (job,) = stage.submitted()
        if status in invariants.TERMINAL:
            stage.fake.set_status(job, status, more.get("error"), webhook=False)
        return stage.event(job, status, **more)

    return prepare


def _event_for_unknown(stage: Stage) -> dict[str, Any]:
    _replay(stage, ended=True)
    (job,) = stage.fake.jobs
    return stage.event(job, "completed")


def _event_again(stage: Stage) -> dict[str, Any]:
    (job,) = stage.submitted()
    stage.fake.set_status(job, "completed", webhook=False)
    stage.deliver(stage.event(job, "completed"))
    return stage.event(job, "completed")


def _event_too_late(stage: Stage) -> dict[str, Any]:
    (job,) = stage.submitted()
    stage.fake.set_status(job, "completed", webhook=False)
    stage.deliver(stage.event(job, "completed"))
    return stage.event(job, "processing")


def _owed(refuse: int = 0, failed: bool = False) -> Callable[[Stage], None]:
    """Follow-ups that are to be sent; with `failed` one of a row that never came to a job."""

    def prepare(stage: Stage) -> None:
        for job in stage.submitted(2):
            stage.fake.set_status(job, "completed", webhook=False)
            stage.deliver(stage.event(job, "completed"))
        if failed:
            stage.fake.on_submit(Behaviour(status=400))
            stage.submitted()
        stage.cloud.refuse = refuse

    return prepare


# Archive ----------------------------------------------------------------------------------------


def _to_archive(
    count: int = 1, known: bool = True, refuse: int = 0, dead: bool = False
) -> Callable[[Stage], dict[str, Any]]:
    """A job with so many artifacts; `known` is whether its result is, `dead` a URL that lapsed."""

    def prepare(stage: Stage) -> dict[str, Any]:
        (job,) = stage.submitted()
        picture = job.removeprefix("job_")
        artifact = {"url": f"{stage.sume_wire.url}/artifacts/{picture}.png", "type": "image"}
        stage.fake.set_status(job, "completed", artifacts=[artifact] * count, webhook=False)
        stage.deliver(stage.event(job, "completed"))
        if known:
            stage.age(60)
            stage.call("poll")
        if dead:
            lapsed = json.dumps(f"{stage.sume_wire.url}/artifacts/lapsed.png")
            stage.execute(
                "update gen_job set result = jsonb_set(result, '{artifacts,0,url}', %s)", (lapsed,)
            )
        stage.cloud.refuse = refuse
        stage.expected = {f"sume-jobs/{job}/{n + 1}.png": png(picture) for n in range(count)}
        return _message(job, "job.completed")

    return prepare


def _archived_already(stage: Stage) -> dict[str, Any]:
    event = _to_archive()(stage)
    stage.call("archive", event)
    return event


def _message(job: str, kind: str) -> dict[str, Any]:
    """The delivery of one follow-up by the archive's queue."""
    body = {"version": 1, "id": f"{job}:{kind}", "kind": kind, "job_id": job}
    return queue_event(json.dumps(body))


# API --------------------------------------------------------------------------------------------


def _post(body: Any) -> Callable[[Stage], dict[str, Any]]:
    return lambda _stage: http_event("POST", "/jobs", body=body)


def _post_known(stage: Stage) -> dict[str, Any]:
    stage.execute("insert into render_jobs (prompt, reference) values ('prompt', 'b')")
    return http_event("POST", "/jobs", body=LIST)


def _get(path: str) -> Callable[[Stage], dict[str, Any]]:
    def prepare(stage: Stage) -> dict[str, Any]:
        stage.submitted(2)
        return http_event("GET", path)

    return prepare


def _cancel(before: Callable[[Stage], Any]) -> Callable[[Stage], dict[str, Any]]:
    def prepare(stage: Stage) -> dict[str, Any]:
        before(stage)
        return http_event("POST", "/jobs/1/cancel")

    return prepare


def _sent_just_now(stage: Stage) -> None:
    """A claim that is out: its worker has not come back with the answer."""
    stage.insert()
    stage.fake.on_submit(Behaviour(drop="after"))
    stage.call("submit")
    stage.execute(
        "update render_jobs set status = 'submitting', claim_token = gen_random_uuid(),"
        " claimed_at = now()"
    )


def _ended(stage: Stage) -> None:
    (job,) = stage.submitted()
    stage.fake.set_status(job, "completed", webhook=False)
    stage.deliver(stage.event(job, "completed"))


def _rows_are(*counts: int) -> Callable[[Stage], None]:
    """How many rows there may be in the end."""

    def check(stage: Stage) -> None:
        (found,) = stage.query("select count(*) as n from render_jobs")
        if found["n"] not in counts:
            raise Violation(f"{found['n']} rows were made of the request, not {counts}")

    return check


def _one_a_day(stage: Stage) -> None:
    """The second row waits for the next day, whatever became of the first."""
    found = stage.query("select day_sent from pace_budget where name = 'writes'")
    if found != [{"day_sent": 1}]:
        raise Violation(f"spent: the day has counted {found}")


LIST = [{"prompt": "one", "reference": name} for name in ("a", "b", "c")]
TO_QUEUE = {"FOLLOW_UP_QUEUE_URL": QUEUE_URL}
TO_BUS = {"FOLLOW_UP_EVENT_BUS": "jobs"}
TO_BOTH = TO_QUEUE | TO_BUS
ONE_A_DAY = {"SUBMIT_DAILY_LIMIT": "1"}
TO_BUCKET = {"ARCHIVE_BUCKET": "archive"}
DONE: set[tuple[str, str | None]] = {("submitted", "completed")}

SCENARIOS = [
    Scenario("submit", "accepted", _rows(count=3), ends=DONE),
    Scenario("submit", "refused_429", _rows(Behaviour(status=429), count=2), ends=DONE),
    Scenario("submit", "stopped_402", _rows(Behaviour(status=402), count=2), ends=DONE),
    Scenario("submit", "refused_400", _rows(Behaviour(status=400))),
    Scenario("submit", "unknown_500_accepted", _rows(Behaviour(status=500)), ends=DONE),
    Scenario(
        "submit", "unknown_500_not_accepted", _rows(Behaviour(status=500, accept=False)), ends=DONE
    ),
    Scenario("submit", "answer_lost", _rows(Behaviour(drop="after")), ends=DONE),
    Scenario("submit", "replay", _replay, ends=DONE),
    Scenario("submit", "replay_of_an_ended_job", lambda stage: _replay(stage, True), ends=DONE),
    Scenario("submit", "early_webhook", _early, ends=DONE),
    Scenario("submit", "cancel_wish_meanwhile", _wish_meanwhile),
    Scenario("submit", "cancel_wish_before", _wish_before),
    Scenario("submit", "probe_through_half_open_gate", _half_open, ends=DONE),
    Scenario("submit", "attempts_used_up", _used_up, ends={("failed", None)}),
    Scenario(
        "submit", "day_is_full", _rows(count=2), {"SUBMIT_DAILY_LIMIT": "1"}, check=_one_a_day
    ),
    Scenario("reap", "stale_claims", _stale, ends=DONE),
    Scenario("reap", "key_too_old", _too_old, ends={("failed", None)}),
    Scenario("reap", "another_generation", _failed, {"MAX_GENERATIONS": "2"}),
    Scenario("reap", "no_other_generation", _failed, ends={("submitted", "failed")}),
    Scenario("poll", "completed_with_result", _end("completed"), ends=DONE),
    Scenario("poll", "processing", _end("processing"), ends=DONE),
    Scenario("poll", "failed", _end("failed", error=RETRYABLE), ends={("submitted", "failed")}),
    Scenario("poll", "canceled", _end("canceled"), ends={("submitted", "canceled")}),
    Scenario("poll", "read_fails", _end("completed", Behaviour(status=500)), ends=DONE),
    Scenario("poll", "read_429", _end("completed", Behaviour(status=429)), ends=DONE),
    Scenario("poll", "read_401", _end("completed", Behaviour(status=401)), ends=DONE),
    Scenario("poll", "stale_read", _end("completed", Behaviour(job_status="queued")), ends=DONE),
    Scenario("poll", "result_not_there_yet", _result(Behaviour(status=409)), ends=DONE),
    Scenario("poll", "held_event", _held, ends={("submitted", "failed")}),
    Scenario("poll", "cancel_wish", _wanted_canceled),
    Scenario("poll", "cancel_too_late", _too_late_to_cancel, ends=DONE),
    Scenario("webhook", "completed", _event("completed"), ends=DONE),
    Scenario(
        "webhook", "failed", _event("failed", error=RETRYABLE), ends={("submitted", "failed")}
    ),
    Scenario("webhook", "held", _event_for_unknown, ends=DONE),
    Scenario("webhook", "duplicate", _event_again, ends=DONE),
    Scenario("webhook", "too_late", _event_too_late, ends=DONE),
    Scenario("webhook", "ignored", _event("odd"), ends=DONE),
    Scenario("webhook", "canceled", _event("canceled"), ends={("submitted", "canceled")}),
    Scenario("webhook", "hint", _event("completed"), {"WEBHOOK_VERIFICATION": "reread"}, ends=DONE),
    Scenario("dispatch", "sent", _owed(), TO_QUEUE, ends=DONE),
    Scenario("dispatch", "refused", _owed(refuse=1), TO_QUEUE, ends=DONE),
    Scenario("dispatch", "row_without_a_job", _owed(failed=True), TO_QUEUE),
    Scenario("dispatch", "to_a_bus", _owed(), TO_BUS, ends=DONE),
    Scenario("dispatch", "one_refused_by_a_bus", _owed(refuse=1), TO_BUS, ends=DONE),
    Scenario("dispatch", "to_both", _owed(), TO_BOTH, ends=DONE),
    Scenario("dispatch", "to_both_one_refuses", _owed(refuse=1), TO_BOTH, ends=DONE),
    Scenario("archive", "two_artifacts", _to_archive(2), TO_BUCKET, ends=DONE),
    Scenario("archive", "result_not_known", _to_archive(known=False), TO_BUCKET, ends=DONE),
    Scenario("archive", "url_lapsed", _to_archive(dead=True), TO_BUCKET, ends=DONE),
    Scenario("archive", "bucket_refuses", _to_archive(refuse=1), TO_BUCKET, ends=DONE),
    Scenario("archive", "archived_already", _archived_already, TO_BUCKET, ends=DONE),
    Scenario("api", "create", _post(LIST[0]), ends=DONE, check=_rows_are(1)),
    Scenario("api", "create_a_list", _post(LIST), ends=DONE, check=_rows_are(3)),
    Scenario("api", "create_with_known_ones", _post_known, ends=DONE, check=_rows_are(3)),
    Scenario(
        "api",
        "create_without_reference",
        _post({"prompt": "one"}),
        check=_rows_are(0, 1),
        comes_back=False,
    ),
    Scenario(
        "api", "cancel_pending", _cancel(lambda stage: stage.insert()), ends={("canceled", None)}
    ),
    Scenario("api", "cancel_sent", _cancel(_sent_just_now)),
    Scenario("api", "cancel_submitted", _cancel(lambda stage: stage.submitted())),
    Scenario("api", "cancel_too_late", _cancel(_ended), ends=DONE),
    Scenario("api", "show", _get("/jobs/1"), ends=DONE),
    Scenario("api", "list", _get("/jobs"), ends=DONE),
    Scenario("api", "support", _get("/support/jobs/1"), ends=DONE),
    Scenario("api", "stats", _get("/stats"), ends=DONE),
]
