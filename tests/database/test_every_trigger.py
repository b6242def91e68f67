"""Triggers and the customer's view, in every combination of what they ask.

As in `test_every_case.py`: each case is a row of its own, and the rule is told in words of Python.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass

import psycopg
import pytest

from tests.database.sessions import insert_past_triggers
from tests.support.postgres import Database

STATUSES = ("pending", "submitting", "submitted", "failed", "canceled")
JOB_STATUSES = ("queued", "processing", "completed", "failed", "canceled")
FLAGS = (False, True)
PAST, FUTURE = "2001-01-01", "2999-01-01"


@dataclass(frozen=True)
class Row:
    """A row, and its job where it has one."""

    status: str
    job: str | None
    is_unknown: bool = False

    @property
    def is_possible(self) -> bool:
        return self.status == "submitted" or self.job is None


ROWS = [Row(*values) for values in itertools.product(STATUSES, (None, *JOB_STATUSES), FLAGS)]
ROWS = [row for row in ROWS if row.is_possible]


def put(database: Database, rows: list[Row]) -> None:
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {
                    "id": number,
                    "prompt": "x",
                    "status": row.status,
                    "sume_job_id": f"job-{number}" if row.status == "submitted" else None,
                    "unknown_since": PAST if row.is_unknown else None,
                    "updated_at": PAST,
                }
                for number, row in enumerate(rows, 1)
            ],
            "gen_job": [
                {
                    "job_id": f"job-{number}",
                    "idempotency_key": f"key-{number}",
                    "render_job_id": number,
                    "status": row.job,
                }
                for number, row in enumerate(rows, 1)
                if row.job
            ],
            "job_history": [
                {"render_job_id": number, "machine": "x", "by": "x", "from_status": "x",
                 "to_status": "x"}
                for number, _ in enumerate(rows, 1)
            ],
        },
    )  # fmt: skip


def is_at_sume(row: Row) -> bool:
    return row.job in ("queued", "processing")


def is_in_flight(row: Row) -> bool:
    return {
        "pending": row.is_unknown,
        "submitting": True,
        "submitted": is_at_sume(row),
    }.get(row.status, False)


def test_every_delete(database: Database) -> None:
    put(database, ROWS)
    for number, row in enumerate(ROWS, 1):
        goes = not is_in_flight(row)
        left = database.one("select count(*) from job_history")
        try:
            database.execute("delete from render_jobs where id = %s", number)
        except psycopg.errors.CheckViolation:
            assert not goes, row
        else:
            assert goes, row
            left -= 1
        assert database.one("select count(*) from job_history") == left, "with its own history"


def test_the_history_goes_with_what_is_truncated(database: Database) -> None:
    """Numbers may begin anew after it."""
    put(database, ROWS)
    with database.connection.transaction(force_rollback=True):
        database.execute("truncate render_jobs, gen_job")
        assert not database.query("select from job_history")


def test_every_wish_to_cancel(database: Database) -> None:
    put(database, ROWS)
    database.execute("update render_jobs set cancel_requested_at = '2002-01-01'")
    rows = database.query(
        """select r.status, r.cancel_requested_at is not null as is_kept,
                  r.updated_at > '2001-01-01' as is_news,
                  g.cancel_requested_at is not null as is_handed_on,
                  g.cancel_due_at <= now() as is_due
             from render_jobs r left join gen_job g on g.render_job_id = r.id order by r.id"""
    )
    for row, now in zip(ROWS, rows, strict=True):
        is_final = row.status == "pending" and not row.is_unknown
        is_kept = row.status in ("pending", "submitting") or is_at_sume(row)
        assert now == {
            "status": "canceled" if is_final else row.status,
            "is_kept": is_kept,
            "is_news": is_kept,
            "is_handed_on": is_at_sume(row),
            "is_due": True if is_at_sume(row) else None,
        }, row
    database.execute("update gen_job set cancel_due_at = null")
    database.execute("update render_jobs set cancel_requested_at = '2003-01-01'")
    assert database.one("select count(*) from gen_job where cancel_due_at is not null") == 0
    put_back = "update render_jobs set cancel_requested_at = null where status = 'submitting'"
    database.execute(put_back)
    assert database.one("select count(*) from render_jobs where status = 'submitting'") == 2


def test_every_new_generation(database: Database) -> None:
    put(database, ROWS)
    for number, row in enumerate(ROWS, 1):
        may = row.status not in ("pending", "submitting") and not is_at_sume(row)
        raise_it = f"update render_jobs set generation = %s, run_after = '{FUTURE}' where id = %s"
        with pytest.raises(psycopg.errors.CheckViolation, match="goes up by one"):
            database.execute(raise_it, 3, number)
        if may:
            database.execute(raise_it, 2, number)
            now = database.row(number)
            assert (now["status"], now["run_after"].year) == ("pending", 2999), row
        else:
            with pytest.raises(psycopg.errors.CheckViolation, match="has not ended"):
                database.execute(raise_it, 2, number)


def test_a_generation_is_never_due_before_now(database: Database) -> None:
    put(database, [Row("failed", None)])
    database.execute(f"update render_jobs set generation = generation + 1, run_after = '{PAST}'")
    assert database.one("select run_after = updated_at from render_jobs")


# ------------------------------------------------------------------------- what is frozen

FROZEN = {"prompt": "y", "model": "m", "params": '{"n": 1}', "idempotency_key": "k",
          "request_body": "b", "sume_job_id": "j"}  # fmt: skip


@pytest.mark.parametrize("column", FROZEN)
@pytest.mark.parametrize("status", ["submitting", "failed"])
@pytest.mark.parametrize("was_sent", FLAGS)
@pytest.mark.parametrize("has_job", FLAGS)
def test_every_edit(
    database: Database, column: str, status: str, was_sent: bool, has_job: bool
) -> None:
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {
                    "id": 1,
                    "prompt": "x",
                    "status": status,
                    "sume_job_id": "job" if has_job else None,
                    "idempotency_key": "key",
                    "request_body": "body" if was_sent else None,
                }
            ]
        },
    )
    may = not has_job if column == "sume_job_id" else not was_sent
    edit = f"update render_jobs set {column} = %s where id = 1"
    if may:
        assert database.execute(edit, FROZEN[column]) == 1
    else:
        with pytest.raises(psycopg.errors.CheckViolation, match=r"cannot (lose it|change)"):
            database.execute(edit, FROZEN[column])


# ------------------------------------------------------------------------- who moved a row


@dataclass(frozen=True)
class Move:
    """An update of a row, and what it changes besides the status."""

    was: str
    status: str
    token_was: bool
    token: str  # none, kept or another
    job_was: bool
    job: bool
    is_reaped: bool
    code: str | None

    @property
    def is_possible(self) -> bool:
        """As far as checks and triggers let it through."""
        return not (
            (self.status == "submitted" and not self.job)
            or (self.was == "submitted" and (self.status != "submitted" or not self.job_was))
            or (self.was == "pending" and self.job_was)
            or (self.status == "pending" and self.job)
            or (self.job_was and not self.job)
            or (self.token == "kept" and not self.token_was)
        )

    @property
    def by(self) -> str | None:
        if self.was == self.status:
            return None
        if self.is_reaped:
            return "reap"
        if (self.was, self.status) == ("submitting", "submitted") and self.job_was:
            return "reap"
        if self.status == "canceled":
            return "cancel"
        changes_token = self.token == "another" or (self.token == "none" and self.token_was)
        if self.status == "submitting" and changes_token:
            return "submit"
        if self.was == "submitting" and self.token_was and self.token == "none":
            return "submit"
        if self.status == "submitted" and not self.job_was:
            return "submit"
        if (self.was, self.status) == ("pending", "failed") and self.code == "attempts_exhausted":
            return "submit"
        return "operator"


def test_every_move_is_kept_under_who_made_it(database: Database) -> None:
    cases = [
        Move(*values)
        for values in itertools.product(
            STATUSES, STATUSES, FLAGS, ("none", "kept", "another"), FLAGS, FLAGS, FLAGS,
            (None, "attempts_exhausted"),
        )
    ]  # fmt: skip
    cases = [case for case in cases if case.is_possible]
    tokens = [str(uuid.uuid4()) for _ in cases]
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {
                    "id": number,
                    "prompt": "x",
                    "status": case.was,
                    "claim_token": tokens[number] if case.token_was else None,
                    "sume_job_id": f"job-{number}" if case.job_was else None,
                }
                for number, case in enumerate(cases)
            ]
        },
    )
    database.execute(
        """update render_jobs r
              set status = n.status, claim_token = n.token::uuid, sume_job_id = n.job,
                  reaps = reaps + n.reaped, error_code = n.code
             from unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[])
                  as n (id, status, token, job, reaped, code)
            where r.id = n.id""",
        list(range(len(cases))),
        [case.status for case in cases],
        [
            {"none": None, "kept": token, "another": str(uuid.uuid4())}[case.token]
            for case, token in zip(cases, tokens, strict=True)
        ],
        [f"job-{number}" if case.job else None for number, case in enumerate(cases)],
        [int(case.is_reaped) for case in cases],
        [case.code for case in cases],
    )
    kept = {row["render_job_id"]: row for row in database.query("select * from job_history")}
    for number, case in enumerate(cases):
        found = kept.get(number)
        assert (found and found["by"]) == case.by, case
        if found:
            moved = (found["machine"], found["from_status"], found["to_status"])
            assert moved == ("submission", case.was, case.status), case
    assert len(kept) == sum(case.by is not None for case in cases)


# ------------------------------------------------------------------------- what people see


@dataclass(frozen=True)
class Seen:
    """A row with its job, as the customer's view reads them."""

    status: str
    job: str | None
    attention: str | None
    has_result: bool
    is_unwanted: bool
    was_sent: bool
    is_planned: bool

    @property
    def state(self) -> str:
        if self.status in ("failed", "canceled"):
            return "needs_attention"
        if self.job in ("failed", "canceled") or self.attention:
            return "needs_attention"
        return "done" if self.job == "completed" else "working"

    @property
    def sentence(self) -> str:
        """The word that tells its sentence from all others."""
        if "canceled" in (self.status, self.job):
            return "was canceled"
        if "failed" in (self.status, self.job):
            return "did not succeed"
        if self.attention:
            is_missing = self.attention == "result_missing"
            return "its files are not here yet" if is_missing else "takes longer"
        if self.job == "completed":
            return "is done." if self.has_result else "follow in a moment"
        if self.is_unwanted:
            return "is being canceled"
        is_later = self.status == "pending" and not self.was_sent and self.is_planned
        return "planned for later" if is_later else "is being made"


