"""The digest that a deployment is given changes with whatever a published version holds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from local import build_digest
from tests.template.deployment import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for source in build_digest.SOURCES:
        (tmp_path / source).parent.mkdir(exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source)
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    return tmp_path


def test_it_is_one_that_the_template_takes(project: Path) -> None:
    assert re.fullmatch("[0-9a-f]{64}", build_digest.digest([], project))


@pytest.mark.parametrize(
    "file",
    ["shared/sume_jobs/flows/webhook.py", "shared/requirements.txt", "functions/webhook/app.py"],
)
def test_it_follows_the_code(project: Path, file: str) -> None:
    before = build_digest.digest([], project)
    assert build_digest.digest([], project) == before
    with (project / file).open("a", encoding="utf-8") as opened:
        opened.write("# changed\n")
    assert build_digest.digest([], project) != before


def test_it_follows_the_settings_and_not_what_python_leaves_behind(project: Path) -> None:
    before = build_digest.digest(["A=1"], project)
    assert build_digest.digest(["A=2"], project) != before
    (project / "shared/sume_jobs/__pycache__").mkdir(exist_ok=True)
    (project / "shared/sume_jobs/__pycache__/x.pyc").touch()
    assert build_digest.digest(["A=1"], project) == before


def test_parameters_are_read_as_sam_reads_them(tmp_path: Path) -> None:
    (tmp_path / "samconfig.toml").write_text(
        '[prod.global.parameters]\nparameter_overrides = ["A=1", "B=two words"]\n'
        '[text.deploy.parameters]\nparameter_overrides = "A=1 B=\\"two words\\""\n'
        "[none.deploy.parameters]\n",
        encoding="utf-8",
    )
    expected = {"prod": ["A=1", "B=two words"], "text": ["A=1", "B=two words"], "none": []}
    for stage, parameters in expected.items():
        assert build_digest.configured(stage, tmp_path) == parameters
