"""The four promises, proved after each scenario from outside and from the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from local.command_line.drill_world import World

# Moves of the generation machine that lead out of an end.
BACKWARD: Final = """
select job_id, from_status, to_status from job_history
 where machine = 'generation'
   and (from_status in ('completed', 'failed', 'canceled')
        or from_status = 'processing' and to_status = 'queued')"""

# Jobs whose status is not where their moves have led.
UNTOLD: Final = """
select g.job_id from gen_job g
 where g.status <> coalesce((select h.to_status from job_history h
                              where h.machine = 'generation' and h.job_id = g.job_id
                              order by h.id desc limit 1), 'queued')"""

FOLLOW_UPS: Final = """
select g.job_id, g.status, array_remove(array_agg(f.kind order by f.kind), null) as kinds
  from gen_job g left join follow_up f on f.job_id = g.job_id
 where g.status in ('completed', 'failed', 'canceled')
 group by g.job_id, g.status"""


def check(world: World) -> None:
    """Write down whether each of the four held."""
    _billed_once(world)
    _nothing_lost(world)
    _forward_only(world)
    _follow_up_once(world)


def _billed_once(world: World) -> None:
    billed = world.billed()
    twice = {key: number for key, number in billed.items() if number > 1}
    paid = sum(billed.values()) - world.notes.others
    held = world.count("gen_job", "render_job_id is not null")
    seen = f"{paid} jobs billed, {held} held by {len(world.notes.rows)} rows"
    if twice:
        seen += f"; more than one for {', '.join(sorted(twice))}"
    world.holds("billed once", not twice and paid == held, seen)


def _nothing_lost(world: World) -> None:
    lost = world.count("job_customer", "state = 'working'")
    there = world.count("render_jobs")
    ended = there - lost
    world.holds(
        "nothing lost",
        not lost and there == len(world.notes.rows),
        f"{ended} of {len(world.notes.rows)} rows ended",
    )


def _forward_only(world: World) -> None:
    wrong = world.execute(BACKWARD) + world.execute(UNTOLD)
    moves = world.count("job_history", "machine = 'generation'")
    seen = f"{moves} moves" + (f", against the rule: {wrong}" if wrong else "")
    world.holds("forward only", not wrong, seen)


def _follow_up_once(world: World) -> None:
    ends = world.execute(FOLLOW_UPS)
    wrong = [end["job_id"] for end in ends if end["kinds"] != [f"job.{end['status']}"]]
    number = world.count("follow_up", "kind <> 'submission.failed'")
    seen = f"{number} follow-ups for {len(ends)} ends"
    world.holds("follow-up once", not wrong and number == len(ends), seen)
