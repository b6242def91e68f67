"""What people look at: views job_customer and job_support, the history, and the figures.

Nothing here walks a table: rows are looked up one by one by key, lists come from an index, and
what would have to be counted row by row is estimated. Rows come as JSON texts, written by
Postgres, so that numbers keep their digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sume_jobs.decisions.enqueue_request import LARGEST_ID
from sume_jobs.store.counts import LONG_AGO, counted, estimated
from sume_jobs.store.priorities import BANDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.connection import Database, Row

# One request for a page looks at no more rows than this in search of those in a state.
WALK: Final = 2000
# Up to here rows are counted, beyond that they are estimated.
EXACT: Final = 500

_CUSTOMER: Final = """
json_build_object('id', c.id, 'reference', c.reference, 'state', c.state, 'sentence', c.sentence,
                  'artifacts', coalesce(c.artifacts, '[]'::jsonb), 'created_at', c.created_at,
                  'updated_at', c.updated_at)::text as job"""

# `limit 1` keeps the lookup a lookup, whatever the planner believes of the tables.
_LOOKED_UP: Final = (
    "cross join lateral (select * from job_customer where id = wanted.id limit 1) as c"
)

FIND: Final = f"""
select {_CUSTOMER} from unnest(%(ids)s::bigint[]) with ordinality as wanted (id, n)
 {_LOOKED_UP} order by wanted.n"""

BY_REFERENCE: Final = f"""
select {_CUSTOMER}
  from (select id from render_jobs where reference = %(reference)s) as wanted
 {_LOOKED_UP}
 where %(state)s::text is null or c.state = %(state)s"""

NEWEST: Final = f"""
select wanted.id, {_CUSTOMER}
  from (select id from render_jobs where id < %(before)s order by id desc limit %(walk)s) as wanted
 {_LOOKED_UP}
 where %(state)s::text is null or c.state = %(state)s
 order by wanted.id desc limit %(limit)s"""

# Where no more than a walk's length of rows are in each stage of working, the page is found from
# those, however far down they are.
NEWEST_WORKING: Final = f"""
with candidate as materialized (
  (select 'waiting' as stage, id from render_jobs where status = 'pending' and reaps < 2
    order by priority, run_after, id limit %(walk)s)
  union all
  (select 'suspect', id from render_jobs where status = 'pending' and reaps >= 2
    order by reaps, run_after, id limit %(walk)s)
  union all
  (select 'sending', id from render_jobs where status = 'submitting'
    order by claimed_at limit %(walk)s)
  union all
  (select 'at_sume', render_job_id from gen_job where status in ('queued', 'processing')
    order by created_at limit %(walk)s)),
found as materialized (
  select coalesce(max(n), 0) < %(walk)s as is_whole
    from (select count(*) as n from candidate group by stage) as each),
page as materialized (
  select wanted.id, {_CUSTOMER}
    from (select distinct id from candidate where id < %(before)s order by id desc) as wanted
   {_LOOKED_UP}
   where c.state = 'working' and (select is_whole from found)
   order by wanted.id desc limit %(limit)s)
select found.is_whole, page.id, page.job from found left join page on true order by page.id desc"""

LAST_OF_WALK: Final = """
select min(id) as id, count(*) as n
  from (select id from render_jobs where id < %(before)s order by id desc limit %(walk)s) as walked"""

# A job of an earlier generation may be among the candidates: the view decides.
_NEED_ATTENTION: Final = """
(select id from (
   (select id from render_jobs where status in ('failed', 'canceled') and id < %(before)s
     order by id desc limit %(walk)s)
   union
   (select render_job_id from gen_job
     where (attention is not null or status in ('failed', 'canceled')) and render_job_id < %(before)s
     order by render_job_id desc limit %(walk)s)) as both_kinds (id)
  order by id desc limit %(walk)s)"""

NEED_ATTENTION: Final = f"""
select wanted.id, {_CUSTOMER} from {_NEED_ATTENTION} as wanted
 {_LOOKED_UP}
 where c.state = 'needs_attention'
 order by wanted.id desc limit %(limit)s"""

LAST_IN_NEED: Final = f"select min(id) as id, count(*) as n from {_NEED_ATTENTION} as wanted"


def find(database: Database, ids: Sequence[int]) -> list[str]:
    """Give the customer's view of rows as JSON texts, in the order of their ids."""
    return [row["job"] for row in database.run(FIND, {"ids": list(ids)})]


