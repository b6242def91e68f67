"""Schemathesis asks everything that the document allows, and a lot that it does not; all checks.

Here a short run. The long one, with every phase:
SCHEMATHESIS_EXAMPLES=100 .venv/bin/pytest tests/api/test_schemathesis.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES")


@pytest.mark.timeout(3600)
def test_every_check_holds(url: str, database: Any, tmp_path: Path) -> None:
    database.insert_many(3)
    phases = [] if EXAMPLES else ["--phases=fuzzing"]
    command = [
        str(Path(sys.executable).with_name("st")),
        f"--config-file={Path(__file__).with_name('schemathesis.toml')}",
        "run",
        f"{url}/openapi.json",
        f"--url={url}",
        f"--max-examples={EXAMPLES or 5}",
        "--no-color",
        "--seed=1",
        # How fast data is made is the machine's matter, not the API's.
        "--suppress-health-check=too_slow",
        *phases,
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    print(run.stdout[-6000:], run.stderr[-2000:])
    assert run.returncode == 0
    (cases,) = re.findall(r"(\d+) generated", run.stdout)
    assert int(cases) >= 20
