"""Commands between files and rows: enqueue, export."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from local.command_line.context import Session
from local.command_line.errors import ACT, OK, USAGE, CommandError
from local.command_line.jobs import State
from local.command_line.output import Output

BAD_LINES_SHOWN = 50


def enqueue(
    session: Session,
    file: Annotated[
        Path, typer.Argument(help="CSV, JSON lines, JSON, YAML, or one prompt a line.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Only read the file and report bad lines.")
    ] = False,
    reference_prefix: Annotated[
        str, typer.Option(help="Put before the references made here: loads a file once more.")
    ] = "",
) -> int:
    """Insert the prompts of a file as rows; safe to repeat, what is there already stays one row.

    Columns or keys: prompt, and optionally model, params, priority, reference, run_after. Lines
    that cannot be used are reported and the rest goes on; then the exit status is 1.
    """
    from local import prompts

    output = session.output
    try:
        # A wrong path should be told before the database is asked for.
        next(prompts.read(file), None)
        loaded = _checked(file) if check else _loaded(session, file, reference_prefix)
    except prompts.PromptsFileError as error:
        raise CommandError(f"Cannot use {file}: {error}", USAGE) from None
    for bad in loaded.bad[: None if output.is_json else BAD_LINES_SHOWN]:
        output.warn(f"{file}:{bad.line}: {bad.reason}")
    if not output.is_json and len(loaded.bad) > BAD_LINES_SHOWN:
        rest = len(loaded.bad) - BAD_LINES_SHOWN
        output.warn(f"and {rest} more bad lines; --json lists them all.")
    if loaded.ignored_columns:
        names = ", ".join(loaded.ignored_columns)
        output.warn(f"Not used: {names}. Options of the model belong into params.")
    document = {
        "file": str(file),
        "inserted": loaded.inserted,
        "present": loaded.present,
        "bad_lines": [{"line": bad.line, "reason": bad.reason} for bad in loaded.bad],
        "ignored_columns": loaded.ignored_columns,
    }
    good = loaded.inserted + loaded.present
    if check:
        document = {**document, "usable": good, "inserted": 0, "present": 0}
        text = f"{good} usable, {len(loaded.bad)} bad lines; nothing was inserted."
    else:
        text = (
            f"{loaded.inserted} rows inserted, {loaded.present} were there already, "
            f"{len(loaded.bad)} lines not used."
        )
        if loaded.inserted:
            text += " Follow them: ./sume-jobs watch --until-done"
    output.result(document, text)
    if not good and not loaded.bad:
        output.warn(f"There is no prompt in {file}.")
        return ACT
    return ACT if loaded.bad else OK


def _loaded(session: Session, file: Path, reference_prefix: str) -> Any:
    from local import prompts

    inserted = 0
    with _progress(session.output, f"Loading {file.name}", _lines(file)) as advance:

        def note(so_far: Any, _: object) -> None:
            nonlocal inserted
            inserted = so_far.inserted
            advance(so_far.inserted + so_far.present + len(so_far.bad))

        try:
            return prompts.load(
                session.connect(), file, reference_prefix=reference_prefix, on_batch=note
            )
        except KeyboardInterrupt:
            session.output.warn(
                f"{inserted} rows or more are in; the same command loads the rest, and none twice."
            )
            raise


def _checked(file: Path) -> Any:
    from local.prompts import BadLine, Loaded, read

    found, ignored = Loaded(), set[str]()
    for record in read(file, ignored):
        if isinstance(record, BadLine):
            found.bad.append(record)
        else:
            found.inserted += 1
    found.ignored_columns = sorted(ignored)
    return found


def _lines(file: Path) -> int:
    with file.open("rb") as raw:
        return sum(block.count(b"\n") for block in iter(lambda: raw.read(1 << 20), b""))


@contextmanager
def _progress(output: Output, title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar where somebody looks; gives what is to be called with the number done so far."""
    if output.is_json or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


class Format(StrEnum):
    """How rows are written to a file."""

    CSV = "csv"
    JSONL = "jsonl"


COLUMNS = (
    "id", "reference", "state", "standing", "model", "priority", "generation", "submission_status",
    "submission_error_code", "sume_job_id", "job_status", "error_code", "attention", "artifacts",
    "created_at", "updated_at",
)  # fmt: skip


def export(
    session: Session,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file; default the standard output.")
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="Default by the file's name, else csv; --json is jsonl."),
    ] = None,
    state: Annotated[State | None, typer.Option(help="Only rows in this state.")] = None,
    after: Annotated[
        int, typer.Option(metavar="ID", help="Only rows newer than this one.", min=0)
    ] = 0,
    with_prompts: Annotated[
        bool, typer.Option("--with-prompts", help="With the prompt of each row.")
    ] = False,
) -> int:
    """Write all rows with their states and artifacts as CSV or JSON lines, oldest first.

    Read page by page: any number of rows, little memory, and no transaction that stays open.
    Rows that come while it runs are left to the next export (--after the last id).
    """
    from sume_jobs.store import operator_views

    from local.command_line.jobs import standing

    kind = format_ or _kind(out, session.output)
    columns = (*COLUMNS, "prompt") if with_prompts else COLUMNS
    wanted = None if state is None else state.value
    pages = operator_views.export(session.database, after, wanted, prompts=with_prompts)
    number, last = 0, None
    with _open(out) as file, _progress(session.output, "Exporting", None) as advance:
        write = _writer(kind, file, columns)
        for page in pages:
            for row in page:
                write({name: row.get(name) for name in columns} | {"standing": standing(row)})
                number, last = number + 1, row["id"]
            advance(number)
    if out is not None:
        document = {"file": str(out), "rows": number, "last_id": last}
        session.output.result(document, f"{number} rows written to {out}.")
    return OK


def _kind(out: Path | None, output: Output) -> Format:
    suffix = "" if out is None else out.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return Format.JSONL
    return Format.JSONL if output.is_json and suffix != ".csv" else Format.CSV


@contextmanager
def _open(out: Path | None) -> Iterator[TextIO]:
    """The file to write to, there only once it is whole; or the standard output."""
    if out is None:
        yield sys.stdout
        return
    unfinished = out.with_name(f"{out.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            yield file
        unfinished.replace(out)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _writer(
    kind: Format, file: TextIO, columns: tuple[str, ...]
) -> Callable[[dict[str, Any]], object]:
    if kind is Format.JSONL:
        return lambda row: file.write(
            json.dumps(row, default=lambda value: value.isoformat(), ensure_ascii=False) + "\n"
        )
    made = csv.writer(file, lineterminator="\n")
    made.writerow(columns)
    return lambda row: made.writerow([_cell(name, row[name]) for name in columns])


def _cell(name: str, value: Any) -> Any:
    if name == "artifacts":
        # A cell holds the addresses, one a line; JSON lines hold everything.
        return "\n".join(each["url"] for each in value if isinstance(each.get("url"), str))
    return value.isoformat() if hasattr(value, "isoformat") else value
