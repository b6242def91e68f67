"""Pitfalls of submit: ambiguous answers, frozen bodies, conflicts, hidden retries, redirects."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import API_KEY, Bundle, key_of
from tests.support.postgres import Database
from tests.support.waiting import wait_until

HTML = b"<html><body><h1>Bad gateway</h1></body></html>"
HTML_HEADERS = {"Content-Type": "text/html"}


def error(code: str, request_id: str = "req_42", **more: object) -> dict[str, object]:
    """An error body of Sume's: sume-api.md section 7."""
    return {
        "request_id": request_id,
        "error": {"code": code, "message": "…", "request_id": request_id, **more},
    }


# ------------------------------------------------------------------------------------------- P06

AMBIGUOUS = {
    "500": Behaviour(status=500, body=HTML, headers=HTML_HEADERS),
    "502": Behaviour(status=502, body=HTML, headers=HTML_HEADERS),
    "504": Behaviour(status=504, body=HTML, headers=HTML_HEADERS),
    "408": Behaviour(status=408, body=HTML, headers=HTML_HEADERS),
    "524": Behaviour(status=524, body=HTML, headers=HTML_HEADERS),
    # Siblings of the case: other ways not to know.
    "520": Behaviour(status=520, body=b""),
    "425": Behaviour(status=425, body=b"", accept=True),
    "500-json": Behaviour(status=500, json=error("internal_error")),
    "202-without-id": Behaviour(status=202, json={"data": {}}),
    "202-null": Behaviour(status=202, json=None, body=b"null"),
    "200-html": Behaviour(status=200, body=HTML, headers=HTML_HEADERS),
    "202-not-json": Behaviour(status=202, body=b"accepted"),
    "202-empty": Behaviour(status=202, body=b""),
    "204": Behaviour(status=204, body=b""),
    "202-id-is-a-number": Behaviour(status=202, json={"data": {"job": {"id": 7}}}),
    "202-id-is-empty": Behaviour(status=202, json={"data": {"job": {"id": ""}}}),
    "dropped": Behaviour(drop="after"),
    "cut": Behaviour(drop="mid_body"),
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_p06_an_ambiguous_answer_is_sent_again_under_the_same_key(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    row = database.insert("a ship in a bottle")
    fake.on_submit(AMBIGUOUS[kind])
    bundle.D()
    assert fake.billed == 1, "the fake accepted it before the answer was spoiled"
    after = database.row(row)
    assert after["status"] == "pending"
    assert after["sume_job_id"] is None
    assert after["attempts"] == 1
    assert after["unknown_since"] is not None
    bundle.submit_later()
    first, second = fake.posts(key_of(row))
    assert first.body == second.body
    assert first.key == second.key
    after = database.row(row)
    assert after["status"] == "submitted"
    assert after["sume_job_id"] == fake.job_for(key_of(row)).id
    assert fake.billed == 1
    assert not database.conflicts(), "a replay of one's own send is no collision"


@pytest.mark.parametrize("status", [200, 201, 202, 203])
def test_p06_any_2xx_with_a_job_id_is_acceptance(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(status=status))
    bundle.D()
    assert database.row(row)["status"] == "submitted"
    assert len(fake.posts()) == 1


def test_p06_a_refused_connection_gives_the_attempt_back(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    bundle.set(SUME_BASE_URL="http://127.0.0.1:9")  # the discard port: nobody listens
    bundle.D()
    after = database.row(row)
    assert after["status"] == "pending"
    assert (after["attempts"], after["sends"]) == (0, 0), "it certainly never left"
    assert after["unknown_since"] is None
    bundle.set(SUME_BASE_URL=fake.url)
    bundle.submit_later()
    assert database.row(row)["status"] == "submitted"


@pytest.mark.parametrize("status", [429, 503, 401, 402, 403])
def test_p06_a_refusal_of_what_was_accepted_after_all(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    """The sibling: refused politely, and made all the same. The replay is our own, no collision."""
    row = database.insert()
    fake.on_submit(Behaviour(status=status, accept=True))
    bundle.D()
    after = database.row(row)
    assert (after["status"], after["attempts"]) == ("pending", 0)
    assert after["sends"] == 1, "it did leave"
    bundle.submit_later()
    assert database.row(row)["sume_job_id"] == fake.job_for(key_of(row)).id
    assert not database.conflicts()
    assert fake.billed == 1


# ------------------------------------------------------------------------------------------- P11

NASTY = {
    "nul": '{"request_id":"req_1","error":{"code":"x\\u0000y","message":"bad\\u0000prompt",'
    '"details":{"k\\u0000ey":"v\\u0000"}}}',
    "lone surrogate": '{"request_id":"req_1","error":{"code":"x\\ud800y",'
    '"message":"bad\\udfffprompt","details":{"k\\ud800":1}}}',
    "not a number": '{"request_id":"req_1","error":{"code":"xy","message":"badprompt",'
    '"details":{"score":NaN,"limit":Infinity,"low":-Infinity}}}',
    "huge numbers": '{"request_id":"req_1","error":{"code":"xy","message":"badprompt",'
    '"details":{"a":1e999999,"b":' + "9" * 6000 + "}}}",
}


@pytest.mark.parametrize("kind", NASTY)
def test_p11_text_postgres_refuses_in_a_submit_error(
    bundle: Bundle, database: Database, fake: FakeSume, kind: str
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(status=400, body=NASTY[kind].encode(), accept=False))
    bundle.D()
    after = database.row(row)
    assert after["status"] == "failed"
    code = after["error_code"]
    assert code.startswith("x"), code
    assert code.endswith("y"), code
    assert after["request_id"] == "req_1"


def test_p11_text_postgres_refuses_in_an_accepted_answer(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    body = b'{"data":{"job":{"id":"job_n\\u0000ul","status":"queued"}}}'
    fake.on_submit(Behaviour(status=202, body=body))
    bundle.D()
    assert database.row(row)["status"] in ("pending", "submitted")


ODD_ERRORS = [
    b"",
    b"null",
    b"[]",
    b"7",
    b'"no"',
    b"{}",
    b'{"error":null}',
    b'{"error":"text"}',
    b'{"error":[]}',
    b'{"error":["a"]}',
    b'{"error":{"code":7}}',
    b'{"error":{"code":["a"]}}',
    b'{"error":{"code":{"a":1}}}',
    b'{"error":{"code":""}}',
    b'{"error":{"code":"' + b"c" * 5000 + b'"}}',
    b'{"error":{"code":"c","request_id":7},"request_id":["r"]}',
    b'{"request_id":"req_\\u0000","error":{"code":"c"}}',
    b'{"request_id":"' + b"r" * 9000 + b'"}',
    b'{"message":"m","detail":["d"]}',
    b"\xff\xfe",
    b"<html>bad</html>",
]


@pytest.mark.parametrize("status", [400, 422])
def test_p11_error_bodies_of_any_shape_fail_their_row_and_no_other(
    bundle: Bundle, database: Database, fake: FakeSume, status: int
) -> None:
    rows = database.insert_many(len(ODD_ERRORS))
    good = database.insert("good")
    for row, body in zip(rows, ODD_ERRORS, strict=True):
        odd = Behaviour(
            status=status, body=body, accept=False, headers={"x-sume-request-id": "r\u00e9q_1"}
        )
        fake.on_submit(odd, key=key_of(row))
    bundle.D()
    assert database.row(good)["status"] == "submitted"
    for row, body in zip(rows, ODD_ERRORS, strict=True):
        assert database.row(row)["status"] == "failed", body


# ------------------------------------------------------------------------------------------- P13


def test_p13_the_body_is_frozen_at_the_first_claim(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert("a heron", model="sume/auto", params={"quality": "high", "n": 1})
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    with database.session(autocommit=True) as app:
        for change in (
            "prompt = prompt || ' v2'",
            "model = 'sume/other'",
            'params = \'{"quality": "low"}\'',
            "idempotency_key = 'another-key'",
        ):
            with pytest.raises(psycopg.Error):
                app.execute(f"update render_jobs set {change} where id = %s", (row,))
        # What an ORM does: every column written with the value it has.
        app.execute(
            "update render_jobs set prompt = prompt, model = model, params = params, priority = 2"
            " where id = %s",
            (row,),
        )
    # A restart with other settings: neither the webhook address nor the prefix reaches this row.
    bundle.set(SUME_WEBHOOK_URL="https://example.com/webhooks/sume", IDEMPOTENCY_PREFIX="other")
    bundle.submit_later()
    first, second = fake.posts()
    assert first.body == second.body
    assert first.key == second.key == key_of(row)
    assert database.row(row)["sume_job_id"] == fake.job_for(key_of(row)).id
    assert fake.billed == 1


def test_p13_an_edit_before_the_first_claim_is_allowed(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert("a hern")
    with database.session(autocommit=True) as app:
        app.execute("update render_jobs set prompt = 'a heron' where id = %s", (row,))
    bundle.D()
    (post,) = fake.posts()
    assert json.loads(post.body)["prompt"] == "a heron"


def test_p13_the_refusal_says_what_to_do(bundle: Bundle, database: Database) -> None:
    row, _ = bundle.job()
    with database.session(autocommit=True) as app, pytest.raises(psycopg.Error) as refusal:
        app.execute("update render_jobs set prompt = 'other' where id = %s", (row,))
    message = str(refusal.value)
    assert len(message) > 20
    assert "lighthouse" not in message, "no prompt text in an error message"


def test_p13_delete_of_a_row_in_flight_is_refused(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    running = bundle.start("submit")
    wait_until(fake.posts, "the POST arrives")
    with database.session(autocommit=True) as app, pytest.raises(psycopg.Error):
        app.execute("delete from render_jobs where id = %s", (row,))
    release.set()
    running.result()
    assert database.row(row)["status"] == "submitted"


def test_p13_webhook_url_decides_the_mode(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    database.insert("one")
    bundle.D()
    bundle.set(SUME_WEBHOOK_URL="https://example.com/webhooks/sume")
    database.insert("two", params={"aspect_ratio": "16:9"})
    bundle.D()
    one, two = (json.loads(post.body) for post in fake.posts())
    assert one["mode"] == "async"
    assert "webhook_url" not in one
    assert two["mode"] == "webhook"
    assert two["webhook_url"] == "https://example.com/webhooks/sume"
    assert two["aspect_ratio"] == "16:9"


@pytest.mark.parametrize("name", ["model", "prompt", "mode", "webhook_url"])
def test_p13_params_cannot_override_what_the_row_says(database: Database, name: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        database.insert(params={name: "x"})


def test_p13_numbers_in_params_keep_their_digits(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    """Also P71: a seed beyond 2^53 and a long decimal reach Sume as they were inserted."""
    digits = ["9007199254740993", "1285704473650888702", "0.1000000000000000055511151231257827"]
    with database.session(autocommit=True) as app:
        app.execute(
            "insert into render_jobs (prompt, params) values ('x', %s::jsonb)",
            (f'{{"a": {digits[0]}, "seed": {digits[1]}, "scale": {digits[2]}}}',),
        )
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    bundle.submit_later()
    first, second = fake.posts()
    assert first.body == second.body
    for text in digits:
        assert text.encode() in first.body


# ------------------------------------------------------------------------------------------- P14


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "2"}])
def test_p14_in_progress_is_waited_for(
    bundle: Bundle, database: Database, fake: FakeSume, headers: dict[str, str]
) -> None:
    row = database.insert()
    release = threading.Event()
    fake.on_submit(
        Behaviour(hold=release),
        Behaviour(status=409, json=error("idempotency_in_progress"), headers=headers, accept=False),
    )
    first = bundle.start("submit")
    wait_until(fake.posts, "the first POST arrives")
    database.age("11 minutes")
    bundle.R()
    database.age("1 minute")
    bundle.D(container=bundle.another())
    assert len(fake.posts()) == 2
    assert database.row(row)["status"] == "pending"
    release.set()
    first.result()
    for _ in range(2):
        bundle.submit_later()
    after = database.row(row)
    assert after["status"] == "submitted"
    assert after["sume_job_id"] == fake.job_for(key_of(row)).id
    assert {post.key for post in fake.posts()} == {key_of(row)}
    assert fake.billed == 1


@pytest.mark.parametrize("code", ["idempotency_conflict", "something_new", None])
def test_p14_a_conflict_ends_the_row_without_a_new_key(
    bundle: Bundle, database: Database, fake: FakeSume, code: str | None
) -> None:
    row = database.insert()
    body = error(code) if code else {"message": "conflict"}
    fake.always_on_submit(
        Behaviour(status=409, json=body, headers={"x-sume-request-id": "req_42"}, accept=False)
    )
    bundle.D()
    after = database.row(row)
    assert after["status"] == "failed"
    if code:
        assert after["error_code"] == code
    assert after["request_id"] == "req_42"
    assert database.state(row) == "needs_attention"
    for _ in range(3):
        bundle.submit_later("6 hours")
    assert [post.key for post in fake.posts()] == [key_of(row)]


# ------------------------------------------------------------------------------------------- P50


def test_p50_a_replayed_failure_stops_at_the_cap(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(MAX_ATTEMPTS=3)
    row, healthy = database.insert("poison"), database.insert("healthy")
    fake.always_on_submit(
        Behaviour(
            status=500,
            json=error("internal_error", "req_same"),
            headers={"Idempotent-Replayed": "true"},
        ),
        key=key_of(row),
    )
    for _ in range(6):
        bundle.submit_later("20 minutes")
    after = database.row(row)
    assert after["status"] == "failed"
    assert after["error_code"] == "attempts_exhausted"
    assert after["request_id"] == "req_same"
    assert len(fake.posts(key_of(row))) == 3
    assert {post.key for post in fake.posts()} == {key_of(row), key_of(healthy)}
    assert database.row(healthy)["status"] == "submitted"
    assert len(fake.posts(key_of(healthy))) == 1


# ------------------------------------------------------------------------------------------- P52


def test_p52_one_post_per_claim(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    bundle.set(SUME_TIMEOUT_SECONDS=1)
    row = database.insert()
    fake.on_submit(Behaviour(drop="after"), Behaviour(delay=3.0), Behaviour(status=503))
    for sends in (1, 2, 3, 4):
        bundle.submit_later()
        assert len(fake.posts()) == sends, "no retry hides in the HTTP layer"
    assert {post.key for post in fake.posts()} == {key_of(row)}
    assert len({post.body for post in fake.posts()}) == 1
    assert database.row(row)["status"] == "submitted"
    assert database.row(row)["sends"] >= 2


def test_p52_a_read_is_not_repeated_inside_the_call_either(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    before = len(fake.requests)
    fake.on_read(Behaviour(drop="after"))
    bundle.poll_now()
    assert len(fake.requests) - before == 1
    assert database.job(job)["status"] == "queued"


# ------------------------------------------------------------------------------------------- P55


@pytest.mark.parametrize(
    ("status", "elsewhere"), [(302, True), (307, True), (308, False), (301, True), (303, True)]
)
def test_p55_redirects_are_not_followed(
    bundle: Bundle, database: Database, fake: FakeSume, status: int, elsewhere: bool
) -> None:
    row = database.insert()
    with FakeSume(auto_advance=False) as other:
        target = (other.url if elsewhere else fake.url) + "/v1/images"
        fake.always_on_submit(Behaviour(status=status, headers={"Location": target}, accept=False))
        result = bundle.D()
        assert not other.requests, "key, body and token travelled to another host"
    assert len(fake.requests) == 1
    assert result["stopped"] == 1
    after = database.row(row)
    assert (after["status"], after["attempts"]) == ("pending", 0)
    assert bundle.D()["submitted"] == 0
    assert len(fake.requests) == 1, "the gate is closed"
    fake.always_on_submit(None)
    bundle.submit_later()
    assert database.row(row)["status"] == "submitted"


def test_p55_a_redirected_read_is_not_followed(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    _, job = bundle.job()
    with FakeSume(auto_advance=False) as other:
        fake.on_read(Behaviour(status=302, headers={"Location": other.url + "/v1/jobs/" + job}))
        bundle.poll_now()
        assert not other.requests
    assert database.job(job)["status"] == "queued"


@pytest.mark.parametrize("shape", ["2.0", "1.0"])
@pytest.mark.parametrize("stage", [None, "prod"])
def test_p55_the_webhook_answers_without_a_redirect(
    bundle: Bundle, fake: FakeSume, shape: str, stage: str | None
) -> None:
    _, job = bundle.job()
    answer = bundle.W(fake.webhook_body(job, "completed"), shape=shape, stage=stage)
    assert (answer.status, answer.outcome) == (200, "applied")


def test_p55_a_trailing_slash_is_no_redirect(bundle: Bundle, fake: FakeSume) -> None:
    _, job = bundle.job()
    answer = bundle.W(fake.webhook_body(job, "completed"), path="/webhooks/sume/")
    assert not 300 <= answer.status < 400
    assert answer.status < 500


def test_p55_404_on_the_submit_path_stops_the_queue(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    rows = database.insert_many(40)
    fake.always_on_submit(Behaviour(status=404, body=b"not found", accept=False))
    assert bundle.D()["stopped"] == 1
    assert len(fake.posts()) <= 16
    assert database.statuses() == {"pending": 40}
    assert not any(database.row(row)["attempts"] for row in rows)


# ------------------------------------------------------------------------------------------- P48


@pytest.mark.parametrize(
    "key", ["a\nb", " leading", "ключ", "k" * 300, "", "tab\tin", "trailing ", "a\x7fb", "日本"]
)
def test_p48_a_key_that_cannot_be_a_header(
    bundle: Bundle, database: Database, fake: FakeSume, key: str
) -> None:
    try:
        bad = database.insert("bad key", idempotency_key=key)
    except psycopg.errors.IntegrityError:
        bad = None
    good = database.insert("good")
    bundle.D()
    assert database.row(good)["status"] == "submitted"
    if bad is not None:
        assert database.row(bad)["status"] == "failed"
        assert database.row(bad)["error_code"]


def test_p48_the_api_key_is_stripped(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    bundle.set(SUME_API_KEY=API_KEY + "\n")
    row = database.insert()
    bundle.D()
    assert database.row(row)["status"] == "submitted"
    (post,) = fake.posts()
    assert post.headers["authorization"] == "Bearer " + API_KEY


@pytest.mark.parametrize("key", ["sume_live_pla\nypus", "sume_live_plaтypus", "  "])
def test_p48_an_impossible_api_key_is_not_printed(
    bundle: Bundle, database: Database, fake: FakeSume, key: str
) -> None:
    bundle.set(SUME_API_KEY=key)
    row = database.insert()
    reply = bundle.start("submit").wait()
    assert not fake.posts()
    after = database.row(row)
    assert (after["status"], after["attempts"]) == ("pending", 0)
    shown = json.dumps(reply) + bundle.output()
    assert "ypus" not in shown
    assert "SUME_API_KEY" in shown
    bundle.set(SUME_API_KEY=API_KEY)


def test_p48_prompts_of_every_alphabet(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    prompts = [
        "naïve café",
        "зима",
        "雪の日",
        "😀 " * 5,
        'quotes " and \\ back',
        "two\nlines\t",
        "one\u2028two",
    ]
    for prompt in prompts:
        database.insert(prompt)
    bundle.D()
    assert database.statuses() == {"submitted": len(prompts)}
    assert sorted(json.loads(post.body)["prompt"] for post in fake.posts()) == sorted(prompts)


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t"])
def test_p48_an_empty_prompt_is_refused_by_the_database(database: Database, prompt: str) -> None:
    with pytest.raises(psycopg.errors.IntegrityError):
        database.insert(prompt)


def test_p48_no_prompt_or_key_in_the_logs(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    database.insert("a very private prompt")
    fake.on_submit(
        Behaviour(
            status=400, json=error("invalid_request", message="a very private prompt"), accept=False
        )
    )
    bundle.D()
    database.insert("a very private prompt")
    fake.on_submit(Behaviour(status=500, body=b"a very private prompt"))
    bundle.D()
    database.insert("a very private prompt")
    bundle.submit_later()
    bundle.poll_now()
    job = fake.job_for(key_of(3)).id
    bundle.W(fake.webhook_body(job, "completed"))
    bundle.W(fake.webhook_body(job, "completed"), secret="wrong")
    output = bundle.output()
    assert "private" not in output
    assert API_KEY not in output
    assert "whsec_test" not in output
    assert "v1=" not in output
