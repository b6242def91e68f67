"""From the start of a process to its first statement in Postgres, for each function.

Beside each stands its floor: the same Python with nothing but the drivers that the function
cannot do without, which connects and runs one statement. Runs alternate. The layer is measured
as it was built (`make build`), without and with compiled bytecode.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from local import sam_build
from local.runner import PROJECT
from tests.benchmarks.results import Subject, interleaved, ratios
from tests.benchmarks.stand import Stand

RATIO = 1.2
SECRET = "a secret of the benchmark"
DRIVERS = {
    "submit": "psycopg, requests",
    "poll": "psycopg, requests",
    "archive": "psycopg, requests",
    "webhook": "psycopg",
    "api": "psycopg",
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
_FUNCTION = """
import json, sys
class Context:
    function_name = function_version = "bench"
    memory_limit_in_mb = "512"
    aws_request_id = invoked_function_arn = "arn:aws:lambda:us-east-1:000000000000:function:bench"
    def get_remaining_time_in_millis(self): return 60000
import importlib
handler = importlib.import_module(sys.argv[1]).handler
handler(json.loads(sys.argv[2]), Context())
"""


@dataclass(frozen=True)
class Start:
    """One start: seconds on the clock, seconds of the processor, resident megabytes."""

    wall: float
    processor: float
    memory: float


def measure(stand: Stand, repeats: int) -> Subject:
    """Each function and its floor, `repeats` times three; then the built layer."""
    subject = Subject("Cold start: from the start of the process to the first statement's answer")
    with stand.database(pending=1) as url:
        source = _environment(url, [str(PROJECT), str(PROJECT / "shared")])
        layouts = {name: partial(_floor, source, drivers) for name, drivers in _floors().items()}
        layouts |= {
            name: partial(_function, source, f"functions.{name}.app", name) for name in DRIVERS
        }
        found = dict(zip(layouts, interleaved(3 * repeats, *layouts.values()), strict=True))
        _tell(subject, found)
        _built_layer(subject, url, repeats)
    return subject


def _tell(subject: Subject, found: dict[str, list[Start]]) -> None:
    for name, starts in found.items():
        subject.add(name, "ms", [1000 * each.wall for each in starts])
    for name, drivers in DRIVERS.items():
        floor = found[f"floor: {drivers}"]
        wall = ratios([each.wall for each in found[name]], [each.wall for each in floor])
        note = f"floor: {drivers}"
        subject.add(f"{name} / floor", "times", wall, note, ("<=", RATIO))
        spent = [each.processor for each in found[name]]
        spent_floor = [each.processor for each in floor]
        subject.add(
            f"{name} / floor, processor", "times", ratios(spent, spent_floor), note, ("<=", RATIO)
        )
    for name, starts in found.items():
        subject.add(f"{name}, resident", "MB", [each.memory for each in starts])


def _built_layer(subject: Subject, url: str, repeats: int) -> None:
    built = PROJECT / ".aws-sam" / f"check-{PROCESSOR}"
    python = sam_build.find_python()
    if not (built / "Layer").is_dir() or python is None:
        subject.notes.append("The built layer is left out: make build makes it.")
        return
    with tempfile.TemporaryDirectory() as scratch:
        plain, compiled = Path(scratch, "plain"), Path(scratch, "compiled")
        leave_out = shutil.ignore_patterns("__pycache__")
        for folder in (plain, compiled):
            shutil.copytree(built, folder, ignore=leave_out)
        sam_build.compile_bytecode(compiled, python)
        runs = {}
        for resource, name in sam_build.FUNCTIONS.items():
            if name in ("submit", "webhook", "reap"):
                for folder in (plain, compiled):
                    paths = [str(folder / resource), str(folder / "Layer" / "python")]
                    label = f"built layer, {folder.name}: {name}"
                    runs[label] = partial(
                        _function, _environment(url, paths), "app", name, str(python)
                    )
        for label, starts in zip(runs, interleaved(2 * repeats, *runs.values()), strict=True):
            subject.add(label, "ms", [1000 * each.wall for each in starts])
        for folder in (plain, compiled):
            layer = folder / "Layer"
            size = sum(path.stat().st_size for path in layer.rglob("*") if path.is_file())
            archive = Path(shutil.make_archive(str(Path(scratch, "layer")), "zip", layer))
            note = f"zipped {archive.stat().st_size / 1e6:.1f} MB"
            subject.add(f"built layer, {folder.name}: size", "MB", [size / 1e6], note)


def _floors() -> dict[str, str]:
    return {f"floor: {drivers}": drivers for drivers in sorted(set(DRIVERS.values()))}


def _environment(url: str, paths: list[str]) -> dict[str, str]:
    return {
        "DATABASE_URL": url,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SUME_API_KEY": "sume_bench",
        "SUME_BASE_URL": "http://127.0.0.1:9",
        "SUME_WEBHOOK_SECRETS": SECRET,
        "ARCHIVE_BUCKET": "bench",
        "POWERTOOLS_SERVICE_NAME": "sume-jobs",
        "POWERTOOLS_METRICS_NAMESPACE": "SumeJobs",
    }


def _floor(environment: dict[str, str], drivers: str) -> Start:
    return _start(environment, _END + _FLOOR.format(drivers=drivers))


def _function(
    environment: dict[str, str], module: str, name: str, python: str = sys.executable
) -> Start:
    return _start(environment, _END + _FUNCTION, module, json.dumps(_event(name)), python=python)


def _start(
    environment: dict[str, str], program: str, *arguments: str, python: str = sys.executable
) -> Start:
    begun = time.monotonic()
    ended = subprocess.run(
        [python, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # Before its figures it may have logged.
    words = ended.stdout.split("\n")[-1].split()
    if ended.returncode or len(words) != 3:
        raise RuntimeError(f"{arguments[:1]} ran no statement: {ended.stdout}{ended.stderr}")
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
