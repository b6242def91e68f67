"""Run one command that must not outlive the process that asked for it.

Run by file, not imported, by ``guarded``: this small process holds the read end of a pipe as its
standard input. When the other end closes, because the owner closed it or was killed, the command
is sent its stop signal, and SIGKILL when it takes longer than its grace period. If the command
ends by itself the guard ends with the same exit code.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG = 1


def guarded(
    command: Sequence[str],
    *,
    stop_signal: signal.Signals,
    grace_seconds: float,
    output: IO[bytes],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` under a guard and return the guard.

    Close the guard's ``stdin`` to stop the command, then ``wait`` for the guard. ``user`` is a
    system user to run the command as; only root may name one. Output of both goes to ``output``.
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-S",
            str(Path(__file__).resolve()),
            str(int(stop_signal)),
            str(grace_seconds),
            user or "",
            *command,
        ],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=directory,
        env=None if environment is None else dict(environment),
        # Its own session: Ctrl-C in the terminal goes to the owner, who stops things in order.
        start_new_session=True,
    )


def die_with_parent(with_signal: int) -> None:
    """On Linux, have the kernel send ``with_signal`` to this process when its parent dies.

    Elsewhere nothing happens; the pipe alone has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, with_signal, 0, 0, 0)


def main(arguments: Sequence[str]) -> int:
    """Guard the command in ``arguments``: signal number, grace seconds, user or "", command."""
    stop_signal, grace_seconds, user, *command = arguments
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)

    def in_child() -> None:
        for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(restored, signal.SIG_DFL)
        # Should the guard itself be killed, the command is still told to stop.
        die_with_parent(int(stop_signal))

    identity: dict[str, object] = {}
    if user:
        import pwd

        entry = pwd.getpwnam(user)
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    process = subprocess.Popen(  # type: ignore[call-overload]
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=in_child,
        **identity,
    )

    def end_when_it_ends() -> None:
        code = process.wait()
        os._exit(code if code >= 0 else 128 - code)

    threading.Thread(target=end_when_it_ends, daemon=True).start()
    while os.read(0, 4096):
        pass
    process.send_signal(int(stop_signal))
    deadline = time.monotonic() + float(grace_seconds)
    while time.monotonic() < deadline:
        select.select([], [], [], 0.1)  # the other thread ends this process
    process.kill()
    process.wait()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
