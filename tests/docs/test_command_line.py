"""docs/command-line.md and the README say of the command line what its help says."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from local.command_line.app import COMMANDS, GROUPS, app
from local.command_line.commands import name_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
NAMES = [name_of(function) for _, functions in COMMANDS for function in functions] + [
    f"{group.name} {name_of(function)}" for group in GROUPS for function in group.commands
]
SHARED = {"--json", "--database-url", "--folder", "--help"}


@cache
def help_of(name: str) -> str:
    ran = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"})
    assert ran.exit_code == 0
    return ran.output


def options_of(name: str) -> set[str]:
    """The options that the help lists: each begins a line of its table."""
    return set(re.findall(r"^│[ *]+(--[a-z-]+)", help_of(name), re.MULTILINE))


def arguments_of(usage: str) -> list[str]:
    """The arguments of a usage line or a heading: ID..., [FILE] and the like, as plain names."""
    return [word.strip("[]{}.").lower() for word in usage.split() if word != "[OPTIONS]"]


def command_of(heading: str) -> str:
    return " ".join(re.findall(r"\b[a-z][a-z-]*\b(?![^ ]*\])", heading))


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert sorted(command_of(heading) for heading in SECTIONS) == sorted(NAMES)


def test_commands_are_under_the_headings_of_the_help() -> None:
    for panel, functions in COMMANDS:
        chapter = PAGE.split(f"\n## {panel}\n")[1].split("\n## ")[0]
        for function in functions:
            assert f"### `{name_of(function)}" in chapter


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_section_tells_arguments_and_options_as_the_help_does(heading: str) -> None:
    name = command_of(heading)
    usage = re.search(rf"Usage: \S+ {name}(.*)", help_of(name))
    assert usage is not None
    assert arguments_of(heading.removeprefix(name)) == arguments_of(usage[1])
    told = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", SECTIONS[heading]))
    assert told - {"--json"} == options_of(name) - SHARED


@pytest.mark.parametrize("text", [PAGE, README], ids=["page", "readme"])
def test_every_example_is_a_command_with_options_that_exist(text: str) -> None:
    lines = re.findall(r"^(?:.*&& )?\./sume-jobs (.*)$", text, re.MULTILINE)
    lines += re.findall(r"`\./sume-jobs ([^`]+)`", text)
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        name = " ".join(words[:2]) if words[0] in {group.name for group in GROUPS} else words[0]
        assert name in [*NAMES, *(group.name for group in GROUPS), "--help"], line
        if name != "--help":
            options = {word for word in words if word.startswith("--")}
            assert options <= options_of(name) | SHARED, line