@pytest.mark.parametrize("wish_is_of_the_job", FLAGS)
def test_everything_that_a_customer_may_see(database: Database, wish_is_of_the_job: bool) -> None:
    cases = [
        Seen(*values)
        for values in itertools.product(
            STATUSES, (None, *JOB_STATUSES), (None, "overdue", "result_missing"),
            FLAGS, FLAGS, FLAGS, FLAGS,
        )
    ]  # fmt: skip
    cases = [
        case
        for case in cases
        if (case.status == "submitted" or case.job is None)
        and (case.job is not None or not (case.attention or case.has_result))
        and not (case.job is None and case.is_unwanted and wish_is_of_the_job)
    ]
    result = '{"artifacts": [1]}'
    insert_past_triggers(
        database,
        {
            "render_jobs": [
                {
                    "id": number,
                    "prompt": "x",
                    "status": case.status,
                    "sume_job_id": f"job-{number}" if case.status == "submitted" else None,
                    "cancel_requested_at": PAST
                    if case.is_unwanted and not wish_is_of_the_job
                    else None,
                    "sends": int(case.was_sent),
                    "run_after": FUTURE if case.is_planned else PAST,
                    "updated_at": "2002-01-01",
                }
                for number, case in enumerate(cases)
            ],
            "gen_job": [
                {
                    "job_id": f"job-{number}",
                    "idempotency_key": f"key-{number}",
                    "status": case.job,
                    "attention": case.attention,
                    "result": result if case.has_result else None,
                    "cancel_requested_at": PAST
                    if case.is_unwanted and wish_is_of_the_job
                    else None,
                    "updated_at": "2003-01-01" if number % 2 else "2001-01-01",
                }
                for number, case in enumerate(cases)
                if case.job
            ],
        },
    )
    seen = database.query("select * from job_customer order by id")
    for number, (case, now) in enumerate(zip(cases, seen, strict=True)):
        assert now["state"] == case.state, case
        assert case.sentence in now["sentence"], case
        artifacts = ([1] if case.has_result else []) if case.job == "completed" else None
        assert now["artifacts"] == artifacts, case
        assert now["updated_at"].year == (2003 if case.job and number % 2 else 2002), case
