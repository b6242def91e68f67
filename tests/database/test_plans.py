"""History costs nothing: 100,000 finished rows, and each hot statement touches a few pages.

Under every state of the planner's statistics: fresh ones, none at all (a table that was never
analyzed), and stale ones (analyzed when the tables held a handful of rows, all of them hot).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sume_jobs.store import gen_jobs, levels, render_jobs, retention, webhook_events
from sume_jobs.store import pace as gate

from tests.database.sessions import WIDE, claiming
from tests.support.postgres import Database, Server, create_database, drop_database

HISTORY = 100_000
HOT = 10
TABLES = ("render_jobs", "gen_job", "webhook_event", "follow_up", "job_conflict")

LOAD = f"""
insert into render_jobs (id, prompt, status, sume_job_id, idempotency_key, request_body, attempts,
                         sends, claimed_at, created_at, updated_at, run_after, error_code)
select n, 'a lighthouse at dusk, in oil, number ' || n,
       case when n % 20 = 0 then 'failed' else 'submitted' end,
       case when n % 20 > 0 then 'job_' || n end, 'render-job-' || n,
       '{{"prompt": "a lighthouse at dusk, in oil"}}', 1, 1, at, at, at, at,
       case when n % 20 = 0 then 'bad' end
  from generate_series(1, {HISTORY}) n,
       lateral (select now() - interval '29 days' + n * interval '1 s') t (at);
insert into gen_job (job_id, idempotency_key, render_job_id, status, next_poll_at, result,
                     created_at, updated_at)
select sume_job_id, idempotency_key, id, case when id % 20 = 1 then 'failed' else 'completed' end,
       null, '{{"artifacts": [{{"url": "https://media/1.png"}}]}}', created_at, updated_at
  from render_jobs where sume_job_id is not null and id <= {HISTORY};
insert into follow_up (job_id, kind, render_job_id, created_at, run_after, dispatched_at)
select job_id, 'job.' || status, render_job_id, created_at, created_at, created_at
  from gen_job where render_job_id <= {HISTORY};
insert into webhook_event (event_id, job_id, job_status, body, outcome, received_at)
select 'evt_' || job_id, job_id, status, '{{"id": "evt", "data": {{}}}}', 'applied', created_at
  from gen_job where render_job_id <= {HISTORY};
"""

# A handful of rows in every hot state, with numbers above all of the history.
HOT_ROWS = f"""
insert into render_jobs (id, prompt, priority) select {HISTORY} + n, 'pending ' || n, n % 4
  from generate_series(1, {HOT}) n;
insert into render_jobs (id, prompt, status, claim_token, claimed_at, attempts, sends,
                         idempotency_key, request_body)
select {HISTORY} + 100 + n, 'submitting', 'submitting', gen_random_uuid(),
       now() - interval '1 hour', 1, 1, 'render-job-' || {HISTORY} + 100 + n, '{{}}'
  from generate_series(1, {HOT}) n;
insert into render_jobs (id, prompt, status, sume_job_id, attempts, sends, idempotency_key,
                         request_body)
select {HISTORY} + 200 + n, 'submitted', 'submitted', 'job_' || {HISTORY} + 200 + n, 1, 1,
       'render-job-' || {HISTORY} + 200 + n, '{{}}'
  from generate_series(1, {HOT}) n;
insert into gen_job (job_id, idempotency_key, render_job_id, next_poll_at, cancel_due_at)
select sume_job_id, idempotency_key, id, now() - interval '1 minute', now()
  from render_jobs where prompt = 'submitted';
insert into webhook_event (event_id, job_id, job_status, body, outcome)
select 'held_' || n, 'job_early_' || n, 'completed', '{{}}', 'held'
  from generate_series(1, {HOT}) n;
"""


@pytest.fixture(scope="module")
def history(postgres: Server, template: str) -> Iterator[Database]:
    """The database with its history, never analyzed since it held only the hot rows."""
    name = f"sume_plans_{os.getpid()}"
    create_database(postgres, name, template)
    database = Database(postgres, name)
    for table in TABLES:
        database.execute(f"alter table {table} set (autovacuum_enabled = false)")
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute("drop schema test_history cascade")
        database.execute(HOT_ROWS)
    database.execute("analyze")
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute(LOAD)
    yield database
    database.close()
    drop_database(postgres, name)


class Seen(Exception):
    """Carries a statement and its parameters out of the product's own function."""


