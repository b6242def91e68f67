"""enqueue and export: every line accounted for, nothing twice, nothing half written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sume_jobs.store import operator_views

from local import prompts
from tests.command_line.conftest import Ran
from tests.support.bundle import Bundle, event_body
from tests.support.postgres import Database

Run = Callable[..., Ran]

PROMPTS = "prompt,reference\na cup,cup\n,nothing\na pot,pot\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.csv"
    path.write_text(PROMPTS, encoding="utf-8")
    return path


def test_a_file_is_enqueued_once_and_its_bad_lines_are_told(
    run: Run, database: Database, file: Path
) -> None:
    first = run("enqueue", str(file))
    assert first.status == 1
    assert first.output.startswith("2 rows inserted, 0 were there already, 1 lines not used.")
    assert f"{file}:3: has no prompt" in first.said
    again = run("enqueue", str(file), "--json")
    assert again.document["inserted"] == 0
    assert again.document["present"] == 2
    assert again.document["bad_lines"] == [{"line": 3, "reason": "has no prompt"}]
    assert [row["reference"] for row in database.rows()] == ["cup", "pot"]


def test_a_whole_file_is_enqueued_with_status_0_and_once_more_on_purpose(
    run: Run, database: Database, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text("- a cup\n- a pot\n", encoding="utf-8")
    assert run("enqueue", str(path)).status == 0
    assert run("enqueue", str(path), "--reference-prefix", "june:").status == 0
    assert len(database.rows()) == 4


def test_an_interrupted_file_tells_what_is_in_and_how_to_go_on(
    run: Run, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"cup {n}\n" for n in range(1500)), encoding="utf-8")
    load = prompts.load

    def interrupted(*given: Any, on_batch: Callable[..., object], **options: Any) -> Any:
        def note(so_far: prompts.Loaded, references: list[str]) -> None:
            on_batch(so_far, references)
            raise KeyboardInterrupt

        return load(*given, on_batch=note, **options)

    with monkeypatch.context() as patched:
        patched.setattr(prompts, "load", interrupted)
        ran = run("enqueue", str(path))
    assert ran.status == 130
    inside = len(database.rows())
    assert 0 < inside < 1500
    assert f"{inside} rows or more are in; the same command loads the rest" in ran.said
    assert run("enqueue", str(path), "--json").document["inserted"] == 1500 - inside


def test_checking_a_file_needs_no_database(run_anywhere: Run, file: Path) -> None:
    ran = run_anywhere("enqueue", str(file), "--check", "--json")
    assert ran.status == 1
    assert ran.document["usable"] == 2
    assert ran.document["inserted"] == 0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.csv", None, "No such file"),
        ("wide.csv", "prompt\n".encode("utf-16"), "UTF-16"),
        ("other.csv", b"text,colour\na,b\n", "no column is named prompt"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_and_inserts_nothing(
    run: Run, database: Database, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    ran = run("enqueue", str(path))
    assert ran.status == 2
    assert said in ran.said
    assert str(path) in ran.said
    assert database.rows() == []


def test_an_empty_file_is_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("prompt\n", encoding="utf-8")
    ran = run("enqueue", str(path))
    assert ran.status == 1
    assert "There is no prompt" in ran.said


def test_many_bad_lines_are_not_all_shown_to_people(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("prompt,priority\n" + "a cup,9\n" * 60, encoding="utf-8")
    ran = run("enqueue", str(path), "--check")
    assert ran.said.count("priority must be") == 50
    assert "and 10 more bad lines" in ran.said
    assert len(run("enqueue", str(path), "--check", "--json").document["bad_lines"]) == 60


# ------------------------------------------------------------------------- export


@pytest.fixture
def one_done(bundle: Bundle, database: Database) -> int:
    """A row that is done, with its artifact; behind it one that waits."""
    row, job = bundle.job()
    bundle.W(event_body(job, "completed"))
    bundle.fake.set_status(job, "completed")  # type: ignore[union-attr]
    bundle.poll_now()
    database.insert(prompt='a "quoted", prompt', reference="waits")
    return row


def test_csv_holds_states_and_addresses(run: Run, one_done: int) -> None:
    ran = run("export")
    assert ran.status == 0
    done, waits = csv.DictReader(io.StringIO(ran.output))
    assert int(done["id"]) == one_done
    assert done["state"] == "done"
    assert done["artifacts"].startswith("http")
    assert waits["state"] == "working"
    assert waits["reference"] == "waits"
    assert "prompt" not in waits


def test_json_lines_hold_everything_and_prompts_only_when_wanted(run: Run, one_done: int) -> None:
    plain = [json.loads(line) for line in run("export", "--json").output.splitlines()]
    assert plain[0]["artifacts"][0]["content_type"] == "image/png"
    assert "prompt" not in plain[1]
    ran = run("export", "--format", "jsonl", "--with-prompts", "--state", "working")
    (waits,) = [json.loads(line) for line in ran.output.splitlines()]
    assert waits["prompt"] == 'a "quoted", prompt'


def test_an_export_goes_on_after_the_last(run: Run, database: Database, tmp_path: Path) -> None:
    ids = database.insert_many(5)
    out = tmp_path / "jobs.jsonl"
    first = run("export", "--out", str(out), "--json")
    assert first.document == {"file": str(out), "rows": 5, "last_id": ids[-1]}
    assert len(out.read_text().splitlines()) == 5
    (new,) = database.insert_many(1)
    ran = run("export", "--json", "--after", str(ids[-1]))
    assert [json.loads(line)["id"] for line in ran.output.splitlines()] == [new]


def test_pages_are_walked_also_where_no_row_is_in_the_state(
    run: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_views, "PAGE", 2)
    ids = database.insert_many(7)
    database.execute("update render_jobs set cancel_requested_at = now() where id = %s", ids[6])
    ran = run("export", "--json", "--state", "needs_attention")
    assert [json.loads(line)["id"] for line in ran.output.splitlines()] == [ids[6]]
    everything = run("export", "--json").output.splitlines()
    assert [json.loads(line)["id"] for line in everything] == ids


def test_an_empty_table_is_exported(run: Run) -> None:
    assert len(run("export").output.splitlines()) == 1
    assert run("export", "--json").output == ""


def test_a_file_that_cannot_be_written_is_told_and_nothing_half_stays(
    run: Run, database: Database, tmp_path: Path
) -> None:
    database.insert_many(1)
    ran = run("export", "--out", str(tmp_path / "nowhere" / "jobs.csv"))
    assert ran.status == 1
    assert "cannot be written: No such file or directory" in ran.said
    database.execute("alter view job_customer rename column artifacts to files")
    ran = run("export", "--out", str(tmp_path / "jobs.csv"))
    assert ran.status == 1
    assert not list(tmp_path.glob("jobs.csv*"))
