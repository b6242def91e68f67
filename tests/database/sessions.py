"""Words of the database tests: sessions of the product's role, and rows in every state.

`Session` stands in for the product's `Database`: the same `run`, but its transaction stays open
until `commit`, so that two of them can be held against each other. All of them are ended with the
test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import dict_row
from sume_jobs.decisions.pacing import Pace, pace
from sume_jobs.store import gen_jobs, render_jobs
from sume_jobs.store.render_jobs import Accepted, Claim, ClaimSettings, Recorded, Refused

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.postgres import Database

T = TypeVar("T")
# Rows to be inserted, by table.
Rows = dict[str, list[dict[str, Any]]]

WIDE = pace(10**6)
RETENTION = 86400
MAX_ATTEMPTS = 8
CLAIM_TIMEOUT = 600


class Session:
    """One session of the product's role with a transaction that stays open."""

    def __init__(self, database: Database) -> None:
        self.connection = psycopg.connect(
            database.url, row_factory=dict_row, prepare_threshold=None
        )
        self.pid = self.connection.info.backend_pid

    def run(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        cursor = self.connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


@contextmanager
def in_background(database: Database) -> Iterator[Callable[..., Future[Any]]]:
    """`start(function, …)` runs it in a thread; leaving waits for all of them."""
    with ThreadPoolExecutor(32) as pool:
        yield pool.submit


def wait_for_lock(database: Database, count: int = 1) -> None:
    """Wait until so many of the product's sessions wait for a lock."""

    def waiting() -> bool:
        return sum(1 for session in database.sessions() if is_lock(session["wait_event"])) >= count

    wait_until(waiting, f"{count} sessions wait for a lock")


def is_lock(event: str | None) -> bool:
    return event in ("transactionid", "tuple", "relation", "speculative token", "advisory")


def claiming(
    prefix: str = "render-job",
    webhook_url: str | None = None,
    retention: int = RETENTION,
    max_attempts: int = MAX_ATTEMPTS,
    rate: Pace = WIDE,
    daily_limit: int = 0,
) -> ClaimSettings:
    return ClaimSettings(prefix, webhook_url, retention, max_attempts, 25.0, rate, daily_limit)


def claim(
    store: Any, wanted: int = 100, alone: bool = True, settings: ClaimSettings | None = None
) -> list[Claim]:
    """Claim due rows, as submit does."""
    return render_jobs.claim(store, settings or claiming(), wanted, alone).claims


def one_claim(store: Any, settings: ClaimSettings | None = None) -> Claim:
    (only,) = claim(store, settings=settings)
    return only


def accept(
    store: Any, claimed: Claim, job_id: str | None = None, request_id: str | None = None
) -> Recorded:
    """Record that Sume accepted a claim."""
    answer = Accepted(
        claimed.row_id,
        claimed.token,
        claimed.key,
        job_id or f"job_{claimed.key}",
        request_id,
    )
    (recorded,) = render_jobs.record(store, [answer], MAX_ATTEMPTS, 5.0)
    return recorded


def refuse(
    store: Any,
    claimed: Claim,
    action: str = "requeue",
    max_attempts: int = MAX_ATTEMPTS,
    **facts: Any,
) -> Recorded:
    """Record any other answer to a claim."""
    answer = Refused(claimed.row_id, claimed.token, claimed.key, action, **facts)
    (recorded,) = render_jobs.record(store, [answer], max_attempts, 5.0)
    return recorded


def reap(store: Any, **changes: int) -> dict[str, int]:
    settings = {
        "claim_timeout": CLAIM_TIMEOUT,
        "retention": RETENTION,
        "max_attempts": MAX_ATTEMPTS,
    } | changes
    return render_jobs.reap(store, **settings, prefix="render-job")


def submitted(database: Database, store: Any, count: int = 1) -> list[tuple[int, str]]:
    """Rows whose jobs are queued at Sume: (row id, job id)."""
    database.insert_many(count)
    claims = claim(store, count)
    answers = [Accepted(c.row_id, c.token, c.key, f"job_{c.key}") for c in claims]
    recorded = render_jobs.record(store, answers, MAX_ATTEMPTS, 5.0)
    assert {each.fate for each in recorded} == {"submitted"}
    return [(c.row_id, f"job_{c.key}") for c in claims]


def a_job(database: Database, store: Any) -> tuple[int, str]:
    (pair,) = submitted(database, store)
    return pair


def move(store: Any, job_id: str, status: str, error: Any = None) -> bool:
    """Let Sume report a status; tells whether it won."""
    text = json.dumps(error) if error is not None else None
    code = error.get("code") if isinstance(error, dict) else None
    moved = gen_jobs.apply(store, [gen_jobs.Wish(job_id, status, code, text)])
    return moved[0].won


def put(database: Database, row_id: int, **columns: Any) -> None:
    """Set columns of a row as nobody may: past the triggers."""
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        for name, value in columns.items():
            database.execute(f"update render_jobs set {name} = %s where id = %s", value, row_id)


def insert_past_triggers(database: Database, tables: Rows) -> None:
    """Insert rows by table, past the triggers; all rows of a table have the same columns."""
    with database.connection.transaction(), database.connection.cursor() as cursor:
        cursor.execute("set local session_replication_role = replica")
        for table, rows in tables.items():
            if rows:
                values = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(
                    f"insert into {table} ({', '.join(rows[0])}) values ({values})",
                    [tuple(row.values()) for row in rows],
                )
