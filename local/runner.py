"""Runs the bundle's handlers on this machine by Lambda's rules.

A *container* is a child process that imported a handler (cold start) and then serves one call at
a time (warm). A call that overlaps another gets a container of its own, up to the function's
concurrency; beyond it the call is throttled. A call that is longer than the function's timeout
has its container killed. A container that dies takes its call with it and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local import worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROJECT = Path(__file__).resolve().parent.parent
# Lambda's limit for a synchronous event and for an answer.
PAYLOAD_BYTES = 6 * 1024 * 1024
# Lambda gives 10 s; a laptop that is busy with a first import gets longer.
INIT_SECONDS = 60.0
REGION = "local"
PASSED_ON = (
    "PATH",
    "HOME",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "LD_LIBRARY_PATH",
    "PYTHONDONTWRITEBYTECODE",
)

TIMED_OUT = "Sandbox.Timedout"
EXITED = "Runtime.ExitError"
THROTTLED = "TooManyRequestsException"
TOO_LARGE = "RequestEntityTooLargeException"


@dataclass(frozen=True)
class Function:
    """One function of the bundle: what to import, and the limits it runs under.

    ``handler`` is a dotted name that ends in the callable. ``concurrency`` None means unlimited.
    """

    name: str
    handler: str
    timeout_seconds: float
    memory_megabytes: int
    concurrency: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a call gave no value; ``kind`` is Lambda's error type."""

    kind: str
    message: str


@dataclass(frozen=True)
class Invocation:
    """What one call came to: ``value``, or ``failure`` when there is none."""

    function: str
    request_id: str
    value: Any
    failure: Failure | None
    cold: bool
    seconds: float
    peak_memory_bytes: int
    container: int | None

    def result(self) -> Any:
        """The value; raises `InvocationError` when the call failed."""
        if self.failure is not None:
            raise InvocationError(self.function, self.failure)
        return self.value


class InvocationError(RuntimeError):
    """A call failed: ``failure`` says how."""

    def __init__(self, function: str, failure: Failure) -> None:
        super().__init__(f"{function}: {failure.kind}: {failure.message}")
        self.failure = failure


@dataclass
class Statistics:
    """What happened to one function since the runner started."""

    invocations: int = 0
    cold_starts: int = 0
    errors: int = 0
    timeouts: int = 0
    crashes: int = 0
    throttles: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0
    peak_memory_bytes: int = 0
    # The sums of the whole numbers in the counts that the handler returned.
    counts: Counter[str] = field(default_factory=Counter)
    last_failure: Failure | None = None


class _ContainerGoneError(Exception):
    """The container ended before it took the request."""


class _Container:
    """One child process; used by one thread at a time."""

    def __init__(
        self, function: Function, log: Path, code: Path, environment: Mapping[str, str]
    ) -> None:
        self.function = function
        self.cold = True
        self._received = bytearray()
        self._control, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "local.worker", str(theirs.fileno()), function.handler],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=code,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                # A session of its own: Ctrl-C reaches the runner only, and kill() takes all.
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def initialize(self, seconds: float) -> tuple[Failure | None, int]:
        """Wait for the import of the handler; gives its failure, if any, and the memory used."""
        end = time.monotonic() + seconds
        return self._answer(end, f"Init phase timed out after {seconds:.0f} seconds")[1:]

    def call(self, request_id: str, event: Any, seconds: float) -> tuple[Any, Failure | None, int]:
        """Run the handler once: value, failure, peak memory in bytes.

        Raises `_ContainerGoneError` if the process was already gone.
        """
        deadline = int((time.time() + seconds) * 1000)
        request = {"request_id": request_id, "event": event, "deadline": deadline}
        end = time.monotonic() + seconds
        late = f"Task timed out after {seconds:.2f} seconds"
        try:
            self._control.settimeout(seconds)
            worker.send(self._control, request)
            self._receive(end)
        except TimeoutError:
            pass  # the answer's own time limit says the same
        except (EOFError, OSError) as error:
            raise _ContainerGoneError from error
        return self._answer(end, late)

    def _receive(self, end: float) -> Any:
        """The next message; TimeoutError at ``end``, EOFError or OSError if the process is gone."""

        def read(count: int) -> bytes:
            while len(self._received) < count:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._control.settimeout(left)
                part = self._control.recv(1 << 20)
                if not part:
                    raise EOFError
                self._received += part
            taken = bytes(self._received[:count])
            del self._received[:count]
            return taken

        (length,) = worker.LENGTH.unpack(read(worker.LENGTH.size))
        return json.loads(read(length))

    def _answer(self, end: float, late: str) -> tuple[Any, Failure | None, int]:
        try:
            answer = self._receive(end)
        except TimeoutError:
            memory = self._memory_from_outside()
            self.kill()
            return None, Failure(TIMED_OUT, late), memory
        except (EOFError, OSError):
            return None, Failure(EXITED, self._how_it_ended()), 0
        failure = answer.get("failure")
        return (
            answer.get("value"),
            Failure(failure["errorType"], failure["errorMessage"]) if failure else None,
            answer["memory"],
        )

    def _how_it_ended(self) -> str:
        # The socket closes a moment before the process has ended.
        try:
            code = self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self.process.wait()
        if code < 0:
            return f"Runtime exited with error: signal: {signal.Signals(-code).name}"
        return f"Runtime exited with error: exit status {code}"

    def _memory_from_outside(self) -> int:
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text(errors="replace")
        except OSError:
            return 0
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    def kill(self) -> None:
        """SIGKILL the process and all it started; safe to repeat, from any thread."""
        if self.process.returncode is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self.process.kill()

    def close(self) -> None:
        """Kill the process and free what it held here."""
        self.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._control.close()


