"""Misbehaviour on order: for one request (`Behaviour`), for one job's webhook
(`WebhookBehaviour`), or as a share of everything (`Weather`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

T = TypeVar("T")

UNSET: Any = type("Unset", (), {"__repr__": lambda self: "UNSET", "__bool__": lambda self: False})()
"""Says that a field was not given, where None is a value of its own."""


@dataclass(frozen=True, kw_only=True)
class WebhookBehaviour:
    """What goes wrong with the webhook of one job."""

    lost: bool = False
    """Never sent; the job's delivery state ends as `exhausted`."""
    early: bool = False
    """The job ends, and its webhook is sent and answered, before the submit is answered."""
    duplicate: int = 0
    """How many more copies are sent at the same moment as the first."""
    new_event_id: bool = False
    """Every copy and every redelivery carries another event id."""
    reorder: bool = False
    """Held back until the webhook of a later job has been sent (two seconds at most)."""
    delay: float = 0.0
    """Seconds between the job's end and the first delivery."""
    bad_signature: bool = False
    """Signed with a secret that is not the integration's."""
    old_by: float = 0.0
    """Seconds the timestamp lies in the past (negative: in the future)."""
    same_timestamp: bool = False
    """Redeliveries are byte-identical, with the first delivery's timestamp and signature."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How one request is answered instead of normally. Every field is optional.

    A job is created, or found by its key, before the answer is spoiled, unless `accept` is False;
    `accept` is False by itself for 3xx, for 4xx but 408, for 503 and for `drop="before"`.
    """

    status: int | None = None
    """The HTTP status. With a job made and 2xx, the body stays the normal one."""
    json: Any = UNSET
    """The body, as a JSON value, or a callable that makes it from the job (or None)."""
    body: bytes | None = None
    """The body, as bytes (sent as text/html unless `headers` says otherwise)."""
    code: str | None = None
    """The error code of the error envelope, where the status alone says too little."""
    message: str | None = None
    details: Any = None
    """`error.details` of the error envelope."""
    retryable: bool | None = None
    """`error.retryable` of the error envelope."""
    headers: Mapping[str, str] = field(default_factory=dict)
    accept: bool | None = None
    drop: Literal["before", "after", "mid_body"] | None = None
    """Reset the connection before anything is done, or after the job was made; or send the whole
    header and half of the body, then close."""
    cut: bool = False
    """Send half of the body as if it were all of it: a well-formed answer with broken JSON."""
    delay: float = 0.0
    """Seconds to wait before answering."""
    drip: float | None = None
    """Send the body at so many bytes a second."""
    pad: int = 0
    """Send so many spaces after the body."""
    hold: threading.Event | None = None
    """Answer only once this event is set."""
    call: Callable[[Any], object] | None = None
    """Called with the job (or None) in a thread of its own, after accepting and before
    answering."""
    replay_status: int | None = None
    """The HTTP status if this submit turns out to be a replay."""
    capacity: Any = UNSET
    """`generation_limits.queue_capacity_remaining` of the answer; "missing" leaves it out."""
    capacity_place: Literal["data", "root", "job"] = "data"
    """Where `generation_limits` stands in the answer."""
    twin: Literal["replay", "wait", "conflict"] | None = None
    """What this submit gets while another one with its key is still being answered."""
    job_status: str | None = None
    """The status word shown, whatever the job's own is: a stale or an unknown one."""
    job_error: Any = UNSET
    """The job error shown, whatever the job's own is."""
    job_id: str | None = None
    """The job id shown in a read, whatever the job's own is."""
    webhook: WebhookBehaviour | None = None
    """What goes wrong with the webhook of the job that this submit makes."""

    @property
    def accepts(self) -> bool:
        if self.accept is not None:
            return self.accept
        if self.drop == "before":
            return False
        status = self.status or 202
        return not (300 <= status < 500 and status != 408) and status != 503

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Behaviour:
        """Read a behaviour that came over HTTP; a ValueError names an unknown field."""
        given = dict(value)
        for name in ("hold", "call"):
            if name in given:
                raise ValueError(f"{name} is only possible inside the process")
        if isinstance(given.get("body"), str):
            given["body"] = given["body"].encode()
        if given.get("webhook") is not None:
            given["webhook"] = webhook_from_json(given["webhook"])
        return cls(**_known(cls, given))


