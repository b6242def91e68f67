"""Trying mutants: a copy of the repository for each process, and one PostgreSQL for all of them."""

# ruff: noqa: E402
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

import psycopg
from sume_jobs.store import migrations

from tests.reliability.mutant_sources import Mutant
from tests.support.invariants import HISTORY
from tests.support.postgres import Database, Server, create_database, drop_database

LAYER = "shared/sume_jobs"
TEMPLATE = "sume_mutants_template"
_STATEMENT = re.compile(r"\s*(select|insert|update|delete|with)\b", re.IGNORECASE)


def _migrations(mutant: Mutant | None) -> list[str]:
    """The texts of all migrations, one of them changed."""
    return [
        mutant.applied_to(each.sql)
        if mutant and mutant.path.endswith(f"/{each.version:04d}_{each.name}.sql")
        else each.sql
        for each in migrations.migrations()
    ]


def make_template(server: Server, name: str, mutant: Mutant | None = None) -> None:
    """A database to be copied for tests, as they make it themselves by `functions/migrate`."""
    create_database(server, name)
    database = Database(server, name)
    with database.session(autocommit=True) as owner:
        for each in _migrations(mutant):
            owner.execute(each)
    database.execute(HISTORY)
    database.close()


class Reader:
    """Tells whether PostgreSQL and Python can read a mutant at all."""

    def __init__(self) -> None:
        self.server = Server().start()
        make_template(self.server, TEMPLATE)
        create_database(self.server, "sume_mutants_reader", TEMPLATE)
        create_database(self.server, "sume_mutants_empty")
        self._session = Database(self.server, "sume_mutants_reader").session(autocommit=True)
        self._empty = Database(self.server, "sume_mutants_empty").session()
        self._originals: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._session.close()
        self._empty.close()
        self.server.stop()

    def can_read(self, mutant: Mutant) -> bool:
        with self._lock:
            return self._can_read(mutant)

    def _can_read(self, mutant: Mutant) -> bool:
        text = (ROOT / LAYER / mutant.path).read_text()
        if mutant.path.endswith(".sql"):
            return self._can_migrate(mutant)
        changed = mutant.applied_to(text)
        try:
            compile(changed, mutant.path, "exec")
        except SyntaxError:
            return False
        if not mutant.path.startswith("store/") or mutant.path.endswith("/migrations.py"):
            return True
        if mutant.path not in self._originals:
            self._originals[mutant.path] = set(_statements(mutant.path, text) or ())
        statements = _statements(mutant.path, changed)
        return statements is not None and all(
            self._is_sql(each) for each in set(statements) - self._originals[mutant.path]
        )

    def _can_migrate(self, mutant: Mutant) -> bool:
        try:
            for each in _migrations(mutant):
                self._empty.execute(each)  # type: ignore[call-overload]
        except psycopg.Error:
            return False
        finally:
            self._empty.rollback()
        return True

    def _is_sql(self, statement: str) -> bool:
        # With every parameter null.
        plain = re.sub(r"%\(\w+\)s", "null", statement).replace("%%", "%")
        try:
            self._session.execute("explain " + plain)  # type: ignore[call-overload]
        except psycopg.Error as error:
            # Nulls in place of parameters are refused here and there for other reasons.
            return not (error.sqlstate or "").startswith("42")
        return True


def _statements(path: str, text: str) -> list[str] | None:
    """The statements of a module, as Python makes its constants; None where it cannot."""
    module = ModuleType("sume_jobs." + path.replace("/", ".").removesuffix(".py"))
    original = sys.modules.get(module.__name__)
    # Dataclasses look for the module that they are made in.
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except Exception:
        return None
    finally:
        del sys.modules[module.__name__]
        if original is not None:
            sys.modules[module.__name__] = original
    found = [
        value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)
    ]
    if path.endswith("/pace.py"):
        # Its parts only make sense inside a claim.
        found.append(
            f"with {module.admission('select')}, picked as (select 1 as id), {module.PROBE},"
            f" spending as (select 1 as n), {module.SPEND}"
            f" select {module.ADMISSION_COLUMNS} from gate, due, budget"
        )
    return [each for each in found if _STATEMENT.match(each)]


@dataclass(frozen=True)
class Stage:
    """A set of tests, and the longest that it may take: one that hangs has noticed something."""

    tests: Sequence[str]
    seconds: float
    options: Sequence[str] = ()

    @property
    def is_of_the_store(self) -> bool:
        """Whether its tests only hold the store's statements, and start no handler."""
        return all(each.startswith("tests/database/test_") for each in self.tests)


class Known:
    """The tests that noticed a mutant and are known to pass without one, and those that do not."""

    def __init__(self) -> None:
        self.green: set[str] = set()
        self.red: list[str] = []


