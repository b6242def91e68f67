"""From the start of a process to its first statement in Postgres, for each function.

Beside each stands its floor: the same Python with nothing but the drivers that the function
cannot do without on the way to that statement, which connects and runs one. Submit and poll open
their HTTP client before they claim anything; the archive asks for requests and boto3 only when it
has read that there is something to copy, so that neither is in its floor nor in its figure.
Of Powertools the event handler and batch stand in the floor of the functions whose shape they are,
Logger and Metrics in none. Runs alternate. The layer is measured as it was built
(`make build`), without and with compiled bytecode.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from local import sam_build
from local.runner import PROJECT
from tests.benchmarks.results import Subject, interleaved, ratios
from tests.benchmarks.stand import Stand

RATIO = 1.2
BYTECODE = {"compiled": "with bytecode", "plain": "without bytecode"}
SECRET = "a secret of the benchmark"
DRIVERS = {
    "submit": "psycopg, requests",
    "poll": "psycopg, requests",
    "archive": "psycopg, aws_lambda_powertools.utilities.batch",
    "webhook": "psycopg",
    "api": "psycopg, aws_lambda_powertools.event_handler",
    "dispatch": "psycopg",
    "reap": "psycopg",
    "migrate": "psycopg",
}
PROCESSOR = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())

# Ends the process when its first statement has been answered, telling the instant (the clock is
# the same in all processes), the processor's time and the resident memory.
_END = """
import os, resource, time
import psycopg
execute = psycopg.Cursor.execute
def first(self, *arguments, **options):
    execute(self, *arguments, **options)
    instant, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    # Not ru_maxrss, which begins with that of the process that started this one.
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    kilobytes = status["VmHWM"].split()[0]
    os.write(1, f"{instant} {used.ru_utime + used.ru_stime} {kilobytes}".encode())
    os._exit(0)
psycopg.Cursor.execute = first
"""
_FLOOR = (
    "import {drivers}\nwith psycopg.connect(os.environ['DATABASE_URL']) as c: c.execute('select 1')"
)
_CLIENT = "import boto3\nboto3.client('secretsmanager', region_name='us-east-1')\n"
_FUNCTION = """
import json, sys
class Context:
    function_name = function_version = "bench"
    memory_limit_in_mb = "512"
    aws_request_id = invoked_function_arn = "arn:aws:lambda:us-east-1:000000000000:function:bench"
    def get_remaining_time_in_millis(self): return 60000
from app import handler
handler(json.loads(sys.argv[1]), Context())
"""


@dataclass(frozen=True)
class Start:
    """One start: seconds on the clock, seconds of the processor, resident megabytes."""

    wall: float
    processor: float
    memory: float


def measure(stand: Stand, repeats: int) -> Subject:
    """Each function and its floor, `repeats` times three, and without bytecode beside."""
    with stand.database(pending=1) as url, tempfile.TemporaryDirectory() as scratch:
        python = sam_build.find_python()
        built = PROJECT / ".aws-sam" / f"check-{PROCESSOR}" / "Layer"
        if python is None or not built.is_dir():
            subject = Subject("Cold start, from the sources (make build makes the layer)")
            place = _Place(Path(sys.executable), PROJECT / "functions", [PROJECT / "shared"])
            _functions(subject, url, place, repeats)
            return subject
        compiled, plain = Path(scratch, "compiled"), Path(scratch, "plain")
        for folder in (compiled, plain):
            _lay_out(built, folder)
        sam_build.compile_bytecode(compiled, python)
        subject = Subject("Cold start, the built layer in the runtime's Python")
        places = [
            # Without `site`: what is installed beside this Python may load modules at its start.
            _Place(python, folder, [folder / "Layer" / "python"], ("-S",))
            for folder in (compiled, plain)
        ]
        _functions(subject, url, places[0], repeats)
        _bytecode(subject, url, places, repeats)
        for folder in (compiled, plain):
            layer = folder / "Layer"
            size = sum(path.stat().st_size for path in layer.rglob("*") if path.is_file())
            archive = Path(shutil.make_archive(str(Path(scratch, "layer")), "zip", layer))
            note = f"zipped {archive.stat().st_size / 1e6:.1f} MB"
            subject.add(f"layer, {BYTECODE[folder.name]}", "MB", [size / 1e6], note)
    return subject


def with_secrets(url: str, name: str) -> float:
    """Seconds of the processor until a function's first statement, boto3 for a secret included."""
    place = _Place(Path(sys.executable), PROJECT / "functions", [PROJECT / "shared"])
    _, starts, floors, clients = interleaved(
        4,
        lambda: place.function(url, name),  # writes what bytecode is missing
        lambda: place.function(url, name),
        lambda: place.floor(url, "psycopg"),
        lambda: _start(place, url, [], _END + _CLIENT + _FLOOR.format(drivers="psycopg")),
    )
    least = [min(each.processor for each in kind) for kind in (starts, clients, floors)]
    return least[0] + least[1] - least[2]


