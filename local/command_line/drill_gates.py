"""Scenarios of the gates and of the database: what stops everybody."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from local.fake_sume.behaviour import Behaviour, WebhookBehaviour

if TYPE_CHECKING:
    from local.command_line.drill_world import World


def gate_closed_by_429(world: World) -> None:
    """Sume says that it is too much; everybody waits as long as it asks."""
    (row,) = world.enqueue()
    world.fake.on_submit(
        Behaviour(status=429, code="rate_limit_exceeded", headers={"Retry-After": "600"})
    )
    world.invoke("submit")
    world.did("Sume answered 429 with Retry-After: 600")
    gate = world.execute(
        "select closed_until >= now() + interval '9 minutes' as is_closed, reason"
        " from pace_gate where name = 'writes'"
    )[0]
    world.holds("the gate closed for as long", bool(gate["is_closed"]), gate["reason"])
    attempts = world.row(row)["attempts"]
    world.holds("the refusal used no attempt", attempts == 0, f"{attempts} attempts")
    world.enqueue(3)
    before = world.submits()
    calls = [world.start("submit") for _ in range(2)]
    for call in calls:
        call.result().result()
    world.did("two more submits, with more rows")
    sent = world.submits() - before
    world.holds("nothing left while it was closed", sent == 0, f"{sent} requests")
    world.later()
    world.invoke("submit")
    world.did("submitted when the time was over")
    is_open = world.count("pace_gate", "name = 'writes' and closed_until is null") == 1
    world.holds("it opened again", is_open, "open" if is_open else "closed")


def credits_used_up(world: World) -> None:
    """The balance is used up: everything stops, and no row is failed for it."""
    world.enqueue(3)
    world.fake.always_on_submit(Behaviour(status=402, code="insufficient_credits"))
    world.invoke("submit")
    world.did("Sume answered 402 to every row")
    closed = world.count("pace_gate", "closed_until > now()")
    world.holds("writes and reads stopped", closed == 2, f"{closed} gates closed")
    failed = world.count("render_jobs", "status <> 'pending'")
    world.holds("no row was failed for it", failed == 0, f"{failed} rows not pending")
    world.later()
    world.invoke("submit")
    probes = world.count("pace_gate", "closed_until > now() and closures > 1")
    world.did("one row probed while nothing was paid yet")
    world.holds("the wait doubled", probes == 2, f"{probes} gates closed for longer")
    world.fake.always_on_submit(None)
    world.did("paid")


def database_restart(world: World) -> None:
    """The database restarts while a request is under way and a webhook comes in."""
    known, row = world.enqueue(2)
    hold = threading.Event()
    world.fake.on_submit(Behaviour(hold=hold), key=world.key(row))
    # Sume's own delivery is lost: the one below comes in its place, at the right moment.
    world.fake.on_webhook(WebhookBehaviour(lost=True), key=world.key(known))
    call = world.start("submit")
    world.until(lambda: world.row(known)["status"] == "submitted", "the first row was recorded")
    world.until_billed(2)
    job_id = world.row(known)["sume_job_id"]
    world.finish(known)
    server = world.bundle.server
    assert server is not None
    server.stop()
    try:
        status, _ = world.deliver(world.fake.webhook_body(job_id, "completed"))
        world.did("stopped the database; a webhook came in, and the answer to a submit")
        world.holds("the webhook was asked to come again", status == 503, f"HTTP {status}")
        hold.set()
    finally:
        server.start()
    world.did("started the database")
    call.result()
    world.did(f"the row whose answer came meanwhile is {world.row(row)['status']}")
    status, outcome = world.deliver(world.fake.webhook_body(job_id, "completed"))
    world.holds("the same containers went on", status == 200, f"HTTP {status}, {outcome}")
