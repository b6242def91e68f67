"""retry, cancel, gate: nothing is billed by accident, nothing is done by half."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
import pytest

from tests.command_line.conftest import Ran
from tests.support.bundle import Bundle, event_body
from tests.support.postgres import Database

Run = Callable[..., Ran]


def outcomes(ran: Ran) -> dict[int, str]:
    return {each["id"]: each["outcome"] for each in ran.document["jobs"]}


# ------------------------------------------------------------------------- retry


def test_a_new_generation_is_billed_anew_and_under_another_key(
    run: Run, bundle: Bundle, database: Database
) -> None:
    row, job = bundle.job()
    bundle.W(event_body(job, "failed"))
    assert database.row(row)["counted_at"] is not None
    ran = run("retry", str(row), "--yes", "--json")
    assert ran.status == 0
    # It is counted once more, in the day in which it is sent.
    assert database.row(row)["counted_at"] is None
    assert ran.document["jobs"] == [
        {"id": row, "outcome": "new_generation", "reason": None, "generation": 2}
    ]
    bundle.D()
    keys = {each["job_id"]: each["idempotency_key"] for each in database.jobs()}
    assert len(keys) == 2
    assert keys[database.row(row)["sume_job_id"]] == f"{keys[job]}-2"


def test_nothing_is_billed_without_a_yes(run: Run, database: Database) -> None:
    (row,) = database.insert_many(1)
    database.execute("update render_jobs set cancel_requested_at = now()")
    for arguments in ((), ("--json",)):
        ran = run("retry", str(row), *arguments, typed="y\n")
        assert ran.status == 2
        assert "Sume bills each anew" in ran.said
        assert "add --yes" in ran.said
    assert database.row(row)["generation"] == 1


def test_what_has_not_ended_is_refused_and_the_others_go_on(
    run: Run, bundle: Bundle, database: Database
) -> None:
    (working, _), (failed, job) = bundle.accepted(2)
    bundle.W(event_body(job, "failed"))
    (waits,) = database.insert_many(1)
    ran = run("retry", str(working), str(failed), str(waits), "--yes", "--json")
    assert ran.status == 1
    assert outcomes(ran) == {working: "refused", waits: "refused", failed: "new_generation"}
    assert "has not ended" in ran.document["jobs"][0]["reason"]
    assert [row["generation"] for row in database.rows()] == [1, 2, 1]


def test_a_name_that_means_nothing_stops_all(run: Run, database: Database) -> None:
    (row,) = database.insert_many(1)
    database.execute("update render_jobs set cancel_requested_at = now()")
    ran = run("retry", str(row), "nobody", "--yes")
    assert ran.status == 1
    assert "There is no row 'nobody'" in ran.said
    assert database.row(row)["generation"] == 1


def test_a_row_that_is_named_twice_is_billed_once(run: Run, database: Database) -> None:
    row = database.insert(reference="twice")
    database.execute("update render_jobs set cancel_requested_at = now()")
    ran = run("retry", str(row), "twice", "--yes", "--json")
    assert outcomes(ran) == {row: "new_generation"}
    assert database.row(row)["generation"] == 2


def unknown(database: Database, code: str = "attempts_exhausted") -> int:
    """A failed row of which nobody knows whether Sume has it."""
    return database.insert(
        status="failed", error_code=code, unknown_since="2026-01-01T00:00:00Z", attempts=8, sends=8
    )


def test_what_sume_may_have_is_not_billed_beside_itself(run: Run, database: Database) -> None:
    row = unknown(database)
    refused = run("retry", str(row), "--yes")
    assert refused.status == 1
    assert "--same-key" in refused.output
    assert database.row(row)["status"] == "failed"
    ran = run("retry", str(row), "--yes", "--same-key", "--json")
    assert outcomes(ran) == {row: "sent_again"}
    after = database.row(row)
    assert (after["status"], after["attempts"], after["generation"]) == ("pending", 0, 1)
    assert after["unknown_since"] is not None


def test_a_bill_that_may_be_a_second_one_is_asked_for_by_name(run: Run, database: Database) -> None:
    row = unknown(database, "idempotency_window_expired")
    ran = run("retry", str(row), "--yes", "--may-bill-twice", "--json")
    assert outcomes(ran) == {row: "new_generation"}
    assert database.row(row)["generation"] == 2
    assert run("retry", str(row), "--same-key", "--may-bill-twice").status == 2


def test_the_key_of_somebody_else_is_never_used_again(run: Run, database: Database) -> None:
    """Sent again under a key that another stage has used, the row would take that stage's job."""
    row = unknown(database, "idempotency_key_collision")
    ran = run("retry", str(row), "--yes", "--same-key")
    assert ran.status == 1
    assert "new generation" in ran.output
    assert database.row(row)["status"] == "failed"


