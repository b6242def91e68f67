"""``make demo``: a file of prompts goes in, and every row comes out done or with a reason.

Runs the real handlers against an embedded Postgres and a fake Sume that misbehaves a little, or
against the real Sume where ``SUME_BASE_URL`` and ``SUME_API_KEY`` are set. Ends with a table, and
with a status other than 0 if a promise was broken. An interrupted run is taken up by the next.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from rich.console import Console

from local import progress, prompts
from local.bundle import FOLDER, Bundle, BundleError, Setup
from local.postgres import PostgresError
from local.progress import Display, Standing, standing
from local.report import functions_table, report, summary_table

if TYPE_CHECKING:
    from types import FrameType

SAMPLE = Path(__file__).with_name("sample_prompts.csv")
# How often the standing is looked at, in seconds.
LOOK_SECONDS = 0.5
# Without any change for so long, a run with the fake has come to a stop that it should not.
STUCK_SECONDS = 180.0
DRAIN_SECONDS = 15.0
BAD_LINES_SHOWN = 50

BROKEN, UNUSABLE, INTERRUPTED = 1, 2, 130

# Shorter limits than the template's, all in the same order, so that what a killed run left behind
# is taken up within seconds: call < function < claim.
QUICK = {
    "SUME_TIMEOUT_SECONDS": "5",
    "CLAIM_TIMEOUT_SECONDS": "20",
    # The fake has no limits; with the real API its own limits are the ones to keep.
    "SUME_WRITES_PER_MINUTE": "60000",
    "SUME_READS_PER_MINUTE": "60000",
}
QUICK_TIMEOUTS = {"submit": 15.0, "reap": 15.0, "poll": 15.0}
SCHEDULE_SECONDS = {"submit": 1.0, "reap": 2.0, "poll": 1.0}
# The real API: the template's numbers, but a claim need not be older than a function can be.
REAL = {"CLAIM_TIMEOUT_SECONDS": "150"}

FAKE = (
    "--latency=0.05-0.2",
    "--job-seconds=1-6",
)
WEATHER = (
    "--weather=failed=0.03,rate429=0.004,retry_after=1,drop_after=0.015,drop_before=0.01,"
    "error500=0.01,read_error=0.02,duplicate_webhook=0.05,early_webhook=0.02"
)
# Whatever the size of the file, each of these happens as soon as there are enough rows: the first
# requests are normal, one is dropped after its job was made, and so on. A lost webhook is found
# by a poll half a minute later, so those come first.
NORMAL: dict[str, Any] = {}
RATE_LIMITED = {"status": 429, "code": "rate_limit_exceeded", "headers": {"Retry-After": "1"}}
SUBMITS = [
    *[NORMAL] * 2,
    {"drop": "after"},
    NORMAL,
    RATE_LIMITED,
    NORMAL,
    {"drop": "before"},
    *[NORMAL] * 40,
    RATE_LIMITED,
    *[NORMAL] * 60,
    RATE_LIMITED,
]
WEBHOOKS = [NORMAL, {"lost": True}, {"duplicate": 1}, {"early": True}, NORMAL, {"lost": True}]


class _StopError(Exception):
    """Ends the run early, with a message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; gives the exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "prompts",
        nargs="?",
        type=Path,
        default=Path(os.environ.get("PROMPTS") or SAMPLE),
        help="CSV, JSON lines, or one prompt a line (default: PROMPTS, else a sample)",
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where data and logs are kept")
    parser.add_argument("--calm", action="store_true", help="the fake Sume does not misbehave")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False)
    try:
        return _run(console, given.prompts, given.folder, given.calm)
    except _StopError as stop:
        console.print(str(stop), markup=False, soft_wrap=True)
        return stop.status
    except (BundleError, PostgresError) as error:
        console.print(f"Cannot run: {error}", markup=False, soft_wrap=True)
        return UNUSABLE
    except prompts.PromptsFileError as error:
        console.print(f"Cannot use {given.prompts}: {error}", markup=False, soft_wrap=True)
        return UNUSABLE
    except KeyboardInterrupt:
        console.print("Interrupted. Nothing is lost: the next make demo goes on from here.")
        return INTERRUPTED
    except psycopg.OperationalError as error:
        console.print(f"The database went away: {error}", markup=False, soft_wrap=True)
        return BROKEN


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(console: Console, path: Path, folder: Path, calm: bool) -> int:
    begun = time.monotonic()
    # Looked at before anything is started: a wrong path should not take a second to be told.
    next(prompts.read(path), None)
    with Bundle(_setup(folder, calm)) as bundle:
        _introduce(console, bundle, time.monotonic() - begun)
        with psycopg.connect(bundle.database_url, autocommit=True) as connection:
            run = _begin_run(console, bundle, path)
            _load(console, connection, bundle, path, run)
            if not calm:
                _order_weather(bundle)
            bundle.start_schedules()
            with Display(console) as display:
                _follow(connection, bundle, display)
            _come_to_rest(bundle)
            found = report(connection, bundle)
            # A promise that was broken stays broken: only rows in between are taken up again.
            bundle.state.run["finished"] = found.standing.finished
            bundle.state.save()
        console.print(functions_table(found))
        console.print(summary_table(found, time.monotonic() - begun))
    if found.broken:
        for broken in found.broken:
            console.print(f"BROKEN: {broken}", style="bold red", markup=False, soft_wrap=True)
        console.print(f"Logs: {bundle.logs}", markup=False, soft_wrap=True)
        return BROKEN
    kept = "every row billed once" if found.billed is not None else "every row submitted once"
    console.print(f"All promises kept: {kept}, none lost, one follow-up each.", style="green")
    return 0


