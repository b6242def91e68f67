"""Peer: procrastinate, its own worker with asynchronous tasks. Default: one job at a time."""

from __future__ import annotations

import asyncio

import procrastinate
from clock import Clock, arguments, execute

FINISHED = """
insert into procrastinate_jobs (queue_name, task_name, status, attempts, args)
select 'bench', 'noop', 'succeeded', 1, '{"number": 1}'
  from generate_series(1, %s - (select count(*) from procrastinate_jobs))"""
LEFT = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
BATCH = 1_000
TUNED = 20


async def main() -> None:
    url, tuned, rows, finished = arguments()
    connector = procrastinate.PsycopgConnector(conninfo=url, max_size=TUNED if tuned else 4)
    app = procrastinate.App(connector=connector)
    clock = Clock(url, rows, LEFT)

    @app.task(name="noop", queue="bench")
    async def noop(number: int) -> None:
        clock.job()

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        execute(url, FINISHED.replace("%s", str(finished)))
        for first in range(0, rows, BATCH):
            numbers = range(first, min(first + BATCH, rows))
            await noop.batch_defer_async(*({"number": number} for number in numbers))
        execute(url, "vacuum analyze procrastinate_jobs")
        watch = clock.watch(lambda: None)
        # Without `wait` it ends as soon as it has caught up.
        await app.run_worker_async(concurrency=TUNED if tuned else 1, wait=False)
        watch.join(60)
    clock.tell("procrastinate")


asyncio.run(main())
