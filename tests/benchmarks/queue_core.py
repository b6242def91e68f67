"""The queue without HTTP: claim and record, and the guarded end, through the real store."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
from sume_jobs.connection import Database
from sume_jobs.decisions.pacing import pace
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings
from sume_jobs.store import functions, gen_jobs, render_jobs, webhook_events

from tests.benchmarks import article
from tests.benchmarks.peers.contenders import CONTENDERS, Peers
from tests.benchmarks.results import Subject, interleaved, ratios
from tests.benchmarks.stand import FINISHED, Stand

BATCH = 50
# What the peers take in one batch where they are tuned.
LARGE_BATCH = 500
ROWS = 5_000
# Aims of issue 6: the ratio where each commit costs 1 ms, the rates on a fast disk.
ARTICLE_TIMES = 25.0
DISK_AIMS = {
    "claim + record accepted": 15_000.0,
    "claim + record accepted, tuned": 15_000.0,
    "guarded end, poll": 10_000.0,
    "guarded end, webhook": 1_500.0,
}
# The article's worker commits twice a row, so fewer rows give its rate.
ARTICLE_ROWS = 1_000
WEBHOOKS = 1_000

FLOOR_CREATE = """
create table floor_jobs (
  id bigint primary key, prompt text, status text not null default 'pending', job_id text);
create index floor_pending on floor_jobs (id) where status = 'pending';
insert into floor_jobs (id, prompt) select n, 'A lighthouse at dusk, oil on canvas, number ' || n
  from generate_series(1, %s) as n"""
FLOOR_CLAIM = """
with picked as materialized (
  select id from floor_jobs where status = 'pending' order by id limit %s for update skip locked)
