"""Table render_jobs: rows that come in through the API.

The ids are drawn first, in a statement of their own: then the insert is safe to repeat, even
where the answer to it was lost and the rows have no reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.connection import Database
    from sume_jobs.decisions.enqueue_request import NewJob

DRAW_IDS: Final = """
select drawn.id, exists (select from render_jobs r where r.id = drawn.id) as is_taken
  from (select nextval(pg_get_serial_sequence('render_jobs', 'id')) as id
          from generate_series(1, %(n)s) offset 0) drawn"""

# Without an explicit value a column gets the table's default, told here once more.
ENQUEUE: Final = """
insert into render_jobs (id, prompt, model, params, priority, run_after, reference)
select id, prompt, coalesce(model, 'sume/auto'), coalesce(params::jsonb, '{}'), coalesce(priority, 1),
       coalesce(run_after::timestamptz, now()), reference
  from unnest(%(ids)s::bigint[], %(prompts)s::text[], %(models)s::text[], %(params)s::text[],
              %(priorities)s::smallint[], %(run_afters)s::text[], %(references)s::text[])
       as item (id, prompt, model, params, priority, run_after, reference)
 order by reference, id  -- two writers of the same references meet in the same order
on conflict do nothing"""

# Looked up one by one, whatever the planner believes of the table.
FIND: Final = """
select coalesce(own.id, other.id) as id, own.id is not null as is_new
  from unnest(%(ids)s::bigint[], %(references)s::text[]) with ordinality as w (id, reference, n)
  left join lateral (select id from render_jobs where id = w.id limit 1) own on true
  left join lateral (
    select id from render_jobs where reference = w.reference limit 1) other on own.id is null
 order by w.n"""


class IdsAreBehind(RuntimeError):
    """Rows were inserted with ids of their own, past the sequence that the others come from."""


def enqueue(database: Database, jobs: Sequence[NewJob]) -> list[tuple[int | None, bool]]:
    """Insert jobs, all or none; gives the id of each and whether it is new.

    A job whose reference is known, from before or from earlier in the list, is that row.
    Gives an id of None where that row was deleted at this very moment. Raises IdsAreBehind, and
    psycopg.errors.CheckViolation where the database refuses a job.
    """
    drawn = database.run(DRAW_IDS, {"n": len(jobs)})
    if any(row["is_taken"] for row in drawn):
        raise IdsAreBehind
    ids = [row["id"] for row in drawn]
    references = [job.reference for job in jobs]
    database.run(
        ENQUEUE,
        {
            "ids": ids,
            "prompts": [job.prompt for job in jobs],
            "models": [job.model for job in jobs],
            "params": [job.params for job in jobs],
            "priorities": [job.priority for job in jobs],
            "run_afters": [job.run_after for job in jobs],
            "references": references,
        },
    )
    # In a statement of its own, which sees what another writer of the same reference committed.
    rows = database.run(FIND, {"ids": ids, "references": references})
    return [(row["id"], row["is_new"]) for row in rows]
