"""The direction of imports, and what is loaded and opened when a handler is imported."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "shared" / "sume_jobs"
HANDLERS = sorted(path.parent.name for path in (ROOT / "functions").glob("*/app.py"))
MODULES = sorted(LAYER.rglob("*.py")) + sorted((ROOT / "functions").rglob("*.py"))


def name_of(path: Path) -> str:
    """sume_jobs.store.pace, functions.submit.app, …"""
    base = ROOT if path.is_relative_to(ROOT / "functions") else ROOT / "shared"
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[str]:
    """Every module that the file imports anywhere, late and for type checking too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            module = node.module or ""
            yield module
            yield from (
                f"{module}.{alias.name}"
                for alias in node.names
                if (LAYER.parent / Path(*module.split(".")) / f"{alias.name}.py").exists()
                or (LAYER.parent / Path(*module.split(".")) / alias.name).is_dir()
            )


def is_in(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


# What the modules of a package never import, directly. Packages of the layer are named without
# their prefix.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "sume_jobs.decisions": (),  # only the standard library, see below
    "sume_jobs.store": ("flows", "sume_client", "functions", "requests", "urllib3", "boto3"),
    "sume_jobs.sume_client": ("flows", "store", "connection", "runtime", "psycopg", "boto3"),
    "sume_jobs.flows": ("functions", "requests", "urllib3"),
    "sume_jobs.connection": ("flows", "store", "sume_client", "functions", "requests"),
    "sume_jobs.runtime": ("flows", "store", "sume_client", "functions", "requests"),
    "sume_jobs.settings": ("flows", "store", "sume_client", "connection", "secrets", "telemetry"),
    "sume_jobs.secrets": ("flows", "store", "sume_client", "connection"),
    "sume_jobs.telemetry": ("flows", "store", "sume_client", "connection", "settings"),
    "functions": ("sume_client", "connection", "requests", "urllib3", "psycopg", "boto3"),
}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    name = name_of(path)
    imported = set(imports_of(path))
    for package, forbidden in FORBIDDEN.items():
        if is_in(name, package):
            wrong = {
                module
                for module in imported
                for other in forbidden
                if is_in(module, other, f"sume_jobs.{other}")
            }
            assert not wrong, f"{name} imports {wrong}"
    assert not {module for module in imported if is_in(module, "local", "tests")}


@pytest.mark.parametrize("path", sorted((LAYER / "decisions").glob("*.py")), ids=name_of)
def test_decisions_import_only_the_standard_library(path: Path) -> None:
    for module in imports_of(path):
        top = module.split(".")[0]
        assert top in sys.stdlib_module_names or is_in(module, "sume_jobs.decisions"), module


@pytest.mark.parametrize("path", sorted((LAYER / "decisions").glob("*.py")), ids=name_of)
def test_decisions_have_no_clock_no_chance_and_no_files(path: Path) -> None:
    """Time and chance are passed in, so that every decision can be tested."""
    impure = ("time", "random", "os", "socket", "pathlib", "io", "subprocess", "threading")
    assert not [module for module in imports_of(path) if module.split(".")[0] in impure]


SQL = ("select", "insert", "update", "delete", "with")


