"""Loads a file of prompts into ``render_jobs``: CSV, JSON, YAML, or one prompt a line.

JSON is one record a line, or an array; YAML is a list, or one document a record. A record of these
is an object, or a text that is the prompt.

Columns and keys: ``prompt``, and optionally ``model``, ``params`` (a JSON object), ``priority``
(0 to 3), ``reference`` and ``run_after`` (an instant with its time zone). A line that cannot be
used is reported with its number and the reason, and the rest goes on. Loading a file again adds
only what is new: each row has a reference that is unique in the table.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

CHARACTERS = 32_000
RESERVED = ("model", "prompt", "mode", "webhook_url")
COLUMNS = ("prompt", "model", "params", "priority", "reference", "run_after")
MODEL = re.compile(r"[!-~]{1,200}")
REFERENCE_BYTES = 500
BATCH = 500
# A record this long has a quote that was never closed; nothing that is accepted comes near it.
RECORD_CHARACTERS = 1_000_000
# What is one document is read as a whole.
DOCUMENT_CHARACTERS = 50_000_000
SNIFFED_BYTES = 65_536
NO_PROMPT_COLUMN = (
    "no column is named prompt: the first line must name the columns, of which these are used: "
    + ", ".join(COLUMNS)
)
# Errors of Postgres that are about the row, not about the server: bad data, a broken constraint,
# a limit, an exception raised by a trigger.
ROW_ERRORS = ("22", "23", "54", "P0")


class PromptsFileError(ValueError):
    """The file as a whole cannot be used; the message says why."""


@dataclass(frozen=True)
class Prompt:
    """One row to insert; None stands for the table's default. ``params`` is JSON text."""

    line: int
    prompt: str
    model: str | None = None
    params: str | None = None
    priority: int | None = None
    reference: str | None = None
    run_after: str | None = None


@dataclass(frozen=True)
class BadLine:
    """A record that was not used: the line it starts on (from 1) and why."""

    line: int
    reason: str


@dataclass
class Loaded:
    """What became of a file: rows inserted, rows that were there already, lines not used."""

    inserted: int = 0
    present: int = 0
    bad: list[BadLine] = field(default_factory=list)
    ignored_columns: list[str] = field(default_factory=list)


class _BadRecordError(ValueError):
    """Why one record cannot be used."""


def read(path: Path, ignored: set[str] | None = None) -> Iterator[Prompt | BadLine]:
    """Read a file record by record, in its order; blank lines are passed over.

    Names of columns and keys that mean nothing here are added to ``ignored``. Raises
    `PromptsFileError` if the file cannot be read, is not UTF-8 at all, or has no ``prompt`` column.
    """
    ignored = set() if ignored is None else ignored
    try:
        kind, delimiter = _kind(path)
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            if kind == "csv":
                yield from _read_csv(text, delimiter, ignored)
            elif kind == "jsonl":
                yield from _read_lines(text, lambda line: _from_json(line, ignored))
            elif kind in ("json", "yaml"):
                yield from _read_document(kind, text, ignored)
            else:
                yield from _read_lines(text, lambda line: {"prompt": line.strip()})
    except OSError as error:
        raise PromptsFileError(f"the file cannot be read: {error.strerror}") from error