class Runner:
    """Invokes functions; safe to use from many threads. Also a context manager.

    Parameters
    ----------
    functions:
        The functions that can be invoked.
    log_folder:
        Each function's standard output and error go to ``<log_folder>/<name>.log``, with a line
        like Lambda's ``platform.report`` after each call.
    environment:
        Variables for every function; a function's own come on top. Of this process's variables
        only a few are passed on (the path, proxies, certificates).
    cold:
        Give every call a fresh container.
    """

    def __init__(
        self,
        functions: Iterable[Function],
        *,
        log_folder: Path,
        environment: Mapping[str, str] | None = None,
        code_folder: Path = PROJECT,
        cold: bool = False,
        init_seconds: float = INIT_SECONDS,
    ) -> None:
        self.functions = {function.name: function for function in functions}
        self.log_folder = log_folder
        self.cold = cold
        # What containers that start from now on get.
        self.environment = dict(environment or {})
        self._code_folder = code_folder
        self._init_seconds = init_seconds
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Container]] = {name: [] for name in self.functions}
        self._busy: dict[str, set[_Container]] = {name: set() for name in self.functions}
        self._running = Counter[str]()
        self._statistics = {name: Statistics() for name in self.functions}
        self._closed = False
        log_folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def invoke(self, name: str, event: Any) -> Invocation:
        """Call a function with a JSON-able event and wait for what it comes to.

        Never raises for what the function does, only for an unknown name (KeyError), an event
        that is not JSON (TypeError, ValueError), or a closed runner (RuntimeError).
        """
        function = self.functions[name]
        request_id = str(uuid.uuid4())
        if len(json.dumps(event)) > PAYLOAD_BYTES:
            failure = Failure(TOO_LARGE, f"Request must be smaller than {PAYLOAD_BYTES} bytes")
            return Invocation(name, request_id, None, failure, False, 0.0, 0, None)
        with self._lock:
            if self._closed:
                raise RuntimeError("the runner is closed")
            if function.concurrency is not None and self._running[name] >= function.concurrency:
                self._statistics[name].throttles += 1
                failure = Failure(THROTTLED, "Rate Exceeded.")
                return Invocation(name, request_id, None, failure, False, 0.0, 0, None)
            self._running[name] += 1
        try:
            invocation = self._invoke(function, request_id, event)
        finally:
            with self._lock:
                self._running[name] -= 1
        self._record(invocation)
        return invocation

    def running(self, name: str) -> int:
        """How many calls of a function are in progress."""
        with self._lock:
            return self._running[name]

    def statistics(self) -> dict[str, Statistics]:
        """A copy of what happened to each function so far."""
        with self._lock:
            return {
                name: Statistics(**{**vars(found), "counts": Counter(found.counts)})
                for name, found in self._statistics.items()
            }

    def kill(self, name: str) -> int:
        """SIGKILL every container of a function that is in the middle of a call; how many."""
        with self._lock:
            victims = list(self._busy[name])
        for container in victims:
            container.kill()
        return len(victims)

    def containers(self, name: str) -> list[int]:
        """Process ids of the live containers of a function, idle and busy."""
        with self._lock:
            every = [*self._idle[name], *self._busy[name]]
        return [container.process.pid for container in every if container.alive]

    def close(self) -> None:
        """Kill every container; calls in progress end as if their container had crashed."""
        with self._lock:
            self._closed = True
            idle = [container for group in self._idle.values() for container in group]
            busy = [container for group in self._busy.values() for container in group]
            for group in self._idle.values():
                group.clear()
        for container in busy:
            container.kill()
        for container in idle:
            container.close()

    def _invoke(self, function: Function, request_id: str, event: Any) -> Invocation:
        while True:
            container, memory, failure = self._acquire(function)
            if container is None or failure is not None:
                return Invocation(function.name, request_id, None, failure, True, 0.0, memory, None)
            cold, container.cold = container.cold, False
            started = time.monotonic()
            try:
                value, failure, peak = container.call(request_id, event, function.timeout_seconds)
            except _ContainerGoneError:
                self._release(container, keep=False)
                continue  # it died while it was idle: this call never reached it
            except BaseException:
                self._release(container, keep=False)
                raise
            seconds = time.monotonic() - started
            lost = failure is not None and failure.kind in (TIMED_OUT, EXITED)
            if failure is None and len(json.dumps(value)) > PAYLOAD_BYTES:
                value = None
                failure = Failure(
                    "Function.ResponseSizeTooLarge",
                    f"Response payload size exceeded maximum allowed ({PAYLOAD_BYTES} bytes).",
                )
            pid = container.process.pid
            self._release(container, keep=not lost and not self.cold)
            return Invocation(
                function.name, request_id, value, failure, cold, seconds, max(peak, memory), pid
            )

    def _acquire(self, function: Function) -> tuple[_Container | None, int, Failure | None]:
        """A container that is ready, taken out of the idle ones or started."""
        dead: list[_Container] = []
        chosen: _Container | None = None
        with self._lock:
            idle = self._idle[function.name]
            while idle and chosen is None:
                container = idle.pop()
                if container.alive:
                    chosen = container
                    self._busy[function.name].add(container)
                else:
                    dead.append(container)
        for container in dead:
            container.close()
        if chosen is not None:
            return chosen, 0, None
        fresh = _Container(
            function,
            self._log(function.name),
            self._code_folder,
            self._environment_of(function),
        )
        with self._lock:
            self._busy[function.name].add(fresh)
            closed = self._closed
        if closed:
            fresh.kill()
        failure, memory = fresh.initialize(self._init_seconds)
        if failure is not None:
            self._release(fresh, keep=False)
            return None, memory, failure
        return fresh, memory, None

    def _release(self, container: _Container, *, keep: bool) -> None:
        name = container.function.name
        with self._lock:
            self._busy[name].discard(container)
            if keep and not self._closed:
                self._idle[name].append(container)
                return
        container.close()

    def _environment_of(self, function: Function) -> dict[str, str]:
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        never_by_proxy = [os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))]
        no_proxy = ",".join(filter(None, [*never_by_proxy, "127.0.0.1", "localhost"]))
        return {
            **passed_on,
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
            "LANG": "C.UTF-8",
            "TZ": ":UTC",
            "PYTHONPATH": os.pathsep.join([str(self._code_folder / "shared"), str(PROJECT)]),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            # No role, no metadata service: what asks AWS for anything finds out at once.
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_megabytes),
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": f"local/[$LATEST]{uuid.uuid4().hex}",
            "LAMBDA_TASK_ROOT": str(self._code_folder),
            "_HANDLER": function.handler,
            **self.environment,
            **function.environment,
        }

    def _log(self, name: str) -> Path:
        return self.log_folder / f"{name}.log"

    def _record(self, invocation: Invocation) -> None:
        failure = invocation.failure
        status = "success"
        if failure is not None:
            status = "timeout" if failure.kind == TIMED_OUT else "error"
        record = {
            "requestId": invocation.request_id,
            "status": status,
            "metrics": {
                "durationMs": round(invocation.seconds * 1000, 1),
                "maxMemoryUsedMB": invocation.peak_memory_bytes // (1024 * 1024),
            },
            "cold": invocation.cold,
        }
        if failure is not None:
            record["errorType"] = failure.kind
        line = json.dumps(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "type": "platform.report",
                "record": record,
            }
        )
        with self._lock:
            found = self._statistics[invocation.function]
            found.invocations += 1
            found.cold_starts += invocation.cold
            found.seconds += invocation.seconds
            found.longest_seconds = max(found.longest_seconds, invocation.seconds)
            found.peak_memory_bytes = max(found.peak_memory_bytes, invocation.peak_memory_bytes)
            if failure is not None:
                found.last_failure = failure
                found.errors += 1
                found.timeouts += failure.kind == TIMED_OUT
                found.crashes += failure.kind == EXITED
            elif isinstance(invocation.value, dict):
                for key, value in invocation.value.items():
                    if type(value) is int and key != "statusCode":
                        found.counts[key] += value
        with self._log(invocation.function).open("ab") as log:
            log.write(line.encode() + b"\n")
