"""COVERAGE.md names every case and only tests that exist, and every test stands in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
TABLE = (FOLDER / "COVERAGE.md").read_text()
# The list has gaps in its numbering on purpose.
GAPS = {3, 5, 8, 10, 12, 16, 19, 22, 27, 31, 37, 39}
CASES = [f"P{number:02}" for number in range(1, 88) if number not in GAPS]


def rows() -> dict[str, str]:
    return dict(re.findall(r"^\| (P\d\d) \| (.*) \|$", TABLE, re.MULTILINE))


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_case_has_a_row_with_a_test_or_a_reason() -> None:
    assert list(rows()) == CASES
    assert len(CASES) == 75
    for case, row in rows().items():
        _, cell = row.split(" | ", 1)
        assert len(cell) > 20, case


def test_every_named_test_exists(root: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", TABLE)
    assert len(named) > 60
    for path, names in named:
        known = names_in(root / path)
        for name in re.findall(r"`(\w+)`", names):
            assert name in known, f"{path} has no {name}"


def test_every_test_of_a_case_stands_in_its_row() -> None:
    table = rows()
    for path in sorted(FOLDER.glob("test_*.py")):
        for name in names_in(path):
            match = re.match(r"test_(p\d\d)_", name)
            if match:
                assert f"`{name}`" in table[match[1].upper()], f"{name} is missing in the table"
