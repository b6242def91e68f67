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

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple


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
        definitions = list(_paragraphs(text))
        changes = [change for start, end, _ in definitions for change in _sql(text, start, end)]
    else:
        tree = _Tree(text)
        definitions = list(tree.definitions())
        # In the store it is the statements that guard, what surrounds them carries values.
        changes = [] if path.startswith("store/") else list(tree.changes())
        changes += [change for place in tree.sql_texts() for change in _sql(text, *place)]
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


class Change(NamedTuple):
    """A stretch of the text and what it becomes."""

    start: int
    end: int
    new: str


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


# SQL --------------------------------------------------------------------------------------------

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


def _sql(text: str, start: int, end: int) -> Iterator[Change]:
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


def _paragraphs(text: str) -> Iterator[tuple[int, int, str]]:
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


# Python -----------------------------------------------------------------------------------------

_TURNED: dict[type[ast.cmpop], str] = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_MOVED: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_SQL_BEGIN = re.compile(
    r"\s*(?:\{[^{}]*\},?\s*)?(?:--[^\n]*\n\s*)*\(?"
    r"(select|insert|update|delete|with|case|where|[a-z_]+ as )\b"
)


class _Tree:
    """A module's syntax, with places as characters of its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = ast.parse(text)
        self._raw = text.encode()
        self._offsets = [0]
        for line in text.splitlines(keepends=True):
            self._offsets.append(self._offsets[-1] + len(line.encode()))
        self._docstrings = {
            id(node.body[0].value)
            for node in ast.walk(self._tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }

        # `a or b` as a value is a default and guards nothing.
        tests = {
            id(part)
            for node in ast.walk(self._tree)
            if isinstance(node, (ast.If, ast.While, ast.IfExp))
            for part in ast.walk(node.test)
        }
        self._defaults = {
            id(node)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.BoolOp)
            and id(node) not in tests
            and not any(isinstance(each, (ast.Compare, ast.UnaryOp)) for each in node.values)
        }

    def _at(self, line: int, column: int) -> int:
        return len(self._raw[: self._offsets[line - 1] + column].decode())

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno or 0, node.end_col_offset or 0),
        )

    def definitions(self) -> Iterator[tuple[int, int, str]]:
        """Constants, functions and methods, by name."""
        for node in self._tree.body:
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        yield *self._span(inner), f"{node.name}.{inner.name}"
            elif isinstance(node, ast.FunctionDef):
                yield *self._span(node), node.name
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name):
                    yield *self._span(node), target.id

    def sql_texts(self) -> Iterator[tuple[int, int]]:
        """Where the module's SQL stands: strings that begin like it, comments above them aside."""
        inner = {
            id(part)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        for node in ast.walk(self._tree):
            if id(node) in inner | self._docstrings:
                continue
            if isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str)
            ):
                start, end = self._span(node)
                quoted = re.match(r'[frFR]*("""|")', self.text[start:end])
                if quoted is None:
                    continue
                start, end = start + quoted.end(), end - len(quoted[1])
                if _SQL_BEGIN.match(self.text[start:end]) and " " in self.text[start:end].strip():
                    yield start, end

    def changes(self) -> Iterator[Change]:
        """The changes of the module's Python."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Compare):
                yield from self._compared(node)
            elif isinstance(node, ast.BoolOp) and id(node) not in self._defaults:
                spans = [self._span(value) for value in node.values]
                yield Change(spans[0][0], spans[1][0], "")
                for before, this in pairwise(spans):
                    yield Change(before[1], this[1], "")
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                yield Change(*self._span(node), self.text[slice(*self._span(node.operand))])
            elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
                yield from self._turned(node.test)
            elif isinstance(node, ast.comprehension):
                for condition in node.ifs:
                    yield from self._turned(condition)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                if not ast.unparse(node.value.func).startswith("telemetry."):
                    yield Change(*self._span(node), "pass")
            elif isinstance(node, ast.Call):
                yield from self._called(node)
            elif isinstance(node, (ast.Dict, ast.Set)):
                yield from self._entries(node)

    def _entries(self, node: ast.Dict | ast.Set) -> Iterator[Change]:
        """Each entry of a table of constants left out."""
        values = node.values if isinstance(node, ast.Dict) else node.elts
        keys = node.keys if isinstance(node, ast.Dict) else node.elts
        if len(values) < 2 or not all(isinstance(each, ast.Constant) for each in (*keys, *values)):
            return
        for key, value in zip(keys, values, strict=True):
            assert key is not None
            end = self._span(value)[1]
            tail = re.match(r"\s*,", self.text[end:])
            yield Change(self._span(key)[0], end + (len(tail[0]) if tail else 0), "")

    def _compared(self, node: ast.Compare) -> Iterator[Change]:
        operands = [node.left, *node.comparators]
        for place, operator in enumerate(node.ops):
            left, right = self._span(operands[place]), self._span(operands[place + 1])
            if re.search(r"[()]", self.text[left[1] : right[0]]):
                continue
            others = [_TURNED[type(operator)]] if len(node.ops) == 1 else []
            if type(operator) in _MOVED and not isinstance(operands[place + 1], ast.Call):
                others.append(_MOVED[type(operator)])
            for other in others:
                new = f"{self.text[slice(*left)]} {other} {self.text[slice(*right)]}"
                yield Change(left[0], right[1], new)
        listed = node.comparators[-1]
        if isinstance(listed, ast.Tuple) and len(listed.elts) > 1:
            texts = [self.text[slice(*self._span(each))] for each in listed.elts]
            for number in range(len(texts)):
                kept = ", ".join(texts[:number] + texts[number + 1 :])
                yield Change(*self._span(listed), f"({kept},)")

    def _turned(self, test: ast.expr) -> Iterator[Change]:
        if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.NamedExpr)):
            start, end = self._span(test)
            yield Change(start, end, f"not ({self.text[start:end]})")

    def _called(self, node: ast.Call) -> Iterator[Change]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("min", "max"):
            yield Change(*self._span(node.func), "max" if name == "min" else "min")
        if name == "Line":
            for keyword in node.keywords:
                start, end = self._span(keyword)
                tail = re.match(r"\s*,\s*", self.text[end:])
                yield Change(start, end + (len(tail[0]) if tail else 0), "")
            first = self._span(node.args[0])
            yield Change(*first, "'requeue'" if "fail" in self.text[slice(*first)] else "'fail'")
