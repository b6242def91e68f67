"""Changes of Python: comparisons, operands, conditions, calls and tables of constants."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from tests.reliability.mutant_sql import Change

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


class Tree:
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
