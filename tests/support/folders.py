"""Temporary folders for an embedded Postgres.

Run by root, the server is another user, who must be able to reach its data. pytest's own
temporary folder is closed to others, and every start of pytest closes it again.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder of one's own, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="sume-jobs-tests-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
