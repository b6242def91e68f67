"""One container of the local runner: imports a handler once, then serves one call at a time.

Started by `local.runner` as ``python -m local.worker <control descriptor> <module.function>``.
Messages are JSON texts on the control socket, each after its length in four bytes: a request is
first acknowledged, then answered.
Standard input is a pipe that only the runner holds: when it closes, this process ends at once,
even in the middle of a call, so that nothing is left behind when the runner is killed.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Identity:
    """Never set for scheduled and HTTP calls; present because Lambda's context has it."""

    cognito_identity_id: str | None = None
    cognito_identity_pool_id: str | None = None


class Context:
    """What a handler gets as its second argument, with Lambda's names, types and countdown."""

    def __init__(self, request_id: str, deadline_milliseconds: int) -> None:
        self.aws_request_id = request_id
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        # Lambda's own runtime hands this on as text.
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.invoked_function_arn = (
            f"arn:aws:lambda:{os.environ['AWS_REGION']}:000000000000:function:{self.function_name}"
        )
        self.client_context = None
        self.identity = Identity()
        self.tenant_id = None
        self._epoch_deadline_time_in_ms = deadline_milliseconds

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until this call is killed; never below 0."""
        return max(self._epoch_deadline_time_in_ms - int(time.time() * 1000), 0)


def send(control: socket.socket, message: object) -> None:
    """Write one message; raises OSError when the other side is gone."""
    text = json.dumps(message).encode()
    control.sendall(LENGTH.pack(len(text)) + text)


def receive(control: socket.socket) -> Any:
    """Read one message; raises EOFError when the other side is gone before its end."""
    (length,) = LENGTH.unpack(_read(control, LENGTH.size))
    return json.loads(_read(control, length))


def _read(control: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = control.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def peak_memory_bytes() -> int:
    """The largest resident memory this process ever had."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _end_with_owner() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    os._exit(1)


def _failure(error: BaseException, request_id: str | None) -> dict[str, Any]:
    """Lambda's shape of an error a handler did not catch, also written to the log."""
    failure = {
        "errorType": type(error).__name__,
        "errorMessage": str(error),
        "stackTrace": traceback.format_tb(error.__traceback__),
    }
    print(
        json.dumps(
            {
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "level": "ERROR",
                "message": failure["errorMessage"],
                **failure,
                **({"requestId": request_id} if request_id else {}),
            }
        ),
        flush=True,
    )
    return failure


def main(control_descriptor: str, handler_name: str) -> int:
    """Serve calls until the runner goes away."""
    control = socket.socket(fileno=int(control_descriptor))
    threading.Thread(target=_end_with_owner, daemon=True, name="end-with-owner").start()
    if hasattr(sys.stdout, "reconfigure"):
        # One write a line: several containers share a log file.
        sys.stdout.reconfigure(line_buffering=True)
    try:
        module_name, _, function_name = handler_name.rpartition(".")
        handler = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:
        send(control, {"failure": _failure(error, None), "memory": peak_memory_bytes()})
        return 1
    send(control, {"memory": peak_memory_bytes()})
    while True:
        try:
            request = receive(control)
        except EOFError:
            return 0
        # Only after this can the call have had any effect.
        send(control, {"taken": True})
        request_id = request["request_id"]
        answer: dict[str, Any] = {}
        try:
            value = handler(request["event"], Context(request_id, request["deadline"]))
        except Exception as error:
            answer["failure"] = _failure(error, request_id)
        else:
            try:
                answer["value"] = json.loads(json.dumps(value, allow_nan=False))
            except (TypeError, ValueError, RecursionError) as error:
                failure = _failure(error, request_id)
                answer["failure"] = {
                    "errorType": "Runtime.MarshalError",
                    "errorMessage": f"Unable to marshal response: {failure['errorMessage']}",
                    "stackTrace": [],
                }
        answer["memory"] = peak_memory_bytes()
        send(control, answer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
