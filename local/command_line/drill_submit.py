"""Scenarios of submitting: what may happen between a claim and its record."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from local.fake_sume.behaviour import Behaviour

if TYPE_CHECKING:
    from local.command_line.drill_world import World


def killed_after_accept(world: World) -> None:
    """A worker is killed after Sume accepted its requests, before it could write that down."""
    rows = world.enqueue(5)
    hold = threading.Event()
    # The first request of a run goes alone: it is answered, so that the others follow at once.
    lost = len(rows) - 1
    world.fake.on_submit(Behaviour(), *[Behaviour(hold=hold)] * lost)
    call = world.start("submit")
    try:
        world.until_billed(len(rows))
        world.kill("submit", call)
    finally:
        hold.set()
    world.did(f"killed the worker when Sume had accepted {lost} jobs that it did not know of")
    reaped = _take_back(world)
    world.holds("their claims were taken back", reaped == lost, f"{reaped} reaped")
    world.invoke("submit")
    world.did("sent them again")
    replays = world.outside()["replays"]
    world.holds("each went with its own key", replays == lost, f"{replays} replays")


def lost_answer(world: World) -> None:
    """Sume accepts, and its answer never arrives."""
    (row,) = world.enqueue()
    world.fake.on_submit(Behaviour(drop="after"))
    world.invoke("submit")
    world.did("lost the answer to an accepted request")
    _send_again(world, row)


def cut_answer(world: World) -> None:
    """Sume accepts, and half of its answer arrives."""
    (row,) = world.enqueue()
    world.fake.on_submit(Behaviour(cut=True))
    world.invoke("submit")
    world.did("cut the answer to an accepted request in half")
    _send_again(world, row)


def _send_again(world: World, row: int) -> None:
    doubt = world.row(row)["unknown_since"] is not None
    world.holds("the outcome counts as unknown", doubt, "unknown_since is set")
    world.later()
    world.invoke("submit")
    world.did("sent the row again with the same key")
    status = world.row(row)["status"]
    world.holds("the accepted job was adopted", status == "submitted", status)


def double_reap(world: World) -> None:
    """A slow worker's claim is reaped twice at once, sent by another, and then it answers."""
    (row,) = world.enqueue()
    hold = threading.Event()
    world.fake.on_submit(Behaviour(hold=hold))
    slow = world.start("submit")
    try:
        world.until_billed(1)
        world.later()
        calls = [world.start("reap"), world.start("reap")]
        reaped = sum(call.result().result()["reaped"] for call in calls)
        world.did("reaped the claim of a living worker twice at the same time")
        world.holds("one of them took it", reaped == 1, f"{reaped} reaped")
        world.later()
        world.invoke("submit")
        world.did("another worker sent the row")
        token = world.row(row)["sume_job_id"]
    finally:
        hold.set()
    slow.result()
    world.did("the slow worker's answer arrived")
    found = world.row(row)
    world.holds(
        "the late answer changed nothing",
        found["sume_job_id"] == token and found["status"] == "submitted",
        f"{found['status']}, {world.count('job_conflict')} conflicts",
    )


def overlapping_workers(world: World) -> None:
    """Three workers take from the same rows at the same time."""
    rows = world.enqueue(30)
    calls = [world.start("submit") for _ in range(3)]
    counts = [call.result().result()["submitted"] for call in calls]
    world.did("three submits at once")
    world.holds(
        "each row was sent by one of them",
        sum(counts) == world.submits() == len(rows),
        f"{' + '.join(map(str, counts))} of {len(rows)}, {world.submits()} requests",
    )


def key_collision(world: World) -> None:
    """A restored copy of the database has used the keys of three rows before."""
    rows = world.enqueue(3)
    others = [world.submit_as_another(row) for row in rows]
    world.did("another database sent requests with their keys")
    world.invoke("submit")
    world.did("sent the rows")
    found = [world.row(row) for row in rows]
    codes = {each["error_code"] for each in found}
    world.holds(
        "the other's jobs were not adopted",
        codes == {"idempotency_key_collision"} and not any(each["sume_job_id"] for each in found),
        ", ".join(map(str, codes)),
    )
    kept = world.count("job_conflict")
    world.holds("the conflicts were kept", kept == len(others), f"{kept} in job_conflict")
    (innocent,) = world.enqueue()
    world.later()
    before = world.submits()
    world.invoke("submit")
    sent = world.submits() - before
    world.did("another row, an hour later")
    world.holds("nothing is sent until a person has looked", sent == 0, f"{sent} requests")
    world.execute("update pace_gate set closed_until = now() where closed_until = 'infinity'")
    world.did("a person opened the gate")
    world.invoke("submit")
    status = world.row(innocent)["status"]
    world.holds("then it goes on", status == "submitted", status)


def poison_row(world: World) -> None:
    """Sume can never answer for one row; the rows behind it go on, and it ends."""
    poison, *others = world.enqueue(4)
    world.fake.always_on_submit(Behaviour(status=500, accept=False), key=world.key(poison))
    for _ in range(12):
        world.invoke("submit")
        if world.row(poison)["status"] == "failed":
            break
        world.later()
    world.fake.always_on_submit(None, key=world.key(poison))
    found = world.row(poison)
    sends = len(world.fake.posts(world.key(poison)))
    world.did(f"Sume answered 500 to one row {sends} times")
    world.holds(
        "it ended with its reason",
        found["error_code"] == "attempts_exhausted",
        f"{found['status']}, {found['error_code']} after {found['attempts']} attempts",
    )
    statuses = {world.row(other)["status"] for other in others}
    world.holds("the rows behind it went on", statuses == {"submitted"}, ", ".join(statuses))


def new_generation(world: World) -> None:
    """A generation failed, and a person asks for another one: billed anew, with a new key."""
    (row,) = world.enqueue()
    world.invoke("submit")
    world.finish(row, "failed")
    first = world.row(row)
    world.did("the generation failed")
    world.later()
    world.invoke("poll")
    world.invoke("reap")
    again = world.row(row)["generation"]
    world.holds("nothing was made again by itself", again == 1, f"generation {again}")
    world.execute("update render_jobs set generation = generation + 1 where id = %(id)s", id=row)
    world.did("a person raised its generation")
    world.invoke("submit")
    second = world.row(row)
    world.holds(
        "the second has a key and a job of its own",
        second["idempotency_key"] != first["idempotency_key"]
        and second["sume_job_id"] not in (None, first["sume_job_id"]),
        second["idempotency_key"],
    )


def _take_back(world: World) -> int:
    world.later()
    reaped: int = world.invoke("reap")["reaped"]
    world.later()
    return reaped