def _setup(folder: Path, calm: bool) -> Setup:
    if (os.environ.get("SUME_BASE_URL") or "").strip():
        return Setup(folder=folder, schedule_seconds=SCHEDULE_SECONDS, environment=REAL)
    return Setup(
        folder=folder,
        schedule_seconds=SCHEDULE_SECONDS,
        timeout_seconds=QUICK_TIMEOUTS,
        environment=QUICK,
        fake_arguments=FAKE if calm else (*FAKE, WEATHER),
    )


def _introduce(console: Console, bundle: Bundle, seconds: float) -> None:
    if bundle.fake is not None:
        sume = f"a fake Sume at {bundle.fake.url}, which bills nobody"
        if os.environ.get("SUME_API_KEY", "").strip():
            sume += " (SUME_API_KEY alone changes nothing: set SUME_BASE_URL too for the real one)"
    else:
        sume = f"the real Sume at {bundle.base_url}, polling only: each row is billed"
    console.print(f"Started in {seconds:.1f} s with {sume}.", markup=False, soft_wrap=True)
    console.print(f"Data and logs: {bundle.folder}", markup=False, soft_wrap=True)


def _begin_run(console: Console, bundle: Bundle, path: Path) -> dict[str, Any]:
    """The run that this start belongs to: the interrupted one of the same file, or a new one."""
    run = bundle.state.run
    if run and not run["finished"] and run["file"] == str(path.resolve()):
        console.print(f"Run {run['number']} was interrupted: going on with it.")
        return run
    number = run.get("number", 0) + 1
    bundle.state.run = {"number": number, "file": str(path.resolve()), "finished": False}
    bundle.state.save()
    return bundle.state.run


def _load(
    console: Console,
    connection: psycopg.Connection[Any],
    bundle: Bundle,
    path: Path,
    run: dict[str, Any],
) -> None:
    """Insert what is new, and note which rows belong to this run."""
    connection.execute(progress.CREATE)
    unfinished = connection.execute(progress.ADD_UNFINISHED).rowcount
    loaded = prompts.load(
        connection,
        path,
        # A fresh run for each start with the fake; with the real API a file that was loaded
        # before is the same work, and is not paid again.
        reference_prefix="" if bundle.real else f"demo-{run['number']}:",
        on_batch=lambda _, references: connection.execute(progress.ADD, [references]),
    )
    for bad in loaded.bad[:BAD_LINES_SHOWN]:
        console.print(f"line {bad.line}: {bad.reason}", style="yellow", markup=False)
    if len(loaded.bad) > BAD_LINES_SHOWN:
        everything = bundle.folder / "bad_lines.txt"
        lines = [f"line {bad.line}: {bad.reason}\n" for bad in loaded.bad]
        everything.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
        rest = len(loaded.bad) - BAD_LINES_SHOWN
        console.print(f"and {rest} more, all in {everything}", style="yellow", markup=False)
    if loaded.ignored_columns:
        names = ", ".join(loaded.ignored_columns)
        console.print(
            f"Not used: {names}. Options of the model belong into params.",
            style="yellow",
            markup=False,
        )
    if not loaded.inserted + loaded.present + unfinished:
        raise _StopError(f"There is no usable prompt in {path}.", UNUSABLE)
    parts = [f"{loaded.inserted} rows inserted"]
    if loaded.present:
        parts.append(f"{loaded.present} were there already")
    if loaded.bad:
        parts.append(f"{len(loaded.bad)} lines not used")
    console.print(f"{path.name}: {', '.join(parts)}.", markup=False, soft_wrap=True)


def _order_weather(bundle: Bundle) -> None:
    if bundle.fake is not None:
        bundle.fake.order("submit", SUBMITS)
        bundle.fake.order("webhook", WEBHOOKS)


def _follow(connection: psycopg.Connection[Any], bundle: Bundle, display: Display) -> None:
    """Show the standing until every row has come to its end."""
    last: Standing | None = None
    changed = time.monotonic()
    while True:
        looked = time.monotonic()
        now = standing(connection)
        display.show(now)
        if now.finished:
            return
        bundle.check()
        if now != last:
            last, changed = now, looked
        if bundle.real:
            _stop_if_refused(now)
        elif looked - changed > STUCK_SECONDS:
            return  # the report says what is in between
        # Counting a large run costs the database something: never more than a fifth of its time.
        time.sleep(max(LOOK_SECONDS, 4 * (time.monotonic() - looked)))


def _stop_if_refused(now: Standing) -> None:
    """End a run of which Sume refuses every request: a person has to do something first."""
    refused = [gate for gate in now.gates if gate.name == "writes" and gate.closures]
    if refused and not now.submitted:
        raise _StopError(
            f"Sume refuses every request ({refused[0].reason}): check SUME_API_KEY, SUME_BASE_URL "
            "and the credits of the workspace. The rows are kept; the next make demo sends them.",
            BROKEN,
        )


def _come_to_rest(bundle: Bundle) -> None:
    """Let what is under way arrive, then stop the schedules: the counts are final after that."""
    deadline = time.monotonic() + DRAIN_SECONDS
    if bundle.fake is not None:
        while time.monotonic() < deadline and bundle.fake.stats()["webhooks"]["under_way"]:
            time.sleep(0.1)
    bundle.stop_schedules(DRAIN_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
