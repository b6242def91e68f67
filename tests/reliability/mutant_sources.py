"""What mutants there are: one change of a guard each, made from the source as it stands.

In SQL (the texts of the store, and the migrations) each operand of a condition is taken away:
`true` stands in its place, and `false` too beside `or` and after `when` and `if`. Row locks lose
`skip locked` and then themselves; `on conflict`, `limit` and `distinct on` go; `coalesce`,
`least`, `greatest`, a count and a bound each lose a part. In Python each comparison is turned
round and moved by one, each operand of `and` and `or` is left out, `not` goes, other conditions
are turned, a call whose value nobody reads is left out, and a line of the outcome table loses
each of its words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.reliability.mutant_python import Tree
from tests.reliability.mutant_sql import changes_of, paragraphs


@dataclass(frozen=True)
class Mutant:
    """One change: the text from `start` to `end` of the file becomes `new`."""

    path: str
    start: int
    end: int
    new: str
    # The constant, function or statement that it stands in.
    definition: str
    old: str
    line: int
    # Tells whether the definition is still the one that was tried.
    fingerprint: str
    # Which of several that read the same in one definition; from 1.
    ordinal: int = 1

    @property
    def change(self) -> str:
        """For people: `CLAIM: reaps < 2 → true`, with a number where another reads the same."""
        number = f" #{self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.definition}: {_short(self.old)} → {_short(self.new) or 'nothing'}{number}"

    @property
    def name(self) -> str:
        return f"{self.path} {self.change}"

    def applied_to(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


def mutants_of(path: str, text: str) -> list[Mutant]:
    """All mutants of a file, in the order of their places, whether they can be run or not."""
    if path.endswith(".sql"):
        definitions = list(paragraphs(text))
        changes = [
            change for start, end, _ in definitions for change in changes_of(text, start, end)
        ]
    else:
        tree = Tree(text)
        definitions = list(tree.definitions())
        # In the store it is the statements that guard, what surrounds them carries values.
        changes = [] if path.startswith("store/") else list(tree.changes())
        changes += [change for place in tree.sql_texts() for change in changes_of(text, *place)]
    found: list[Mutant] = []
    # Once each: the same text may be an operand in two ways.
    for change in sorted(set(changes)):
        start, end, name = next(
            (each for each in definitions if each[0] <= change.start < each[1]), (0, 0, "")
        )
        old = re.sub(r"\s+", " ", text[change.start : change.end]).strip()
        if not name or old == change.new:
            continue
        whole = f"{text[start:end]}|{change.start - start}|{change.end - start}|{change.new}"
        found.append(
            Mutant(
                path,
                change.start,
                change.end,
                change.new,
                name,
                old,
                text.count("\n", 0, change.start) + 1,
                hashlib.sha256(whole.encode()).hexdigest()[:16],
            )
        )
    return _numbered(found)


def _numbered(found: Iterable[Mutant]) -> list[Mutant]:
    """Number those that read the same when shortened, so that every name is one mutant's."""
    numbered, seen = [], dict[str, int]()
    for mutant in found:
        name = replace(mutant, ordinal=1).change
        seen[name] = seen.get(name, 0) + 1
        numbered.append(replace(mutant, ordinal=seen[name]))
    return numbered


def _short(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= 90 else f"{text[:55]} … {text[-32:]}"
