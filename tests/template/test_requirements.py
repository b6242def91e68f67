"""The locks agree: what runs in tests is what runs on Lambda and on one machine."""

from __future__ import annotations

import re

import pytest

from tests.template.deployment import ROOT


def pins(path: str) -> dict[str, str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\n]+)", text, re.MULTILINE))


@pytest.mark.parametrize("path", ["shared/requirements.txt", "requirements/local.txt"])
def test_the_development_lock_holds_the_same_versions(path: str) -> None:
    development = pins("requirements/dev.txt")
    ours = pins(path)
    assert ours
    assert {name: development.get(name) for name in ours} == ours


@pytest.mark.parametrize(
    "path",
    [
        "shared/requirements.txt",
        "requirements/local.txt",
        "requirements/dev.txt",
        "requirements/sam.txt",
    ],
)
def test_every_line_of_a_lock_is_a_pin_from_the_registry(path: str) -> None:
    for line in (ROOT / path).read_text(encoding="utf-8").splitlines():
        stripped = line.strip()
        assert not stripped or stripped.startswith("#") or re.match(r"[a-z0-9._-]+==\S+", stripped)
        assert "://" not in stripped
