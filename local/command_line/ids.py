"""Which rows a person means: by row id, by reference, or by the id of a job at Sume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from local.command_line.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sume_jobs.store.operator_views import Match

    from local.command_line.context import Session

HELP = "A row's id, its reference, or its job's id at Sume; id:…, reference:… or job:… to be exact."
HINT = (
    "Rows are named by their id, their reference or their job's id at Sume; what ended longer ago "
    "than RETENTION_DAYS is deleted."
)
PREFIXES = {"id": ("id",), "reference": ("reference",), "job": ("job", "conflict")}


def rows(session: Session, texts: Sequence[str]) -> list[int]:
    """The ids of the rows that are meant, each once, in the order in which they were named.

    Raises CommandError that names every text that means no row, or more than one.
    """
    from sume_jobs.store import operator_views

    split = [_split(text) for text in texts]
    found = operator_views.resolve(session.database, [text for _, text in split])
    ids: list[int] = []
    faults = []
    for text, (kinds, _), matches in zip(texts, split, found, strict=True):
        meant = _meant(matches, kinds)
        if len({match.id for match in meant}) == 1:
            ids.append(meant[0].id)
        elif not meant:
            faults.append(f"There is no row {text!r}.")
        else:
            ways = " and ".join(f"{match.kind} of row {match.id}" for match in meant)
            example = f"id:{meant[0].id}"
            faults.append(f"{text!r} is {ways}: say which, for example {example}.")
    if faults:
        raise CommandError(f"{' '.join(faults)} {HINT}")
    return list(dict.fromkeys(ids))


def row(session: Session, text: str) -> int:
    """The id of the one row that is meant."""
    return rows(session, [text])[0]


def _split(text: str) -> tuple[tuple[str, ...] | None, str]:
    prefix, colon, rest = text.partition(":")
    if colon and rest and prefix in PREFIXES:
        return PREFIXES[prefix], rest
    return None, text


def _meant(matches: Sequence[Match], kinds: tuple[str, ...] | None) -> list[Match]:
    wanted = [match for match in matches if kinds is None or match.kind in kinds]
    # A job that was refused for a row tells which row only where it is no row's own.
    own = [match for match in wanted if match.kind != "conflict"]
    return own or wanted