def by_reference(database: Database, reference: str, state: str | None) -> list[str]:
    """Give the customer's view of the row of a reference, as a list of none or one JSON text."""
    rows = database.run(BY_REFERENCE, {"reference": reference, "state": state})
    return [row["job"] for row in rows]


def newest(
    database: Database, before: int, limit: int, state: str | None
) -> tuple[list[str], int | None]:
    """Give one page, newest first, of the rows with ids below `before`.

    The second value is the `before` of the next page, None after the last. Where rows of a state
    are far apart a page may hold fewer than `limit`, even none, and not be the last.
    """
    parameters: dict[str, object] = {
        "before": before,
        "limit": limit + 1,
        "walk": WALK,
        "state": state,
    }
    if state is None:
        return _page(database.run(NEWEST, {**parameters, "walk": limit + 1}), limit)
    # Mostly the newest rows will do: a short walk first, a long one if it has to be.
    in_need = state == "needs_attention"
    page, last = (NEED_ATTENTION, LAST_IN_NEED) if in_need else (NEWEST, LAST_OF_WALK)
    rows = database.run(page, {**parameters, "walk": 2 * (limit + 1)})
    if len(rows) > limit:
        return _page(rows, limit)
    if state == "working":
        rows = database.run(NEWEST_WORKING, parameters)
        if rows[0]["is_whole"]:
            return _page([row for row in rows if row["id"] is not None], limit)
    jobs, following = _page(database.run(page, parameters), limit)
    if following is not None:
        return jobs, following
    (end,) = database.run(last, parameters)
    return jobs, end["id"] if end["n"] >= WALK else None


def _page(rows: Sequence[Row], limit: int) -> tuple[list[str], int | None]:
    jobs = [row["job"] for row in rows[:limit]]
    return jobs, rows[limit - 1]["id"] if len(rows) > limit else None


# What there is about one row is little: its own, its jobs', their events'.
SUPPORT: Final = """
with job as materialized (
  select job_id from gen_job where render_job_id = %(id)s
  union select sume_job_id from render_jobs where id = %(id)s and sume_job_id is not null),
-- Found by job before they are put in order: else the planner may look through all by their age.
event as materialized (
  select * from webhook_event where job_id = any (array(select job_id from job)))
select (to_jsonb(s) || jsonb_build_object(
         'conflicts', (
           select coalesce(jsonb_agg(to_jsonb(x) order by x.id), '[]') from (
             select id, job_id, idempotency_key, reason, seen_at from job_conflict
              where render_job_id = %(id)s order by id limit 200) x),
         'jobs', (
           select coalesce(jsonb_agg(to_jsonb(x) order by x.created_at), '[]') from (
             select g.job_id, g.status, g.idempotency_key, g.error_code, g.request_id, g.attention,
                    g.created_at, g.updated_at
               from gen_job g where g.render_job_id = %(id)s order by g.created_at desc limit 200) x),
         'webhook_events', (
           select coalesce(jsonb_agg(to_jsonb(x) order by x.received_at), '[]') from (
             select e.event_id, e.job_id, e.event_type, e.job_status, e.error_code, e.outcome,
                    e.header_event_id, e.received_at, e.applied_at
               from event e order by e.received_at desc limit 200) x),
         'follow_ups', (
           select coalesce(jsonb_agg(to_jsonb(x) order by x.created_at), '[]') from (
             select f.job_id, f.kind, f.created_at, f.attempts, f.dispatched_at, f.dead_reason
               from follow_up f
              where f.job_id = any (array(select job_id from job union all select s.idempotency_key))
              order by f.created_at desc limit 200) x),
         'history', (
           select jsonb_build_array(jsonb_build_object(
                    'at', s.created_at, 'machine', 'submission', 'job_id', null, 'by', 'enqueue',
                    'from', null, 'to', 'pending')) || coalesce(jsonb_agg(x.move order by x.id), '[]')
             from (
               select h.id, jsonb_build_object(
                        'at', h.at, 'machine', h.machine, 'job_id', h.job_id, 'by', h.by,
                        'from', h.from_status, 'to', h.to_status) as move
                 from job_history h where h.render_job_id = %(id)s order by h.id desc limit 500) x)
       ))::text as job,
       s.state, s.submission_status, s.submission_error_code, s.sume_may_have_the_job, s.job_status,
       s.error_code, s.attention
  from (select * from job_support where id = %(id)s limit 1) s"""


