"""The real program in a real terminal, in a pipe, and interrupted."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.postgres import Database
from tests.support.waiting import wait_until

ESCAPE = b"\x1b["


@pytest.fixture
def program(root: Path, database: Database) -> Callable[..., list[str]]:
    """The command for the real program on the test's database."""
    return lambda *arguments: [str(root / "sume-jobs"), *arguments, "--database-url", database.url]


class Terminal:
    """A program in a terminal: what it showed so far, and keys for it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.shown = b""

    def read(self) -> bytes:
        try:
            while part := os.read(self._ours, 65536):
                self.shown += part
        except OSError:
            # Nothing now (EAGAIN), or nobody writes any more (EIO).
            pass
        return self.shown

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text.encode() in self.read(), f"the terminal shows {text!r}", 30)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        def is_over() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(is_over, "the program ends", 30)
        self.read()
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(command: list[str], **environment: str) -> Iterator[Terminal]:
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    made = Terminal(command, {**plain, "TERM": "xterm-256color", "COLUMNS": "100", **environment})
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("answer", "generation", "status"), [("y", 2, 0), ("", 1, 1)])
def test_a_person_is_asked_before_it_bills(
    program: Callable[..., list[str]],
    database: Database,
    answer: str,
    generation: int,
    status: int,
) -> None:
    (row,) = database.insert_many(1)
    database.execute("update render_jobs set cancel_requested_at = now()")
    with terminal(program("retry", str(row))) as screen:
        screen.wait_for(f"Make row {row} once more? Sume bills each anew. [y/N] ")
        screen.type(f"{answer}\n")
        assert screen.end() == status
    assert database.row(row)["generation"] == generation


def test_colours_are_for_terminals_and_for_those_who_want_them(
    program: Callable[..., list[str]], database: Database
) -> None:
    database.insert_many(1)
    with terminal(program("list")) as screen:
        assert screen.end() == 0
        assert b"\x1b[36mworking" in screen.shown
    with terminal(program("list"), NO_COLOR="1") as screen:
        assert screen.end() == 0
        assert b"working" in screen.shown
        assert b"\x1b[36m" not in screen.shown
    piped = subprocess.run(program("list"), capture_output=True, timeout=60, check=True)
    assert ESCAPE not in piped.stdout


def test_watch_is_live_until_ctrl_c(program: Callable[..., list[str]], database: Database) -> None:
    with terminal(program("watch", "--every", "0.1")) as screen:
        screen.wait_for("Ctrl-C ends this.")
        database.insert_many(3)
        screen.wait_for("3 waiting to be sent")
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 0
        assert b"Traceback" not in screen.shown


def test_watch_until_done_that_is_interrupted_has_not_seen_the_end(
    program: Callable[..., list[str]], database: Database
) -> None:
    database.insert_many(1)
    process = subprocess.Popen(
        program("watch", "--until-done", "--every", "0.1"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "working 1" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == "Interrupted.\n"


@pytest.mark.parametrize("command", [("export",), ("watch",)])
def test_a_pipe_that_is_closed_ends_it_without_noise(
    program: Callable[..., list[str]], database: Database, command: tuple[str, ...]
) -> None:
    database.insert_many(3000)
    process = subprocess.Popen(
        program(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    # A watch writes again only when something changes.
    database.insert_many(1)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert "Traceback" not in said
    assert "Broken" not in said


def test_without_an_environment_the_script_says_what_to_do(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "sume-jobs"
    script.write_bytes((root / "sume-jobs").read_bytes())
    script.chmod(0o755)
    link = tmp_path / "bin"
    link.symlink_to(script)
    for path in (script, link):
        ran = subprocess.run([str(path)], capture_output=True, text=True, timeout=30, check=False)
        assert ran.returncode == 2
        assert "setup" in ran.stderr
