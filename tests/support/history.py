"""A long history in the tables, made fast: millions of rows that have ended.

The rows are as the bundle leaves them: 1 in 20 failed before it had a job, of the others 1 in 20
failed at Sume. The indexes are built once, after the rows are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg

TABLES = ("render_jobs", "gen_job", "webhook_event", "follow_up", "job_conflict", "job_history")

# `first` and `last` are row ids; the newest row ended `newest` ago, each earlier one `gap` before.
ROWS = """
insert into render_jobs (id, prompt, status, sume_job_id, idempotency_key, request_body, attempts,
                         sends, claimed_at, created_at, updated_at, run_after, error_code)
select n, 'a lighthouse at dusk, in oil, number ' || n || %(padding)s,
       case when n %% 20 = 0 then 'failed' else 'submitted' end,
       case when n %% 20 > 0 then 'job_' || n end, 'render-job-' || n,
       '{"mode": "async", "model": "sume/auto", "prompt": "a lighthouse at dusk, in oil, number '
         || n || %(padding)s || '"}',
       1, 1, at, at, at, at, case when n %% 20 = 0 then 'bad' end
  from generate_series(%(first)s::bigint, %(last)s::bigint) n,
       lateral (select now() - %(newest)s::interval - (%(last)s - n) * %(gap)s::interval) t (at)"""

JOBS = """
insert into gen_job (job_id, idempotency_key, render_job_id, status, error_code, next_poll_at,
                     result, created_at, updated_at)
select 'job_' || n, 'render-job-' || n, n,
       case when n %% 20 = 1 then 'failed' else 'completed' end,
       case when n %% 20 = 1 then 'content_policy' end, null,
       case when n %% 20 <> 1 then jsonb_build_object('artifacts', jsonb_build_array(
         jsonb_build_object('url', 'https://media.example/' || n || %(padding)s || '.png'))) end,
       at, at
  from generate_series(%(first)s::bigint, %(last)s::bigint) n,
       lateral (select now() - %(newest)s::interval - (%(last)s - n) * %(gap)s::interval) t (at)
 where n %% 20 > 0"""

FOLLOW_UPS = """
insert into follow_up (job_id, kind, render_job_id, created_at, run_after, attempts, dispatched_at)
select case when n %% 20 = 0 then 'render-job-' || n else 'job_' || n end,
       case n %% 20 when 0 then 'submission.failed' when 1 then 'job.failed'
                    else 'job.completed' end, n, at, at, 1, at
  from generate_series(%(first)s::bigint, %(last)s::bigint) n,
       lateral (select now() - %(newest)s::interval - (%(last)s - n) * %(gap)s::interval) t (at)"""

EVENTS = """
insert into webhook_event (event_id, job_id, event_type, job_status, body, outcome, received_at,
                           applied_at)
select 'evt_' || n, 'job_' || n, 'job.' || status, status,
       '{"id": "evt_' || n || '", "type": "job.' || status || '", "data": {"id": "job_' || n
         || '", "status": "' || status || '"}, "note": "' || %(padding)s || '"}',
       'applied', at, at
  from generate_series(%(first)s::bigint, %(last)s::bigint) n,
       lateral (select now() - %(newest)s::interval - (%(last)s - n) * %(gap)s::interval) t (at),
       lateral (select case when n %% 20 = 1 then 'failed' else 'completed' end) s (status)
 where n %% 20 > 0"""

MOVES = """
insert into job_history (render_job_id, at, machine, job_id, by, from_status, to_status)
select n, at, machine, case when machine = 'generation' then 'job_' || n end, by, was, became
  from generate_series(%(first)s::bigint, %(last)s::bigint) n,
       lateral (select now() - %(newest)s::interval - (%(last)s - n) * %(gap)s::interval) t (at),
       (values ('submission', 'submit', 'pending', 'submitting'),
               ('submission', 'submit', 'submitting', 'submitted'),
               ('generation', 'webhook', 'queued', 'completed'))
         as move (machine, by, was, became)"""


@contextmanager
def _indexes_built_afterwards(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Switch the tables' indexes off, in this transaction, and build them anew at the end.

    A rebuilt index changes what the planner knows of the size of its table; that is put back.
    """
    tables = list(TABLES)
    connection.execute(
        "create temporary table its_size on commit drop as select oid, relpages, reltuples,"
        " relallvisible from pg_class where oid = any (%(tables)s::regclass[]::oid[]) or oid in"
        " (select indexrelid from pg_index where indrelid = any (%(tables)s::regclass[]::oid[]))",
        {"tables": tables},
    )
    connection.execute(
        "update pg_index set indisready = false, indisvalid = false"
        " where indrelid = any (%s::regclass[]::oid[])",
        (tables,),
    )
    yield
    for table in tables:
        connection.execute(f"reindex table {table}".encode())
    connection.execute(
        "update pg_class c set relpages = s.relpages, reltuples = s.reltuples,"
        " relallvisible = s.relallvisible from its_size s where s.oid = c.oid"
    )


def load(
    connection: psycopg.Connection[Any],
    count: int,
    *,
    first: int = 1,
    newest: str = "1 day",
    gap: str = "1 second",
    padding: int = 0,
    rebuild: bool = True,
) -> None:
    """Add `count` rows that have ended, with ids from `first` on, and all that belongs to them.

    The connection is a superuser's. `newest` and `gap` are intervals: how long ago the newest row
    ended, and the time between two of them. `padding` is a number of bytes by which prompt, result
    and event are longer. Many rows go faster with `rebuild`: the indexes are built anew, and what
    the planner believes of the tables stays as it was.
    """
    values = {
        "first": first,
        "last": first + count - 1,
        "newest": newest,
        "gap": gap,
        "padding": "x" * padding,
    }
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        connection.execute("set local synchronous_commit = off")
        connection.execute("set local maintenance_work_mem = '256MB'")
        with _indexes_built_afterwards(connection) if rebuild else nullcontext():
            for statement in (ROWS, JOBS, FOLLOW_UPS, EVENTS, MOVES):
                connection.execute(statement, values)
        connection.execute(
            "select setval('render_jobs_id_seq', greatest(%s, nextval('render_jobs_id_seq')))",
            (first + count,),
        )
