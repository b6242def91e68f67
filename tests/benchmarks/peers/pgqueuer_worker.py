"""Peer: PgQueuer over asyncpg with uvloop. Default: batches of 10; tuned: of 500."""

from __future__ import annotations

import asyncpg
import uvloop
from clock import Clock, arguments, execute
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

# What is finished leaves the queue; a line for each of its states stays in the log.
FINISHED = """
insert into pgqueuer_log (job_id, status, priority, entrypoint)
select n, status::pgqueuer_status, 0, 'noop'
  from generate_series(1, (%s * 3 - (select count(*) from pgqueuer_log)) / 3) as n,
       unnest(array['queued', 'picked', 'successful']) as status"""
LEFT = "select count(*) from pgqueuer"
BATCH = 1_000
TUNED = 500


async def main() -> None:
    url, tuned, rows, finished = arguments()
    connection = await asyncpg.connect(dsn=url)
    queuer = PgQueuer.from_asyncpg_connection(connection)
    clock = Clock(url, rows, LEFT)

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        clock.job()

    if not await connection.fetchval("select to_regclass('pgqueuer') is not null"):
        await queuer.queries.install()
    if finished:
        execute(url, FINISHED.replace("%s", str(finished)))
    for first in range(0, rows, BATCH):
        count = min(BATCH, rows - first)
        await queuer.queries.enqueue(["noop"] * count, [b"1"] * count, [0] * count)
    execute(url, "vacuum analyze pgqueuer", "vacuum analyze pgqueuer_log")
    watch = clock.watch(lambda: None)
    batch = {"batch_size": TUNED} if tuned else {}
    await queuer.qm.run(mode=QueueExecutionMode.drain, **batch)
    watch.join(60)
    clock.tell("pgqueuer")


uvloop.run(main())
