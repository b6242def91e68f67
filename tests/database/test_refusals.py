"""What the database refuses, from any language, and the words that say what to do instead."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from sume_jobs.store import render_jobs

from tests.database.sessions import a_job, accept, move, one_claim, refuse, submitted
from tests.support.postgres import Database

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt is empty", "Insert the text"),
    ({"prompt": " \n\t"}, "prompt is empty", "Insert the text"),
    ({"prompt": "x" * 32001}, "prompt has 32001 characters", "Shorten it"),
    ({"priority": 4}, "priority 4 is out of range", "Use 0 (first)"),
    ({"priority": -1}, "priority -1 is out of range", "Use 0 (first)"),
    ({"model": ""}, "model is empty", "for example sume/auto"),
    ({"model": "a b"}, "printable ASCII", "for example sume/auto"),
    ({"model": "m" * 201}, "too long", "for example sume/auto"),
    ({"params": []}, "params must be a JSON object", "mode and webhook_url are set"),
    ({"params": {"prompt": 1}}, "params must be a JSON object", "Use the columns"),
    ({"params": {"model": 1}}, "without model", "Use the columns"),
    ({"params": {"mode": 1}}, "without model", "are set by the bundle"),
    ({"params": {"webhook_url": 1}}, "webhook_url", "are set by the bundle"),
    ({"reference": ""}, "reference is empty", "Leave it null"),
    ({"reference": "r" * 501}, "longer than 500 bytes", "Leave it null"),
    ({"idempotency_key": ""}, "cannot be sent as a header", "Leave it null"),
    ({"idempotency_key": " a"}, "cannot be sent as a header", "Leave it null"),
    ({"idempotency_key": "a\nb"}, "cannot be sent as a header", "Leave it null"),
    ({"idempotency_key": "\u00e9"}, "cannot be sent as a header", "printable ASCII"),
    ({"idempotency_key": "k" * 256}, "cannot be sent as a header", "1 to 255"),
    ({"status": "submitted"}, "needs its sume_job_id", "without a status"),
    ({"sume_job_id": "job_1"}, "a pending row cannot have a sume_job_id", "raise its generation"),
    ({"status": "done"}, "render_jobs_status", ""),
    ({"request_body": "{}"}, "render_jobs_body_has_key", ""),
]


def insert(database: Database, **columns: Any) -> int:
    values = {"prompt": "a fox", **columns}
    if isinstance(values.get("params"), list):
        values["params"] = Jsonb(values["params"])
    return database.insert(**values)


@pytest.mark.parametrize(("columns", "message", "hint"), REFUSED, ids=lambda value: None)
def test_a_bad_row_is_refused_with_what_to_do(
    database: Database, columns: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        insert(database, **columns)
    assert message in str(caught.value)
    assert hint in (caught.value.diag.message_hint or "")
    assert database.rows() == []


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": "x" * 32000},
        {"prompt": "\u2003x"},
        {"prompt": "😀" * 32000},
        {"model": "m" * 200},
        {"params": {"quality": "high"}},
        {"reference": "r" * 500},
        {"idempotency_key": "k" * 255},
        {"idempotency_key": "a b"},
        {"priority": 0},
        {"priority": 3},
    ],
)
def test_at_the_bounds_it_is_taken(database: Database, columns: dict[str, Any]) -> None:
    assert insert(database, **columns)


def test_a_key_or_a_reference_is_unique(database: Database) -> None:
    for column in ("idempotency_key", "reference"):
        insert(database, **{column: "one"})
        with pytest.raises(psycopg.errors.UniqueViolation):
            insert(database, **{column: "one"})


def edit(database: Database, row: int, assignment: str) -> None:
    with database.session(autocommit=True) as app:
        app.execute(f"update render_jobs set {assignment} where id = %s", (row,))


@pytest.mark.parametrize(
    "assignment",
    ["prompt = 'another'", "model = 'sume/other'", """params = '{"n": 2}'""",
     "idempotency_key = 'another'", "idempotency_key = null", "request_body = null"],
)  # fmt: skip
@pytest.mark.parametrize("state", ["submitting", "pending", "submitted", "failed"])
def test_what_was_sent_cannot_change(
    database: Database, store: Any, assignment: str, state: str
) -> None:
    row = database.insert()
    claimed = one_claim(store)
    if state == "pending":
        refuse(store, claimed)
    elif state == "submitted":
        accept(store, claimed)
    elif state == "failed":
        refuse(store, claimed, "fail", error_code="bad")
    before = database.row(row)
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        edit(database, row, assignment)
    assert "was already sent to Sume" in str(caught.value)
    assert "Insert a new row" in (caught.value.diag.message_hint or "")
    assert database.row(row) == before


def test_before_the_first_claim_everything_may_change(database: Database, store: Any) -> None:
    row = database.insert()
    edit(database, row, "prompt = 'another', model = 'sume/other', idempotency_key = 'mine'")
    assert one_claim(store).key == "mine"


def test_a_job_id_is_never_lost_or_changed(database: Database, store: Any) -> None:
    row, _ = a_job(database, store)
    for assignment in ("sume_job_id = null", "sume_job_id = 'job_other'"):
        with pytest.raises(psycopg.errors.CheckViolation, match="cannot lose it") as caught:
            edit(database, row, assignment)
        assert "ask for a new generation" in (caught.value.diag.message_hint or "")


@pytest.mark.parametrize("status", ["pending", "submitting", "failed", "canceled"])
def test_submitted_does_not_go_back(database: Database, store: Any, status: str) -> None:
    row, _ = a_job(database, store)
    with pytest.raises(psycopg.errors.CheckViolation, match="does not go back"):
        edit(database, row, f"status = '{status}'")


@pytest.mark.parametrize("state", ["pending", "submitting", "submitted", "completed", "failed"])
def test_an_orm_that_writes_every_column_back_is_not_refused(
    database: Database, store: Any, state: str
) -> None:
    row = database.insert(params={"n": 1})
    if state != "pending":
        claimed = one_claim(store)
        if state == "failed":
            refuse(store, claimed, "fail", error_code="bad", error={"code": "bad"})
        elif state != "submitting":
            accept(store, claimed, "job_1")
            if state == "completed":
                move(store, "job_1", "completed")
    before = database.row(row)
    names = [name for name in before if name != "id"]
    statement = sql.SQL("update render_jobs set {} where id = %s").format(
        sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in names)
    )
    values = [Jsonb(v) if isinstance(v, dict) else v for v in (before[n] for n in names)]
    with psycopg.connect(database.url, autocommit=True, row_factory=dict_row) as app:
        app.execute(statement, [*values, row])
    assert database.row(row) == before


@pytest.mark.parametrize(
    ("state", "goes"),
    [
        ("pending", True),
        ("pending, perhaps sent", False),
        ("submitting", False),
        ("queued", False),
        ("processing", False),
        ("completed", True),
        ("failed", True),
        ("canceled", True),
    ],
)
def test_delete_in_flight_is_refused(
    database: Database, store: Any, state: str, goes: bool
) -> None:
    row = database.insert()
    if state == "canceled":
        render_jobs.request_cancel(store, row)
    elif state != "pending":
        claimed = one_claim(store)
        if state == "pending, perhaps sent":
            refuse(store, claimed, unknown=True)
        elif state == "failed":
            refuse(store, claimed, "fail", error_code="bad")
        elif state != "submitting":
            accept(store, claimed, "job_1")
            if state != "queued":
                move(store, "job_1", state)
    with database.session(autocommit=True) as app:
        if goes:
            app.execute("delete from render_jobs where id = %s", (row,))
            assert database.rows() == []
        else:
            with pytest.raises(psycopg.errors.CheckViolation, match="is in flight") as caught:
                app.execute("delete from render_jobs where id = %s", (row,))
            assert "cancel it first" in (caught.value.diag.message_hint or "")


def test_unknown_statuses_are_never_written(database: Database, store: Any) -> None:
    _, job = a_job(database, store)
    for statement in (
        "update gen_job set status = 'thinking'",
        "update webhook_event set outcome = 'lost'",
    ):
        if "webhook_event" in statement:
            database.execute(
                "insert into webhook_event (event_id, body, outcome) values ('e', '{}', 'noop')"
            )
        with pytest.raises(psycopg.errors.CheckViolation):
            database.execute(statement)
    assert database.job(job)["status"] == "queued"


def test_many_rows_in_one_statement_are_all_or_nothing(database: Database, store: Any) -> None:
    with (
        database.session(autocommit=True) as app,
        pytest.raises(psycopg.errors.CheckViolation, match="prompt is empty"),
    ):
        app.execute("insert into render_jobs (prompt) values ('one'), (''), ('three')")
    assert database.rows() == []
    assert len(submitted(database, store, 3)) == 3


# ------------------------------------------------------------------------- by plain SQL


def test_a_generation_goes_up_by_one_and_only_when_the_last_has_ended(
    database: Database, store: Any
) -> None:
    row, job = a_job(database, store)
    with pytest.raises(psycopg.errors.CheckViolation, match="has not ended"):
        edit(database, row, "generation = generation + 1")
    move(store, job, "failed", {"code": "c"})
    for wrong in ("generation + 2", "generation - 1"):
        with pytest.raises(psycopg.errors.CheckViolation, match="goes up by one"):
            edit(database, row, f"generation = {wrong}")
    edit(database, row, "generation = generation + 1")
    again = one_claim(store)
    assert again.key == f"render-job-{row}-2"
    assert database.job(job)["status"] == "failed", "the last one stays recorded"


def test_a_new_generation_may_have_another_prompt(database: Database, store: Any) -> None:
    row, job = a_job(database, store)
    move(store, job, "completed")
    edit(database, row, "generation = generation + 1, prompt = 'another'")
    assert "another" in one_claim(store).body


def test_a_wish_to_cancel_by_plain_sql(database: Database, store: Any) -> None:
    pending = database.insert()
    edit(database, pending, "cancel_requested_at = now()")
    assert database.row(pending)["status"] == "canceled"
    row, job = a_job(database, store)
    edit(database, row, "cancel_requested_at = now()")
    assert database.job(job)["cancel_due_at"] is not None
    assert database.job(job)["status"] == "queued"
