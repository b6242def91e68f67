"""The inspection of a built layer notices what would fail on Lambda."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from local import sam_build

if TYPE_CHECKING:
    from pathlib import Path


def binary(machine: int, *versions: str) -> bytes:
    """The beginning of an ELF file, and the names of the glibc versions it asks for."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little")
    head += machine.to_bytes(2, "little")
    return head + b"".join(b"GLIBC_" + version.encode() + b"\0" for version in versions)


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A layer for arm64 in which everything is right."""
    python = tmp_path / "python"
    shutil.copytree(
        sam_build.ROOT / "shared" / "sume_jobs",
        python / "sume_jobs",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (python / "psycopg_binary").mkdir()
    native = python / "psycopg_binary" / "pq.cpython-313-aarch64-linux-gnu.so"
    native.write_bytes(binary(183, "2.17", "2.27"))
    libraries = python / "psycopg_binary.libs"
    libraries.mkdir()
    (libraries / "libpq-1a2b.so.5.17").write_bytes(binary(183, "2.34"))
    return tmp_path


def test_a_good_layer_passes(layer: Path) -> None:
    good, bad = sam_build.inspect_layer(layer, "arm64")
    assert bad == []
    assert any("2 binaries, all for arm64, newest glibc asked for 2.34" in line for line in good)


def test_a_layer_for_the_other_processor_fails(layer: Path) -> None:
    _, bad = sam_build.inspect_layer(layer, "x86_64")
    assert len([line for line in bad if "is not for x86_64" in line]) == 2


def test_one_wrong_library_among_good_ones_fails(layer: Path) -> None:
    (layer / "python" / "psycopg_binary.libs" / "libssl.so.3").write_bytes(binary(62))
    _, bad = sam_build.inspect_layer(layer, "arm64")
    assert bad == ["python/psycopg_binary.libs/libssl.so.3 is not for arm64 (ELF machine 62)"]


def test_a_library_newer_than_the_runtime_fails(layer: Path) -> None:
    (layer / "python" / "new.so").write_bytes(binary(183, "2.4", "2.38"))
    _, bad = sam_build.inspect_layer(layer, "arm64")
    assert bad == ["python/new.so wants glibc (2, 38), not (2, 34)"]


def test_a_missing_driver_fails(layer: Path) -> None:
    (layer / "python" / "psycopg_binary" / "pq.cpython-313-aarch64-linux-gnu.so").unlink()
    _, bad = sam_build.inspect_layer(layer, "arm64")
    assert "psycopg would find no libpq" in bad[0]


def test_a_missing_migration_fails(layer: Path) -> None:
    migration = next((layer / "python" / "sume_jobs").rglob("*.sql"))
    migration.unlink()
    _, bad = sam_build.inspect_layer(layer, "arm64")
    assert len(bad) == 1
    assert bad[0].endswith(f"{migration.name} is missing")


def test_what_the_runtime_brings_is_not_shipped(layer: Path) -> None:
    (layer / "python" / "botocore").mkdir()
    _, bad = sam_build.inspect_layer(layer, "arm64")
    assert bad == ["botocore is shipped, although the runtime has it"]


def test_a_layer_over_its_budget_fails(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sam_build, "LAYER_BYTES", 10)
    _, bad = sam_build.inspect_layer(layer, "arm64")
    assert "over the budget" in bad[0]


def test_a_function_that_was_not_built_fails(tmp_path: Path) -> None:
    (tmp_path / "SubmitFunction").mkdir()
    (tmp_path / "SubmitFunction" / "app.py").touch()
    _, bad = sam_build.inspect_functions(tmp_path, None)
    assert len(bad) == len(sam_build.FUNCTIONS) - 1


def test_a_function_that_cannot_be_imported_fails(tmp_path: Path) -> None:
    for resource in sam_build.FUNCTIONS:
        (tmp_path / resource).mkdir()
        (tmp_path / resource / "app.py").write_text("import boto3\n", encoding="utf-8")
    _, bad = sam_build.inspect_functions(tmp_path, sam_build.Path(sys.executable))
    assert len(bad) == len(sam_build.FUNCTIONS)
    assert "cannot be imported" in bad[0]


def test_a_stub_on_the_path_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "python{}.{}".format(*sam_build.RUNTIME)
    stub = tmp_path / name
    stub.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n", encoding="utf-8")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert shutil.which(name) == str(stub)
    assert sam_build.find_python() != stub


def test_where_there_is_no_python_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sam_build, "find_python", lambda: None)
    assert sam_build.main() == 0
    assert capsys.readouterr().err.startswith("NOT RUN: sam build needs a working Python 3.13")


# ------------------------------------------------------------------------- bytecode


def test_the_bytecode_is_taken_without_a_look_at_its_source(tmp_path: Path) -> None:
    module = tmp_path / "Layer" / "python" / "some_module.py"
    handler = tmp_path / "SubmitFunction" / "app.py"
    for path in (module, handler):
        path.parent.mkdir(parents=True)
        path.write_text("print('compiled before')\n", "utf-8")
    for resource in sam_build.FUNCTIONS:
        (tmp_path / resource).mkdir(exist_ok=True)
    sam_build.compile_bytecode(tmp_path, sam_build.Path(sys.executable))
    for path in (module, handler):
        path.write_text("raise SystemExit('compiled again')\n", "utf-8")
        run = subprocess.run(
            [sys.executable, "-B", "-c", f"import {path.stem}"],
            env={"PYTHONPATH": str(path.parent)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == "compiled before"


def test_the_same_sources_give_the_same_bytecode(tmp_path: Path) -> None:
    compiled = []
    for name in ("one", "two"):
        build = tmp_path / name
        for folder in ("Layer", *sam_build.FUNCTIONS):
            (build / folder).mkdir(parents=True)
        shutil.copytree(
            sam_build.ROOT / "shared" / "sume_jobs" / "decisions", build / "Layer" / "d"
        )
        sam_build.compile_bytecode(build, sam_build.Path(sys.executable))
        files = sorted((build / "Layer").rglob("*.pyc"))
        compiled.append([path.read_bytes() for path in files])
    assert compiled[0]
    assert compiled[0] == compiled[1]
