"""Mutation check: is there a test that notices when a guard is gone?

    python -m tests.reliability.mutants                      every mutant, survivors at the end
    python -m tests.reliability.mutants --only render_jobs   those of one module
    python -m tests.reliability.mutants --list               what would be run, and nothing more

Works on a copy of the repository. In the SQL of the store each comparison is taken away (made
true), `is null`, `exists` and counts are turned round, row locks are dropped; in the decisions each
comparison, flag and listed value. A mutant that PostgreSQL or Python cannot read is not counted.
Each goes through the tests that should notice it; one that these let pass goes through a second,
longer set. What then still passes is a survivor: it needs a test, or stands in `EQUIVALENT` with
the reason why nobody can tell it from the original.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "shared")]

import psycopg
from sume_jobs.store import migrations

from tests.support.postgres import Database, Server, create_database

LAYER = "shared/sume_jobs"
# Where a module's mutants are to be noticed.
FIRST: dict[str, tuple[str, ...]] = {
    "store/render_jobs.py": (
        "tests/database/test_render_jobs.py",
        "tests/reliability/test_guards.py",
        "tests/reliability/test_found.py",
    ),
    "store/gen_jobs.py": (
        "tests/database/test_gen_jobs.py",
        "tests/reliability/test_guards.py",
        "tests/reliability/test_found.py",
    ),
    "store/webhook_events.py": ("tests/database/test_webhook_events.py",),
    "store/pace.py": ("tests/database/test_pace.py",),
    "store/follow_ups.py": ("tests/dispatch",),
    "store/retention.py": ("tests/database/test_housekeeping.py",),
    "decisions/outcomes.py": ("tests/unit/test_outcomes.py",),
    "decisions/status.py": ("tests/unit/test_status.py",),
    "decisions/signature.py": ("tests/unit/test_signature.py",),
    "decisions/backoff.py": ("tests/unit/test_backoff.py",),
    "decisions/pacing.py": ("tests/unit/test_pacing.py",),
}
SECOND = (
    "tests/reliability/test_simulation.py",
    "tests/reliability/test_found.py",
    "tests/database",
    "tests/property",
    "tests/pitfalls/test_submit.py",
    "tests/pitfalls/test_reap.py",
    "tests/pitfalls/test_poll.py",
    "tests/pitfalls/test_webhook.py",
)
# The longest that a set may take, in seconds: one that hangs has noticed something.
FIRST_SECONDS, SECOND_SECONDS = 300.0, 900.0


@dataclass(frozen=True)
class Mutant:
    """One change: the text from `start` to `end` of the file becomes `new`."""

    path: str
    start: int
    end: int
    new: str
    line: int
    context: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.context}"


# What cannot be told from the original, by file and a part of the mutant's description.
EQUIVALENT: dict[tuple[str, str], str] = {}

# SQL --------------------------------------------------------------------------------------------

_VALUE = r"(?:%\(\w+\)s(?:::[\w\[\]]+)?|'[^']*'|[\w.]+(?:\(\))?(?:::\w+)?)"
_ATOM = re.compile(
    r"(?<![\w.])[\w.]+ (?:=|<>|<=|>=|<|>|is distinct from|is not distinct from)"
    rf" {_VALUE}(?: [-+] (?:make_interval\((?:[^()]|\([^()]*\))*\)|interval '[^']*'))?"
)
_LISTED = re.compile(r"(?<![\w.])[\w.]+ (?:not )?in \((?:'[^']*'(?:, )?)+\)")
_STATEMENT = re.compile(r"\s*(select|insert|update|delete|with)\b", re.IGNORECASE)
_TURNS: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"\bis not null\b"), "is null"),
    (re.compile(r"\bis null\b"), "is not null"),
    (re.compile(r"\bnot exists \("), "exists ("),
    (re.compile(r"(?<!not )\bexists \("), "not exists ("),
    (re.compile(r" for update skip locked"), ""),
    (re.compile(r" for update(?! skip)(?: of \w+)?"), ""),
    (re.compile(r"\+ 1\b"), "+ 0"),
    (re.compile(r" [-+] \w+\.\w+::int\b"), ""),
    (re.compile(r" [-+] \([^()]*\)::int\b"), ""),
    (re.compile(r"\bgreatest\("), "least("),
    (re.compile(r"\bleast\("), "greatest("),
    (re.compile(r" limit %\(batch\)s"), ""),
]


def sql_mutants(path: str, text: str) -> Iterator[Mutant]:
    """Mutants of the statements in a module: its strings of more than one line."""
    for constant in _sql_strings(text):
        start, end = constant
        body = text[start:end]
        for atom in _ATOM.finditer(body):
            if _is_assignment(body, atom.start()):
                continue
            yield _mutant(path, text, start + atom.start(), start + atom.end(), "true")
        for listed in _LISTED.finditer(body):
            yield _mutant(path, text, start + listed.start(), start + listed.end(), "true")
        for pattern, new in _TURNS:
            for found in pattern.finditer(body):
                yield _mutant(path, text, start + found.start(), start + found.end(), new)


def _sql_strings(text: str) -> Iterator[tuple[int, int]]:
    """Where the text of the module's upper-case constants stands."""
    for found in re.finditer(
        r'^_?[A-Z_]+: Final = \(?f?"""(.*?)"""', text, re.DOTALL | re.MULTILINE
    ):
        yield found.start(1), found.end(1)
    for found in re.finditer(r'return f"""(.*?)"""', text, re.DOTALL):
        yield found.start(1), found.end(1)