def webhook_from_json(value: Mapping[str, Any]) -> WebhookBehaviour:
    """Read a webhook behaviour that came over HTTP; a ValueError names an unknown field."""
    return WebhookBehaviour(**_known(WebhookBehaviour, value))


def _known(cls: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(value) - {item.name for item in dataclasses.fields(cls)}
    if unknown:
        raise ValueError(f"unknown field: {', '.join(sorted(unknown))}")
    return dict(value)


NORMAL = Behaviour()
NORMAL_WEBHOOK = WebhookBehaviour()


class Script(Generic[T]):
    """What was ordered for one kind of request: once each, or always.

    A selector is an idempotency key or a job id; None stands for any.
    """

    def __init__(self) -> None:
        self._once: dict[str | None, deque[T]] = {}
        self._always: dict[str | None, T] = {}

    def add(self, behaviours: tuple[T, ...], selector: str | None) -> None:
        self._once.setdefault(selector, deque()).extend(behaviours)

    def set(self, behaviour: T | None, selector: str | None) -> None:
        if behaviour is None:
            self._always.pop(selector, None)
        else:
            self._always[selector] = behaviour

    def clear(self) -> None:
        self._once.clear()
        self._always.clear()

    def next(self, *selectors: str | None) -> T | None:
        """The behaviour for the next request: a one-shot before a lasting one, and what was
        ordered for this key or job before what was ordered for any."""
        if not self._once and not self._always:
            return None
        for selector in (*selectors, None):
            waiting = self._once.get(selector)
            if waiting:
                return waiting.popleft()
        for selector in (*selectors, None):
            if selector in self._always:
                return self._always[selector]
        return None


HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"

# For each kind of request: the name of the weather, and what it does. The first that is drawn wins.
SUBMIT_WEATHER: dict[str, Behaviour] = {
    "rate429": Behaviour(status=429, code="rate_limit_exceeded"),
    "queue_full": Behaviour(status=429, code="queue_full"),
    "unavailable": Behaviour(status=503),
    "error500": Behaviour(status=500),
    "error500_before": Behaviour(status=500, accept=False),
    "bad_gateway": Behaviour(status=502, body=HTML),
    "unauthorized": Behaviour(status=401),
    "credits": Behaviour(status=402),
    "forbidden": Behaviour(status=403),
    "invalid": Behaviour(status=400),
    "in_progress": Behaviour(status=409, code="idempotency_in_progress"),
    "drop_before": Behaviour(drop="before"),
    "drop_after": Behaviour(drop="after"),
    "mid_body": Behaviour(drop="mid_body"),
    "cut_body": Behaviour(cut=True),
    "drip": Behaviour(drip=200),
    "slow": Behaviour(),
}
READ_WEATHER: dict[str, Behaviour] = {
    "read429": Behaviour(status=429, code="rate_limit_exceeded"),
    "read_error": Behaviour(status=500),
    "read_page": Behaviour(status=200, body=HTML),
    "read_missing": Behaviour(status=404, code="job_not_found"),
    "read_drop": Behaviour(drop="after"),
    "read_cut": Behaviour(cut=True),
    "read_stale": Behaviour(job_status="queued"),
    "read_unknown": Behaviour(job_status="throttled"),
    "read_slow": Behaviour(),
}
RESULT_WEATHER: dict[str, Behaviour] = {
    "result_late": Behaviour(status=409, code="job_not_completed", details={"status": "completed"}),
    "result_error": Behaviour(status=500),
    "result_empty": Behaviour(
        json=lambda job: {
            "data": {"request_id": job.id, "status": "COMPLETED", "result": {"artifacts": []}}
        }
    ),
}
CANCEL_WEATHER: dict[str, Behaviour] = {
    "cancel_error": Behaviour(status=500),
    "cancel_drop": Behaviour(drop="after"),
}
ARTIFACT_WEATHER: dict[str, Behaviour] = {
    "artifact_forbidden": Behaviour(status=403),
    "artifact_page": Behaviour(status=200, body=b"<html>This image is not available</html>"),
    "artifact_short": Behaviour(drop="mid_body"),
}
WEBHOOK_WEATHER: dict[str, WebhookBehaviour] = {
    "lost_webhook": WebhookBehaviour(lost=True),
    "early_webhook": WebhookBehaviour(early=True),
    "duplicate_webhook": WebhookBehaviour(duplicate=1),
    "new_event_id_webhook": WebhookBehaviour(duplicate=1, new_event_id=True),
    "reorder_webhook": WebhookBehaviour(reorder=True),
    "late_webhook": WebhookBehaviour(delay=5.0),
    "bad_signature_webhook": WebhookBehaviour(bad_signature=True),
    "old_webhook": WebhookBehaviour(old_by=3600.0),
}
# Shares of jobs: how they go, not how a request is answered.
JOB_WEATHER = frozenset({"failed", "canceled", "skip_processing"})
# These are amounts, not shares.
AMOUNTS = {"retry_after": 1.0, "slow_seconds": 3.0}

SHARES = frozenset(
    {
        *SUBMIT_WEATHER,
        *READ_WEATHER,
        *RESULT_WEATHER,
        *CANCEL_WEATHER,
        *ARTIFACT_WEATHER,
        *WEBHOOK_WEATHER,
        *JOB_WEATHER,
    }
)


class Weather:
    """Misbehaviour by share, drawn from the seed, the name and the key alone.

    Two runs with one seed treat one key alike, in whatever order the requests come. A key's
    second request draws anew, so that nothing is refused for ever.
    """

    def __init__(self, seed: int = 0, shares: Mapping[str, float] | None = None) -> None:
        self.seed = seed
        self.values: dict[str, float] = {}
        self._count: dict[str, int] = {}
        self.update(shares or {})

    def update(self, shares: Mapping[str, float]) -> None:
        """Change some values. A ValueError names an unknown one, or one that is no share."""
        for name, value in shares.items():
            if name not in SHARES and name not in AMOUNTS:
                known = ", ".join(sorted(SHARES | set(AMOUNTS)))
                raise ValueError(f"unknown weather {name!r}; known are: {known}")
            if value < 0 or (name in SHARES and value > 1):
                raise ValueError(f"weather {name} must be from 0 to 1, not {value}")
        self.values.update(shares)

    def replace(self, shares: Mapping[str, float]) -> None:
        """Forget all values, then set these."""
        fresh = Weather(self.seed, shares)
        self.values = fresh.values

    def draw(self, name: str, subject: str) -> float:
        """A number from 0 to 1 (1 excluded), always the same for one seed, name and subject."""
        text = f"{self.seed}|{name}|{subject}".encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(text, digest_size=7).digest()
        return int.from_bytes(digest, "big") / (1 << 56)

    def strikes(self, name: str, subject: str) -> bool:
        share = self.values.get(name, 0.0)
        return share > 0 and self.draw(name, subject) < share

    def amount(self, name: str) -> float:
        return self.values.get(name, AMOUNTS[name])

    def request(self, table: Mapping[str, Behaviour], subject: str) -> Behaviour | None:
        """The misbehaviour of one request about this subject (a key or a job id), or None."""
        if not self.values:
            return None
        name = self._struck(table, subject)
        if name is None:
            return None
        behaviour = table[name]
        if name in {"slow", "read_slow"}:
            return dataclasses.replace(behaviour, delay=self.amount("slow_seconds"))
        if name in {"rate429", "read429"}:
            seconds = f"{self.amount('retry_after'):g}"
            return dataclasses.replace(behaviour, headers={"Retry-After": seconds})
        return behaviour

    def webhook(self, subject: str) -> WebhookBehaviour | None:
        """The misbehaviour of one job's webhook, or None."""
        if not self.values:
            return None
        name = self._struck(WEBHOOK_WEATHER, subject)
        return None if name is None else WEBHOOK_WEATHER[name]

    def _struck(self, table: Mapping[str, object], subject: str) -> str | None:
        names = [name for name in table if self.values.get(name, 0.0) > 0]
        if not names:
            return None
        # The tables count apart: a read of a job takes nothing from its webhook's draws.
        counter = f"{names[0]}|{subject}"
        count = self._count[counter] = self._count.get(counter, 0) + 1
        for name in names:
            if self.strikes(name, f"{subject}|{count}"):
                return name
        return None