def support(database: Database, row_id: int) -> Row | None:
    """Give everything that is known about a row; None where there is no such row.

    `job` is all of it as a JSON text, beside it stand the columns that an advice needs.

    job_support, with its conflicts, jobs, webhook events (without their bodies), follow-ups and
    the history of its moves (the newest 500, oldest first).
    """
    rows = database.run(SUPPORT, {"id": row_id})
    return rows[0] if rows else None


# The figures of the board. Each part repeats the predicate of the index that it is to be read from.

# Where the statistics already tell that there are many, nothing is counted: those rows may lie on
# as many pages.
_MANY: Final = 4 * EXACT


def _counted(query: str, order: str) -> str:
    return counted(query, order, EXACT + 1)


def _counted_if_few(name: str, query: str, order: str) -> str:
    many = f"{estimated(name)} > {_MANY}"
    return f"case when {many} then {EXACT + 1} else {_counted(query, order)} end"


def _counted_pending(run_after: str) -> str:
    return f"""(select count(*) from (
    select from {BANDS} cross join lateral (
      select from render_jobs
       where status = 'pending' and reaps < 2 and priority = band.priority and run_after {run_after}
       order by run_after, id limit {EXACT + 1}) head
     limit {EXACT + 1}) x)"""


# As the planner would guess it: the share of what is common, and of the steps of the histogram (both
# by way of JSON, which writes an instant in one form).
_LATER: Final = """(
    select c.reltuples * (coalesce(common.later, 0) + (1 - coalesce(common.share, 0)) * coalesce(steps.later, 0))
      from pg_class c
      join pg_stats s on s.schemaname = c.relnamespace::regnamespace::text and s.tablename = c.relname
     cross join lateral (
       select sum(share) filter (where at::timestamptz > now()) as later, sum(share) as share
         from rows from (json_array_elements_text(array_to_json(s.most_common_vals)),
                         unnest(s.most_common_freqs)) as each (at, share)) common
     cross join lateral (
       select avg((at::timestamptz > now())::int) as later
         from json_array_elements_text(array_to_json(s.histogram_bounds)) as each (at)) steps
     where c.oid = 'render_jobs'::regclass and s.attname = 'run_after')"""
_SUSPECT: Final = "select from render_jobs where status = 'pending' and reaps >= 2"
_SENDING: Final = "select from render_jobs where status = 'submitting'"
_AT_SUME: Final = """
  select from gen_job where status in ('queued', 'processing') and attention is null"""
_FAILED_ROWS: Final = "select from render_jobs where status in ('failed', 'canceled')"
_FAILED_JOBS: Final = """
  select from gen_job where attention is not null or status in ('failed', 'canceled')"""

