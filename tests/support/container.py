"""Lambda execution environments for tests: processes in which the real handlers run.

`Nursery` starts one interpreter that imports the handlers and then forks a child for each
`Container`. A container is what Lambda calls an execution environment: its module globals live from
one invocation to the next (warm), a new one starts cold, and it can be stopped by SIGKILL at any
moment. Forking after the imports costs some milliseconds instead of a second; it also is
what SnapStart does.

`python -m tests.support.container` is the interpreter side.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ("submit", "reap", "webhook", "poll", "migrate", "dispatch", "api", "archive")


# What handlers import late, on their first call; here it would be paid for in every container.
LIBRARIES = ("psycopg", "psycopg_binary", "psycopg.types.json", "requests", "urllib3")


class HandlerRaised(AssertionError):
    """A handler let an exception out; in Lambda that is a failed invocation (an HTTP 502)."""


class ContainerDied(AssertionError):
    """The process ended before it answered (killed by the test, or crashed)."""


# ---------------------------------------------------------------------- the test's side


class Invocation:
    """One call under way; `result()` waits for it."""

    def __init__(self, container: Container, name: str, message: dict[str, Any]) -> None:
        self.container = container
        self.name = name
        self.seconds: float | None = None
        self._reply: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._run, args=(message,), daemon=True)
        self._thread.start()

    def _run(self, message: dict[str, Any]) -> None:
        started = time.monotonic()
        self._reply = self.container.exchange(message)
        self.seconds = time.monotonic() - started

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout: float = 60.0) -> dict[str, Any]:
        """The raw reply: {"result": …} or {"error": …, "kind": …} or {"died": true}."""
        self._thread.join(timeout)
        if self._reply is None:
            raise AssertionError(f"{self.name} did not return within {timeout} s")
        return self._reply

    def result(self, timeout: float = 60.0) -> Any:
        reply = self.wait(timeout)
        if reply.get("died"):
            raise ContainerDied(
                f"{self.name}: the process ended\n{self.container.output()[-4000:]}"
            )
        if "error" in reply:
            raise HandlerRaised(f"{self.name} raised {reply['kind']}: {reply['error']}")
        return reply["result"]


class Container:
    """One process with the handlers imported. One invocation at a time, as in Lambda."""

    def __init__(self, pid: int, channel: socket.socket, output: Path) -> None:
        self.pid = pid
        self._channel = channel
        self._file = channel.makefile("rwb")
        self._output = output
        self._lock = threading.Lock()
        self.alive = True

    def exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                self._file.write(json.dumps(message).encode() + b"\n")
                self._file.flush()
                line = self._file.readline()
            except (OSError, ValueError):
                line = b""
            if not line.endswith(b"\n"):
                self.alive = False
                return {"died": True}
            reply: dict[str, Any] = json.loads(line)
            return reply

    def start(
        self, name: str, event: Any = None, remaining: float = 60.0, request_id: str | None = None
    ) -> Invocation:
        """Begin an invocation of `functions/<name>` that Lambda would give `remaining` seconds."""
        message = {
            "do": "invoke",
            "name": name,
            "event": {} if event is None else event,
            "remaining": remaining,
            "request_id": request_id,
        }
        return Invocation(self, name, message)

    def invoke(self, name: str, event: Any = None, remaining: float = 60.0) -> Any:
        return self.start(name, event, remaining).result()

    def shift_clock(self, seconds: float) -> None:
        """Let this process's wall clock run `seconds` ahead (negative: behind) of the true one."""
        self._control({"do": "clock", "shift": seconds})

    def freeze_clock(self, instant: float) -> None:
        """Stop this process's wall clock at a Unix time."""
        self._control({"do": "clock", "freeze": instant})

    def set_environment(self, **values: str | None) -> None:
        self._control({"do": "environment", "values": values})

    def reset(self) -> None:
        """Forget settings, secrets and the connection, as `sume_jobs.runtime.reset` promises."""
        self._control({"do": "reset"})

    def _control(self, message: dict[str, Any]) -> None:
        reply = self.exchange(message)
        if reply.get("died"):
            raise ContainerDied(self.output()[-4000:])
        if "error" in reply:
            raise HandlerRaised(f"{message['do']}: {reply['kind']}: {reply['error']}")

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL: no handler, no finally, no goodbye to the database."""
        self.alive = False
        self.signal(signal.SIGKILL)

    def output(self) -> str:
        """Everything the process has written to stdout and stderr."""
        return self._output.read_text(errors="replace")

    def peak_memory(self) -> int:
        """The process's high-water mark of resident memory, bytes (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._file.close()
        self._channel.close()


class Nursery:
    """The interpreter that containers are forked from; one for a test session."""

    def __init__(self, directory: Path, clients: Sequence[str] = ()) -> None:
        """`clients` names AWS services whose clients are made beforehand, which takes a while."""
        self._directory = directory
        self._count = 0
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH")
        }
        environment |= BASE_ENVIRONMENT
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "shared")])
        self._log = directory / "nursery.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.container", str(theirs.fileno()), *clients],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self._channel = ours
        self._channel.settimeout(60)

    def container(self, environment: Mapping[str, str]) -> Container:
        with self._lock:
            self._count += 1
            output = self._directory / f"container-{self._count}.log"
            ours, theirs = socket.socketpair()
            with output.open("wb") as log:
                socket.send_fds(
                    self._channel,
                    [json.dumps({**BASE_ENVIRONMENT, **environment}).encode() + b"\n"],
                    [theirs.fileno(), log.fileno()],
                )
                theirs.close()
                answer = self._channel.recv(64)
            if not answer:
                raise AssertionError(
                    "the handlers cannot be imported:\n" + self._log.read_text()[-4000:]
                )
            return Container(int(answer), ours, output)

    def close(self) -> None:
        self._channel.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


