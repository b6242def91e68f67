"""Scenarios of the ends of jobs: webhooks that are early, late, lost, double, forged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from local.fake_sume.behaviour import WebhookBehaviour

if TYPE_CHECKING:
    from local.command_line.drill_world import World

COPIES: Final = 3
# How long an event is held for a job that nobody knows (R8), and a little more; seconds.
HELD: Final = 8 * 86400.0


def early_webhook(world: World) -> None:
    """A job's webhook comes before the answer to its submit."""
    (row,) = world.enqueue()
    world.fake.on_webhook(WebhookBehaviour(early=True))
    world.invoke("submit")
    world.did("the webhook was delivered before the submit was answered")
    outcomes = world.execute("select outcome from webhook_event")
    words = ", ".join(each["outcome"] for each in outcomes)
    world.holds("it was kept and applied", words == "applied", words or "no event")
    status = world.row(row)["job_status"]
    world.holds("the row knows its end", status == "completed", status)


def duplicated_webhook(world: World) -> None:
    """The same webhook comes several times at once."""
    (row,) = world.enqueue()
    world.fake.on_webhook(WebhookBehaviour(duplicate=COPIES))
    world.invoke("submit")
    before = dict(world.bundle.gateway.outcomes)
    world.finish(row)
    world.until(
        lambda: _more(world, before, "applied") + _more(world, before, "duplicate") > COPIES,
        "every copy was answered",
    )
    applied, copies = _more(world, before, "applied"), _more(world, before, "duplicate")
    world.did(f"{applied + copies} deliveries of one event")
    world.holds("one was applied", applied == 1, f"{applied} applied, {copies} duplicate")


def _more(world: World, before: dict[str, int], outcome: str) -> int:
    return world.bundle.gateway.outcomes[outcome] - before.get(outcome, 0)


def lost_webhook(world: World) -> None:
    """A webhook never comes; a poll finds the end."""
    (row,) = world.enqueue()
    world.fake.on_webhook(WebhookBehaviour(lost=True))
    world.invoke("submit")
    world.finish(row)
    world.did("the job ended, and its webhook was lost")
    status = world.row(row)["job_status"]
    world.holds("nobody knew it", status == "queued", status)
    world.later()
    counts = world.invoke("poll")
    world.did("polled")
    world.holds("the poll found it", counts["changed"] == 1, f"{counts['changed']} changed")


def forged_webhook(world: World) -> None:
    """Somebody who does not know the secret says that a job has ended."""
    (row,) = world.enqueue()
    world.invoke("submit")
    body = world.fake.webhook_body(world.row(row)["sume_job_id"], "failed")
    answers = [
        world.deliver(body, secret="whsec_of_somebody_else"),  # noqa: S106 (the point of it)
        world.deliver(body, at=time.time() - 3600),
    ]
    world.did("delivered with a wrong secret, and with an hour-old timestamp")
    statuses = [status for status, _ in answers]
    world.holds("both were refused", statuses == [401, 401], f"HTTP {statuses}")
    status = world.row(row)["job_status"]
    world.holds("nothing changed", status == "queued", status)


def contradicting_ends(world: World) -> None:
    """A job ends, and a later webhook and a stale one say something else."""
    (row,) = world.enqueue()
    world.invoke("submit")
    world.finish(row, "failed")
    job_id = world.row(row)["sume_job_id"]
    outcomes = [
        world.deliver(world.fake.webhook_body(job_id, status, event_id=f"evt_{status}"))[1]
        for status in ("completed", "processing")
    ]
    world.did("it failed; then came completed, then processing, correctly signed")
    world.holds("both changed nothing", outcomes == ["noop", "noop"], ", ".join(outcomes))
    status = world.row(row)["job_status"]
    world.holds("the first end stands", status == "failed", status)


def unknown_job(world: World) -> None:
    """A correctly signed webhook comes for a job that nobody knows here."""
    (row,) = world.enqueue()
    answer = world.deliver(world.fake.webhook_body("job_of_nobody", "completed"))
    world.did("delivered an event for a job that nobody knows")
    world.holds("it was held", answer == (200, "held"), f"HTTP {answer[0]}, {answer[1]}")
    world.invoke("submit")
    invented = world.count("gen_job", "job_id = 'job_of_nobody'")
    world.holds("no job was invented", invented == 0, f"{invented} jobs")
    world.finish(row)
    world.later(HELD)
    world.invoke("reap")
    world.did("more than a week went by")
    held = world.count("webhook_event", "outcome = 'held'")
    world.holds("it was let go", held == 0, f"{held} held")