update floor_jobs f set status = 'submitting' where f.id = any (array(select id from picked))
returning id, prompt"""
FLOOR_DONE = """
update floor_jobs f set status = 'submitted', job_id = d.job_id
  from unnest(%s::bigint[], %s::text[]) as d (id, job_id) where f.id = d.id"""
FLOOR_FINISHED = """
insert into floor_jobs select n, 'a finished prompt', 'submitted', 'old-' || n
  from generate_series(%s + 1, %s + %s) as n"""
ARTICLE_FINISHED = """
insert into article_jobs (prompt, status, sume_job_id)
select 'a finished prompt ' || n, 'submitted', 'old-' || n from generate_series(1, %s) as n"""

CLAIMING = render_jobs.ClaimSettings(
    prefix="bench",
    webhook_url=None,
    retention=86_400,
    max_attempts=8,
    probe_seconds=25.0,
    pace=pace(10_000_000),
)


def measure(stand: Stand, repeats: int, with_peers: bool = True) -> Subject:
    """Jobs a second at 0 and at 200,000 finished rows; one connection, one process each."""
    subject = Subject("Queue core without HTTP (ours: one connection)")
    peers = Peers(stand)
    for finished in (0, FINISHED):
        others = peers.runs(finished) if with_peers else {}
        claims, tuned, planned, webhooks, webhooks_planned, articles, floors, *found = interleaved(
            repeats,
            partial(_ours, stand, finished),
            partial(_ours, stand, finished, batch=LARGE_BATCH),
            partial(_ours, stand, finished, stored=False),
            partial(_ours, stand, finished, by_webhook=True),
            partial(_ours, stand, finished, by_webhook=True, stored=False),
            partial(_article, stand, finished),
            partial(_floor, stand, finished),
            *others.values(),
        )
        label = f"{finished:,} finished: "
        rates = [claim for claim, _ in claims]
        large = [claim for claim, _ in tuned]
        aims = DISK_AIMS if stand.on_disk else {}
        add = partial(_add, subject, label, aims)
        add("claim + record accepted", "jobs/s", rates, f"batches of {BATCH}")
        note = f"batches of {LARGE_BATCH}, as the tuned peers"
        add("claim + record accepted, tuned", "jobs/s", large, note)
        without = "by text: every statement planned anew"
        add(
            "claim + record accepted, no kept plans",
            "jobs/s",
            [each for each, _ in planned],
            without,
        )
        add("guarded end, poll", "jobs/s", [end for _, end in claims])
        note = "stored and applied one by one"
        add("guarded end, webhook", "jobs/s", [end for _, end in webhooks], note)
        ends = [end for _, end in webhooks_planned]
        add("guarded end, webhook, no kept plans", "jobs/s", ends, without)
        add("article's worker", "jobs/s", articles, "claim + record, with a partial index")
        add("ideal floor", "jobs/s", floors, "bare table, no rules kept")
        notes = {each.label: each.note for each in CONTENDERS}
        measured = {}
        for name, samples in zip(others, found, strict=True):
            if None in samples:
                subject.notes.append(f"{label}{name} is left out: {peers.skipped[name]}")
            else:
                measured[name] = samples
                add(name, "jobs/s", samples, notes[name])
        aim = None if stand.on_disk else (">=", ARTICLE_TIMES)
        subject.add(label + "ours / article", "times", ratios(rates, articles), "", aim)
        subject.add(label + "ours, tuned / article", "times", ratios(large, articles), "", aim)
        subject.add(label + "ours / floor", "times", ratios(rates, floors))
        python = {each.label for each in CONTENDERS if each.is_python} & set(measured)
        if python:
            best = max(python, key=lambda name: statistics.median(measured[name]))
            for name, ours in (("ours", rates), ("ours, tuned", large)):
                against = ratios(ours, measured[best])
                subject.add(f"{label}{name} / best in Python", "times", against, best, (">=", 1.0))
    subject.notes += [f"{name} {version}" for name, version in sorted(peers.versions.items())]
    return subject


def _add(
    subject: Subject,
    label: str,
    aims: dict[str, float],
    name: str,
    unit: str,
    samples: list[float],
    note: str = "",
) -> None:
    aim = (">=", aims[name]) if name in aims else None
    subject.add(label + name, unit, samples, note, aim)


def _ours(
    stand: Stand,
    finished: int,
    *,
    batch: int = BATCH,
    by_webhook: bool = False,
    stored: bool = True,
) -> tuple[float, float]:
    """Rates of claim + record, and of the guarded end; without the functions if not `stored`."""
    rows = WEBHOOKS if by_webhook else ROWS
    with stand.database(pending=rows, finished=finished) as url:
        settings = Settings.from_environment({"DATABASE_URL": url})
        database = Database(settings, Secrets(settings))
        if not stored:
            for each in functions.STATEMENTS:
                database.run(f"drop function {each.function}")
        database.run("select 1")
        jobs: list[str] = []
        begun = time.monotonic()
        while claims := render_jobs.claim(database, CLAIMING, batch, True).claims:
            accepted = [
                render_jobs.Accepted(each.row_id, each.token, each.key, f"job-{each.row_id}")
                for each in claims
            ]
            render_jobs.record(database, accepted, 8, 30.0)
            jobs += [each.job_id for each in accepted]
        claimed = len(jobs) / (time.monotonic() - begun)
        assert len(jobs) == rows
        end = _by_webhook if by_webhook else _by_poll
        begun = time.monotonic()
        won = sum(end(database, jobs))
        ended = won / (time.monotonic() - begun)
        assert won == rows
        database.close()
    return claimed, ended


def _by_poll(database: Database, jobs: list[str]) -> Iterator[int]:
    for first in range(0, len(jobs), BATCH):
        wishes = [gen_jobs.Wish(job, "completed") for job in jobs[first : first + BATCH]]
        yield sum(moved.won for moved in gen_jobs.apply(database, wishes))


def _by_webhook(database: Database, jobs: list[str]) -> Iterator[int]:
    for job in jobs:
        event = webhook_events.Event(
            f"event-{job}", '{"id": "x"}', job, "job.completed", "completed"
        )
        yield webhook_events.receive(database, event).outcome == "applied"


def _article(stand: Stand, finished: int) -> float:
    with stand.database() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(article.CREATE.encode())
        connection.execute(ARTICLE_FINISHED, (finished,))
        connection.execute(article.ADD, (ARTICLE_ROWS,))
        connection.execute("vacuum analyze article_jobs")

        def work() -> int:
            rows = 0
            while row := article.claim(connection):
                article.done(connection, row[0], f"job-{row[0]}")
                rows += 1
            return rows

        return _rate(work)


def _floor(stand: Stand, finished: int) -> float:
    with stand.database() as url, psycopg.connect(url, autocommit=True) as connection:
        for statement in FLOOR_CREATE.split(";"):
            connection.execute(statement.encode(), (ROWS,) if "%s" in statement else None)
        connection.execute(FLOOR_FINISHED, (ROWS, ROWS, finished))
        connection.execute("vacuum analyze floor_jobs")

        def work() -> int:
            rows = 0
            while claimed := connection.execute(FLOOR_CLAIM, (BATCH,)).fetchall():
                ids: list[Any] = [row[0] for row in claimed]
                connection.execute(FLOOR_DONE, (ids, [f"job-{each}" for each in ids]))
                rows += len(ids)
            return rows

        return _rate(work)


def _rate(work: Callable[[], int]) -> float:
    begun = time.monotonic()
    rows = work()
    return rows / (time.monotonic() - begun)