FIGURES: Final = f"""
with figure (name, counted, estimated) as (values
  ('waiting', {_counted_pending("<= now()")}, {estimated("render_jobs_claim")}),
  ('later', {_counted_pending("> now()")}, {_LATER}),
  ('suspect', {_counted(_SUSPECT, "reaps, run_after, id")}, {estimated("render_jobs_suspect")}),
  ('sending', {_counted(_SENDING, "claimed_at")}, {estimated("render_jobs_claimed")}),
  ('at_sume', {_counted_if_few("gen_job_in_flight", _AT_SUME, "created_at")},
    {estimated("gen_job_in_flight")}),
  ('failed_rows', {_counted_if_few("render_jobs_ended_badly_by_id", _FAILED_ROWS, "id")},
    {estimated("render_jobs_ended_badly_by_id")}),
  ('failed_jobs', {_counted_if_few("gen_job_attention_by_row", _FAILED_JOBS, "render_job_id")},
    {estimated("gen_job_attention_by_row")}),
  ('all', {_counted_if_few("render_jobs", "select from render_jobs", "id desc")},
    (select greatest(reltuples, pg_stat_get_live_tuples(oid))
       from pg_class where oid = 'render_jobs'::regclass)))
select name, counted,
       case when counted <= {EXACT} then counted else greatest(estimated, counted) end::bigint as n
  from figure"""

# Only for a table of no more than EXACT rows.
STATES: Final = "select state, count(*) as n from job_customer group by state"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of rows; `is_exact` tells a count from an estimate."""

    count: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Figures:
    """How many rows are where. `states` are the three that people see, `stages` those of working:
    `waiting` could be sent now, `later` not before its time, `sending` and `at_sume` are under way.
    """

    states: dict[str, Figure]
    stages: dict[str, Figure]


def figures(database: Database) -> Figures:
    """Count up to 500 of a kind, and estimate what is more from what the statistics say.

    Statistics lag behind by up to a minute or 5,000 rows.

    Once there are more rows than that, a failed job counts as in need of attention even where
    its row has gone on to another generation.
    """
    found = {
        row["name"]: Figure(row["n"], row["counted"] <= EXACT) for row in database.run(FIGURES)
    }
    waiting, later = found["waiting"], found["later"]
    if not waiting.is_exact:
        # What the statistics tell is both.
        waiting = Figure(max(EXACT + 1, waiting.count - later.count), is_exact=False)
    stages = {
        "waiting": _sum(waiting, found["suspect"]),
        "later": later,
        "sending": found["sending"],
        "at_sume": found["at_sume"],
    }
    if found["all"].is_exact:
        counted = {row["state"]: row["n"] for row in database.run(STATES)}
        names = ("working", "done", "needs_attention")
        return Figures({name: Figure(counted.get(name, 0)) for name in names}, stages)
    working = _sum(*stages.values())
    in_need = _sum(found["failed_rows"], found["failed_jobs"])
    done = max(0, found["all"].count - working.count - in_need.count)
    return Figures(
        {"working": working, "done": Figure(done, is_exact=False), "needs_attention": in_need},
        stages,
    )


def _sum(*figures: Figure) -> Figure:
    return Figure(sum(each.count for each in figures), all(each.is_exact for each in figures))


# Ends come from the newest follow-ups, of which there is one at each end; arrivals from the newest
# rows. Of more than 200 in a minute the rate is told by how fast those 200 came.
PULSE: Final = f"""
with waiting as (
  select min(greatest(run_after, {LONG_AGO})) as since from {BANDS}
   cross join lateral (
     select run_after from render_jobs
      where status = 'pending' and reaps < 2 and priority = band.priority and run_after <= now()
      order by run_after, id limit 1) head),
at_sume as (
  select created_at as since from gen_job where status in ('queued', 'processing')
   order by created_at limit 1),
ended as (
  select count(*) filter (where created_at > now() - interval '1 minute') as n,
         extract(epoch from now() - min(created_at))::float8 as span, count(*) as looked_at
    from (select created_at from follow_up order by id desc limit 200) x),
came as (
  select count(*) filter (where created_at > now() - interval '1 minute') as n,
         extract(epoch from now() - min(greatest(least(created_at, now()), {LONG_AGO})))::float8 as span,
         count(*) as looked_at
    from (select created_at from render_jobs order by id desc limit 200) x)
