"""How many pages a call of the store touches, beside a long history.

Counted by Postgres itself, for every table and index, so that triggers, writes and the parts of
a statement that nobody reads from are in it (EXPLAIN shows neither of them whole).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sume_jobs.store import gen_jobs, render_jobs
from sume_jobs.stored_statement import StoredStatement

from tests.support import history
from tests.support.postgres import Database

HISTORY = 1_000_000
HOT = 10

# A handful of rows in every hot state, with numbers above all of the history.
HOT_ROWS = f"""
insert into render_jobs (id, prompt, priority, reference)
select {HISTORY} + n, 'pending ' || n, n % 4, 'order-' || n from generate_series(1, {HOT}) n;
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
insert into follow_up (job_id, kind, render_job_id)
select 'job_' || n, 'job.archived', n from generate_series(2, {HOT} + 1) n;
select setval('render_jobs_id_seq', {HISTORY} + 1000);
"""

# So many rows are at Sume and due to be looked at, as many wait, and are dated in the future; in
# this order, so that who reads the table from its head passes by rows that are no longer pending.
BACKLOG = 60_000
BACKLOG_ROWS = f"""
insert into render_jobs (prompt, status, sume_job_id, idempotency_key, attempts, sends)
select 'at Sume ' || n, 'submitted', 'job_' || n, 'key_' || n, 1, 1
  from generate_series(1, {BACKLOG}) n;
insert into gen_job (job_id, idempotency_key, render_job_id, next_poll_at, cancel_due_at)
select sume_job_id, idempotency_key, id, now() - interval '1 minute', now()
  from render_jobs where status = 'submitted';
insert into render_jobs (prompt, priority) select 'waiting ' || n, 1
  from generate_series(1, {BACKLOG}) n;
insert into render_jobs (prompt, priority, run_after)
select 'later ' || n, n % 2, now() + interval '1 day' from generate_series(1, {BACKLOG}) n;
insert into follow_up (job_id, kind, render_job_id)
select job_id, 'job.archived', render_job_id from gen_job;
insert into webhook_event (event_id, job_id, job_status, body, outcome)
select 'held_' || n, 'job_early_' || n, 'completed', '{{}}', 'held'
  from generate_series(1, {BACKLOG}) n;
insert into render_jobs (id, prompt, status, claim_token, claimed_at, attempts, sends,
                         idempotency_key, request_body)
select {HISTORY} + 100 + n, 'submitting', 'submitting', gen_random_uuid(),
       now() - interval '1 hour', 1, 1, 'render-job-' || {HISTORY} + 100 + n, '{{}}'
  from generate_series(1, {HOT}) n;
"""

SUBMITTING = HISTORY + 101
SUBMITTED = HISTORY + 201
JOB = f"job_{SUBMITTED}"

TOUCHED = """
select sum(pg_stat_get_xact_blocks_fetched(oid))::bigint as pages from pg_class
 where relkind in ('r', 'i', 't') and oid >= 16384"""


def leave_alone(database: Database) -> None:
    """Let nothing but the test look at the tables: no statistics are made of them by themselves."""
    for table in history.TABLES:
        database.execute(f"alter table {table} set (autovacuum_enabled = false)")
    database.execute("drop schema test_history cascade")


def make_history(database: Database) -> None:
    """Fill a migrated database; the planner knows it as it was with the hot rows alone."""
    leave_alone(database)
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute(HOT_ROWS)
    database.execute("analyze")
    history.load(database.connection, HISTORY, newest="2 days")


def make_backlog(database: Database) -> None:
    """Fill a migrated database with work: a third waits, a third is planned, a third is at Sume."""
    leave_alone(database)
    fill_backlog(database)


def fill_backlog(database: Database) -> None:
    """Fill tables that were left alone."""
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute(BACKLOG_ROWS)


def forget_statistics(database: Database, rows: int) -> None:
    """Take the planner's statistics away. `rows`: -1 for never analyzed, 0 for analyzed empty."""
    tables = list(history.TABLES)
    database.execute(
        "delete from pg_statistic where starelid = any (%s::regclass[]::oid[])", tables
    )
    database.execute(
        "update pg_class set reltuples = %s, relpages = 0, relallvisible = 0"
        " where oid = any (%s::regclass[]::oid[])"
        " or oid in (select indexrelid from pg_index where indrelid = any (%s::regclass[]::oid[]))",
        rows,
        tables,
        tables,
    )


class Pages:
    """A store whose statements are taken back; tells how many pages they touched.

    ``stored``: by the functions that the database keeps, else by their text.
    """

    def __init__(self, database: Database, *, stored: bool) -> None:
        self.stored = stored
        self.connection = psycopg.connect(
            database.url, row_factory=dict_row, prepare_threshold=None
        )

    def run(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        if self.stored and isinstance(sql, StoredStatement):
            sql = sql.call
        cursor = self.connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []

    def call(self, call: Callable[[Any, str], object]) -> None:
        """Run a call on tables that may be empty, with a token that no row has."""
        call(self, str(uuid.uuid4()))
        self.connection.rollback()

    def of(self, call: Callable[[Any, str], object]) -> int:
        """The pages of one call, with the token of a claimed row."""
        claimed = "select claim_token::text as token from render_jobs where id = %s"
        token = self.run(claimed, (SUBMITTING,))[0]["token"]
        before = self.run(TOUCHED)[0]["pages"]
        call(self, token)
        after = self.run(TOUCHED)[0]["pages"]
        self.connection.rollback()
        return int(after - before)

    def explain(self, call: Callable[[Any, str], object]) -> str:
        """The plans of a call's statements, to be read by a person."""
        plans = []

        class Explaining:
            def run(_, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
                for row in self.run("explain (analyze, buffers) " + sql, parameters):
                    plans.append(row["QUERY PLAN"])
                return self.run(sql, parameters)

        claimed = "select claim_token::text as token from render_jobs where id = %s"
        call(Explaining(), self.run(claimed, (SUBMITTING,))[0]["token"])
        self.connection.rollback()
        return "\n".join(plans)


def accepted(token: str, job_id: str) -> render_jobs.Accepted:
    return render_jobs.Accepted(SUBMITTING, token, f"render-job-{SUBMITTING}", job_id)


def refused(token: str) -> render_jobs.Refused:
    return render_jobs.Refused(SUBMITTING, token, f"render-job-{SUBMITTING}", "requeue")


def ends(first: int, count: int) -> list[gen_jobs.Wish]:
    return [gen_jobs.Wish(f"job_{n}", "completed") for n in range(first, first + count)]
