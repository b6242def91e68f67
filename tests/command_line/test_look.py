"""status, watch, list, show, why: what is told is what is there, to people and to programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.command_line.conftest import Ran
from tests.support.bundle import Bundle, event_body
from tests.support.postgres import Database

Run = Callable[..., Ran]


def failed(bundle: Bundle) -> tuple[int, str]:
    """A row whose generation failed at Sume."""
    row, job = bundle.job()
    bundle.W(event_body(job, "failed", error={"code": "content_policy", "message": "no"}))
    return row, job


# ------------------------------------------------------------------------- status and watch


def test_the_status_counts_states_and_shows_what_needs_a_person(run: Run, bundle: Bundle) -> None:
    row, _ = failed(bundle)
    bundle.database.insert_many(2)
    found = run("status", "--json").document
    assert {name: each["count"] for name, each in found["states"].items()} == {
        "working": 2,
        "done": 0,
        "needs_attention": 1,
    }
    assert found["needs_attention"][0]["id"] == row
    assert {each["name"] for each in found["budgets"]} == {"writes", "reads"}
    text = run("status").output
    assert "2 waiting to be sent" in text
    assert "The generation failed at Sume (content_policy)." in text
    assert "Oldest waiting" in text
    assert "1 sent this UTC day." in text


def test_the_status_says_that_the_day_is_full(
    run: Run, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.accepted(2)
    monkeypatch.setenv("SUBMIT_DAILY_LIMIT", "3")
    assert "2 of 3 sent this UTC day." in run("status").output
    monkeypatch.setenv("SUBMIT_DAILY_LIMIT", "2")
    assert "2 of 2 sent this UTC day: nothing more is sent for " in run("status").output


def test_the_status_says_why_a_gate_is_closed(run: Run, database: Database) -> None:
    database.execute(
        "update pace_gate set closed_until = now() + interval '4 minutes', reason = %s"
        " where name = 'writes'",
        "insufficient_credits",
    )
    database.execute(
        "update pace_gate set closed_until = 'infinity', reason = 'anomaly' where name = 'reads'"
    )
    text = run("status").output
    assert "CLOSED" in text
    assert "Add credits" in text
    assert re.search(r"Next try in (4 min|3 min \d+ s)\.", text)
    assert text.count("./sume-jobs gate open") == 1


def test_watch_ends_when_nothing_works_any_more(run: Run, bundle: Bundle) -> None:
    _, job = bundle.job()
    bundle.W(event_body(job, "completed"))
    bundle.fake.set_status(job, "completed")  # type: ignore[union-attr]
    bundle.poll_now()
    ran = run("watch", "--until-done")
    assert ran.status == 0
    assert ran.output.splitlines()[-1].endswith("working 0, done 1, needs attention 0")
    (document,) = run("watch", "--until-done", "--json").output.splitlines()
    assert json.loads(document)["states"]["done"]["count"] == 1


def test_watch_waits_for_results_and_tells_of_what_came_to_need_attention(
    run: Run, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, job), (_, other) = bundle.accepted(2)
    steps = iter(
        [
            lambda: bundle.W(event_body(job, "completed")),
            lambda: bundle.W(event_body(other, "failed")),
            lambda: bundle.fake.set_status(job, "completed"),  # type: ignore[union-attr]
            lambda: bundle.poll_now(),
        ]
    )
    monkeypatch.setattr("local.command_line.overview.sleep", lambda _: next(steps)())
    ran = run("watch", "--until-done")
    # It came to its end only after the result was read, which is the last step.
    assert next(steps, None) is None
    assert ran.status == 1
    assert "1 more rows need attention" in ran.said


def test_watch_goes_on_when_the_database_was_away(
    run: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = database.insert_many(1)
    steps = iter(
        [
            lambda: database.execute("alter table render_jobs rename to away"),
            lambda: database.execute("alter table away rename to render_jobs"),
            lambda: database.execute(
                "update render_jobs set cancel_requested_at = now() where id = %s", row
            ),
        ]
    )
    monkeypatch.setattr("local.command_line.overview.sleep", lambda _: next(steps)())
    ran = run("watch", "--until-done")
    assert "does not have the schema" in ran.said
    assert ran.output.splitlines()[-1].endswith("working 0, done 0, needs attention 1")


# ------------------------------------------------------------------------- list and show


def test_a_list_has_pages(run: Run, database: Database) -> None:
    ids = database.insert_many(5)
    first = run("list", "--limit", "2", "--json").document
    assert [job["id"] for job in first["jobs"]] == [ids[4], ids[3]]
    second = run("list", "--limit", "2", "--json", "--before", str(first["next"])).document
    assert [job["id"] for job in second["jobs"]] == [ids[2], ids[1]]
    people = run("list", "--limit", "2")
    assert "waits to be sent" in people.output
    assert f"More: ./sume-jobs list --before {ids[3]}" in people.said
    assert run("list", "--limit", "5").said == ""


def test_what_is_planned_for_later_is_told_as_that(run: Run, database: Database) -> None:
    database.insert(run_after="2999-01-01")
    assert "waits for its time to be sent" in run("list").output
    assert "1 to be sent later" in run("status").output
    database.insert()
    assert "1 waiting to be sent, 1 to be sent later" in run("status").output


def test_a_list_is_filtered_by_state_and_reference(run: Run, bundle: Bundle) -> None:
    row, _ = failed(bundle)
    bundle.database.insert(reference="order-1")
    found = run("list", "--state", "needs_attention", "--json").document
    assert [each["id"] for each in found["jobs"]] == [row]
    assert found["jobs"][0]["standing"] == "The generation failed at Sume (content_policy)."
    (waits,) = run("list", "--reference", "order-1", "--json").document["jobs"]
    assert waits["reference"] == "order-1"
    assert run("list", "--reference", "nobody").output == "No such rows.\n"
    assert run("list", "--state", "ended").status == 2
    assert run("list", "--reference", "order-1", "--before", "3").status == 2


def test_an_empty_table_is_told(run: Run) -> None:
    assert run("list").output == "There are no rows yet.\n"
    assert run("list", "--json").document == {"jobs": [], "next": None}


def test_a_row_is_found_by_its_id_its_reference_and_its_job(run: Run, bundle: Bundle) -> None:
    bundle.database.insert(reference="order-1", prompt="a cup")
    bundle.D()
    (job,) = bundle.database.jobs()
    row = job["render_job_id"]
    for name in (str(row), f"id:{row}", "order-1", "reference:order-1", job["job_id"],
                 f"job:{job['job_id']}"):  # fmt: skip
        assert run("show", name, "--json").document["id"] == row
    text = run("show", "order-1").output
    assert "a cup" in text
    assert job["job_id"] in text


def test_a_name_that_means_two_rows_is_refused(run: Run, database: Database) -> None:
    (first,) = database.insert_many(1)
    second = database.insert(reference=str(first))
    ran = run("show", str(first))
    assert ran.status == 1
    assert f"id of row {first} and reference of row {second}" in ran.said
    assert run("show", f"reference:{first}", "--json").document["id"] == second


def test_the_job_of_a_conflict_leads_to_its_row(run: Run, database: Database) -> None:
    (row,) = database.insert_many(1)
    database.execute(
        "insert into job_conflict (render_job_id, job_id, reason)"
        " values (%s, 'job_x', 'second_job')",
        row,
    )
    assert run("why", "job_x", "--json").document["id"] == row


@pytest.mark.parametrize("command", ["show", "why"])
@pytest.mark.parametrize("name", ["4711", "nobody", "99999999999999999999", "job:job_none", "id:x"])
def test_a_row_that_is_not_there_is_told(run: Run, command: str, name: str) -> None:
    ran = run(command, name)
    assert ran.status == 1
    assert "There is no row" in ran.said
    assert ran.output == ""


def test_control_characters_do_not_reach_the_terminal(run: Run, database: Database) -> None:
    row = database.insert(prompt="a \x1b[31mred\x1b[0m cup", reference="\x1b]0;title\x07")
    for command in (("show", str(row)), ("list",), ("why", str(row))):
        assert "\x1b" not in run(*command).output
    assert run("show", str(row), "--json").document["prompt"] == "a \x1b[31mred\x1b[0m cup"


# ------------------------------------------------------------------------- why


def test_why_tells_the_story_of_a_row(run: Run, bundle: Bundle) -> None:
    row, job = failed(bundle)
    found = run("why", str(row), "--json").document
    assert [each["text"] for each in found["timeline"]] == [
        "It was enqueued.",
        "A run claimed it and sends it to Sume.",
        f"Sume accepted it as {job}.",
        "Sume's webhook told that its job failed (content_policy).",
    ]
    assert found["for_support"]["job"] == job
    assert found["for_support"]["idempotency key"].endswith(f"-{row}")
    assert found["for_support"]["request id of the submit"].startswith("req_")
    assert found["next"].startswith("The generation failed at Sume (content_policy).")
    text = run("why", str(row)).output
    assert "Sume's webhook told that its job failed" in text
    assert "Next: The generation failed" in text


def test_why_tells_what_a_waiting_row_waits_for(run: Run, database: Database) -> None:
    (row,) = database.insert_many(1)
    assert "next run of submit" in run("why", str(row), "--json").document["next"]
    later = database.insert(run_after="2999-01-01T00:00:00Z")
    assert "until 2999-01-01 00:00:00Z, as it was asked for" in run("why", str(later)).output
    database.execute(
        "update pace_gate set closed_until = now() + interval '1 minute', reason = 'unauthorized'"
    )
    assert "Sume refuses the API key" in run("why", str(row)).output
    suspect = database.insert(reaps=2)
    database.execute("update pace_gate set closed_until = null, reason = null")
    assert "sent alone" in run("why", str(suspect)).output