select extract(epoch from now() - (select since from waiting))::float8 as oldest_waiting,
       extract(epoch from now() - (select since from at_sume))::float8 as oldest_at_sume,
       (select case when n = looked_at and n = 200 then 60 * n / greatest(span, 1e-3) else n end
          from ended)::float8 as ended_a_minute,
       (select case when n = looked_at and n = 200 then 60 * n / greatest(span, 1e-3) else n end
          from came)::float8 as came_a_minute"""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Ages in seconds (None where nothing waits) and numbers of rows a minute."""

    oldest_waiting: float | None
    oldest_at_sume: float | None
    ended_a_minute: float
    came_a_minute: float


def pulse(database: Database) -> Pulse:
    """Tell how old the oldest are, and how fast rows come and jobs end."""
    return Pulse(**database.run(PULSE)[0])


IN_NEED: Final = f"""
select r.id, r.reference, r.status as submission_status, r.error_code as submission_error_code,
       r.status = 'failed' and r.unknown_since is not null as sume_may_have_the_job,
       g.status as job_status, g.error_code, g.attention,
       greatest(r.updated_at, g.updated_at) as since
  from {_NEED_ATTENTION} as wanted
 cross join lateral (select * from render_jobs where id = wanted.id limit 1) r
  left join lateral (select * from gen_job where job_id = r.sume_job_id limit 1) g on true
 where r.status in ('failed', 'canceled')
    or r.status = 'submitted' and (g.status in ('failed', 'canceled') or g.attention is not null)
 order by r.id desc limit %(limit)s"""


def newest_in_need(database: Database, limit: int) -> list[Row]:
    """Give the newest rows that need attention, with what tells why."""
    parameters = {"before": LARGEST_ID, "walk": limit + 2, "limit": limit}
    return database.run(IN_NEED, parameters)


NEWEST_MOVING: Final = """
select r.id, r.reference, g.status, g.created_at as since
  from (select * from (
          -- What needs attention is old, and left out behind the limit: a planner that expects a
          -- second condition to leave one row sorts all jobs in flight instead of following the index.
          select render_job_id, status, created_at, attention from gen_job
           where status in ('queued', 'processing')
           order by created_at desc limit 2 * %(limit)s) newest
         where attention is null order by created_at desc limit %(limit)s) g
 cross join lateral (select id, reference from render_jobs where id = g.render_job_id limit 1) r
 order by g.created_at desc"""

NEXT_WAITING: Final = f"""
select id, reference, 'waiting' as status, created_at as since
  from {BANDS}
 cross join lateral (
   select id, reference, created_at, run_after, priority as its_priority from render_jobs
    where status = 'pending' and reaps < 2 and priority = band.priority and run_after <= now()
    order by run_after, id limit %(limit)s) head
 order by its_priority, run_after, id limit %(limit)s"""

NEWEST_DONE: Final = """
select r.id, r.reference, 'done' as status, f.created_at as since
  from (select job_id, render_job_id, created_at, id from (
          select job_id, render_job_id, created_at, id, kind from follow_up order by id desc limit 100) x
         where kind = 'job.completed' order by id desc limit 2 * %(limit)s) f
 cross join lateral (
   select id, reference, sume_job_id from render_jobs where id = f.render_job_id limit 1) r
 -- A row that was made anew is where its newest generation is.
 where r.sume_job_id = f.job_id
 order by f.id desc limit %(limit)s"""


def newest_moving(database: Database, limit: int) -> list[Row]:
    """Give the newest jobs at Sume, or, where there are none, the rows that are sent next."""
    rows = database.run(NEWEST_MOVING, {"limit": limit})
    return rows or database.run(NEXT_WAITING, {"limit": limit})


def newest_done(database: Database, limit: int) -> list[Row]:
    """Give the rows whose jobs were completed last (of the last 100 ends)."""
    return database.run(NEWEST_DONE, {"limit": limit})
