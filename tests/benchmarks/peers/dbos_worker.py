"""Peer: DBOS, a workflow without steps for each job.

Default: threads, looks once a second. Tuned: asynchronous, looks ten times a second; other widths
and intervals were slower.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from clock import Clock, arguments, execute
from dbos import DBOS, DBOSClient

LEFT = "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')"
# Copies of finished ones, under identities of their own.
FINISHED = """
insert into dbos.workflow_status ({columns})
select {values} from (select * from dbos.workflow_status where status = 'SUCCESS' limit 1) as one,
       generate_series(1, %s - (select count(*) from dbos.workflow_status)) as n"""
COLUMNS = """
select column_name from information_schema.columns
 where table_schema = 'dbos' and table_name = 'workflow_status' and is_generated = 'NEVER'"""
SENDERS = 8
TUNED = {"polling_interval_sec": 0.1}


def main() -> None:
    url, tuned, rows, finished = arguments()
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "console_log_level": "ERROR",
            # Else the two modes pass for two versions, and the older one is given no work.
            "application_version": "bench",
        }
    )
    clock = Clock(url, rows, LEFT)

    if tuned:

        @DBOS.workflow(name="noop")
        async def noop_as_task(number: int) -> None:
            clock.job()
    else:

        @DBOS.workflow(name="noop")
        def noop(number: int) -> None:
            clock.job()

    @DBOS.workflow(name="first")
    def first() -> None:
        """Leaves a finished workflow, to be copied."""

    DBOS.launch()
    if finished:
        first()
        add_finished(url, finished)
    client = DBOSClient(system_database_url=url)
    options = {"workflow_name": "noop", "queue_name": "bench"}
    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(lambda number: client.enqueue(options, number), range(rows)))
    execute(url, "vacuum analyze dbos.workflow_status")
    ended = threading.Event()
    clock.watch(ended.set)
    # Only now does anybody look at the queue.
    DBOS.register_queue("bench", **(TUNED if tuned else {}))
    ended.wait(120)
    client.destroy()
    DBOS.destroy()
    clock.tell("dbos")


def add_finished(url: str, finished: int) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        names = [name for (name,) in connection.execute(COLUMNS)]
        own = {"workflow_uuid": "'old-' || n || '-' || gen_random_uuid()"}
        values = [own.get(name, f"one.{name}") for name in names]
        sql = FINISHED.format(columns=", ".join(names), values=", ".join(values))
        connection.execute(sql.replace("%s", str(finished)).encode())


main()
