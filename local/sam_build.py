"""Run `sam build` for each processor and inspect what would be deployed: `make build`.

Nothing of AWS is needed, and nothing is deployed. The result stays in `.aws-sam/check-<processor>`.
Standard library only: it runs in the environment of the SAM command line tool.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RUNTIME: Final = (3, 13)
FUNCTIONS: Final = {
    "SubmitFunction": "submit",
    "ReapFunction": "reap",
    "PollFunction": "poll",
    "DispatchFunction": "dispatch",
    "WebhookFunction": "webhook",
    "ApiFunction": "api",
    "ArchiveFunction": "archive",
    "MigrateFunction": "migrate",
}
# Processor as Lambda names it: e_machine of its ELF files.
MACHINES: Final = {"arm64": 183, "x86_64": 62}
# Amazon Linux 2023, which the runtime is made of.
GLIBC: Final = (2, 34)
# The Lambda limit for a function with its layers is 250 MB unzipped. Every MB is downloaded at a
# cold start, so the layer has a budget of its own.
LAYER_BYTES: Final = 40_000_000
# The runtime brings these.
NOT_SHIPPED: Final = ("boto3", "botocore", "s3transfer")

_PROBE: Final = f"import sys, pip, zlib, ssl; sys.exit(sys.version_info[:2] != {RUNTIME!r});"
# Run by the runtime's Python with nothing but a function and the layer on its path. boto3 is not
# among them, so a function that imports it before it needs it fails here.
_IMPORT: Final = """
import psycopg, app
assert psycopg.pq.__impl__ == "binary", psycopg.pq.__impl__
assert callable(app.handler)
"""


def find_python() -> Path | None:
    """A Python of the runtime's version that works and has pip, or None.

    A name on the PATH is not enough: it may be a version manager's stub that only fails. Those
    managers' own folders are looked through too.
    """
    version = "{}.{}".format(*RUNTIME)
    name = f"python{version}"
    home = Path.home()
    candidates = [shutil.which(name), str(ROOT / ".venv/bin" / name), sys.executable]
    for folder in (
        f"{os.environ.get('PYENV_ROOT', home / '.pyenv')}/versions/{version}*",
        f"{home}/.local/share/uv/python/cpython-{version}*",
        f"{home}/.local/share/mise/installs/python/{version}*",
        f"{home}/.asdf/installs/python/{version}*",
        "/opt/homebrew",
        "/usr/local",
        "/usr",
    ):
        candidates += sorted(glob.glob(f"{folder}/bin/{name}"), reverse=True)  # noqa: PTH207
    return next((Path(found) for found in candidates if found and _works(found)), None)


def _works(python: str) -> bool:
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def elf_machine(path: Path) -> int | None:
    """The e_machine of an ELF file, None for any other file."""
    with path.open("rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return None
    return int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")


def newest_glibc(path: Path) -> tuple[int, ...]:
    """The newest glibc whose symbols a binary asks for; (0,) if it asks for none."""
    asked = re.findall(rb"GLIBC_([0-9]+(?:\.[0-9]+)+)\x00", path.read_bytes())
    return max((tuple(map(int, version.split(b"."))) for version in asked), default=(0,))


def inspect_layer(layer: Path, processor: str) -> tuple[list[str], list[str]]:
    """Look through a built layer; returns what was found good and what was found wrong."""
    good: list[str] = []
    bad: list[str] = []
    python = layer / "python"
    files = [path for path in layer.rglob("*") if path.is_file()]
    binaries = [(path, elf_machine(path)) for path in files]
    binaries = [(path, machine) for path, machine in binaries if machine is not None]
    for path, machine in binaries:
        if machine != MACHINES[processor]:
            bad.append(f"{path.relative_to(layer)} is not for {processor} (ELF machine {machine})")
        if newest_glibc(path) > GLIBC:
            bad.append(f"{path.relative_to(layer)} wants glibc {newest_glibc(path)}, not {GLIBC}")
    newest = ".".join(map(str, max((newest_glibc(path) for path, _ in binaries), default=(0,))))
    good.append(f"{len(binaries)} binaries, all for {processor}, newest glibc asked for {newest}")

    tag = "cpython-{}{}".format(*RUNTIME)
    if any(re.match(rf"pq\.{tag}-.*\.so$", path.name) for path in python.glob("psycopg_binary/*")):
        good.append("psycopg has its binary")
    else:
        bad.append(f"psycopg_binary/pq.{tag}-*.so is missing: psycopg would find no libpq")

    source = ROOT / "shared" / "sume_jobs"
    wanted = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    missing = sorted(str(path) for path in wanted if not (python / "sume_jobs" / path).is_file())
    migrations = [path for path in wanted if path.suffix == ".sql"]
    bad += [f"sume_jobs/{path} is missing" for path in missing]
    if not migrations:
        bad.append("there is no migration in the layer")
    good.append(f"sume_jobs is complete: {len(wanted)} files, {len(migrations)} of them migrations")

    if not (python / "sume_jobs" / "rds-global-bundle.pem").is_file():
        good.append(
            "without the certificates of RDS: run make certificates before deploying to RDS"
        )

    for name in NOT_SHIPPED:
        if (python / name).exists():
            bad.append(f"{name} is shipped, although the runtime has it")
    size = sum(path.stat().st_size for path in files)
    if size > LAYER_BYTES:
        bad.append(f"{size / 1e6:.1f} MB is over the budget of {LAYER_BYTES / 1e6:.0f} MB")
    good.append(f"{size / 1e6:.1f} MB unzipped, without {', '.join(NOT_SHIPPED)}")
    return good, bad


def inspect_functions(build: Path, python: Path | None) -> tuple[list[str], list[str]]:
    """Look through the built functions; with `python`, import each as Lambda would."""
    bad: list[str] = []
    for resource, folder in FUNCTIONS.items():
        files = {path.name for path in (build / resource).glob("*")} - {"__pycache__"}
        wanted = {path.name for path in (ROOT / "functions" / folder).glob("*")} - {"__pycache__"}
        if files != wanted or "app.py" not in files:
            bad.append(f"functions/{folder} is built as {sorted(files)}, not as {sorted(wanted)}")
        elif python:
            done = subprocess.run(
                [python, "-s", "-S", "-B", "-W", "error", "-c", _IMPORT],
                env={"PYTHONPATH": f"{build / resource}:{build / 'Layer' / 'python'}"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                bad.append(f"functions/{folder} cannot be imported: {done.stderr.strip()}")
    if bad:
        return [], bad
    how = "imported with nothing but the layer" if python else "not imported (another processor)"
    return [f"{len(FUNCTIONS)} functions, {how}"], []


def compile_bytecode(build: Path, python: Path) -> None:
    """Put the bytecode of all modules beside them.

    A function cannot write into its own code or layer, so it would compile all that it imports at
    every cold start, which takes longer than all the rest. The bytecode names no time and no
    folder of this machine, so the same sources give the same layer; it is never checked against
    its source, which nobody can change there.
    """
    for folder, place in (
        (build / "Layer", "/opt"),
        *((build / name, "/var/task") for name in FUNCTIONS),
    ):
        command = [str(python), "-m", "compileall", "-q", "-f", "-j", "0"]
        command += ["--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", place]
        subprocess.run([*command, str(folder)], check=True)


def build(processor: str, python: Path) -> Path | None:
    """Run `sam build` for a processor; returns the folder of the result, None if it failed."""
    target = ROOT / ".aws-sam" / f"check-{processor}"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    sam = Path(sys.executable).parent / "sam"
    command = [str(sam), "build", "--no-cached", "--build-dir", str(target)]
    command += ["--parameter-overrides", f"Architecture={processor}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout + done.stderr)
        return None
    compile_bytecode(target, python)
    return target


def main() -> int:
    """Build and inspect; returns the exit status (0 too where it could not run, and says so)."""
    python = find_python()
    if sys.argv[1:] == ["--python"]:  # only tell which Python it would take
        print(python or "")
        return 0 if python else 1
    if sys.argv[1:2] == ["--compile"]:  # what `sam build` has left in a folder
        if python is None:
            version = "{}.{}".format(*RUNTIME)
            print(f"Not compiled, so each cold start takes longer: no Python {version} was found.")
        else:
            compile_bytecode(Path(sys.argv[2]).resolve(), python)
        return 0
    if python is None:
        print(
            "NOT RUN: sam build needs a working Python {}.{} with pip, the version the functions "
            "run on, and none was found here.".format(*RUNTIME),
            file=sys.stderr,
        )
        return 0
    here = {"aarch64": "arm64", "x86_64": "x86_64"}.get(platform.machine())
    status = 0
    for processor in MACHINES:
        print(f"sam build, {processor}:", flush=True)
        target = build(processor, python)
        if target is None:
            return 1
        importing = python if processor == here and sys.platform == "linux" else None
        good, bad = inspect_layer(target / "Layer", processor)
        functions_good, functions_bad = inspect_functions(target, importing)
        for line in good + functions_good:
            print(f"  {line}")
        for line in bad + functions_bad:
            print(f"  WRONG: {line}")
            status = 1
    if status == 0:
        (ROOT / ".aws-sam" / "built").touch()
    return status


if __name__ == "__main__":
    sys.exit(main())