@dataclass(frozen=True)
class _Place:
    """Where functions lie, the path of their layer, and the Python that runs them."""

    python: Path
    functions: Path
    layer: list[Path]
    options: tuple[str, ...] = ()

    def floor(self, url: str, drivers: str) -> Start:
        return _start(self, url, [], _END + _FLOOR.format(drivers=drivers))

    def function(self, url: str, name: str) -> Start:
        event = json.dumps(_event(name))
        resource = next(key for key, value in sam_build.FUNCTIONS.items() if value == name)
        folder = self.functions / resource
        if not folder.is_dir():
            folder = self.functions / name
        return _start(self, url, [folder], _END + _FUNCTION, event)


def _lay_out(built: Path, folder: Path) -> None:
    """The libraries as they were built, with today's functions and today's own package."""
    leave_out = shutil.ignore_patterns("__pycache__")
    layer = folder / "Layer" / "python"
    shutil.copytree(built / "python", layer, ignore=leave_out)
    shutil.rmtree(layer / "sume_jobs")
    shutil.copytree(PROJECT / "shared" / "sume_jobs", layer / "sume_jobs", ignore=leave_out)
    for resource, name in sam_build.FUNCTIONS.items():
        shutil.copytree(PROJECT / "functions" / name, folder / resource, ignore=leave_out)


def _functions(subject: Subject, url: str, place: _Place, repeats: int) -> None:
    runs: dict[str, Callable[[], Start]] = {
        f"floor: {drivers}": partial(place.floor, url, drivers)
        for drivers in sorted(set(DRIVERS.values()))
    }
    runs |= {name: partial(place.function, url, name) for name in DRIVERS}
    found = dict(zip(runs, interleaved(3 * repeats, *runs.values()), strict=True))
    for name, starts in found.items():
        subject.add(name, "ms", [1000 * each.wall for each in starts])
    for name, drivers in DRIVERS.items():
        floor = found[f"floor: {drivers}"]
        wall = ratios([each.wall for each in found[name]], [each.wall for each in floor])
        note = f"floor: {drivers}"
        subject.add(f"{name} / floor", "times", wall, note)
        spent = [each.processor for each in found[name]]
        spent = ratios(spent, [each.processor for each in floor])
        # What else the machine does disturbs this one less.
        label = f"{name} / floor, time of the processor"
        subject.add(label, "times", spent, note, ("<=", RATIO))
    for name, starts in found.items():
        subject.add(f"{name}, resident", "MB", [each.memory for each in starts])


def _bytecode(subject: Subject, url: str, places: list[_Place], repeats: int) -> None:
    names = ("submit", "webhook", "reap")
    pairs = [(name, place) for name in names for place in places]
    measures = [partial(place.function, url, name) for name, place in pairs]
    for (name, place), starts in zip(pairs, interleaved(2 * repeats, *measures), strict=True):
        label = f"{name}, {BYTECODE[place.functions.name]}"
        subject.add(label, "ms", [1000 * each.wall for each in starts])


def _start(place: _Place, url: str, paths: list[Path], program: str, *arguments: str) -> Start:
    begun = time.monotonic()
    ended = subprocess.run(
        [str(place.python), *place.options, "-c", program, *arguments],
        env={
            "DATABASE_URL": url,
            "PYTHONPATH": os.pathsep.join(map(str, paths + place.layer)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SUME_API_KEY": "sume_bench",
            "SUME_BASE_URL": "http://127.0.0.1:9",
            "SUME_WEBHOOK_SECRETS": SECRET,
            "ARCHIVE_BUCKET": "bench",
            "POWERTOOLS_SERVICE_NAME": "sume-jobs",
            "POWERTOOLS_METRICS_NAMESPACE": "SumeJobs",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # Before its figures it may have logged.
    words = ended.stdout.split("\n")[-1].split()
    if ended.returncode or len(words) != 3:
        raise RuntimeError(f"{paths} ran no statement: {ended.stdout}{ended.stderr}")
    instant, processor, kilobytes = map(float, words)
    return Start(instant - begun, processor, kilobytes * 1024 / 1e6)


def _event(name: str) -> dict[str, object]:
    """What makes the function run a statement."""
    if name == "webhook":
        body = json.dumps(
            {
                "id": "evt_bench",
                "type": "job.completed",
                "data": {"object": {"id": "job_bench", "status": "completed"}},
            }
        )
        stamp = str(int(time.time()))
        signed = hmac.new(SECRET.encode(), f"{stamp}.{body}".encode(), hashlib.sha256).hexdigest()
        headers = {"x-sume-timestamp": stamp, "x-sume-signature": f"v1={signed}"}
        return {"version": "2.0", "headers": headers, "body": body, "isBase64Encoded": False}
    if name in ("api", "archive"):
        event: dict[str, object] = json.loads(
            (PROJECT / "events" / f"{name}.json").read_text("utf-8")
        )
        return event
    return {}
