"""audit: every kind of difference is planted and found, and nothing else is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests
from sume_jobs.decisions import listing
from sume_jobs.decisions.outcomes import Answer
from sume_jobs.flows.sume_access import client_of
from sume_jobs.runtime import Runtime
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings

from local.command_line.audit_reads import PATIENCE, Reads, Walk
from local.command_line.audit_rounds import Report, Wanted, audit
from local.command_line.errors import CommandError
from local.fake_sume import FakeSume
from local.fake_sume.behaviour import Behaviour
from tests.command_line.conftest import Ran
from tests.support.bundle import API_KEY, Bundle
from tests.support.postgres import Database
from tests.support.waiting import wait_until

Run = Callable[..., Ran]
HOUR = 3600.0


@pytest.fixture(autouse=True)
def environment(fake: FakeSume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUME_BASE_URL", fake.url)
    monkeypatch.setenv("SUME_API_KEY", API_KEY)
    monkeypatch.setenv("SUME_READS_PER_MINUTE", "60000")


@pytest.fixture
def look(run: Run) -> Callable[..., Any]:
    """Run `audit --json`; the document, checked against the exit status."""

    def look(*arguments: str) -> Any:
        ran = run("audit", "--json", *arguments)
        assert ran.status == (1 if ran.document["must_act"] else 0), ran.said
        return ran.document

    return look


Look = Callable[..., Any]


def post(fake: FakeSume, key: str, prompt: str = "not ours") -> str:
    """Make a job at Sume behind our back; its id."""
    answer = requests.post(
        fake.url + "/v1/images",
        json={"mode": "async", "model": "sume/auto", "prompt": prompt},
        headers={"Authorization": f"Bearer {API_KEY}", "Idempotency-Key": key},
        timeout=5,
    )
    job_id: str = answer.json()["data"]["job"]["id"]
    return job_id


def second_job(fake: FakeSume, key: str) -> str:
    """A key that Sume did not honour."""
    fake.forget_key(key)
    return post(fake, key)


def nothing(document: Any) -> None:
    for name in ("only_ours", "only_theirs", "status_differs", "conflicts", "two_jobs_for_one_key"):
        assert document[name] == [], name
    assert document["billed_twice"] == 0
    assert not document["must_act"]


# ---------------------------------------------------------------------------- nothing to act on


def test_what_agrees_is_counted_and_nothing_is_written(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    bundle.accepted(3)
    before = [database.rows(), database.jobs(), database.query("select * from pace_gate")]
    document = look()
    nothing(document)
    assert (document["ours"], document["theirs"], document["matched"]) == (3, 3, 3)
    assert (document["pages"], document["reads"]) == (1, 1)
    assert [database.rows(), database.jobs(), database.query("select * from pace_gate")] == before
    assert all(request.method == "GET" for request in fake.requests if not request.submit)


def test_people_are_told_the_same(run: Run, bundle: Bundle) -> None:
    bundle.accepted(2)
    ran = run("audit")
    assert ran.status == 0
    assert "billed twice" in ran.output
    assert "Nothing to act on." in ran.output
    assert "Not seen: Sume does not tell the idempotency keys" in ran.output


def test_many_pages_are_walked_and_cut_at_the_window(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    bundle.accepted(250)
    document = look()
    nothing(document)
    assert (document["pages"], document["matched"]) == (3, 250)
    # All but the ten newest were made two hours ago.
    for job in list(fake.jobs.values())[:240]:
        job.created_at -= 2 * HOUR
    database.execute(
        "update gen_job set created_at = created_at - interval '2 hours' where job_id = any (%s)",
        [job.id for job in list(fake.jobs.values())[:240]],
    )
    document = look("--since", "1h")
    nothing(document)
    assert (document["pages"], document["matched"], document["ours"]) == (2, 10, 10)
    assert look("--since", "3h", "--until", "1h")["matched"] == 240


def test_the_job_of_a_lost_answer_settles_itself(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    assert database.row(row)["status"] == "pending"
    for tells in (False, True):
        fake.options.tell_keys = tells
        document = look()
        nothing(document)
        assert document["settles_itself"] == 1


def test_a_doubtful_row_answers_for_one_job_only(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    database.insert()
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    other = post(fake, "another-1")
    document = look()
    assert document["settles_itself"] == 1
    assert [each["job_id"] for each in document["only_theirs"]] == [other]


def test_jobs_of_other_applications_are_told_by_their_keys(look: Look, fake: FakeSume) -> None:
    fake.options.tell_keys = True
    post(fake, "shop-17")
    document = look()
    nothing(document)
    assert document["of_others"] == 1


def test_what_has_just_ended_is_catching_up(look: Look, bundle: Bundle, fake: FakeSume) -> None:
    (_, ended), (_, begun) = bundle.accepted(2)
    fake.set_status(ended, "completed", webhook=False)
    fake.set_status(begun, "processing")
    document = look()
    nothing(document)
    assert document["catching_up"] == 2


# ---------------------------------------------------------------------------- each difference


def test_only_ours(look: Look, bundle: Bundle, database: Database) -> None:
    bundle.accepted(1)
    database.execute("insert into gen_job (job_id, idempotency_key) values ('job_ghost', 'k')")
    document = look()
    assert [each["job_id"] for each in document["only_ours"]] == ["job_ghost"]
    assert document["only_theirs"] == document["status_differs"] == []


@pytest.mark.parametrize("tells", [False, True])
def test_only_theirs(look: Look, bundle: Bundle, fake: FakeSume, tells: bool) -> None:
    fake.options.tell_keys = tells
    bundle.accepted(1)
    job_id = post(fake, "render-job-999")
    (found,) = look()["only_theirs"]
    assert (found["job_id"], found["kind"]) == (job_id, "owned_by_none")
    assert found["key"] == ("render-job-999" if tells else None)
    assert ("no row has it" in found["why"]) == tells


@pytest.mark.parametrize("tells", [False, True])
def test_the_job_of_a_row_that_gave_up(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database, tells: bool
) -> None:
    fake.options.tell_keys = tells
    bundle.set(MAX_ATTEMPTS=1)
    row = database.insert()
    fake.on_submit(Behaviour(drop="after"))
    bundle.D()
    assert database.row(row)["status"] == "failed"
    (found,) = look()["only_theirs"]
    assert found["row_id"] == row
    assert f"row {row}" in found["why"]


def test_a_webhook_of_a_job_without_an_owner_is_told(
    look: Look, bundle: Bundle, fake: FakeSume
) -> None:
    job_id = post(fake, "k")
    bundle.W(fake.webhook_body(job_id, "completed"))
    (found,) = look()["only_theirs"]
    assert "its webhook came here" in found["why"]


@pytest.mark.parametrize("seconds", [10.0, HOUR])
def test_an_end_that_nobody_told(
    look: Look, bundle: Bundle, fake: FakeSume, seconds: float
) -> None:
    _, job_id = bundle.job()
    fake.set_status(job_id, "completed", webhook=False)
    fake.jobs[job_id].updated_at -= seconds
    document = look()
    assert len(document["status_differs"]) == (seconds == HOUR)
    assert document["catching_up"] == (seconds != HOUR)


@pytest.mark.parametrize("late", ["null", "now() - interval '1 hour'"])
def test_an_end_that_no_poll_will_find(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database, late: str
) -> None:
    _, job_id = bundle.job()
    fake.set_status(job_id, "failed", webhook=False)
    database.execute(f"update gen_job set next_poll_at = {late}")
    (found,) = look()["status_differs"]
    assert (found["ours"], found["theirs"]) == ("queued", "failed")


@pytest.mark.parametrize(("theirs", "words"), [("failed", "contradict"), ("queued", "goes on")])
def test_ends_that_contradict(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database, theirs: str, words: str
) -> None:
    _, job_id = bundle.job()
    bundle.W(fake.webhook_body(job_id, "completed"))
    assert database.job(job_id)["status"] == "completed"
    fake.set_status(job_id, theirs, webhook=False)
    (found,) = look()["status_differs"]
    assert words in found["why"]


def test_billed_twice_by_the_keys_that_sume_tells(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    fake.options.tell_keys = True
    row, job_id = bundle.job()
    key = database.row(row)["idempotency_key"]
    others = [second_job(fake, key), second_job(fake, key)]
    document = look()
    assert document["billed_twice"] == 2
    (found,) = document["two_jobs_for_one_key"]
    assert (found["row_id"], found["key"]) == (row, key)
    assert set(found["job_ids"]) == {job_id, *others}
    assert {each["kind"] for each in document["only_theirs"]} == {"second_job"}


def test_billed_twice_by_what_is_kept_in_job_conflict(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    """The list tells no keys: a second job for a row is known from the answer to its submit."""
    row = database.insert()
    hold = threading.Event()
    fake.on_submit(Behaviour(hold=hold))
    slow = bundle.start("submit", container=bundle.another())
    try:
        wait_until(lambda: fake.billed == 1, "the first job was made", 30)
        database.age("1 hour")
        bundle.R()
        database.age("1 hour")
        fake.forget_key(f"render-job-{row}")
        bundle.D()
    finally:
        hold.set()
    slow.result()
    assert [each["reason"] for each in database.conflicts()] == ["second_job_for_row"]
    document = look()
    assert document["billed_twice"] == 1
    assert document["two_jobs_for_one_key"][0]["row_id"] == row
    assert len(document["conflicts"]) == 1


def test_a_key_that_another_had_used_is_no_second_job(
    look: Look, bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    row = database.insert("a prompt that both have")
    post(fake, f"render-job-{row}", "a prompt that both have")
    bundle.D()
    assert database.row(row)["error_code"] == "idempotency_key_collision"
    document = look()
    assert document["billed_twice"] == 0
    assert document["of_others"] == 1
    assert [each["reason"] for each in document["conflicts"]] == ["idempotency_key_collision"]
    assert document["must_act"]


# ---------------------------------------------------------------------------- looked at twice


def test_a_job_that_is_recorded_meanwhile_is_not_accused(
    look: Look, fake: FakeSume, database: Database
) -> None:
    job_id = post(fake, "render-job-1")
    fake.on_read(
        Behaviour(
            call=lambda job: database.execute(
                "insert into gen_job (job_id, idempotency_key) values (%s, 'render-job-1')", job.id
            )
        ),
        job_id=job_id,
    )
    nothing(look())


def test_a_status_that_arrives_meanwhile_is_not_accused(
    look: Look, bundle: Bundle, fake: FakeSume
) -> None:
    _, job_id = bundle.job()
    fake.set_status(job_id, "completed", webhook=False)
    fake.jobs[job_id].updated_at -= HOUR
    fake.on_read(
        Behaviour(call=lambda job: bundle.W(fake.webhook_body(job.id, "completed"))), job_id=job_id
    )
    document = look()
    nothing(document)
    assert document["catching_up"] == 0


def test_a_stale_list_accuses_nobody(look: Look, bundle: Bundle, fake: FakeSume) -> None:
    _, job_id = bundle.job()
    bundle.W(fake.webhook_body(job_id, "completed"))
    fake.set_status(job_id, "completed", webhook=False)
    stale = [{"id": job_id, "status": "queued"}, {"id": "job_gone", "status": "queued"}]
    fake.on_list(Behaviour(json={"data": {"jobs": stale, "next_cursor": None}}))
    document = look()
    nothing(document)
    assert any("does not tell when each job was made" in each for each in document["unseen"])


def test_a_read_that_fails_says_nothing(
    fake: FakeSume, database: Database, report: Callable[..., Report]
) -> None:
    job_id = post(fake, "k")
    fake.always_on_read(Behaviour(status=500), job_id=job_id)
    found = report()
    assert not found.must_act
    assert any("1 jobs that only Sume has were not looked at" in each for each in found.unseen)


# ---------------------------------------------------------------------------- what is not seen


def test_a_list_without_a_cursor_ends_early(look: Look, fake: FakeSume) -> None:
    full = [{"id": f"job_{n}", "status": "queued"} for n in range(100)]
    fake.on_list(Behaviour(json={"data": full}))
    document = look("--checks", "0")
    assert not document["must_act"]
    assert any("gives no cursor" in each for each in document["unseen"])
    assert any("100 jobs that only Sume has were not" in each for each in document["unseen"])


def test_a_cursor_that_leads_in_a_circle_ends(look: Look, fake: FakeSume) -> None:
    page = {"data": {"items": [{"id": "job_1", "status": "odd"}, 7], "next_cursor": "7"}}
    fake.always_on_list(Behaviour(json=page))
    unseen = " ".join(look()["unseen"])
    assert "circle" in unseen
    assert "2 entries of the list have no job id" in unseen
    assert "odd" in unseen


def test_the_most_that_is_listed(look: Look, bundle: Bundle) -> None:
    bundle.accepted(101)
    document = look("--most", "100")
    assert document["theirs"] == 100
    assert any("--most 100" in each for each in document["unseen"])
    # What was not listed is looked for one by one.
    assert document["only_ours"] == []
    assert document["reads"] == 2


def test_a_window_longer_than_rows_are_kept(look: Look) -> None:
    assert any("RETENTION_DAYS" in each for each in look("--since", "40d")["unseen"])


# ---------------------------------------------------------------------------- reads


@pytest.fixture
def report(fake: FakeSume, database: Database) -> Callable[..., Report]:
    """Audit in this process, with the sleeps noted and not slept."""

    def report(sleeps: list[float] | None = None, **changes: str) -> Report:
        settings = Settings.from_environment(
            {
                "DATABASE_URL": database.url,
                "SUME_BASE_URL": fake.url,
                "SUME_API_KEY": API_KEY,
                "SUME_READS_PER_MINUTE": "60000",
                **changes,
            }
        )
        runtime = Runtime(settings, Secrets(settings))
        client = client_of(runtime)
        noted: list[float] = [] if sleeps is None else sleeps
        try:
            reads = Reads(client, runtime.database, settings, noted.append)
            now = time.time()
            return audit(
                runtime.database, settings, reads, Wanted(now - HOUR, now + HOUR, 10_000, 100)
            )
        finally:
            client.close()
            runtime.close()

    return report


def test_it_waits_as_long_as_sume_asks(
    report: Callable[..., Report], fake: FakeSume, database: Database
) -> None:
    sleeps: list[float] = []
    fake.on_list(
        Behaviour(status=429, headers={"Retry-After": "7"}),
        Behaviour(status=500),
        Behaviour(drop="before"),
    )
    found = report(sleeps)
    assert found.reads == 4
    assert sleeps == [7.0, 2.0, 3.0]
    # Its reads are in the budget that all share.
    assert database.one("select spent_until > '-infinity' from pace_budget where name = 'reads'")


def test_it_does_not_wait_for_ever(report: Callable[..., Report], fake: FakeSume) -> None:
    fake.on_list(Behaviour(status=503, headers={"Retry-After": "600"}))
    with pytest.raises(CommandError, match="come back in 600 s"):
        report()


def test_a_closed_gate_is_waited_for_and_then_told(
    report: Callable[..., Report], fake: FakeSume, database: Database
) -> None:
    database.execute(
        "update pace_gate set closed_until = now() + interval '1 hour', reason = 'unauthorized'"
    )
    sleeps: list[float] = []
    with pytest.raises(CommandError, match=r"gate for reads is not open \(unauthorized\)"):
        report(sleeps)
    assert sum(sleeps) >= PATIENCE
    assert fake.requests == []


def test_a_used_up_budget_is_told(report: Callable[..., Report], database: Database) -> None:
    database.execute("update pace_budget set spent_until = now() + interval '1 hour'")
    with pytest.raises(CommandError, match="budget of reads"):
        report(SUME_READS_PER_MINUTE="60")


@pytest.mark.parametrize("status", [401, 404])
def test_a_list_that_is_refused(run: Run, fake: FakeSume, status: int) -> None:
    fake.on_list(Behaviour(status=status))
    ran = run("audit", "--json")
    assert ran.status == 1
    assert f"HTTP {status}" in ran.said
    assert "./sume-jobs doctor" in ran.said


def test_sume_that_is_away(report: Callable[..., Report], fake: FakeSume) -> None:
    fake.stop()
    with pytest.raises(CommandError, match="does not answer"):
        report()


@pytest.mark.parametrize(
    "arguments", [("--since", "yesterday"), ("--since", "1h", "--until", "2h")]
)
def test_a_window_that_is_none(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run("audit", *arguments)
    assert ran.status == 2
    assert "--since" in ran.said


def test_instants_are_taken_as_well(look: Look, bundle: Bundle) -> None:
    bundle.accepted(1)
    assert look("--since", "2020-01-01", "--until", "2020-01-02T03:04Z")["ours"] == 0
    assert look("--since", "2020-01-01")["ours"] == 1


def test_a_list_in_the_other_order_is_read_to_its_end(fake: FakeSume) -> None:
    """The order is not documented: the walk is cut only where it has been newest first."""
    pages = {
        None: listing.Page([listing.Listed("a", "queued", created_at=100.0)], "2"),
        "2": listing.Page([listing.Listed("b", "queued", created_at=90_000.0)], "3"),
        "3": listing.Page([listing.Listed("c", "queued", created_at=100_000.0)], None),
    }

    class Pages:
        def page(self, cursor: str | None) -> listing.Page:
            return pages[cursor]

    walk = Walk(95_000.0)
    # The first page alone cannot tell the order, and must not end the walk by itself.
    found = [job.job_id for page in walk.over(Pages(), 1000) for job in page]  # type: ignore[arg-type]
    assert found == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"data": {"jobs": [{"id": "job_1", "status": "queued"}]}}, ("job_1", "queued", None)),
        ({"data": [{"job_id": "job_1", "sume_status": "failed"}]}, ("job_1", "failed", None)),
        ([{"job": {"id": "job_1", "status": "done?"}}], ("job_1", None, None)),
        (
            {"items": [{"id": "job_1", "status": "Succeeded", "created_at": 1700000000.5}]},
            ("job_1", "completed", 1700000000.5),
        ),
        (
            {"jobs": [{"id": "job_1", "created_at": "2023-11-14T22:13:20"}]},
            ("job_1", None, 1700000000.0),
        ),
        ({"jobs": [{"id": "job_1", "created_at": "soon"}]}, ("job_1", None, None)),
    ],
)
def test_a_page_in_every_shape_it_may_have(body: Any, expected: tuple[Any, ...]) -> None:
    page = listing.page(Answer(200, {}, json.dumps(body).encode()))
    assert page is not None
    (job,) = page.jobs
    assert (job.job_id, job.status, job.created_at) == expected


@pytest.mark.parametrize("body", [b"{", b"7", b'{"data": {}}', b"[[1", b'{"data": null}'])
def test_what_is_no_page(body: bytes) -> None:
    assert listing.page(Answer(200, {}, body)) is None
    assert listing.page(Answer(404, {}, b'{"data": []}')) is None