def load(
    connection: psycopg.Connection[Any],
    path: Path,
    *,
    reference_prefix: str = "",
    on_batch: Callable[[Loaded, list[str]], object] | None = None,
) -> Loaded:
    """Insert the prompts of a file and say what became of each line.

    ``connection`` must be in autocommit mode: each batch is a transaction of its own, so that an
    interrupted load is simply repeated. A record without a ``reference`` gets
    ``<reference_prefix><file name>:<hash of its content>:<line>``. After each batch ``on_batch`` is
    called with what was loaded so far and the references of the batch. Raises what `read` raises,
    and psycopg's errors where the server, not a row, is the matter.
    """
    loaded = Loaded()
    ignored: set[str] = set()
    taken: dict[str, int] = {}
    name = path.name.encode("utf-8", "replace").decode()[:200]
    batch: list[Prompt] = []

    def insert() -> None:
        _insert(connection, batch, loaded)
        if on_batch is not None:
            on_batch(loaded, [record.reference for record in batch if record.reference])
        batch.clear()

    for record in read(path, ignored):
        if isinstance(record, BadLine):
            loaded.bad.append(record)
            continue
        if record.reference is None:
            reference = f"{reference_prefix}{name}:{_content_hash(record)}:{record.line}"
        else:
            reference = record.reference
            if reference in taken:
                reason = f"reference {reference!r} is already on line {taken[reference]}"
                loaded.bad.append(BadLine(record.line, reason))
                continue
            taken[reference] = record.line
        batch.append(Prompt(**{**vars(record), "reference": reference}))
        if len(batch) >= BATCH:
            insert()
    insert()
    loaded.bad.sort(key=lambda bad: bad.line)
    loaded.ignored_columns = sorted(ignored)
    return loaded


# The order of the file is the order of the ids.
INSERT = """
insert into render_jobs (prompt, model, params, priority, reference, run_after)
select prompt, coalesce(model, 'sume/auto'), coalesce(params::jsonb, '{}'), coalesce(priority, 1),
       reference, coalesce(run_after::timestamptz, now())
  from unnest(%s::text[], %s::text[], %s::text[], %s::smallint[], %s::text[], %s::text[])
       with ordinality as row (prompt, model, params, priority, reference, run_after, position)
 order by position
on conflict (reference) where reference is not null do nothing
"""


def _insert(connection: psycopg.Connection[Any], rows: list[Prompt], loaded: Loaded) -> None:
    if not rows:
        return
    columns = [
        [getattr(row, name) for row in rows]
        for name in ("prompt", "model", "params", "priority", "reference", "run_after")
    ]
    try:
        inserted = connection.execute(INSERT, columns).rowcount
    except psycopg.Error as error:
        if connection.closed or (error.sqlstate or "")[:2] not in ROW_ERRORS:
            raise
        if len(rows) == 1:
            loaded.bad.append(BadLine(rows[0].line, f"refused by the database: {_said(error)}"))
            return
        # One of them is the matter: halve until it is found, and insert the others.
        middle = len(rows) // 2
        _insert(connection, rows[:middle], loaded)
        _insert(connection, rows[middle:], loaded)
    else:
        loaded.inserted += inserted
        loaded.present += len(rows) - inserted


def _said(error: psycopg.Error) -> str:
    parts = [error.diag.message_primary or type(error).__name__, error.diag.message_hint]
    return " - ".join(part for part in parts if part)


def _content_hash(record: Prompt) -> str:
    content = [record.prompt, record.model, record.params, record.priority, record.run_after]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _kind(path: Path) -> tuple[str, str]:
    """What the file is (csv, json, jsonl, yaml or text) and the delimiter of its columns."""
    with path.open("rb") as raw:
        start = raw.read(SNIFFED_BYTES)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise PromptsFileError("the file is UTF-16: save it as UTF-8")
    suffix = path.suffix.lower()
    text = start.decode("utf-8-sig", "surrogateescape")
    first = next((line.strip() for line in io.StringIO(text, newline=None) if line.strip()), "")
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl", ""
    if suffix in (".yaml", ".yml"):
        return "yaml", ""
    if suffix != ".txt" and first.startswith("{"):
        return "jsonl", ""
    if suffix == ".json":
        return "json", ""
    if suffix == ".txt":
        return "text", ""
    delimiter = _delimiter(first)
    if suffix in (".csv", ".tsv"):
        if not first:
            return "text", ""
        if delimiter is None:
            raise PromptsFileError(NO_PROMPT_COLUMN)
        return "csv", delimiter
    # One word without a separator is the header of a single column only when it is that alone.
    is_csv = delimiter is not None and (delimiter in first or first.strip('"').lower() == "prompt")
    return ("csv", delimiter or ",") if is_csv else ("text", "")


