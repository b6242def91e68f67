"""The file that lets the fake survive being killed: one JSON line for each change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import Book, FakeJob


class Journal:
    """Appends changes; each line is handed to the operating system before `write` returns, so that
    it survives a kill of the process (not a loss of power)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = None

    def open(self) -> None:
        """Open for appending, after cutting off a line that a kill left unfinished."""
        if self._file is not None:
            return
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        end = size
        while end:
            start = max(0, end - 65536)
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def accepted(self, job: FakeJob) -> None:
        self._write(
            {
                "change": "job",
                "id": job.id,
                "key": job.key,
                "path": job.path,
                "at": job.created_at,
                "body": job.body.decode("utf-8", "surrogateescape"),
            }
        )

    def moved(self, job: FakeJob) -> None:
        self._write(
            {
                "change": "status",
                "id": job.id,
                "status": job.status,
                "at": job.updated_at,
                "error": job.error,
                "artifacts": job.artifacts,
            }
        )

    def webhook(self, job: FakeJob) -> None:
        self._write(
            {
                "change": "webhook",
                "id": job.id,
                "status": job.webhook_status,
                "attempts": job.webhook_attempts,
            }
        )

    def forgotten(self, key: str) -> None:
        self._write({"change": "forget", "key": key})

    def load(self, book: Book) -> None:
        """Bring a book to where the journal's last complete line left it."""
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    _apply(book, json.loads(line))

    def _write(self, change: dict[str, Any]) -> None:
        if self._file is not None:
            os.write(self._file, json.dumps(change).encode() + b"\n")


def _apply(book: Book, change: dict[str, Any]) -> None:
    kind = change["change"]
    if kind == "job":
        body = change["body"].encode("utf-8", "surrogateescape")
        book.create(
            key=change["key"],
            body=body,
            path=change["path"],
            at=change["at"],
            job_id=change["id"],
        )
    elif kind == "status":
        job = book.jobs[change["id"]]
        book.move(
            job,
            change["status"],
            change["at"],
            error=change["error"],
            artifacts=change["artifacts"],
        )
    elif kind == "webhook":
        job = book.jobs[change["id"]]
        job.webhook_status = change["status"]
        job.webhook_attempts = change["attempts"]
    elif kind == "forget":
        book.forget(change["key"])
