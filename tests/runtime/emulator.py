"""Lambda's Runtime Interface Emulator, without Docker: the built functions in Lambda's own runtime.

The emulator is a binary inside the SAM command line tool. It speaks the runtime API to the runtime
client (`awslambdaric`), which imports the handler, and it kills it at its time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.postgres import free_port

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = {"aarch64": "arm64", "x86_64": "x86_64"}.get(platform.machine(), "")
BUILD = ROOT / ".aws-sam" / f"check-{ARCHITECTURE}"
PYTHON = ROOT / ".venv-runtime" / "bin" / "python"


def binary() -> Path | None:
    """The emulator, where the SAM command line tool is installed."""
    pattern = f"lib/python*/site-packages/samcli/local/rapid/aws-lambda-rie-{ARCHITECTURE}"
    return next((ROOT / ".venv-sam").glob(pattern), None)


def missing() -> str | None:
    """What keeps the emulator from running here; None if nothing does."""
    if not PYTHON.exists():
        return "the runtime's Python is not set up: make runtime"
    if binary() is None:
        return f"no emulator for {platform.machine()}: make runtime, on Linux"
    if not (BUILD / "Layer" / "python" / "sume_jobs").is_dir():
        return "the functions are not built: make runtime"
    return None


@dataclass(frozen=True)
class Answer:
    """What came back. The emulator answers 200 whatever happened, so only the body tells."""

    body: Any
    seconds: float

    @property
    def timed_out(self) -> bool:
        return isinstance(self.body, str) and "Task timed out" in self.body


class Emulator:
    """One function under the emulator: a context manager. `log` is all that it wrote.

    The runtime is started at the first call; it stays warm until it is killed at `timeout` seconds.
    """

    def __init__(
        self, function: str, environment: dict[str, str], folder: Path, timeout: int = 60
    ) -> None:
        self._port = free_port()
        self.log_file = folder / f"{function}-{self._port}.log"
        task = BUILD / f"{function.title()}Function"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": f"{task}:{BUILD / 'Layer' / 'python'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_LAMBDA_FUNCTION_NAME": function,
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(timeout),
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            **environment,
        }
        self._task = task
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [
            str(binary()),
            "--runtime-interface-emulator-address",
            f"127.0.0.1:{self._port}",
            # Its own, or two emulators meet at the same default port.
            "--runtime-api-address",
            f"127.0.0.1:{free_port()}",
            str(PYTHON),
            "-m",
            "awslambdaric",
            "app.handler",
        ]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._task,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def invoke(self, event: Any, patience: float = 90.0) -> Answer:
        """Call the function once."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/2015-03-31/functions/function/invocations",
            data=json.dumps(event).encode(),
        )
        began = time.monotonic()
        while True:
            try:
                with urllib.request.urlopen(request, timeout=patience) as response:
                    text = response.read().decode()
                break
            except urllib.error.URLError as error:
                # Not listening yet; anything else is a finding.
                refused = isinstance(error.reason, ConnectionRefusedError)
                if not refused or time.monotonic() > began + 20:
                    raise AssertionError(f"{error}\n{self.log}") from None
                time.sleep(0.05)
        seconds = time.monotonic() - began
        try:
            return Answer(json.loads(text), seconds)
        except ValueError:
            return Answer(text, seconds)
