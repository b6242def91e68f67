"""Changes of SQL: operands of conditions, locks, limits, conflicts, defaults and bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Change(NamedTuple):
    """A stretch of the text and what it becomes."""

    start: int
    end: int
    new: str


_SQL_TOKEN = re.compile(
    r"""(?P<gap>\s+|--[^\n]*)
      | (?P<text>'(?:[^']|'')*' | \{[^{}]*\} | %\(\w+\)s | \$\w*\$)
      | (?P<word>is\s+(?:not\s+)?distinct\s+from\b | is\s+not\s+null\b | is\s+null\b
               | [a-z_][\w.]* )
      | (?P<other>::\w+(?:\[\])? | [\d.]+ | <> | <= | >= | := | \|\| | .)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_BEGIN = {"where", "and", "or", "when", "on", "if", "elsif", "check", "not"}
_END = {
    "and", "or", "then", "group", "order", "limit", "returning", "union", "for", "window", "having",
    "else", "end", "as", "where", "left", "cross", "join", "execute", "when", "from", "loop",
    "offset", "desc", "asc", "using", "select", "on", "set", "is",
}  # fmt: skip
_BRANCH = {"when", "if", "elsif"}
_TRIVIAL = {"true", "false", "null"}


class _Token(NamedTuple):
    word: str
    start: int
    end: int


def _sql_tokens(text: str, start: int, end: int) -> list[_Token]:
    return [
        _Token(re.sub(r"\s+", " ", found[0].lower()), found.start(), found.end())
        for found in _SQL_TOKEN.finditer(text, start, end)
        if found.lastgroup != "gap"
    ]


def changes_of(text: str, start: int, end: int) -> Iterator[Change]:
    """The changes of one stretch of SQL."""
    tokens = _sql_tokens(text, start, end)
    words = [token.word for token in tokens]
    for place, word in enumerate(words):
        if word == "and" and _is_of_between(words, place):
            continue
        if word in ("and", "or"):
            operands = [_operand_before(words, place), _operand_after(words, place + 1)]
        elif word == "on" and (words[place + 1] == "conflict" or words[place - 1] == "distinct"):
            operands = []
        elif word in _BEGIN and word != "not":
            operands = [_operand_after(words, place + 1)]
        else:
            operands = []
        for first, last in filter(None, operands):
            yield from _without_operand(tokens, first, last)
    for place, word in enumerate(words):
        yield from _part_gone(text, tokens, words, place, word)


def _without_operand(tokens: list[_Token], first: int, last: int) -> Iterator[Change]:
    words = [token.word for token in tokens[first : last + 1]]
    if words[0] in _TRIVIAL and len(words) == 1:
        return
    span = tokens[first].start, tokens[last].end
    before = tokens[first - 1].word if first else ""
    after = tokens[last + 1].word if last + 1 < len(tokens) else ""
    # Beside an `or`, `true` once is the same as `true` for each.
    if before != "or":
        yield Change(*span, "true")
    if before in _BRANCH | {"or"} or after == "or":
        yield Change(*span, "false")
    # A bound that is a number: one more, one less.
    for offset, word in enumerate(words[:-1]):
        other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}.get(word)
        bound = words[offset + 1]
        if other and re.fullmatch(r"\d+|%\(max_\w+\)s|%\(outage\)s", bound):
            left, _, right = tokens[first + offset - 1 : first + offset + 2]
            if left.word != ")":
                yield Change(left.start, right.end, f"{left.word} {other} {bound}")


def _is_of_between(words: list[str], place: int) -> bool:
    """Whether this `and` belongs to a `between`."""
    for word in reversed(words[:place]):
        if word in ("between", "and", "or", "(", ",", ";"):
            return word == "between"
    return False


def _operand_after(words: list[str], place: int) -> tuple[int, int] | None:
    depth, at = 0, place
    while at < len(words):
        word = words[at]
        depth += (word in "([") - (word in ")]")
        if depth < 0 or (depth == 0 and word in (",", ";")):
            break
        if depth == 0 and word in _END and not (word == "and" and _is_of_between(words, at)):
            break
        at += 1
    return (place, at - 1) if at > place else None