# What Lambda sets, as far as a library may look at it. No real account can be reached with these.
BASE_ENVIRONMENT = {
    "AWS_REGION": "eu-central-1",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_LAMBDA_FUNCTION_NAME": "sume-jobs-test",
    "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
    "POWERTOOLS_SERVICE_NAME": "sume-jobs",
    "POWERTOOLS_METRICS_NAMESPACE": "SumeJobs",
    "NO_PROXY": "127.0.0.1,localhost",
    "PYTHONUNBUFFERED": "1",
}


# ---------------------------------------------------------------------- the process's side


class Context:
    """The part of Lambda's context that handlers and Powertools use; its time really runs down."""

    function_version = "$LATEST"
    memory_limit_in_mb = 256
    log_group_name = "/aws/lambda/sume-jobs-test"
    log_stream_name = "test"
    identity = None
    client_context = None

    def __init__(self, name: str, remaining: float, request_id: str | None = None) -> None:
        import uuid

        self.function_name = f"sume-jobs-test-{name}"
        self.invoked_function_arn = (
            f"arn:aws:lambda:eu-central-1:123456789012:function:{self.function_name}"
        )
        self.aws_request_id = request_id or str(uuid.uuid4())
        self._clock = REAL_MONOTONIC
        self._deadline = self._clock() + remaining

    def get_remaining_time_in_millis(self) -> int:
        return int((self._deadline - self._clock()) * 1000)


REAL_TIME = time.time
REAL_MONOTONIC = time.monotonic


def patch_clock(shift: float = 0.0, freeze: float | None = None) -> None:
    """Replace the wall clock in every module that is loaded (time.time, time_ns, datetime.now)."""
    import datetime as module

    real_datetime = getattr(module.datetime, "real", module.datetime)

    def now() -> float:
        return freeze if freeze is not None else REAL_TIME() + shift

    def fake_time() -> float:
        return now()

    def fake_time_ns() -> int:
        return int(now() * 1_000_000_000)

    class Meta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real_datetime)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, real_datetime)

    class FakeDatetime(real_datetime, metaclass=Meta):  # type: ignore[misc, valid-type]
        real = real_datetime

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_datetime.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real_datetime.fromtimestamp(now(), module.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return real_datetime.fromtimestamp(now())

    old_time, old_ns, old_datetime = time.time, time.time_ns, module.datetime
    for loaded in list(sys.modules.values()):
        if loaded is None or getattr(loaded, "__name__", "").startswith(("tests.", "__main__")):
            continue
        names = vars(loaded)
        for name, value in list(names.items()):
            if value is old_time or value is REAL_TIME:
                names[name] = fake_time
            elif value is old_ns:
                names[name] = fake_time_ns
            elif value is old_datetime:
                names[name] = FakeDatetime


def serve(channel: socket.socket) -> None:
    """A container's life: one JSON line in, one out, until the other side closes."""
    file = channel.makefile("rwb")
    for line in file:
        message = json.loads(line)
        try:
            reply = {"result": perform(message)}
        except BaseException as error:
            traceback.print_exc()
            reply = {"error": str(error), "kind": type(error).__name__}
        sys.stdout.flush()
        file.write(json.dumps(reply).encode() + b"\n")
        file.flush()


def perform(message: dict[str, Any]) -> Any:
    match message["do"]:
        case "invoke":
            app = importlib.import_module(f"functions.{message['name']}.app")
            context = Context(message["name"], message["remaining"], message["request_id"])
            result = app.handler(message["event"], context)
            # Lambda serialises the answer with json; what does not pass is a failed invocation.
            return json.loads(json.dumps(result))
        case "clock":
            patch_clock(message.get("shift", 0.0), message.get("freeze"))
        case "environment":
            for name, value in message["values"].items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        case "reset":
            importlib.import_module("sume_jobs.runtime").reset()
    return None


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in FUNCTIONS:
        if (ROOT / "functions" / name / "app.py").exists():
            try:
                importlib.import_module(f"functions.{name}.app")
            except Exception:
                # Left to the invocation, which then fails with this very error.
                traceback.print_exc()
    for service in sys.argv[2:]:
        # The default session keeps what it has read of the service's description.
        importlib.import_module("boto3").client(service)
    threads = threading.active_count()
    if threads > 1:
        print(f"importing the handlers started {threads - 1} threads", file=sys.stderr)
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 2)
        if not data:
            return
        while not data.endswith(b"\n"):
            data += channel.recv(1 << 20)
        connection, log = descriptors
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                channel.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.close(log)
                os.environ.update(json.loads(data))
                serve(socket.socket(fileno=connection))
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(connection)
        os.close(log)
        channel.send(str(pid).encode())


if __name__ == "__main__":
    main()