def test_sql_is_only_in_the_store() -> None:
    """Outside of it no text begins like a statement, but for advice that is given to a person.

    And for the call of the function that the database keeps for a stored statement.
    """
    for path in MODULES:
        if is_in(name_of(path), "sume_jobs.store", "sume_jobs.stored_statement"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        advice = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == "advice"
            for part in ast.walk(node.value)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_sql = node.value.split()[:1] in ([word] for word in SQL)
                assert not is_sql or id(node) in advice, f"{name_of(path)}: {node.value[:60]}"


def test_one_place_writes_the_status_of_a_job() -> None:
    """R1: `update gen_job … set status` stands once in the whole layer."""
    found = []
    for path in (LAYER / "store").rglob("*.py"):
        text = " ".join(path.read_text(encoding="utf-8").split())
        found += [
            name_of(path)
            for part in text.split("update gen_job")[1:]
            if part.split(" set ", 1)[1].lstrip().startswith("status ")
            or ", status =" in part.split(" where ", 1)[0]
        ]
    assert found == ["sume_jobs.store.gen_jobs"]


# ------------------------------------------------------------------------- at import

# Modules whose weight shows in a cold start. Of botocore Powertools loads the bare package, which
# costs nothing; its session is the weight. The event handler, batch and data classes of Powertools
# cost as much as all of it that is used here.
HEAVY = (
    "requests",
    "urllib3",
    "psycopg",
    "boto3",
    "botocore.session",
    "botocore.client",
    "pydantic",
    "asyncio",
    "email.message",
    "http.client",
    "ssl",
    "aws_lambda_powertools.event_handler",
    "aws_lambda_powertools.utilities.batch",
    "aws_lambda_powertools.utilities.data_classes",
    "aws_lambda_powertools.utilities.parameters",
    "aws_lambda_powertools.utilities.parser",
)

PROBE = """
import json, os, sys, threading
opened = []
def note(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.fork")):
        opened.append(event)
    elif event == "open" and isinstance(arguments[0], str):
        mode = arguments[1] or ""
        if any(letter in mode for letter in "wax+"):
            opened.append(f"open {arguments[0]}")
sys.addaudithook(note)
import importlib
module = importlib.import_module(sys.argv[1])
print(json.dumps({
    "heavy": sorted(set(sys.argv[2].split(',')) & set(sys.modules)),
    # A leading underscore is the interpreter's own, or that of a tool of the environment.
    "packages": sorted(name for name in {name.split(".")[0] for name in sys.modules}
        - sys.stdlib_module_names - {"functions", "sume_jobs", "cython_runtime"}
        if not name.startswith("_")),
    # urllib3 asks at import whether there is IPv6, by binding a socket that it closes at once.
    "opened": sorted(set(opened) - {"socket.gethostname", "socket.__new__", "socket.bind"}),
    "threads": threading.active_count(),
    "sockets": [fd for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)
                and os.readlink("/proc/self/fd/" + fd).startswith("socket:")],
}))
"""


def imported_alone(module: str) -> dict[str, Any]:
    """Import a module in a fresh interpreter with an empty environment; tell what that did."""
    run = subprocess.run(
        [sys.executable, "-B", "-c", PROBE, module, ",".join(HEAVY)],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "shared")])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


# Cold start is a feature: this is all that each handler loads before its first call.
TELEMETRY = {"aws_lambda_powertools", "botocore", "jmespath", "typing_extensions"}
DATABASE = {"psycopg", "psycopg_binary"}
HTTP = {"requests", "urllib3", "certifi", "charset_normalizer", "idna"}
DATABASE_MODULES = {"psycopg", "asyncio", "ssl", "email.message"}
HTTP_MODULES = {"requests", "urllib3", "http.client"}
DATA_CLASSES = "aws_lambda_powertools.utilities.data_classes"
BATCH = "aws_lambda_powertools.utilities.batch"
EVENT_HANDLER = "aws_lambda_powertools.event_handler"
# Handler: the packages it may load, and the heavy modules among all it loads.
CALLS_SUME = (TELEMETRY | DATABASE | HTTP, DATABASE_MODULES | HTTP_MODULES)
LOADED: dict[str, tuple[set[str], set[str]]] = {
    "submit": CALLS_SUME,
    "poll": CALLS_SUME,
    "archive": (TELEMETRY, {DATA_CLASSES, BATCH, "asyncio", "ssl"}),
    "api": (TELEMETRY | DATABASE, DATABASE_MODULES | {DATA_CLASSES, EVENT_HANDLER}),
    "webhook": (TELEMETRY, set()),
    "dispatch": (TELEMETRY, set()),
    "reap": (TELEMETRY, set()),
    "migrate": (TELEMETRY, set()),
}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc (Linux)")
@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_loads_and_opens_at_import(handler: str) -> None:
    found = imported_alone(f"functions.{handler}.app")
    assert found["opened"] == []
    assert found["sockets"] == []
    assert found["threads"] == 1
    packages, heavy = LOADED[handler]
    assert set(found["packages"]) <= packages, f"{handler} loads a package that is new to it"
    assert set(found["heavy"]) == heavy, f"{handler} loads other heavy modules than before"


def test_every_handler_is_looked_at() -> None:
    assert set(LOADED) == set(HANDLERS)