def test_a_retry_beside_another_pays_once(database: Database) -> None:
    """Two operators, and a statement that is repeated because its answer was lost."""
    from sume_jobs.connection import Database as Store
    from sume_jobs.secrets import Secrets
    from sume_jobs.settings import Settings
    from sume_jobs.store import render_jobs

    settings = Settings(database_url=database.url)
    store = Store(settings, Secrets(settings))
    (row,) = database.insert_many(1)
    database.execute("update render_jobs set cancel_requested_at = now()")
    try:
        assert render_jobs.start_generation(store, row, 1)
        assert render_jobs.start_generation(store, row, 1)
        assert database.row(row)["generation"] == 2
        with pytest.raises(psycopg.errors.CheckViolation, match="has not ended"):
            render_jobs.start_generation(store, row, 2)
        assert not render_jobs.start_generation(store, row, 0)
        assert not render_jobs.start_generation(store, row + 1, 1)
    finally:
        store.close()


# ------------------------------------------------------------------------- cancel


def test_cancel_says_what_became_of_the_wish(run: Run, bundle: Bundle, database: Database) -> None:
    (working, _), (done, job) = bundle.accepted(2)
    bundle.W(event_body(job, "completed"))
    waits = database.insert(reference="waits")
    ran = run("cancel", str(working), str(done), "waits", "--json")
    assert ran.status == 1
    assert outcomes(ran) == {working: "requested", done: "refused", waits: "canceled"}
    assert database.row(waits)["status"] == "canceled"
    assert "Sume is asked" in run("cancel", str(working)).output


def test_cancel_needs_a_name(run: Run) -> None:
    assert run("cancel").status == 2


# ------------------------------------------------------------------------- gate


def gates(database: Database) -> dict[str, tuple[bool, str | None]]:
    rows = database.query("select name, closed_until > now() as is_closed, reason from pace_gate")
    return {row["name"]: (bool(row["is_closed"]), row["reason"]) for row in rows}


def test_a_gate_is_closed_with_a_reason_and_shown(run: Run, database: Database) -> None:
    ran = run("gate", "close", "--for", "10m", "--reason", "maintenance")
    assert ran.status == 0
    assert "operator: maintenance" in ran.output
    assert re.search(r"Next try in (10 min|9 min \d+ s)\.", ran.output)
    assert gates(database) == {"writes": (True, "operator: maintenance"), "reads": (False, None)}
    shown = run("gate", "--json").document["gates"]
    assert {each["name"]: each["state"] for each in shown} == {"reads": "open", "writes": "closed"}
    assert "operator: maintenance" in run("gate", "show").output


def test_a_closed_gate_sends_nothing_and_an_opened_one_probes(run: Run, bundle: Bundle) -> None:
    run("gate", "close", "both")
    bundle.database.insert_many(3)
    assert bundle.D()["submitted"] == 0
    ran = run("gate", "open", "--json")
    assert ran.document["half_open"] == ["reads", "writes"]
    assert bundle.D()["submitted"] == 3
    assert gates(bundle.database)["writes"] == (False, None)


def test_opening_a_gate_that_sume_closed_says_what_to_mend(run: Run, database: Database) -> None:
    database.execute(
        "update pace_gate set closed_until = now() + interval '15 minutes',"
        " reason = 'insufficient_credits'"
    )
    ran = run("gate", "open", "writes")
    assert "insufficient_credits" in ran.said
    assert "Add credits" in ran.said
    assert "Half open: writes." in ran.output
    assert gates(database)["reads"][0]
    assert not gates(database)["writes"][0]


def test_a_gate_that_waits_for_a_person_opens_only_with_a_yes(run: Run, database: Database) -> None:
    database.execute(
        "update pace_gate set closed_until = 'infinity', reason = 'second_job_for_row'"
        " where name = 'writes'"
    )
    asked = run("gate", "open", "--json")
    assert asked.status == 2
    assert "second_job_for_row" in asked.said
    assert "add --yes" in asked.said
    assert gates(database)["writes"][0]
    assert run("gate", "open", "--yes", "--json").document["half_open"] == ["writes"]
    assert not gates(database)["writes"][0]


def test_an_open_gate_is_left_alone(run: Run, database: Database) -> None:
    before = database.query("select * from pace_gate order by name")
    assert run("gate", "open").output == "Nothing to do: it is open.\n"
    assert database.query("select * from pace_gate order by name") == before


@pytest.mark.parametrize("text", ["10", "m", "-5m", "0m", "1w", "", "1.5h", "9999999d"])
def test_a_time_that_is_none_is_refused(run: Run, database: Database, text: str) -> None:
    ran = run("gate", "close", "--for", text)
    assert ran.status == 2
    assert "90s, 15m, 2h" in ran.said
    assert not gates(database)["writes"][0]
