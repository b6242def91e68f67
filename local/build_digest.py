"""The parameters of a deployment, with a digest of code and settings: used by `make deploy`.

SnapStart and provisioned concurrency run a published version, which CloudFormation only makes
when something of it changed that it can see. The digest is what it can see.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("template.yaml", "shared", "functions")


def digest(parameters: list[str], root: Path = ROOT) -> str:
    """Give 64 hexadecimal digits that change with every file and parameter of a deployment."""
    found = hashlib.sha256()
    for source in SOURCES:
        path = root / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                found.update(f"{file.relative_to(root)} {len(content)} ".encode() + content)
    for parameter in sorted(parameters):
        found.update(f"{len(parameter)} {parameter}".encode())
    return found.hexdigest()


def configured(stage: str, root: Path = ROOT) -> list[str]:
    """Give `parameter_overrides` of samconfig.toml as `Name=value`, as `sam deploy` would take it.

    Raises KeyError where samconfig.toml has no such stage.
    """
    config = tomllib.loads((root / "samconfig.toml").read_text(encoding="utf-8"))[stage]
    for section in ("deploy", "global"):
        given = config.get(section, {}).get("parameters", {}).get("parameter_overrides")
        if given:
            return shlex.split(given) if isinstance(given, str) else [str(item) for item in given]
    return []


def main() -> int:
    """Print the parameters for the command line of `sam deploy`."""
    stage = sys.argv[1] if len(sys.argv) > 1 else "default"
    try:
        parameters = configured(stage)
    except KeyError:
        print(f"samconfig.toml has no stage {stage}", file=sys.stderr)
        return 1
    parameters = [item for item in parameters if not item.startswith("BuildSha=")]
    print(shlex.join([*parameters, f"BuildSha={digest(parameters)}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