def _is_assignment(body: str, at: int) -> bool:
    """Whether this `a = b` sets a column rather than compares."""
    before = re.sub(r"--[^\n]*", "", body[:at])
    word = re.search(r"(\w+|[,(])\s*$", before)
    if word is None or word[1] in ("where", "and", "or", "when", "on", "not", "select", "("):
        return False
    return word[1] in ("set", ",")


def readable_sql(statement: str) -> str:
    """The statement with every parameter null, for EXPLAIN."""
    return re.sub(r"%\(\w+\)s", "null", statement).replace("%%", "%")


# Python -----------------------------------------------------------------------------------------

_TURNED: dict[type[ast.cmpop], str] = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


def python_mutants(path: str, text: str) -> Iterator[Mutant]:
    """Mutants of a module of pure decisions."""
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line.encode()))
    raw = text.encode()

    def at(line: int, column: int) -> int:
        return len(raw[: offsets[line - 1] + column].decode())

    def span(node: ast.expr) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = span(node.left), span(node.comparators[0])
            turned = _TURNED[type(node.ops[0])]
            yield _mutant(path, text, left[1], right[0], f" {turned} ")
            listed = node.comparators[0]
            if isinstance(listed, ast.Tuple) and len(listed.elts) > 1:
                for number in range(len(listed.elts)):
                    kept = [text[slice(*span(e))] for i, e in enumerate(listed.elts) if i != number]
                    yield _mutant(path, text, *span(listed), f"({', '.join(kept)},)")
        elif isinstance(node, ast.BoolOp):
            old, new = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
            between = span(node.values[0])[1], span(node.values[1])[0]
            if text[slice(*between)] == old:
                yield _mutant(path, text, *between, new)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield _mutant(path, text, span(node)[0], span(node.operand)[0], "")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Line", "min", "max"):
            if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
                other = "max" if node.func.id == "min" else "min"
                yield _mutant(path, text, *span(node.func), other)
                continue
            for keyword in node.keywords:
                begin = at(keyword.lineno, keyword.col_offset)
                finish = span(keyword.value)[1]
                tail = re.match(r",?\s*", text[finish:])
                finish += len(tail[0]) if tail and text[finish : finish + 1] == "," else 0
                yield _mutant(path, text, begin, finish, "")
            other = "'fail'" if "fail" not in text[slice(*span(node.args[0]))] else "'requeue'"
            yield _mutant(path, text, *span(node.args[0]), other)


def _mutant(path: str, text: str, start: int, end: int, new: str) -> Mutant:
    line = text.count("\n", 0, start) + 1
    old = re.sub(r"\s+", " ", text[start:end]).strip()
    whole = text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)].strip()
    shown = re.sub(r"\s+", " ", whole)[:70]
    return Mutant(path, start, end, new, line, f"[{old} → {new.strip() or 'nothing'}] in: {shown}")


# Running ----------------------------------------------------------------------------------------