def _delimiter(header: str) -> str | None:
    """The character that splits a header so that one column is named prompt."""
    for delimiter in (",", ";", "\t"):
        names = next(csv.reader([header], delimiter=delimiter), [])
        if "prompt" in [name.strip().lower() for name in names]:
            return delimiter
    return None


class _Lines:
    """The lines of a file for a csv reader, keeping those of the record that is being read."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._again: list[str] = []
        self._number = 0
        self._size = 0
        self.record: list[str] = []

    def next_record(self) -> None:
        """Forget the record that was read; the next line starts another."""
        self.record = []
        self._size = 0

    @property
    def first_line(self) -> int:
        """The number of the line on which the record being read starts."""
        return self._number - len(self.record) + 1

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._size > RECORD_CHARACTERS:
            raise csv.Error("unexpected end of data")
        line = self._again.pop() if self._again else self._text.readline()
        if not line:
            raise StopIteration
        self._number += 1
        self._size += len(line)
        self.record.append(line)
        return line

    def back_to_second_line(self) -> None:
        """Read again from the line after the one on which the record started."""
        self._again += reversed(self.record[1:])
        self._number -= len(self.record) - 1
        self.next_record()


def _read_csv(text: TextIO, delimiter: str, ignored: set[str]) -> Iterator[Prompt | BadLine]:
    limit = csv.field_size_limit(2 * RECORD_CHARACTERS)
    try:
        lines = _Lines(text)
        names: list[str] | None = None
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        while True:
            lines.next_record()
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # Only the first line is given up: what follows it may be whole records.
                line = lines.first_line
                lines.back_to_second_line()
                reader = csv.reader(lines, delimiter=delimiter, strict=True)
                yield BadLine(line, _csv_reason(error))
                continue
            line = lines.first_line
            if not any(cell.strip() for cell in cells):
                continue
            if names is None:
                names = _header(cells)
                ignored.update(name for name in names if name and name not in COLUMNS)
                continue
            try:
                if any(cell.strip() for cell in cells[len(names) :]):
                    raise _BadRecordError(
                        f"has {len(cells)} columns, the header {len(names)}: "
                        "put quotes around a text that contains the separator"
                    )
                values = {n: c for n, c in zip(names, cells, strict=False) if c.strip()}
                yield _prompt(line, values)
            except _BadRecordError as error:
                yield BadLine(line, str(error))
    finally:
        csv.field_size_limit(limit)


def _header(cells: list[str]) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if "prompt" not in names:
        raise PromptsFileError(NO_PROMPT_COLUMN)
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if twice:
        raise PromptsFileError(f"two columns are named {twice[0]}")
    return names


def _csv_reason(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return "a quote is opened here and never closed"
    if "expected after" in str(error):
        return 'a quote is closed in the middle of a value: write it twice ("") inside quotes'
    return f"is not CSV: {error}"


def _read_lines(
    text: TextIO, parse: Callable[[str], Mapping[str, Any]]
) -> Iterator[Prompt | BadLine]:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            yield _prompt(number, parse(line))
        except _BadRecordError as error:
            yield BadLine(number, str(error))


def _read_document(kind: str, text: TextIO, ignored: set[str]) -> Iterator[Prompt | BadLine]:
    from local import prompt_documents

    whole = text.read(DOCUMENT_CHARACTERS + 1)
    if len(whole) > DOCUMENT_CHARACTERS:
        raise PromptsFileError(
            f"the file has more than {DOCUMENT_CHARACTERS:,} characters: write it as JSON lines or "
            "CSV, which are read line by line"
        )
    read_items = {"json": prompt_documents.json_items, "yaml": prompt_documents.yaml_items}[kind]
    for item in read_items(whole):
        if isinstance(item, prompt_documents.Broken):
            yield BadLine(item.line, item.reason)
            continue
        try:
            _check_encoding("the record", item.text)
            yield _prompt(item.line, _from_value(item.value, ignored))
        except _BadRecordError as error:
            yield BadLine(item.line, str(error))


def _from_json(line: str, ignored: set[str]) -> Mapping[str, Any]:
    _check_encoding("the line", line)
    return _from_value(_parse_json("the line", line), ignored)


def _from_value(value: Any, ignored: set[str]) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, dict):
        raise _BadRecordError("is JSON, but neither an object nor a text")
    ignored.update(str(key) for key in value if key not in COLUMNS)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse_json(what: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _BadRecordError(
            f"{what} is not JSON: {error.msg} at character {error.colno}"
        ) from None
    except RecursionError:
        raise _BadRecordError(f"{what} is JSON that is nested too deeply") from None
    except ValueError as error:
        raise _BadRecordError(f"{what} is not JSON: {str(error).splitlines()[0]}") from None


def _prompt(line: int, values: Mapping[str, Any]) -> Prompt:
    """Check one record. Raises `_BadRecordError` with the reason."""
    prompt = values.get("prompt")
    if prompt is None:
        raise _BadRecordError("prompt is empty" if "prompt" in values else "has no prompt")
    if not isinstance(prompt, str):
        raise _BadRecordError("prompt is not a text")
    _check_text("prompt", prompt)
    if not prompt.strip():
        raise _BadRecordError("prompt is empty")
    if len(prompt) > CHARACTERS:
        raise _BadRecordError(
            f"prompt has {len(prompt)} characters, at most {CHARACTERS} are accepted"
        )
    return Prompt(
        line,
        prompt,
        _model(values.get("model")),
        _params(values.get("params")),
        _priority(values.get("priority")),
        _reference(values.get("reference")),
        _run_after(values.get("run_after")),
    )


def _check_encoding(what: str, text: str) -> None:
    for character in text:
        if "\udc80" <= character <= "\udcff":
            raise _BadRecordError(f"{what} is not UTF-8: byte 0x{ord(character) - 0xDC00:02x}")
        if "\ud800" <= character <= "\udfff":
            raise _BadRecordError(f"{what} holds half a character (a lone surrogate)")


def _check_text(what: str, text: str) -> None:
    if not text.isascii():
        _check_encoding(what, text)
    if "\0" in text:
        raise _BadRecordError(f"{what} holds a NUL character")


def _model(value: Any) -> str | None:
    if value is None:
        return None
    model = value.strip() if isinstance(value, str) else ""
    if not MODEL.fullmatch(model):
        raise _BadRecordError("model must be a name of at most 200 printable ASCII characters")
    return model


def _params(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        _check_text("params", value)
        value = _parse_json("params", value)
    if not isinstance(value, dict):
        raise _BadRecordError("params is not a JSON object")
    reserved = [key for key in RESERVED if key in value]
    if reserved:
        raise _BadRecordError(f"params may not hold {' or '.join(reserved)}")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise _BadRecordError("params holds a number that is too large") from None
    except TypeError:
        raise _BadRecordError("params holds what JSON cannot hold") from None
    except RecursionError:
        raise _BadRecordError("params is JSON that is nested too deeply") from None
    _check_text("params", text)
    if re.search(r"(?<!\\)(\\\\)*\\u0000", text):
        raise _BadRecordError("params holds a NUL character")
    return text


def _priority(value: Any) -> int | None:
    if value is None:
        return None
    text = str(value).strip() if isinstance(value, str | int) else ""
    if text not in ("0", "1", "2", "3"):
        raise _BadRecordError("priority must be 0 (first), 1, 2 or 3 (last)")
    return int(text)


def _reference(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise _BadRecordError("reference must be a text that is not empty")
    _check_text("reference", value)
    if len(value.encode()) > REFERENCE_BYTES:
        raise _BadRecordError(f"reference is longer than {REFERENCE_BYTES} bytes")
    return value


def _run_after(value: Any) -> str | None:
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(value.strip())
    except (AttributeError, TypeError, ValueError):
        instant = None
    if instant is None or instant.tzinfo is None:
        raise _BadRecordError(
            "run_after must be an instant with its time zone, like 2030-01-31T09:00:00Z"
        )
    return instant.isoformat()