class Bench:
    """A copy of the repository to mutate, and the process that runs its tests."""

    def __init__(self, folder: Path, server: Server, known: Known) -> None:
        self.folder, self._server, self._known = folder, server, known
        ignored = shutil.ignore_patterns(".git", ".venv*", ".aws-sam", ".local", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=ignored)
        self._touched = 1_000_000_000
        self._environment = {
            **os.environ,
            "TEST_DATABASE_URL": server.url(),
            "TEST_TEMPLATE": TEMPLATE,
            "PYTHONPATH": os.pathsep.join([str(folder), str(folder / "shared")]),
            "MUTANT_OUTPUT": str(folder / "output.txt"),
        }
        self._workers: dict[Sequence[str], subprocess.Popen[str]] = {}

    def _worker(self, stage: Stage) -> subprocess.Popen[str]:
        """The process for a set of tests, started when it is first needed."""
        command = ["mutant_session", *stage.tests, *stage.options]
        if not stage.is_of_the_store:
            command = ["mutant_worker"]
        if tuple(command) not in self._workers:
            self._workers[tuple(command)] = subprocess.Popen(
                [sys.executable, "-m", f"tests.reliability.{command[0]}", *command[1:]],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._workers[tuple(command)]

    def close(self) -> None:
        for worker in self._workers.values():
            # Ends its loop by the end of its input.
            worker.communicate(timeout=30)

    def try_mutant(
        self, mutant: Mutant, stages: Sequence[Stage], likely: list[str]
    ) -> tuple[str, str, float]:
        """`killed` or `survived`, the test that noticed, and the seconds that it took."""
        file = self.folder / LAYER / mutant.path
        original = file.read_text()
        took = 0.0
        for stage in stages:
            near = [name for name in likely if _is_among(name, stage.tests)]
            killer = None
            while killer is None or killer in self._known.red:
                self._write(file, mutant.applied_to(original))
                try:
                    with self._template(mutant) as template:
                        answer = self._run(stage, stage.tests, near, template)
                finally:
                    self._write(file, original)
                took += answer["seconds"]
                if answer["outcome"] == "passed":
                    break
                killer = (answer["failed"] or [answer["outcome"]])[0]
                self._check(stage, killer)
            else:
                return "killed", killer, took
        return "survived", "", took

    def _check(self, stage: Stage, killer: str) -> None:
        """Ask once whether a test that noticed a mutant passes without one."""
        if "::" not in killer or killer in self._known.green | set(self._known.red):
            return
        if self._run(stage, [killer], [], TEMPLATE)["outcome"] == "passed":
            self._known.green.add(killer)
        else:
            self._known.red.append(killer)
            print(f"left out, it fails without any mutant: {killer}", flush=True)

    @contextlib.contextmanager
    def _template(self, mutant: Mutant) -> Iterator[str]:
        """The database that tests copy; of a changed migration one of its own."""
        if not mutant.path.endswith(".sql"):
            yield TEMPLATE
            return
        name = f"sume_mutants_{self.folder.name}"
        make_template(self._server, name, mutant)
        try:
            yield name
        finally:
            drop_database(self._server, name)

    def _write(self, file: Path, text: str) -> None:
        """Write a file under a time of its own, by which compiled files are known to be old."""
        file.write_text(text)
        self._touched += 1
        os.utime(file, (self._touched, self._touched))

    def _run(
        self, stage: Stage, tests: Sequence[str], likely: list[str], template: str
    ) -> dict[str, Any]:
        worker = self._worker(stage)
        assert worker.stdin is not None
        assert worker.stdout is not None
        asked = {
            "tests": list(tests),
            "likely": likely,
            "options": ["-x", *stage.options],
            "left_out": self._known.red,
            "seconds": stage.seconds,
            "template": template,
        }
        print(json.dumps(asked), file=worker.stdin, flush=True)
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError("the worker has ended; see its output above")
        answer: dict[str, Any] = json.loads(line)
        if answer["outcome"] == "broken":
            output = (self.folder / "output.txt").read_text()[-4000:]
            raise RuntimeError(f"{stage.tests} could not be run:\n{output}")
        if answer["outcome"] == "hung":
            self._drop_leftovers(str(answer["pid"]))
        return answer

    def _drop_leftovers(self, pid: str) -> None:
        with self._server.connect() as admin:
            names = admin.execute(
                "select datname from pg_database where datname ~ %s", (f"^sume_[a-z]+_{pid}(_|$)",)
            ).fetchall()
        for (name,) in names:
            with contextlib.suppress(psycopg.Error):
                drop_database(self._server, name)


def _is_among(name: str, tests: Sequence[str]) -> bool:
    """Whether a test is one of those that are named by folder, file or id."""
    return any(f"{name}::".startswith((f"{each}/", f"{each}::")) for each in tests)