def _operand_before(words: list[str], place: int) -> tuple[int, int] | None:
    depth, at = 0, place - 1
    while at >= 0:
        word = words[at]
        depth += (word in ")]") - (word in "([")
        if depth < 0 or (depth == 0 and word in (",", ";", ":=", "return")):
            break
        is_border = word in (_BEGIN | _END) - {"not", "from"}
        if depth == 0 and is_border and not (word == "and" and _is_of_between(words, at)):
            break
        at -= 1
    return (at + 1, place - 1) if at + 1 < place else None


def _part_gone(
    text: str, tokens: list[_Token], words: list[str], place: int, word: str
) -> Iterator[Change]:
    """Locks, conflicts, limits, counts and bounds without one of their parts."""
    token = tokens[place]

    def until(last: int, new: str = "") -> Change:
        return Change(token.start, tokens[last].end, new)

    following = words[place + 1 : place + 8]
    if word == "for" and following[:1] == ["update"]:
        last = place + 1
        if following[1:2] == ["of"]:
            last += 2
        if words[last + 1 : last + 3] == ["skip", "locked"]:
            yield Change(tokens[last].end, tokens[last + 2].end, "")
            last += 2
        yield until(last)
    elif word == "on" and following[:1] == ["conflict"]:
        last = words.index("nothing", place)
        yield until(last)
    elif word == "limit" and following:
        operand = _operand_after(words, place + 1)
        if operand:
            yield until(operand[1])
    elif word == "distinct" and following[:1] == ["on"]:
        yield until(_closing(words, place + 2))
    elif word in ("least", "greatest") and following[:1] == ["("]:
        yield Change(token.start, token.end, "greatest" if word == "least" else "least")
    elif word == "coalesce" and following[:1] == ["("]:
        first, last = _first_argument(words, place + 2)
        if words[last + 1] == ",":
            closing = _closing(words, place + 1)
            yield Change(tokens[first].start, tokens[last + 1].end, "")
            yield Change(tokens[last + 1].start, tokens[closing].start, "")
    elif word in ("is null", "is not null") and _is_value(words, place):
        yield Change(token.start, token.end, "is not null" if word == "is null" else "is null")
    elif word in ("+", "-") and following[:1] == ["1"]:
        yield until(place + 1)
    elif word in ("+", "-"):
        operand = _addend(words, place + 1)
        if operand is not None and words[operand] == "::int":
            yield until(operand)


def _addend(words: list[str], place: int) -> int | None:
    """The `::int` behind `(…)` or a name."""
    if place >= len(words):
        return None
    last = _closing(words, place) if words[place] == "(" else place
    return last + 1 if last + 1 < len(words) else None


def _is_value(words: list[str], place: int) -> bool:
    """Whether this is no operand of a condition, which would be taken away as a whole."""
    at = place - 1
    while at >= 0 and words[at] not in _BEGIN | {"select", ",", "(", "returning", "="}:
        at -= 1
    return words[at] in ("select", ",", "returning", "=")


def _closing(words: list[str], place: int) -> int:
    depth = 0
    for at in range(place, len(words)):
        depth += (words[at] == "(") - (words[at] == ")")
        if depth == 0:
            return at
    return len(words) - 1


def _first_argument(words: list[str], place: int) -> tuple[int, int]:
    depth = 0
    for at in range(place, len(words)):
        depth += (words[at] == "(") - (words[at] == ")")
        if depth < 0 or (depth == 0 and words[at] == ","):
            return place, at - 1
    return place, len(words) - 2


def paragraphs(text: str) -> Iterator[tuple[int, int, str]]:
    """The statements of a migration, named after what they make; not its indexes.

    What an index is for are the plans, which no result of a statement shows.
    """
    for found in _DEFINED.finditer(text):
        words = found[1].lower().split()
        if "index" not in words:
            yield found.start(), found.end(), words[-1]


_DEFINED = re.compile(
    r"^((?:create(?: or replace)?|alter|insert into|update|delete from|drop|do)"
    r"(?: (?:unique|index|table|function|trigger|view|if|not|exists))* ?[\w$]*)"
    r"(?:[^;$'-]|'(?:[^']|'')*'|--[^\n]*|-|\$\$.*?\$\$)*;",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
