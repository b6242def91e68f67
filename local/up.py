"""``make up``: the whole bundle on this machine until it is interrupted.

Rows inserted into ``render_jobs`` by any program are sent to the fake Sume, or to the real one
where ``SUME_BASE_URL`` and ``SUME_API_KEY`` are set, and followed to their end.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psycopg
from rich.console import Console

from local import progress
from local.bundle import FOLDER, Bundle, BundleError, Setup, sume_address
from local.gateway import BOARD
from local.postgres import PostgresError, psql
from local.progress import standing

if TYPE_CHECKING:
    from types import FrameType

LOOK_SECONDS = 2.0
DRAIN_SECONDS = 10.0
# Always one submit run alive that waits for rows, so that a new one is sent at once.
SCHEDULE_SECONDS = {"submit": 15.0, "reap": 10.0, "poll": 2.0}
ENVIRONMENT = {"LINGER_SECONDS": "30", "CLAIM_TIMEOUT_SECONDS": "150"}
# The fake has no limits; with the real API its own limits are the ones to keep.
NO_LIMITS = {"SUME_WRITES_PER_MINUTE": "60000", "SUME_READS_PER_MINUTE": "60000"}
FAKE = ("--latency=0.05-0.2", "--job-seconds=2-10", "--weather=failed=0.03")


def main(arguments: list[str] | None = None) -> int:
    """Run until interrupted; gives the exit status: 0, or 2 where it cannot run."""
    parser = argparse.ArgumentParser(prog="make up", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where data and logs are kept")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False, soft_wrap=True)
    try:
        with Bundle(setup(given.folder)) as bundle:
            bundle.start_schedules()
            for line in introduction(bundle):
                console.print(line, markup=False)
            try:
                _watch(console, bundle)
            except KeyboardInterrupt:
                console.print("Stopping.")
            _let_sends_end(bundle)
    except (BundleError, PostgresError) as error:
        console.print(f"Cannot run: {error}", markup=False)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def setup(folder: Path) -> Setup:
    """How this bundle differs from a deployed one."""
    return Setup(
        folder=folder,
        schedule_seconds=SCHEDULE_SECONDS,
        environment=ENVIRONMENT if sume_address() else {**ENVIRONMENT, **NO_LIMITS},
        fake_arguments=FAKE,
    )


def introduction(bundle: Bundle) -> list[str]:
    """What a person needs to know to use it, line by line."""
    if bundle.fake is None:
        sume = f"{bundle.base_url} (the real one, polling only: each row is billed)"
    else:
        sume = f"{bundle.fake.url} (a fake, nothing is billed)"
    command = "./sume-jobs "
    if bundle.folder.resolve() != FOLDER:
        command += f"--folder {shlex.quote(str(bundle.folder))} "
    program = "psql" if shutil.which("psql") else shlex.quote(str(psql()))
    insert = "insert into render_jobs (prompt) values ('a lighthouse in a winter storm')"
    look = "select id, state, artifacts from job_customer order by id desc limit 5"
    return [
        "Running until interrupted (Ctrl-C).",
        f"  Database  {bundle.database_url}",
        f"  Board     {bundle.gateway.url}{BOARD.path}",
        f"  API       {bundle.gateway.url} (described at /openapi.json; POST /webhooks/sume)",
        f"  Sume      {sume}",
        f"  Logs      {bundle.logs}",
        "Enqueue a row, and look at it a few seconds later:",
        f'  {program} {shlex.quote(bundle.database_url)} -c "{insert}"',
        f'  {program} {shlex.quote(bundle.database_url)} -c "{look}"',
        f"Or a whole file, and more: {command}enqueue FILE, {command}watch, {command}--help",
    ]


def _watch(console: Console, bundle: Bundle) -> None:
    """Print where the rows stand whenever that changes."""
    said = ""
    while True:
        try:
            with psycopg.connect(bundle.database_url, autocommit=True) as connection:
                connection.execute(progress.CREATE)
                while True:
                    began = time.monotonic()
                    bundle.check()
                    connection.execute(progress.ADD_ALL)
                    line = progress.line(standing(connection))
                    if line != said:
                        console.print(f"{time.strftime('%H:%M:%S')}  {line}", markup=False)
                        said = line
                    time.sleep(max(LOOK_SECONDS, 4 * (time.monotonic() - began)))
        except psycopg.OperationalError as error:
            console.print(f"The database is away: {error}", markup=False)
            time.sleep(LOOK_SECONDS)


def _let_sends_end(bundle: Bundle) -> None:
    """Start nothing more, and give the requests that are out a few seconds to be recorded."""
    bundle.stop_schedules(0)
    deadline = time.monotonic() + DRAIN_SECONDS
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(bundle.database_url, autocommit=True) as connection,
    ):
        connection.execute(progress.CREATE)
        connection.execute(progress.ADD_UNFINISHED)
        while standing(connection).submitting and time.monotonic() < deadline:
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