class Copy:
    """A copy of the repository to mutate, and a server for its tests."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        ignored = shutil.ignore_patterns(".git", ".venv*", ".aws-sam", ".local", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=ignored, dirs_exist_ok=True)
        create_database(server, "sume_mutants")
        self.database = Database(server, "sume_mutants")
        with psycopg.connect(self.database.url, autocommit=True) as owner:
            migrations.migrate(owner)

    def text(self, path: str) -> str:
        return (self.folder / LAYER / path).read_text()

    def mutants(self) -> list[Mutant]:
        """All that can be read by Python and PostgreSQL, in order of file and line."""
        found: list[Mutant] = []
        for path in FIRST:
            text = self.text(path)
            if path.startswith("decisions/"):
                found += [each for each in python_mutants(path, text) if _compiles(each, text)]
            else:
                found += [each for each in sql_mutants(path, text) if self._is_readable(each, text)]
        found.sort(key=lambda each: (each.path, each.start))
        return list({(each.path, each.start, each.end, each.new): each for each in found}.values())

    def _is_readable(self, mutant: Mutant, text: str) -> bool:
        """Whether PostgreSQL takes every statement of the mutated module."""
        statements = self._statements(mutant.path, _mutated(text, mutant))
        with self.database.session(autocommit=True) as session:
            for statement in statements:
                try:
                    session.execute("explain " + readable_sql(statement))  # type: ignore[call-overload]
                except psycopg.errors.SyntaxError:
                    return False
                except psycopg.Error as error:
                    # Nulls in place of parameters are refused here and there for other reasons.
                    if (error.sqlstate or "").startswith("42"):
                        return False
        return True

    @staticmethod
    def _statements(path: str, text: str) -> list[str]:
        """The statements that the mutated module would run: its constants, as Python makes them."""
        module = ModuleType("sume_jobs." + path.replace("/", ".").removesuffix(".py"))
        original = sys.modules.get(module.__name__)
        sys.modules[module.__name__] = module
        try:
            exec(compile(text, path, "exec"), module.__dict__)
        except (SyntaxError, NameError):
            return ["not SQL at all"]
        finally:
            del sys.modules[module.__name__]
            if original is not None:
                sys.modules[module.__name__] = original
        found = [
            value
            for name, value in vars(module).items()
            if name.isupper() and isinstance(value, str)
        ]
        if path.endswith("pace.py"):
            # Its parts only make sense inside a claim.
            found.append(
                f"with {module.admission('select')}, picked as (select 1 as id), {module.PROBE},"
                f" spending as (select 1 as n), {module.SPEND}"
                f" select {module.ADMISSION_COLUMNS} from gate, due, budget"
            )
        return [each for each in found if _STATEMENT.match(each)]

    def passes(self, tests: tuple[str, ...], seconds: float) -> bool:
        """Whether these tests let the copy pass; one that takes for ever does not."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {
            **os.environ,
            "TEST_DATABASE_URL": self.server.url(),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return False

    def survives(self, mutant: Mutant, second: bool) -> str:
        """`killed`, `killed late` (by the second set), or `survived`."""
        file = self.folder / LAYER / mutant.path
        original = file.read_text()
        file.write_text(_mutated(original, mutant))
        try:
            if not self.passes(FIRST[mutant.path], FIRST_SECONDS):
                return "killed"
            if second and not self.passes(SECOND, SECOND_SECONDS):
                return "killed late"
            return "survived"
        finally:
            file.write_text(original)


def _mutated(text: str, mutant: Mutant) -> str:
    return text[: mutant.start] + mutant.new + text[mutant.end :]


def _compiles(mutant: Mutant, text: str) -> bool:
    try:
        compile(_mutated(text, mutant), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


def equivalence(mutant: Mutant) -> str | None:
    """Why nobody can tell this mutant from the original; None where somebody should."""
    for (path, part), reason in EQUIVALENT.items():
        if path == mutant.path and part in mutant.context:
            return reason
    return None


def _without_line(name: str) -> str:
    """A mutant's description without its line, which moves; also of a line of output."""
    return re.sub(
        r":\d+ ", ": ", re.sub(r"^(survived|killed|killed late|equivalent):? +", "", name)
    )


def main(arguments: list[str] | None = None) -> int:
    """Command line; 1 where a mutant survives that is not known to be equivalent."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.mutants")
    parser.add_argument("--only", help="part of a module's path")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sample", type=int, help="that many, drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first-set-only", action="store_true", help="survivors are candidates")
    parser.add_argument("--match", help="part of a mutant's description")
    parser.add_argument("--resume", type=Path, help="all but those in the output in a file")
    parser.add_argument("--retry", type=Path, help="those that survived, by the output in a file")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after that")
    given = parser.parse_args(arguments)
    server = Server().start()
    counts: Counter[str] = Counter()
    survivors: list[str] = []
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            copy = Copy(Path(folder) / "copy", server)
            mutants = [
                each
                for each in copy.mutants()
                if (given.only or "") in each.path and (given.match or "") in each.name
            ]
            if given.resume is not None:
                done = [_without_line(line) for line in given.resume.read_text().splitlines()]
                mutants = [each for each in mutants if _without_line(each.name) not in done]
            if given.retry is not None:
                lines = given.retry.read_text().splitlines()
                survived = [_without_line(line) for line in lines if line.startswith("survived")]
                mutants = [each for each in mutants if _without_line(each.name) in survived]
            if given.sample is not None and given.sample < len(mutants):
                mutants = random.Random(given.seed).sample(mutants, given.sample)
            if given.list:
                print("\n".join(each.name for each in mutants))
                print(f"{len(mutants)} mutants")
                return 0
            for path in sorted({each.path for each in mutants}):
                if not copy.passes(FIRST[path], FIRST_SECONDS):
                    print(f"{', '.join(FIRST[path])} fail without any mutant")
                    return 2
            for mutant in mutants:
                if time.monotonic() - started > given.seconds:
                    break
                reason = equivalence(mutant)
                outcome = (
                    "equivalent" if reason else copy.survives(mutant, not given.first_set_only)
                )
                counts[outcome] += 1
                print(f"{outcome:11} {mutant.name}", flush=True)
                if outcome == "survived":
                    survivors.append(mutant.name)
    finally:
        server.stop()
    print(f"{counts.total()} mutants in {time.monotonic() - started:.0f} s: {dict(counts)}")
    for name in survivors:
        print(f"survived: {name}")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
