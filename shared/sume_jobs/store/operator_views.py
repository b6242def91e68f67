"""What an operator asks for: which row is meant, how rows stand, all rows in pages.

Everything is looked up by key or walked in the order of the ids, a page at a time: bounded
memory here, and no transaction that stays open while somebody reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from sume_jobs.connection import Database, Row

Kind = Literal["id", "reference", "job", "conflict"]

PAGE: Final = 1000

RESOLVE: Final = """
select wanted.n, found.kind, found.id
  from unnest(%(texts)s::text[]) with ordinality as wanted (text, n)
 cross join lateral (
   (select 'id' as kind, id from render_jobs
     where id = case when wanted.text ~ '^[0-9]{1,18}$' then wanted.text::bigint end limit 1)
   union all
   (select 'reference', id from render_jobs where reference = wanted.text limit 1)
   union all
   (select 'job', r.id from render_jobs r
     where r.id = (select render_job_id from gen_job where job_id = wanted.text) limit 1)
   union all
   (select distinct 'conflict', r.id
      from (select render_job_id from job_conflict where job_id = wanted.text) c
     cross join lateral (select id from render_jobs where id = c.render_job_id limit 1) r)) found
 order by wanted.n"""


class Match(NamedTuple):
    """A row that a text may mean, and as what: its id, its reference, the id of its job at Sume,
    or the id of a job that was refused for it (see job_conflict)."""

    kind: Kind
    id: int


def resolve(database: Database, texts: Sequence[str]) -> list[list[Match]]:
    """Give every row that each text may mean."""
    found: list[list[Match]] = [[] for _ in texts]
    for row in database.run(RESOLVE, {"texts": list(texts)}):
        found[row["n"] - 1].append(Match(row["kind"], row["id"]))
    return found


_STANDING: Final = """
r.id, r.reference, c.state, r.model, r.priority, r.run_after, r.run_after > now() as is_later, r.generation,
r.status as submission_status, r.error_code as submission_error_code,
r.status = 'failed' and r.unknown_since is not null as sume_may_have_the_job,
r.sume_job_id, g.status as job_status, g.error_code, g.attention,
coalesce(c.artifacts, '[]'::jsonb) as artifacts, c.sentence, r.created_at, c.updated_at"""

_ITS_PARTS: Final = """
 cross join lateral (select * from render_jobs where id = wanted.id limit 1) r
 cross join lateral (select * from job_customer where id = wanted.id limit 1) c
  left join lateral (select * from gen_job where job_id = r.sume_job_id limit 1) g on true"""

STANDING: Final = f"""
select {_STANDING} from unnest(%(ids)s::bigint[]) with ordinality as wanted (id, n) {_ITS_PARTS}
 order by wanted.n"""


def standing(database: Database, ids: Sequence[int]) -> list[Row]:
    """Tell how rows stand, in the order of their ids; rows that are gone are left out."""
    return database.run(STANDING, {"ids": list(ids)})


NEWEST_ID: Final = "select max(id) as id from render_jobs"

# One row at least, so that the walk goes on over pages where no row is in the state.
EXPORT: Final = f"""
with page as materialized (
  select id from render_jobs where id > %(after)s and id <= %(until)s order by id limit %(page)s)
select (select max(id) from page) as last, job.*
  from (values (1)) as always
  left join lateral (
    select {_STANDING}, case when %(prompts)s then r.prompt end as prompt from page as wanted {_ITS_PARTS}
     where %(state)s::text is null or c.state = %(state)s) job on true
 order by job.id"""


def export(
    database: Database, after: int, state: str | None, *, prompts: bool
) -> Iterator[list[Row]]:
    """Give all rows with ids above `after`, in their order, page by page.

    Rows that come while it runs are left to the next time; each row is as its page was read.
    `prompt` is None unless `prompts` are wanted.
    """
    until = database.run(NEWEST_ID)[0]["id"]
    while until is not None:
        parameters = {
            "after": after, "until": until, "page": PAGE, "state": state, "prompts": prompts,
        }  # fmt: skip
        rows = database.run(EXPORT, parameters)
        yield [
            {name: value for name, value in row.items() if name != "last"}
            for row in rows
            if row["id"] is not None
        ]
        if rows[0]["last"] is None:
            return
        after = rows[0]["last"]


# By the order of the index of what is still to be asked, whatever the planner believes of the table:
# what is asked again soon comes first, so the head tells.
AWAITS_RESULTS: Final = """
select exists (
  select from (select status, result, attention from gen_job where next_poll_at is not null
                order by next_poll_at limit 10000) as head
   where status = 'completed' and result is null and attention is null) as awaits"""


def awaits_results(database: Database) -> bool:
    """Tell whether a completed job's result is still to be read. Cheap where nothing is at Sume."""
    return bool(database.run(AWAITS_RESULTS)[0]["awaits"])


def now(database: Database) -> datetime:
    """Give the database's time, which is the only one that the instants of rows compare with."""
    instant: datetime = database.run("select now() as now")[0]["now"]
    return instant
