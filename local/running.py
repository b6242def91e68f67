"""What a running bundle tells other programs on this machine: how its functions are set.

The file stands beside the bundle's lock, readable by the owner only; it counts only while the
lock is held, so what a killed bundle left behind misleads nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "running.json"
LOCK = "lock"


def write(folder: Path, environment: Mapping[str, str]) -> None:
    """Tell what the functions run with, whole or not at all."""
    unfinished = folder / f"{FILE}.unfinished"
    with open(unfinished, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        json.dump(dict(environment), file, indent=2)
    unfinished.replace(folder / FILE)


def forget(folder: Path) -> None:
    """Tell that nothing runs any more; safe to repeat."""
    (folder / FILE).unlink(missing_ok=True)


def read(folder: Path) -> dict[str, str] | None:
    """What the functions of the bundle in `folder` run with; None where none runs."""
    try:
        with (folder / LOCK).open() as lock:
            if _is_free(lock.fileno()):
                return None
        found: dict[str, str] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    return found


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
