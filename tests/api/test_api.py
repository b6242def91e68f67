"""functions/api, black box: what is asked, what is answered, what stands in the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sume_jobs.store import job_views

from tests.support.bundle import Bundle, event_body

ROOT = Path(__file__).parents[2]
CUSTOMER = {"id", "reference", "state", "sentence", "artifacts", "created_at", "updated_at"}


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert (answer.status, answer.json["code"]) == (status, code), answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.json) >= {"type", "title", "status", "code", "detail"}
    assert answer.json["status"] == status
    return answer.json


# ---------------------------------------------------------------------- enqueue


def test_one_job_is_a_row_and_its_customer_view(call: Any, database: Any) -> None:
    answer = call("POST", "/jobs", body={"prompt": "a mug"})
    assert answer.status == 201
    assert set(answer.json) == CUSTOMER
    assert answer.headers["location"] == f"/jobs/{answer.json['id']}"
    row = database.row(answer.json["id"])
    assert (row["prompt"], row["status"], row["params"]) == ("a mug", "pending", {})
    assert call("GET", answer.headers["location"]).json == answer.json


def test_every_field_arrives(call: Any, database: Any) -> None:
    body = {
        "prompt": "ein Krug 🏺",
        "model": "sume/x",
        "params": {"seed": 12345678901234567890, "deep": [{"a": None}]},
        "priority": 0,
        "run_after": "2031-01-31T08:00:00+01:00",
        "reference": "order-1",
    }
    # A float would lose the last digits.
    text = json.dumps(body).replace('"deep"', '"scale": 0.1000, "deep"')
    answer = call("POST", "/jobs", body=text)
    assert (answer.status, answer.json["reference"]) == (201, "order-1")
    assert answer.json["sentence"] == "This generation is planned for later."
    row = database.row(answer.json["id"])
    assert (row["prompt"], row["model"], row["priority"]) == ("ein Krug 🏺", "sume/x", 0)
    assert row["run_after"].isoformat() == "2031-01-31T07:00:00+00:00"
    kept = database.query("select params::text from render_jobs")[0]["params"]
    assert "12345678901234567890" in kept
    assert "0.1000" in kept


def test_nothing_given_or_null_is_the_tables_default(call: Any, database: Any) -> None:
    names = ("model", "params", "priority", "run_after", "reference")
    call("POST", "/jobs", body={"prompt": "a"})
    call("POST", "/jobs", body={"prompt": "a", **dict.fromkeys(names)})
    database.execute("insert into render_jobs (prompt) values ('a')")
    rows = database.query(
        "select distinct model, params, priority, reference, run_after <= now() as is_due"
        " from render_jobs"
    )
    assert len(rows) == 1, rows


def test_a_reference_makes_it_safe_to_repeat(call: Any, database: Any) -> None:
    first = call("POST", "/jobs", body={"prompt": "a", "reference": "r"})
    second = call("POST", "/jobs", body={"prompt": "another", "reference": "r"})
    assert (first.status, second.status) == (201, 200)
    assert first.json == second.json
    assert [row["prompt"] for row in database.rows()] == ["a"]


def test_a_list_keeps_its_order_and_its_repeats(call: Any, database: Any) -> None:
    call("POST", "/jobs", body={"prompt": "old", "reference": "b"})
    jobs = [
        {"prompt": "1"},
        {"prompt": "2", "reference": "b"},
        {"prompt": "3", "reference": "a"},
        {"prompt": "4", "reference": "a"},
        {"prompt": "5"},
    ]
    answer = call("POST", "/jobs", body=jobs)
    assert (answer.status, answer.json["created"], answer.json["repeated"]) == (201, 3, 2)
    prompts = [database.row(job["id"])["prompt"] for job in answer.json["jobs"]]
    assert prompts == ["1", "old", "3", "3", "5"]
    again = call("POST", "/jobs", body=[job for job in jobs if "reference" in job])
    assert (again.status, again.json["created"]) == (200, 0)
    assert len(database.rows()) == 4


def test_five_hundred_and_no_more(call: Any, database: Any) -> None:
    jobs = [{"prompt": f"p{n}", "reference": f"r{n}"} for n in range(501)]
    problem(call("POST", "/jobs", body=jobs), 422, "invalid")
    assert call("POST", "/jobs", body=jobs[:500]).json["created"] == 500
    assert call("POST", "/jobs", body=jobs[:500]).json["created"] == 0
    problem(call("POST", "/jobs", body=[]), 422, "invalid")
    assert database.query("select count(*) as n from render_jobs") == [{"n": 500}]


WRONG: list[tuple[Any, str]] = [
    ({}, "/prompt"),
    ({"prompt": None}, "/prompt"),
    ({"prompt": ""}, "/prompt"),
    ({"prompt": " \n\t"}, "/prompt"),
    ({"prompt": 7}, "/prompt"),
    ({"prompt": "x" * 32_001}, "/prompt"),
    ({"prompt": "a\x00b"}, "/prompt"),
    ({"prompt": "a\ud800b"}, "/prompt"),
    ({"prompt": "a", "model": ""}, "/model"),
    ({"prompt": "a", "model": "ä"}, "/model"),
    ({"prompt": "a", "params": []}, "/params"),
    ({"prompt": "a", "params": {"mode": "x"}}, "/params"),
    ({"prompt": "a", "params": {"x": ["\x00"]}}, "/params"),
    ({"prompt": "a", "params": {"\udfff": 1}}, "/params"),
    ({"prompt": "a", "priority": 4}, "/priority"),
    ({"prompt": "a", "priority": "1"}, "/priority"),
    ({"prompt": "a", "priority": True}, "/priority"),
    ({"prompt": "a", "run_after": "tomorrow"}, "/run_after"),
    ({"prompt": "a", "run_after": "2031-02-31T00:00:00Z"}, "/run_after"),
    ({"prompt": "a", "run_after": "2031-01-31T00:00:00"}, "/run_after"),
    ({"prompt": "a", "reference": ""}, "/reference"),
    ({"prompt": "a", "reference": "x" * 501}, "/reference"),
    ({"prompt": "a", "reference": "ä" * 126}, "/reference"),
    ({"prompt": "a", "status": "submitted"}, "/status"),
    ({"prompt": "a", "a/b~\ud800": 1}, "/a~1b~0?"),
    ("a", ""),
    (None, ""),
    ({"prompt": "a", "run_after": "9999-12-31T23:59:59-23:59"}, "/run_after"),
]


def test_what_is_wrong_is_told_where_and_nothing_is_enqueued(call: Any, database: Any) -> None:
    for job, pointer in WRONG:
        alone = problem(call("POST", "/jobs", body=json.dumps(job)), 422, "invalid")
        assert [error["pointer"] for error in alone["errors"]] == [pointer]
        both = json.dumps([{"prompt": "b"}, job])
        listed = problem(call("POST", "/jobs", body=both), 422, "invalid")
        assert [error["pointer"] for error in listed["errors"]] == [f"/1{pointer}"]
    assert database.rows() == []


def test_a_number_is_kept_or_refused_never_changed(call: Any, database: Any) -> None:
    for number in ("1e999", "1e400", "9" * 300, "9" * 301, "-1e-999999", "-0.10"):
        answer = call("POST", "/jobs", body=f'{{"prompt": "a", "params": {{"n": {number}}}}}')
        if answer.status == 201:
            kept = database.query(
                "select (params -> 'n')::numeric = %s::numeric as same from render_jobs"
                " order by id desc limit 1",
                number,
            )
            assert kept == [{"same": True}]
        else:
            problem(answer, 422, "invalid")


UNREADABLE: list[tuple[dict[str, Any], int, str]] = [
    ({"body": "{"}, 400, "not_json"),
    ({}, 415, "not_json"),
    ({"body": '{"prompt": NaN}'}, 400, "not_json"),
    ({"body": "[" * 100_000}, 400, "not_json"),
    ({"body": '{"prompt": "\ud800"}'}, 400, "not_json"),
    ({"body": b"\xff\xfe", "encoded": True}, 400, "not_json"),
    ({"body": {"prompt": "a"}, "content_type": "text/plain"}, 415, "not_json"),
    ({"body": {"prompt": "a"}, "content_type": None}, 415, "not_json"),
    ({"body": {"prompt": "x" * 262_144}}, 413, "too_large"),
    ({"body": {"prompt": "x" * 262_144}, "encoded": True}, 413, "too_large"),
]


def test_a_body_that_cannot_be_read(call: Any, database: Any) -> None:
    for options, status, code in UNREADABLE:
        problem(call("POST", "/jobs", **options), status, code)
    assert database.rows() == []


def test_base64_and_other_json_types_are_read(call: Any) -> None:
    sent = {"body": {"prompt": "ä"}, "content_type": "Application/Problem+JSON; charset=utf-8"}
    assert call("POST", "/jobs", encoded=True, **sent).status == 201


def test_what_the_database_refuses_is_told_in_its_words(call: Any, database: Any) -> None:
    database.execute(
        "alter table render_jobs add constraint only_short check (length(prompt) < 9"
        " or sume_refuse('too long for this stage', 'Shorten it.'))"
    )
    told = problem(call("POST", "/jobs", body={"prompt": "a secret prompt"}), 422, "refused")
    assert told["detail"] == "too long for this stage. Shorten it."


def test_ids_behind_their_rows_are_told_and_nothing_is_mixed_up(
    call: Any, database: Any, bundle: Bundle
) -> None:
    database.execute("insert into render_jobs (id, prompt) values (1, 'restored')")
    problem(call("POST", "/jobs", body={"prompt": "a"}), 503, "ids_are_behind")
    assert [row["prompt"] for row in database.rows()] == ["restored"]
    assert "setval" in bundle.logs("ERROR")[-1]["advice"]


# ---------------------------------------------------------------------- read


def test_pages_newest_first_each_job_once(call: Any, database: Any) -> None:
    database.insert_many(23)
    seen: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "5", **({"cursor": cursor} if cursor else {})}
        page = call("GET", "/jobs", query=query).json
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        # New rows do not disturb the walk.
        database.insert_many(1)
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 23


def test_by_state_and_reference(call: Any, bundle: Bundle, database: Any) -> None:
    (done, job), (failed, other), (working, _) = bundle.accepted(3)
    bundle.W(event_body(job, "completed"))
    bundle.W(event_body(other, "failed", error={"code": "x"}))
    database.execute("update render_jobs set reference = 'r' where id = %s", done)
    for state, expected in (("done", done), ("needs_attention", failed), ("working", working)):
        page = call("GET", "/jobs", query={"state": state}).json
        assert [each["id"] for each in page["jobs"]] == [expected]
        assert page["next"] is None
    one = {"state": "done", "reference": "r"}
    assert [each["id"] for each in call("GET", "/jobs", query=one).json["jobs"]] == [done]
    assert call("GET", "/jobs", query={**one, "state": "working"}).json["jobs"] == []


@pytest.mark.parametrize("state", ["done", "needs_attention"])
def test_a_filter_walks_on_over_what_does_not_match(call: Any, database: Any, state: str) -> None:
    """2,500 rows that do not match lie above the one that does."""
    database.execute("set session_replication_role = replica")
    good, bad = ("completed", "failed") if state == "done" else ("failed", "completed")
    database.execute(
        "insert into render_jobs (id, prompt, status, sume_job_id, idempotency_key, generation)"
        " select n, 'a', 'submitted', 'job_' || n, 'k' || n, 2 from generate_series(1, 2501) n"
    )
    database.execute(
        "insert into gen_job (job_id, idempotency_key, render_job_id, status)"
        " select 'job_' || n, 'k' || n, n, case when n = 1 then %s else %s end"
        " from generate_series(1, 2501) n",
        good,
        bad,
    )
    if state == "needs_attention":
        # A first generation that failed, of rows that are done by now.
        database.execute(
            "insert into gen_job (job_id, idempotency_key, render_job_id, status)"
            " select 'old_' || n, 'o' || n, n, 'failed' from generate_series(2, 2501) n"
        )
    database.execute("set session_replication_role = origin")
    page = call("GET", "/jobs", query={"state": state}).json
    assert page["jobs"] == []
    assert page["next"]
    page = call("GET", "/jobs", query={"state": state, "cursor": page["next"]}).json
    assert [job["id"] for job in page["jobs"]] == [1]
    assert page["next"] is None


def test_working_rows_are_found_however_far_down(call: Any, database: Any) -> None:
    """5,000 rows that are done lie above the ones that wait, are planned, and are being sent."""
    database.insert_many(3)
    database.execute("set session_replication_role = replica")
    database.execute("update render_jobs set run_after = now() + interval '1 day' where id = 2")
    database.execute("update render_jobs set reaps = 2 where id = 3")
    database.execute(
        "insert into render_jobs (id, prompt, status, sume_job_id, idempotency_key)"
        " select n, 'a', 'submitted', 'job_' || n, 'k' || n from generate_series(4, 5003) n"
    )
    database.execute(
        "insert into gen_job (job_id, idempotency_key, render_job_id, status)"
        " select 'job_' || n, 'k' || n, n, case when n = 4 then 'queued' else 'completed' end"
        " from generate_series(4, 5003) n"
    )
    database.execute("set session_replication_role = origin")
    page = call("GET", "/jobs", query={"state": "working", "limit": "3"}).json
    assert [job["id"] for job in page["jobs"]] == [4, 3, 2]
    query = {"state": "working", "limit": "3", "cursor": page["next"]}
    page = call("GET", "/jobs", query=query).json
    assert [job["id"] for job in page["jobs"]] == [1]
    assert page["next"] is None


def test_a_query_that_makes_no_sense(call: Any) -> None:
    wrong = {
        "state": ("pending", ""),
        "limit": ("0", "101", "ten", "9" * 5000),
        "cursor": ("x", "'; drop table"),
        "reference": ("", "a\x00"),
    }
    for name, values in wrong.items():
        for value in values:
            problem(call("GET", "/jobs", query={name: value}), 422, "invalid")


def test_any_cursor_of_the_right_shape_is_a_page(call: Any) -> None:
    for cursor in ("AAAAAAAAAAA", "___________"):
        assert call("GET", "/jobs", query={"cursor": cursor}).status == 200


def test_unknown_ids(call: Any) -> None:
    ids = ("1", "0", "-1", "x", str(2**63 - 1), str(2**63), "9" * 5000, "\u0661", "1\n", "\x00")
    for path in ("/jobs/{}", "/support/jobs/{}", "/jobs/{}/cancel"):
        method = "POST" if path.endswith("cancel") else "GET"
        for unknown in ids:
            problem(call(method, path.format(unknown)), 404, "no_such_job")


def test_the_customer_sees_no_more_than_a_customer_may(call: Any, bundle: Bundle) -> None:
    row, job = bundle.job()
    bundle.W(event_body(job, "failed", error={"code": "nsfw", "message": "internal words"}))
    answer = call("GET", f"/jobs/{row}")
    assert set(answer.json) == CUSTOMER
    assert answer.json["state"] == "needs_attention"
    for secret in ("nsfw", "internal words", job, "render-job", "lighthouse"):
        assert secret not in answer.body


def test_the_artifacts_of_what_is_done(call: Any, bundle: Bundle, fake: Any) -> None:
    row, job = bundle.job()
    fake.set_status(job, "completed")
    bundle.W(event_body(job, "completed"))
    answer = call("GET", f"/jobs/{row}").json
    assert (answer["state"], answer["artifacts"]) == ("done", [])
    assert answer["sentence"] == "This generation is done; its files follow in a moment."
    bundle.poll_now()
    answer = call("GET", f"/jobs/{row}").json
    assert answer["artifacts"][0]["url"].startswith("http")
    assert answer["sentence"] == "This generation is done."


def test_support_sees_all_of_it(call: Any, bundle: Bundle, database: Any) -> None:
    row, job = bundle.job()
    bundle.W(event_body(job, "processing"), event_id="evt_1")
    bundle.W(event_body(job, "failed", event_id="evt_2", error={"code": "nsfw"}))
    database.execute(
        "insert into job_conflict (render_job_id, job_id, reason) values (%s, 'other', 'test')", row
    )
    told = call("GET", f"/support/jobs/{row}").json
    assert (told["sume_job_id"], told["error_code"], told["state"]) == (
        job,
        "nsfw",
        "needs_attention",
    )
    assert [event["outcome"] for event in told["webhook_events"]] == ["applied", "applied"]
    assert [conflict["job_id"] for conflict in told["conflicts"]] == ["other"]
    assert [each["kind"] for each in told["follow_ups"]] == ["job.failed"]
    assert [each["job_id"] for each in told["jobs"]] == [job]
    assert "nsfw" in told["advice"]["reason"]
    moves = [(move["machine"], move["by"], move["from"], move["to"]) for move in told["history"]]
    assert moves == [
        ("submission", "enqueue", None, "pending"),
        ("submission", "submit", "pending", "submitting"),
        ("submission", "submit", "submitting", "submitted"),
        ("generation", "webhook", "queued", "processing"),
        ("generation", "webhook", "processing", "failed"),
    ]


# ---------------------------------------------------------------------- cancel


def test_cancel_of_what_never_left(call: Any, database: Any) -> None:
    (row,) = database.insert_many(1)
    answer = call("POST", f"/jobs/{row}/cancel")
    assert (answer.status, answer.json["outcome"]) == (200, "canceled")
    assert answer.json["job"]["state"] == "needs_attention"
    assert call("POST", f"/jobs/{row}/cancel").json["outcome"] == "canceled"


def test_cancel_of_what_is_at_sume(call: Any, bundle: Bundle, database: Any) -> None:
    row, job = bundle.job()
    for _ in range(2):
        answer = call("POST", f"/jobs/{row}/cancel")
        assert (answer.status, answer.json["outcome"]) == (202, "requested")
        assert answer.json["job"]["state"] == "working"
        assert "being canceled" in answer.json["job"]["sentence"]
    assert database.job(job)["cancel_due_at"] is not None


def test_cancel_of_what_has_ended(call: Any, bundle: Bundle) -> None:
    row, job = bundle.job()
    bundle.W(event_body(job, "completed"))
    problem(call("POST", f"/jobs/{row}/cancel"), 409, "has_ended")


# ---------------------------------------------------------------------- figures, page, document


def test_the_figures(call: Any, bundle: Bundle, database: Any) -> None:
    (_, done), (failed, other), _ = bundle.accepted(3)
    bundle.W(event_body(done, "completed"))
    bundle.W(event_body(other, "failed", error={"code": "x"}))
    database.insert_many(2)
    database.execute(
        "update pace_gate set closed_until = now() + interval '1 minute', reason = 'http_402'"
        " where name = 'writes'"
    )
    told = call("GET", "/stats").json
    counts = {name: figure["count"] for name, figure in told["states"].items()}
    assert counts == {"working": 3, "done": 1, "needs_attention": 1}
    stages = {name: figure["count"] for name, figure in told["stages"].items()}
    assert stages == {"waiting": 2, "later": 0, "sending": 0, "at_sume": 1}
    reads, writes = told["gates"]
    assert (reads["state"], writes["state"], writes["reason"]) == ("open", "closed", "http_402")
    assert 50 <= writes["opens_in_seconds"] <= 60
    assert [each["id"] for each in told["needs_attention"]] == [failed]
    assert (told["came_a_minute"], told["ended_a_minute"]) == (5, 2)
    assert told["oldest_waiting_seconds"] >= 0


def test_what_is_planned_for_later_does_not_wait(call: Any, database: Any) -> None:
    many = job_views.EXACT + 100

    def stages() -> dict[str, int]:
        told = call("GET", "/stats").json["stages"]
        return {name: told[name]["count"] for name in ("waiting", "later")}

    database.insert(priority=0)
    database.insert(run_after="infinity")
    assert stages() == {"waiting": 1, "later": 1}
    later = (
        "insert into render_jobs (prompt, priority, run_after) select 'later', n % 4,"
        " now() + {} from generate_series(1, {}) n"
    )
    database.execute(later.format("interval '1 day'", many))
    assert stages() == {"waiting": 1, "later": job_views.EXACT + 1}, "until the statistics tell"
    database.execute(later.format("n * interval '1 minute'", 2 * many))
    database.insert_many(many)
    database.execute("analyze render_jobs")
    found = stages()
    assert abs(found["waiting"] - many) < 50
    assert abs(found["later"] - 3 * many) < 50


def test_the_newest_done_are_those_of_the_newest_generation(
    call: Any, bundle: Bundle, database: Any
) -> None:
    (row, job), (other, its_job) = bundle.accepted(2)
    bundle.W(event_body(job, "completed"))
    bundle.W(event_body(its_job, "completed"))
    again = "update render_jobs set generation = generation + 1 where id = %s"
    database.execute(again, row)
    assert [each["id"] for each in call("GET", "/stats").json["done"]] == [other]
    bundle.D()
    bundle.W(event_body(database.row(row)["sume_job_id"], "completed"))
    assert [each["id"] for each in call("GET", "/stats").json["done"]] == [row, other]


def test_a_job_that_needs_attention_is_not_among_those_on_their_way(
    call: Any, bundle: Bundle, database: Any
) -> None:
    (late, job), (other, _) = bundle.accepted(2)
    database.execute("update gen_job set attention = 'overdue' where job_id = %s", job)
    told = call("GET", "/stats").json
    assert [each["id"] for each in told["working"]] == [other]
    assert [each["id"] for each in told["needs_attention"]] == [late]


def test_the_document_is_the_one_in_the_repository(call: Any) -> None:
    answer = call("GET", "/openapi.json")
    assert answer.body == (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert json.loads(answer.body)["openapi"] == "3.1.0"


def test_the_document_lists_every_route_and_problem(call: Any) -> None:
    from functions.api.app import app

    document = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    listed = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    routes = [*app._static_routes, *app._dynamic_routes]
    assert len(routes) == len(listed)
    for method, path in listed:
        assert call(method, path.replace("{id}", "1")).status not in (405, 500)
    source = (ROOT / "shared/sume_jobs/flows/api.py").read_text(encoding="utf-8")
    for code in document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]:
        assert f'"{code}"' in source


def test_other_methods_and_paths(call: Any) -> None:
    for method, path, allowed in (
        ("DELETE", "/jobs", "GET, POST"),
        ("PUT", "/jobs/1", "GET"),
        ("GET", "/jobs/1/cancel", "POST"),
        ("HEAD", "/board", "GET"),
        ("OPTIONS", "/support/jobs/1", "GET"),
    ):
        answer = call(method, path)
        problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed
    for path in ("/", "/jobs/", "/jobs//cancel", "/nothing", "/jobs/1/x", "/\x00"):
        problem(call("GET", path), 404, "no_such_path")


# ---------------------------------------------------------------------- trouble


def test_a_database_that_is_away(call: Any, bundle: Bundle) -> None:
    bundle.set(DATABASE_URL="postgresql://nobody@127.0.0.1:9/none")
    for method, path, body in (
        ("GET", "/jobs", None),
        ("GET", "/jobs/1", None),
        ("POST", "/jobs", {"prompt": "a"}),
        ("POST", "/jobs/1/cancel", None),
        ("GET", "/support/jobs/1", None),
        ("GET", "/stats", None),
    ):
        answer = call(method, path, body=body)
        problem(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "2"
    assert call("GET", "/board").status == 200
    assert call("GET", "/openapi.json").status == 200


def test_a_fault_is_a_problem_and_tells_nothing(call: Any, database: Any, bundle: Bundle) -> None:
    database.execute("alter table render_jobs rename column priority to other")
    problem(call("POST", "/jobs", body={"prompt": "a secret prompt"}), 500, "internal")
    (line,) = bundle.logs("ERROR")
    assert (line["message"], line["sqlstate"]) == ("api_failed", "42703")
    assert "secret" not in bundle.output()


def test_no_prompt_in_any_log(call: Any, bundle: Bundle, database: Any) -> None:
    database.execute("alter table render_jobs add constraint few check (length(prompt) < 20)")
    for prompt in ("hush hush", "hush" * 20, "hush\x00", " ", "hush" * 9000):
        call("POST", "/jobs", body={"prompt": prompt, "reference": f"hush-{len(prompt)}"})
    call("POST", "/jobs", body='{"prompt": "hush"')
    call("GET", "/jobs", query={"reference": "hush"})
    assert "hush" not in bundle.output()
