"""Other queues on the same server: each in a process of its own, by its public interface."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from local.runner import PROJECT
from tests.benchmarks.stand import Stand

HERE = Path(__file__).parent
PYTHON = PROJECT / ".venv-peers" / "bin" / "python"
NODE = HERE / "node"
PATIENCE_SECONDS = 90.0
ROWS = 5_000
# One job at a time is slow and steady: its rate is taken from fewer rows.
FEW_ROWS = 500


@dataclass(frozen=True)
class Contender:
    """One peer with one way to use it. `rows` jobs are run."""

    name: str
    mode: str
    rows: int
    note: str
    program: Path
    is_python: bool = True
    keeps_finished: bool = True

    @property
    def label(self) -> str:
        return f"{self.name}, {self.mode}"

    @property
    def command(self) -> list[str]:
        return [str(PYTHON) if self.is_python else "node", str(self.program)]


def _python(name: str, program: str, mode: str, rows: int, note: str) -> Contender:
    return Contender(name, mode, rows, note, HERE / program)


CONTENDERS = (
    _python("procrastinate", "procrastinate_worker.py", "default", FEW_ROWS, "one at a time"),
    _python("procrastinate", "procrastinate_worker.py", "tuned", 2_000, "20 at a time"),
    _python("PgQueuer", "pgqueuer_worker.py", "default", ROWS, "batches of 10"),
    _python("PgQueuer", "pgqueuer_worker.py", "tuned", ROWS, "batches of 500, uvloop"),
    _python("DBOS", "dbos_worker.py", "default", 2_000, "looks every second"),
    _python("DBOS", "dbos_worker.py", "tuned", 2_000, "asynchronous, looks every 0.1 s"),
    Contender(
        "pg-boss", "default", FEW_ROWS, "fetch, complete", NODE / "pgboss_worker.mjs", False
    ),
    Contender("pg-boss", "tuned", ROWS, "batches of 500", NODE / "pgboss_worker.mjs", False),
    Contender(
        "graphile", "default", FEW_ROWS, "one at a time", NODE / "graphile_worker.mjs", False, False
    ),
    Contender(
        "graphile", "tuned", ROWS, "500 fetched, 24 at a time", NODE / "graphile_worker.mjs",
        False, False,
    ),
)  # fmt: skip


@dataclass
class Peers:
    """Runs the contenders; remembers why one is left out."""

    stand: Stand
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    _history: dict[str, str] = field(default_factory=dict)

    def runs(self, finished: int) -> dict[str, Callable[[], float | None]]:
        """One measurement for each contender by its label: jobs a second, None when left out."""
        return {
            each.label: partial(self._measure, each, finished)
            for each in CONTENDERS
            if not finished or each.keeps_finished
        }

    def _measure(self, contender: Contender, finished: int) -> float | None:
        reason = self.skipped.get(contender.label) or _missing(contender)
        if reason is None:
            try:
                return self._rate(contender, finished)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                reason = str(error)
        self.skipped[contender.label] = reason
        return None

    def _rate(self, contender: Contender, finished: int) -> float:
        if not finished:
            with self.stand.empty_database() as url:
                return self._run(contender, url, 0)
        # What one run finished is the next one's history.
        if contender.name not in self._history:
            self._history[contender.name] = self.stand.keep(self.stand.empty_database())
        return self._run(contender, self._history[contender.name], finished)

    def _run(self, contender: Contender, url: str, finished: int) -> float:
        if not contender.is_python:
            url = url.replace("@/", "@localhost/")  # which its parser of URLs asks for
        ended = subprocess.run(
            [*contender.command, url, contender.mode, str(contender.rows), str(finished)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise RuntimeError(f"exit code {ended.returncode}: {last}")
        figures = json.loads(ended.stdout.strip().splitlines()[-1])
        self.versions[contender.name] = figures["version"]
        rate: float = figures["rows"] / figures["seconds"]
        return rate


def _missing(contender: Contender) -> str | None:
    if contender.is_python:
        return None if PYTHON.exists() else "not installed: make bench-peers"
    if shutil.which("node") is None:
        return "no node on this machine"
    return None if (NODE / "node_modules").is_dir() else "not installed: make bench-peers"
