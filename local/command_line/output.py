"""What the commands print: tables for people, one JSON document for programs.

Results go to the standard output, everything said beside them to the standard error. Colours are
left out where NO_COLOR is set or nobody looks at a terminal, and lines are not cut in a pipe.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from local.command_line.errors import USAGE, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

# The width of a table that nobody looks at: `grep` wants whole lines.
PIPE_WIDTH = 250


class Output:
    """Where a command writes. `is_json` is the wish of `--json`."""

    def __init__(self, is_json: bool = False) -> None:
        self.is_json = is_json
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """For results, on the standard output."""
        if self._console is None:
            self._console = _console(sys.stdout)
        return self._console

    def document(self, value: Any, *, one_line: bool = False) -> None:
        """Write the one JSON document of a command, indented where a person looks at it."""
        indent = 2 if sys.stdout.isatty() and not one_line else None
        sys.stdout.write(
            json.dumps(value, indent=indent, default=_plain, ensure_ascii=False) + "\n"
        )

    def show(self, *renderables: RenderableType) -> None:
        """Print a result for people; texts are taken as they are, without markup."""
        for each in renderables:
            self.console.print(each, markup=False, soft_wrap=isinstance(each, str))

    def result(self, value: Any, *renderables: RenderableType) -> None:
        """Give a result in the form that was asked for."""
        if self.is_json:
            self.document(value)
        else:
            self.show(*renderables)

    def say(self, message: str, style: str | None = None) -> None:
        """Say something beside the result, on the standard error."""
        _console(sys.stderr).print(message, style=style, markup=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """Say what a person should know."""
        self.say(message, "yellow")

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask before something that cannot be taken back; `yes` is the wish of `--yes`.

        Raises CommandError where nobody is there to answer.
        """
        if yes:
            return True
        if self.is_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(f"{question} Nobody is here to answer: add --yes.", USAGE)
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def table(
    *columns: str,
    rows: Iterable[Sequence[Any]],
    title: str | None = None,
    header: bool = True,
) -> Table:
    """A table; columns whose names begin with > are set to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_header=header
    )
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(each if isinstance(each, Text) else Text(shown(each)) for each in row))
    return made


# The three that people see: their words and their colours.
STATES = {"working": "working", "done": "done", "needs_attention": "needs attention"}
STYLES = {"working": "cyan", "done": "green", "needs_attention": "yellow"}


def state_text(name: str) -> Text:
    """The state's word in its colour."""
    from rich.text import Text

    return Text(STATES[name], STYLES[name])


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def printable(text: str) -> str:
    """Text from outside without what would move the cursor or change colours of a terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text)


def duration(seconds: float | None) -> str:
    """A time in the two largest units that it fills: 3 min 20 s."""
    if seconds is None:
        return "-"
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, length)
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def _console(file: Any) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    # Without a terminal rich would cut at 80 columns.
    return PipeConsole(file=file, width=None if file.isatty() else PIPE_WIDTH, highlight=False)


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
