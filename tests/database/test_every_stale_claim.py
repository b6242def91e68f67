"""What becomes of claims that ended without a word, in every combination of what reap asks.

As in `test_every_case.py`: each case is a row of its own, and the rule is told in words of Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sume_jobs.store import render_jobs

from tests.database.sessions import MAX_ATTEMPTS, Session, insert_past_triggers, reap
from tests.support.postgres import Database

FLAGS = (False, True)


@dataclass(frozen=True)
class Stale:
    """A claimed row; the ages are in seconds (None: damaged, negative: in the future)."""

    status: str
    claimed: int | None
    unknown: int | None
    attempts: int
    has_job: bool
    has_key: bool
    generation: int

    @property
    def is_stale(self) -> bool:
        """With a claim's life of 600 seconds."""
        is_over = self.claimed is None or self.claimed > 600 or self.claimed < -60
        return self.status == "submitting" and is_over

    @property
    def fate(self) -> str:
        if self.has_job:
            return "submitted"
        first = self.unknown if self.unknown is not None else max(self.claimed or 0, 0)
        if first > 86400:
            return "expired"
        return "exhausted" if self.attempts >= MAX_ATTEMPTS else "pending"


def test_every_claim_that_may_be_stale(database: Database, store: Any) -> None:
    cases = [
        Stale(*values)
        for values in itertools.product(
            ("submitting", "pending", "failed"), (None, 590, 610, 90_000, -30, -3600),
            (None, 3600, 90_000), (7, 8, 9), FLAGS, FLAGS, (1, 2),
        )
        if not (values[0] == "pending" and values[4])
    ]  # fmt: skip
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {
                    "id": number,
                    "prompt": "x",
                    "status": case.status,
                    "claim_token": "00000000-0000-0000-0000-000000000001",
                    "attempts": case.attempts,
                    "generation": case.generation,
                    "sume_job_id": f"job-{number}" if case.has_job else None,
                    "idempotency_key": f"key-{number}" if case.has_key else None,
                    "claimed_at": database.one(
                        "select now() - make_interval(secs => %s)", case.claimed
                    ),
                    "unknown_since": database.one(
                        "select now() - make_interval(secs => %s)", case.unknown
                    ),
                    "updated_at": "2001-01-01",
                }
                for number, case in enumerate(cases)
            ],
            # One of the jobs is known already.
            "gen_job": [{"job_id": job, "idempotency_key": job} for job in known_jobs(cases)],
        },
    )
    before = {row["id"]: row for row in database.rows()}
    fates: dict[str, int] = {}
    while batch := reap(store):
        fates = {fate: fates.get(fate, 0) + batch.get(fate, 0) for fate in fates | batch}
    stale = {number: case for number, case in enumerate(cases) if case.is_stale}
    wanted = [case.fate for case in stale.values()]
    assert fates == {fate: wanted.count(fate) for fate in set(wanted)}
    told = {
        row["render_job_id"]: row["job_id"]
        for row in database.query("select * from follow_up where kind = 'submission.failed'")
    }
    jobs = {job["job_id"]: job["idempotency_key"] for job in database.jobs()}
    for row in database.rows():
        number, case = row["id"], cases[row["id"]]
        if number not in stale:
            assert row == before[number], case
            assert number not in told, case
            continue
        status = case.fate if case.fate in ("pending", "submitted") else "failed"
        code = {"expired": "idempotency_window_expired", "exhausted": "attempts_exhausted"}
        assert (row["status"], row["error_code"]) == (status, code.get(case.fate)), case
        assert row["claim_token"] is None, case
        assert row["reaps"] == (case.fate != "submitted"), case
        if case.unknown is not None or case.fate == "submitted":
            assert row["unknown_since"] == before[number]["unknown_since"], case
        else:
            first = min(row["claimed_at"] or row["updated_at"], row["updated_at"])
            assert row["unknown_since"] == first, case
        suffix = f"-{case.generation}" if case.generation > 1 else ""
        key = f"key-{number}" if case.has_key else f"render-job-{number}{suffix}"
        assert told.get(number) == (key if status == "failed" else None), case
        if case.fate == "submitted":
            job = f"job-{number}"
            own = f"key-{number}" if case.has_key else f"render-job-{number}"
            assert jobs[job] == (job if job in known_jobs(cases) else own), case


def known_jobs(cases: list[Stale]) -> list[str]:
    return [f"job-{number}" for number, case in enumerate(cases) if case.has_job][:1]


def test_a_batch_of_stale_claims_locks_no_others(
    database: Database,
    session: Callable[[], Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(render_jobs, "REAP_BATCH", 2)
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {"id": number, "prompt": "x", "status": "submitting", "claimed_at": "2001-01-01"}
                for number in range(3)
            ]
        },
    )
    reaper = session()
    assert sum(reap(reaper).values()) == 2
    with database.session() as other:
        free = other.execute("select id from render_jobs for update skip locked").fetchall()
    assert len(free) == 1
