"""History costs nothing: beside 1,000,000 ended rows, whatever is called touches a few pages.

Whatever the planner knows of the tables: fresh statistics, none at all (never analyzed), those of
empty tables, and those of a handful of rows, all of them hot.

SHOW_PLANS=name (or =all, for the numbers alone) prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from sume_jobs.decisions.enqueue_request import LARGEST_ID, NewJob
from sume_jobs.store import (
    enqueue,
    follow_ups,
    gen_jobs,
    job_views,
    levels,
    operator_views,
    render_jobs,
    retention,
    webhook_events,
)
from sume_jobs.store import pace as gate

from tests.database.plans import (
    HISTORY,
    HOT,
    JOB,
    SUBMITTED,
    Pages,
    accepted,
    ends,
    fill_backlog,
    forget_statistics,
    leave_alone,
    make_backlog,
    make_history,
    refused,
)
from tests.database.sessions import WIDE, claiming
from tests.support.postgres import Database, Server, create_database, drop_database

# Making the history takes 19 s of one processor.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def history(postgres: Server, template: str) -> Iterator[Database]:
    yield from made(postgres, template, "history", make_history)


@pytest.fixture(scope="module")
def backlog(postgres: Server, template: str) -> Iterator[Database]:
    yield from made(postgres, template, "backlog", make_backlog)


def made(
    postgres: Server, template: str, name: str, make: Callable[[Database], None]
) -> Iterator[Database]:
    name = f"sume_{name}_{os.getpid()}"
    create_database(postgres, name, template)
    database = Database(postgres, name)
    make(database)
    yield database
    database.close()
    drop_database(postgres, name)


# A call touches fewer pages than this, or, where it writes or shows many rows, than so many a row:
# a write touches the pages of each index, and those of follow-up and history.
MOST = 100
A_ROW = 40


def event(event_id: str, job_id: str | None, status: str | None = None) -> webhook_events.Event:
    return webhook_events.Event(event_id, "{}", job_id, status=status)


def purge(days: int) -> Callable[[Any, str], object]:
    def one_batch(store: Any, token: str) -> None:
        may_go_on = iter([True])
        retention.purge(store, days, 86400, lambda: next(may_go_on, False))

    return one_batch


# name -> (what is called, with the token of a claimed row; how many rows it writes or shows)
CALLS: dict[str, tuple[Callable[[Any, str], object], int]] = {
    "claim": (lambda s, t: render_jobs.claim(s, claiming(), 4, True), 4),
    "claim one": (lambda s, t: render_jobs.claim(s, claiming(), 1, True), 1),
    "record a success": (lambda s, t: render_jobs.record(s, [accepted(t, "job_new")], 8, 5.0), 2),
    "record a known job": (lambda s, t: render_jobs.record(s, [accepted(t, "job_7")], 8, 5.0), 2),
    "record a refusal": (lambda s, t: render_jobs.record(s, [refused(t)], 8, 5.0), 1),
    "reap": (lambda s, t: render_jobs.reap(s, 600, 86400, 8, "render-job"), HOT),
    "request cancel": (lambda s, t: render_jobs.request_cancel(s, SUBMITTED), 1),
    "regenerate": (lambda s, t: render_jobs.regenerate(s, [("job_21", 21)], 2), 1),
    "claim due jobs": (lambda s, t: gen_jobs.claim_due(s, WIDE, 4, 50.0, 25.0), 4),
    "apply": (lambda s, t: gen_jobs.apply(s, ends(SUBMITTED, 1)), 1),
    "apply to ten": (lambda s, t: gen_jobs.apply(s, ends(SUBMITTED, HOT)), HOT),
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
    "for archive": (lambda s, t: gen_jobs.for_archive(s, "job_7"), 1),
    "receive": (lambda s, t: webhook_events.receive(s, event("evt_new", JOB, "completed")), 2),
    "receive for a job unknown": (
        lambda s, t: webhook_events.receive(s, event("evt_new", "job_new", "completed")),
        1,
    ),
    "receive an undecidable event": (
        lambda s, t: webhook_events.receive(s, event("evt_new", JOB)),
        2,
    ),
    "receive a duplicate": (
        lambda s, t: webhook_events.receive(s, event("evt_7", "job_7", "completed")),
        0,
    ),
    "apply held": (lambda s, t: webhook_events.apply_held(s, [JOB, "job_new", "job_7"]), 0),
    "apply all held": (lambda s, t: webhook_events.apply_all_held(s), HOT),
    "lease follow-ups": (lambda s, t: follow_ups.claim(s, 60.0, 8), HOT),
    "backlog": (lambda s, t: follow_ups.backlog(s), 0),
    "purge, nothing old": (purge(3000), 0),
    "purge a batch": (purge(3), retention.BATCH),
    "purge held": (lambda s, t: webhook_events.purge_held(s, 7), 0),
    "purge old events, none old": (lambda s, t: webhook_events.purge_old(s, 3000), 0),
    "close a gate": (lambda s, t: gate.close(s, ["writes"], 30.0, "why"), 1),
    "take": (lambda s, t: gate.take(s, "writes", WIDE), 1),
    "gates": (lambda s, t: gate.state(s), 0),
    "levels": (lambda s, t: levels.read(s), 0),
    "enqueue": (lambda s, t: enqueue.enqueue(s, [NewJob("a fox", reference="order-7")]), 1),
    "find": (lambda s, t: job_views.find(s, [7]), 1),
    "by reference": (lambda s, t: job_views.by_reference(s, "order-7", None), 1),
    "by a reference that nobody has": (lambda s, t: job_views.by_reference(s, "order", None), 0),
    "support": (lambda s, t: job_views.support(s, 7), 1),
    "newest": (lambda s, t: job_views.newest(s, LARGEST_ID, 50, None), 50),
    "newest of the middle": (lambda s, t: job_views.newest(s, HISTORY // 2, 50, None), 50),
    "newest working": (lambda s, t: job_views.newest(s, LARGEST_ID, 50, "working"), 30),
    "working, far below them": (lambda s, t: job_views.newest(s, 500_000, 50, "working"), 50),
    "newest done": (lambda s, t: job_views.newest(s, LARGEST_ID, 50, "done"), 50),
    "newest in need": (lambda s, t: job_views.newest(s, LARGEST_ID, 50, "needs_attention"), 50),
    # Each kind is counted until the statistics tell that there are many.
    "figures": (lambda s, t: job_views.figures(s), 3 * job_views.EXACT // A_ROW),
    "pulse": (lambda s, t: job_views.pulse(s), 0),
    "board, newest moving": (lambda s, t: job_views.newest_moving(s, 8), 8),
    "board, newest done": (lambda s, t: job_views.newest_done(s, 8), 8),
    "board, newest in need": (lambda s, t: job_views.newest_in_need(s, 8), 8),
    "resolve": (lambda s, t: operator_views.resolve(s, ["7", "order-7", "job_7", "none"]), 4),
    "standing": (lambda s, t: operator_views.standing(s, [7, 8, 500_000]), 3),
    "a page of an export": (
        lambda s, t: next(operator_views.export(s, HISTORY // 2, None, prompts=True)),
        operator_views.PAGE,
    ),
    "a page of an export of a state": (
        lambda s, t: next(operator_views.export(s, 0, "working", prompts=False)),
        operator_views.PAGE,
    ),
    "awaits results": (lambda s, t: operator_views.awaits_results(s), 0),
    "start a generation": (lambda s, t: render_jobs.start_generation(s, 7, 1), 2),
    "send again": (lambda s, t: render_jobs.send_again(s, 7), 0),
    "debts": (lambda s, t: gate.debts(s), 0),
    "open a gate": (lambda s, t: gate.open_now(s, ["writes"]), 1),
    "count what may go, nothing old": (lambda s, t: retention.count(s, 3000, 86400), 0),
}


# Those that a long backlog shall not make dearer.
BESIDE_A_BACKLOG = (
    "claim",
    "claim one",
    "record a success",
    "record a refusal",
    "reap",
    "claim due jobs",
    "claim cancels",
    "receive",
    "receive for a job unknown",
    "receive an undecidable event",
    "apply to ten",
    "apply to an ended job",
    "looks",
    "apply held",
    "lease follow-ups",
    "newest",
    "newest working",
    "pulse",
    "board, newest moving",
    "board, newest done",
    "board, newest in need",
)


def check(database: Database, names: Iterable[str] = tuple(CALLS)) -> None:
    for stored in (False, True):
        pages = Pages(database, stored=stored)
        check_session(pages, names)
        pages.connection.close()


def check_session(pages: Pages, names: Iterable[str]) -> None:
    # Twice: a session's first call also reads what it needs to know of the functions.
    found = {name: [pages.of(CALLS[name][0]) for _ in range(2)][1] for name in names}
    if os.environ.get("SHOW_PLANS"):
        print(found)
    # Before 17 each key of an array is a way down the index of its own.
    a_row = A_ROW if pages.connection.info.server_version >= 170000 else A_ROW + 10
    wrong = {
        name: count for name, count in found.items() if count >= max(MOST, a_row * CALLS[name][1])
    }
    for name in {os.environ.get("SHOW_PLANS")} & CALLS.keys():
        print(pages.explain(CALLS[name][0]))
    assert not wrong, f"pages touched: {wrong}"


def test_with_statistics_of_a_handful_of_rows(history: Database) -> None:
    check(history)


def test_without_any_statistics(history: Database) -> None:
    forget_statistics(history, rows=-1)
    check(history)


def test_with_statistics_of_empty_tables(history: Database) -> None:
    forget_statistics(history, rows=0)
    check(history)


def test_with_fresh_statistics(history: Database) -> None:
    history.execute("analyze")
    check(history)


def test_beside_a_backlog_that_is_not_known_yet(backlog: Database) -> None:
    check(backlog, BESIDE_A_BACKLOG)


def test_beside_a_backlog_that_is_known(backlog: Database) -> None:
    backlog.execute("analyze")
    check(backlog, BESIDE_A_BACKLOG)


def test_due_jobs_behind_as_many_ended_ones(backlog: Database) -> None:
    """The planner thinks that every second row of the table is due, and they lie at its end."""
    with backlog.connection.transaction():
        backlog.execute("set local session_replication_role = replica")
        backlog.execute(
            "update gen_job set status = 'completed', next_poll_at = null where ctid = any (array("
            "select ctid from gen_job order by ctid limit (select count(*) / 2 from gen_job)))"
        )
    backlog.execute("vacuum analyze gen_job")
    check(backlog, ("claim due jobs",))


@pytest.fixture
def empty(postgres: Server, template: str) -> Iterator[Database]:
    yield from made(postgres, template, "grown", leave_alone)


def test_a_plan_that_was_made_while_the_tables_were_empty(empty: Database) -> None:
    """A session keeps the plans of the stored statements, however the tables grow under it."""
    pages = Pages(empty, stored=True)
    for name in BESIDE_A_BACKLOG:
        pages.call(CALLS[name][0])
    fill_backlog(empty)
    check_session(pages, BESIDE_A_BACKLOG)
    pages.connection.close()