class Watcher:
    """A store that takes down the statement instead of running it."""

    def run(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        raise Seen(sql, parameters)


def statement(call: Callable[[Any], object]) -> tuple[str, Any]:
    with pytest.raises(Seen) as seen:
        call(Watcher())
    sql, parameters = seen.value.args
    return sql, parameters


N = HISTORY + 101
CLAIMED = "select claim_token::text as token from render_jobs where id = %s"
JOB = f"job_{HISTORY + 201}"


def accepted(token: str, job_id: str) -> render_jobs.Accepted:
    return render_jobs.Accepted(N, token, f"render-job-{N}", job_id)


# name -> (what is called, with the token of a claimed row; the number of rows it writes)
HOT_STATEMENTS: dict[str, tuple[Callable[[Any, str], object], int]] = {
    "claim": (lambda s, t: render_jobs.claim(s, claiming(), 4, True), 4),
    "claim one": (lambda s, t: render_jobs.claim(s, claiming(), 1, True), 1),
    "record a success": (lambda s, t: render_jobs.record(s, [accepted(t, "job_new")], 8, 5.0), 2),
    "record a known job": (lambda s, t: render_jobs.record(s, [accepted(t, "job_7")], 8, 5.0), 2),
    "record a refusal": (
        lambda s, t: render_jobs.record(
            s, [render_jobs.Refused(N, t, f"render-job-{N}", "requeue")], 8, 5.0
        ),
        1,
    ),
    "reap": (lambda s, t: render_jobs.reap(s, 600, 86400, 8, "render-job"), HOT),
    "request cancel": (lambda s, t: render_jobs.request_cancel(s, HISTORY + 201), 1),
    "regenerate": (lambda s, t: render_jobs.regenerate(s, [("job_21", 21)], 2), 1),
    "claim due jobs": (lambda s, t: gen_jobs.claim_due(s, WIDE, 4, 50.0, 25.0), 4),
    "apply": (lambda s, t: gen_jobs.apply(s, [gen_jobs.Wish(JOB, "completed")]), 2),
    "apply to an ended job": (
        lambda s, t: gen_jobs.apply(s, [gen_jobs.Wish("job_7", "failed")]),
        0,
    ),
    "looks": (lambda s, t: gen_jobs.record_looks(s, [gen_jobs.Looked(JOB, 60.0, "found")]), 1),
    "look soon": (lambda s, t: gen_jobs.look_soon(s, JOB), 1),
    "open regenerations": (lambda s, t: gen_jobs.open_regenerations(s, 200), 0),
    "close regenerations": (lambda s, t: gen_jobs.close_regenerations(s, ["job_21"]), 1),
    "claim cancels": (lambda s, t: gen_jobs.claim_cancels(s, 1, 30.0), 1),
    "cancel asked": (lambda s, t: gen_jobs.cancel_asked(s, JOB, 30.0), 1),
    "receive": (
        lambda s, t: webhook_events.receive(
            s, webhook_events.Event("evt_new", "{}", JOB, status="completed")
        ),
        3,
    ),
    "receive for a job unknown": (
        lambda s, t: webhook_events.receive(
            s, webhook_events.Event("evt_new", "{}", "job_new", status="completed")
        ),
        1,
    ),
    "receive an undecidable event": (
        lambda s, t: webhook_events.receive(s, webhook_events.Event("evt_new", "{}", JOB)),
        2,
    ),
    "receive a duplicate": (
        lambda s, t: webhook_events.receive(
            s, webhook_events.Event("evt_job_7", "{}", "job_7", status="completed")
        ),
        0,
    ),
    "apply held": (lambda s, t: webhook_events.apply_held(s, [JOB, "job_new", "job_7"]), 0),
    "apply all held": (lambda s, t: webhook_events.apply_all_held(s), 0),
    "levels": (lambda s, t: levels.read(s), 0),
    "purge, nothing old": (lambda s, t: retention.purge(s, 3000, 86400, lambda: True), 0),
    "purge": (lambda s, t: retention.purge(s, 1, 86400, lambda: True), 3 * HOT),
    "purge held": (lambda s, t: webhook_events.purge_held(s, 7), 0),
    "close a gate": (lambda s, t: gate.close(s, ["writes"], 30.0, "why"), 1),
    "take": (lambda s, t: gate.take(s, "writes", WIDE), 1),
}


def blocks(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def writes(top: dict[str, Any]) -> int:
    """What the writing parts touched: those that nobody reads from run after the plan itself.

    (Some are counted twice by this, which only makes the test stricter.)
    """
    return sum(
        blocks(node) if node["Node Type"] == "ModifyTable" else writes(node)
        for node in top.get("Plans", [])
    )


def pages(database: Database, name: str) -> int:
    """How many pages the statement touches (its writes are taken back)."""
    call, _ = HOT_STATEMENTS[name]
    token = database.query(CLAIMED, N)[0]["token"]
    sql, parameters = statement(lambda store: call(store, token))
    if parameters and "batch" in parameters:
        parameters["batch"] = HOT
    connection = database.connection
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("set local session_replication_role = replica")
            (row,) = connection.execute(
                "explain (analyze, buffers, format json) " + sql, parameters
            ).fetchall()
    finally:
        connection.execute("select 1")
    (plan,) = row["QUERY PLAN"]
    touched = blocks(plan["Plan"]) + writes(plan["Plan"])
    if os.environ.get("SHOW_PLANS") == name:
        print(json.dumps(plan, indent=1))
    return touched


def check(database: Database, without: tuple[str, ...] = ()) -> None:
    found = {name: pages(database, name) for name in HOT_STATEMENTS if name not in without}
    # Every row that is written touches the pages of its indexes; a bounded number each.
    wrong = {
        name: count for name, count in found.items() if count >= 100 + 30 * HOT_STATEMENTS[name][1]
    }
    if os.environ.get("SHOW_PLANS"):
        print(found)
    assert not wrong, f"pages touched: {wrong}"


def test_with_statistics_of_a_handful_of_rows(history: Database) -> None:
    # The levels count whole states, once a minute: there the planner's belief that nearly every row
    # is pending is followed, until autovacuum has come by (after 5,000 changes).
    check(history, without=("levels",))


def test_without_any_statistics(history: Database) -> None:
    history.execute(
        "delete from pg_statistic where starelid = any(%s::regclass[]::oid[])", list(TABLES)
    )
    history.execute(
        "update pg_class set reltuples = -1, relpages = 0 where oid = any(%s::regclass[]::oid[])"
        " or oid in (select indexrelid from pg_index where indrelid = any(%s::regclass[]::oid[]))",
        list(TABLES),
        list(TABLES),
    )
    check(history)


def test_with_fresh_statistics(history: Database) -> None:
    history.execute("analyze")
    check(history)
