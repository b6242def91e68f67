"""`sam local` on the built functions, against a database and a fake Sume of this machine.

Containers reach this machine at the address of Docker's bridge, so both listen there as well. The
image is SAM_LOCAL_IMAGE (default: the public one, which SAM pulls) and SAM_LOCAL_FLAGS holds more
options for `sam local`; SAM_LOCAL_HOST is the address where Docker does not name it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from tests.runtime.emulator import ARCHITECTURE, BUILD, ROOT
from tests.support.postgres import free_port
from tests.support.waiting import wait_until

SAM = ROOT / ".venv-sam" / "bin" / "sam"
# What a deployment never has. `sam local` only passes on variables that the template names.
ADDED = ("DATABASE_URL", "SUME_API_KEY", "SUME_WEBHOOK_SECRETS")
PARAMETERS = {
    "Architecture": ARCHITECTURE,
    "SumeApiKeySecretArn": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:none-AbCd12",
    "DatabaseHost": "none",
    "DatabaseResourceId": "db-NONE",
    "ArchiveBucket": "none",
}
OFFLINE = {
    "SAM_CLI_TELEMETRY": "0",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
}


def bridge() -> str | None:
    """The address of this machine as containers see it; None where Docker is not in use."""
    if given := os.environ.get("SAM_LOCAL_HOST"):
        return given
    command = ["docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}"]
    for asked in (command, ["ip", "-4", "-o", "addr", "show", "docker0"]):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
            if found := re.search(r"\d+\.\d+\.\d+\.\d+", done.stdout):
                return found[0]
    return None


class Forwarder:
    """Lets containers reach a server that listens on loopback only. A context manager."""

    def __init__(self, host: str, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            other = {client: server, server: client}
            while True:
                for readable in select.select(list(other), [], [])[0]:
                    data = readable.recv(65536)
                    if not data:
                        return
                    other[readable].sendall(data)


class SamLocal:
    """The command, with one set of variables for all functions."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._folder = folder
        self._variables = folder / "variables.json"
        self._variables.write_text(json.dumps({"Parameters": variables}), encoding="utf-8")
        built = (BUILD / "template.yaml").read_text(encoding="utf-8")
        names = "".join(f"        {name}: ''\n" for name in ADDED)
        changed, times = re.subn(
            r"(^Globals:.*?^      Variables:\n)", rf"\1{names}", built, count=1, flags=re.S | re.M
        )
        assert times == 1, "the built template has no variables"
        self._template = BUILD / "template-sam-local.yaml"
        self._template.write_text(changed, encoding="utf-8")

    def _command(self, *arguments: str) -> list[str]:
        command = [str(SAM), "local", *arguments, "-t", str(self._template)]
        command += ["--env-vars", str(self._variables)]
        if image := os.environ.get("SAM_LOCAL_IMAGE"):
            command += ["--invoke-image", image]
        command += shlex.split(os.environ.get("SAM_LOCAL_FLAGS", ""))
        return [*command, "--parameter-overrides", *(f"{k}={v}" for k, v in PARAMETERS.items())]

    def invoke(self, function: str, event: Any) -> Any:
        """`sam local invoke` once; what the function gave. AssertionError where that is no JSON."""
        file = self._folder / "event.json"
        file.write_text(json.dumps(event), encoding="utf-8")
        done = subprocess.run(
            self._command("invoke", f"{function.title()}Function", "-e", str(file)),
            cwd=ROOT,
            env={**os.environ, **OFFLINE},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        print(done.stderr[-4000:])
        try:
            return json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise AssertionError(f"{function}: {done.stdout}\n{done.stderr}") from None

    @contextlib.contextmanager
    def start_api(self) -> Any:
        """`sam local start-api` until the end of the block; gives its URL."""
        port = free_port()
        log = self._folder / "start-api.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command("start-api", "-p", str(port), "--warm-containers", "LAZY"),
                cwd=ROOT,
                env={**os.environ, **OFFLINE},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:

            def listening() -> bool:
                assert process.poll() is None, log.read_text()
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    return True
                return False

            wait_until(listening, "sam local start-api to listen", 300)
            yield f"http://127.0.0.1:{port}"
        finally:
            # Interrupted, it removes its containers.
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(180)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)
            print(log.read_text(encoding="utf-8", errors="replace")[-4000:])
