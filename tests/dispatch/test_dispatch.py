"""dispatch with the real handlers in their own processes, against moto's SQS and EventBridge."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import pytest

from local.fake_sume import Behaviour, FakeSume
from tests.dispatch.conftest import Aws
from tests.support.bundle import Bundle, key_of
from tests.support.invariants import check_invariants
from tests.support.postgres import Database
from tests.support.waiting import wait_until


def O(bundle: Bundle, **options: Any) -> dict[str, Any]:  # noqa: E743 (the pitfalls' word)
    """dispatch, once."""
    result: dict[str, Any] = bundle.start("dispatch", **options).result()
    return result


def ended(bundle: Bundle, fake: FakeSume, count: int, status: str = "completed") -> list[str]:
    """Jobs that have ended, told by webhook."""
    jobs = [job for _, job in bundle.accepted(count)]
    for job in jobs:
        assert bundle.W(fake.webhook_body(job, status)).outcome == "applied"
    return jobs


def test_a_follow_up_reaches_queue_and_bus_with_ids_and_status_only(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue, bus_queue = aws.queue("follow-ups"), aws.bus("jobs")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue, FOLLOW_UP_EVENT_BUS="jobs")
    row = database.insert("a secret prompt", reference="order-9", id=9007199254740993)
    at_aws.D()
    job = database.row(row)["sume_job_id"]
    error = {"code": "content_policy_rejected", "message": "not to be passed on"}
    fake.set_status(job, "failed", error)
    at_aws.W(fake.webhook_body(job))
    assert O(at_aws) == {"dispatched": 1, "failed": 0, "backlog": 0}

    (message,) = aws.received(queue)
    (event,) = aws.events(bus_queue)
    detail = event.pop("detail")
    assert json.loads(message["Body"]) == detail
    assert (event["source"], event["detail-type"]) == ("sume-jobs", "job.failed")
    occurred = detail.pop("occurred_at")
    assert occurred.endswith("Z")
    assert detail == {
        "version": 1,
        "id": f"{job}:job.failed",
        "kind": "job.failed",
        "job_id": job,
        "idempotency_key": key_of(row),
        "render_job_id": "9007199254740993",
        "reference": "order-9",
        "status": "failed",
        "error_code": "content_policy_rejected",
    }
    attributes = {
        name: value["StringValue"] for name, value in message["MessageAttributes"].items()
    }
    assert attributes == {"kind": "job.failed", "deduplication_id": f"{job}:job.failed"}
    assert "secret prompt" not in message["Body"] + at_aws.output()
    (follow_up,) = database.follow_ups(job)
    assert follow_up["dispatched_at"]
    assert follow_up["sent_to"] == ["sqs", "eventbridge"]
    assert at_aws.metric("FollowUpDispatched") == 1
    assert O(at_aws) == {"dispatched": 0, "failed": 0, "backlog": 0}
    check_invariants(at_aws)


def test_a_fifo_queue_gets_group_and_deduplication_ids(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("follow-ups.fifo", FifoQueue="true")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue)
    jobs = ended(at_aws, fake, 3)
    assert O(at_aws)["dispatched"] == 3
    # The mark was lost: they are sent again, and the queue drops what it had.
    database.execute("update follow_up set dispatched_at = null, sent_to = '{}', run_after = now()")
    assert O(at_aws)["dispatched"] == 3
    attributes = [message["Attributes"] for message in aws.received(queue)]
    found = {each["MessageDeduplicationId"]: each["MessageGroupId"] for each in attributes}
    assert len(attributes) == 3
    assert found == {f"{job}:job.completed": job for job in jobs}


def test_without_a_target_everything_stays_and_is_counted(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    ended(bundle, fake, 2)
    assert O(bundle) == {"dispatched": 0, "failed": 0, "backlog": 2}
    database.age("1 hour")
    bundle.R()
    assert database.one("select sum(attempts)::int from follow_up") == 0
    assert not bundle.metric_values("OldestFollowUpSeconds"), "no target is no lag"


def test_too_little_time_means_counts_and_nothing_claimed(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    at_aws.set(FOLLOW_UP_QUEUE_URL=aws.queue("follow-ups"))
    ended(at_aws, fake, 1)
    for remaining in (-1.0, 0.0, 2.0, 15.0):
        assert O(at_aws, remaining=remaining)["dispatched"] == 0
    assert database.one("select attempts from follow_up") == 0
    assert O(at_aws, remaining=30.0)["dispatched"] == 1


def test_the_lag_is_told_by_reap_where_there_is_a_target(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    at_aws.set(FOLLOW_UP_QUEUE_URL=aws.queue("follow-ups"))
    ended(at_aws, fake, 1)
    database.age("2 hours")
    at_aws.R()
    (lag,) = at_aws.metric_values("OldestFollowUpSeconds")
    assert 7200 <= lag < 7300
    O(at_aws)
    at_aws.R()
    assert at_aws.metric_values("OldestFollowUpSeconds")[-1] == 0


def test_poll_hands_on_what_it_found_at_once(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("follow-ups")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue)
    _, job = at_aws.job()
    fake.set_status(job, "completed")
    at_aws.poll_now()
    assert [event["id"] for event in aws.events(queue)] == [f"{job}:job.completed"]


def test_two_dispatchers_share_the_work_and_send_each_once(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("follow-ups")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue)
    database.execute(
        "with job as (insert into gen_job (job_id, idempotency_key, status, next_poll_at)"
        " select 'job_' || n, 'key-' || n, 'completed', null from generate_series(1, 40) n"
        " returning job_id)"
        " insert into follow_up (job_id, kind) select job_id, 'job.completed' from job"
    )
    runs = [at_aws.start("dispatch", container=at_aws.another()) for _ in range(2)]
    counts = [run.result() for run in runs]
    assert sum(count["dispatched"] for count in counts) == 40
    assert all(count["dispatched"] for count in counts), counts
    seen = Counter(event["id"] for event in aws.events(queue))
    assert len(seen) == 40
    assert set(seen.values()) == {1}


# What goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["queue", "network"])
def test_a_target_that_takes_nothing_costs_no_attempt_and_stops_the_run(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database, missing: str
) -> None:
    queue = aws.queue("follow-ups")
    wrong = queue + "-misspelt" if missing == "queue" else queue
    at_aws.set(FOLLOW_UP_QUEUE_URL=wrong)
    if missing == "network":
        at_aws.set(AWS_ENDPOINT_URL="http://127.0.0.1:9")
    ended(at_aws, fake, 12)
    assert O(at_aws) == {"dispatched": 0, "failed": 10, "backlog": 12}
    follow_ups = database.query("select * from follow_up where last_error is not null")
    assert len(follow_ups) == 10, "the run ends with the first batch"
    assert {each["attempts"] for each in follow_ups} == {0}
    (alarm,) = [line for line in at_aws.logs("ERROR") if line["message"] == "follow_ups_not_sent"]
    assert alarm["target"] == "sqs"
    for _ in range(3):
        database.age("1 minute")
        O(at_aws)
    assert not database.one("select count(*) from follow_up where dead_reason is not null")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue, AWS_ENDPOINT_URL=aws.url)
    database.age("1 minute")
    assert O(at_aws) == {"dispatched": 12, "failed": 0, "backlog": 0}
    assert len(aws.received(queue)) == 12


def test_a_bus_that_is_gone_does_not_make_the_queue_receive_again(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("follow-ups")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue, FOLLOW_UP_EVENT_BUS="nowhere")
    ended(at_aws, fake, 2)
    for _ in range(3):
        O(at_aws)
        database.age("1 minute")
    assert len(aws.received(queue)) == 2
    at_aws.set(FOLLOW_UP_EVENT_BUS=None)
    database.age("1 minute")
    O(at_aws)
    assert not aws.received(queue)


def test_p65_a_worker_that_dies_between_send_and_mark(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("follow-ups.fifo", FifoQueue="true")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue)
    (job,) = ended(at_aws, fake, 1)
    # The mark sleeps at its commit, with the message already in the queue.
    database.sleep_at_commit("follow_up", "update", 30, "new.dispatched_at is not null")
    victim = at_aws.another()
    run = at_aws.start("dispatch", container=victim)
    database.wait_for_sleeper()
    victim.kill()
    database.terminate_sessions()
    assert run.wait().get("died")
    database.stop_sleeping("follow_up", "update")
    (follow_up,) = database.follow_ups(job)
    assert follow_up["dispatched_at"] is None
    assert O(at_aws)["dispatched"] == 0, "leased"
    database.age("5 minutes")
    assert O(at_aws)["dispatched"] == 1
    (message,) = aws.received(queue)
    assert message["Attributes"]["MessageDeduplicationId"] == f"{job}:job.completed"
    (follow_up,) = database.follow_ups(job)
    assert follow_up["dispatched_at"]
    assert follow_up["attempts"] == 2


def test_p66_a_follow_up_that_kills_its_worker_ends_and_one_without_a_job_too(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("follow-ups")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue)
    gone, poison, good = ended(at_aws, fake, 3)
    database.execute("delete from gen_job where job_id = %s", gone)
    # Twenty workers were killed in the middle of this one.
    database.execute("update follow_up set attempts = 20 where job_id = %s", poison)
    assert O(at_aws) == {"dispatched": 1, "failed": 2, "backlog": 0}
    assert [event["job_id"] for event in aws.events(queue)] == [good]
    reasons = {
        each["job_id"]: each["dead_reason"]
        for each in database.query("select job_id, dead_reason from follow_up")
    }
    assert reasons == {
        gone: "job_is_gone",
        poison: "attempts_exhausted: worker_ended",
        good: None,
    }
    assert at_aws.metric("FollowUpDead") == 2
    assert len([x for x in at_aws.logs("ERROR") if x["message"] == "follow_up_dead"]) == 2


# A row that never had a job -------------------------------------------------------------------


def test_a_row_that_is_refused_is_told_under_its_key(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("follow-ups")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue)
    row = database.insert(reference="order-1")
    fake.on_submit(Behaviour(status=400, code="invalid_request"))
    at_aws.D()
    assert database.row(row)["status"] == "failed"
    assert O(at_aws)["dispatched"] == 1
    (event,) = aws.events(queue)
    del event["occurred_at"]
    assert event == {
        "version": 1,
        "id": f"{key_of(row)}:submission.failed",
        "kind": "submission.failed",
        "job_id": None,
        "idempotency_key": key_of(row),
        "render_job_id": str(row),
        "reference": "order-1",
        "status": "failed",
        "error_code": "invalid_request",
    }
    check_invariants(at_aws)


def test_every_way_to_fail_without_a_job_is_told_once(
    bundle: Bundle, fake: FakeSume, database: Database
) -> None:
    bundle.set(MAX_ATTEMPTS=2)
    exhausted, expired, reaped, canceled, taken = database.insert_many(5)
    database.execute("update render_jobs set run_after = now() + interval '1 day'")
    database.execute("update render_jobs set run_after = now() where id = %s", exhausted)
    fake.on_submit(Behaviour(status=500, accept=False), Behaviour(status=500, accept=False))
    bundle.D()
    bundle.submit_later("1 hour")
    database.execute(
        "update render_jobs set run_after = now(), sends = 1,"
        " unknown_since = now() - interval '3 days' where id = %s",
        expired,
    )
    bundle.D()
    database.execute(
        "update render_jobs set status = 'submitting', attempts = 2, sends = 2,"
        " claimed_at = now() - interval '1 hour' where id = %s",
        reaped,
    )
    bundle.R()
    database.execute(
        "update render_jobs set run_after = now(), cancel_requested_at = now() where id = %s",
        canceled,
    )
    bundle.D()
    told = {
        (each["job_id"], each["kind"], each["render_job_id"])
        for each in database.query("select * from follow_up")
    }
    assert told == {(key_of(row), "submission.failed", row) for row in (exhausted, expired, reaped)}
    codes = {row: database.row(row)["error_code"] for row in (exhausted, expired, reaped)}
    assert codes == {
        exhausted: "attempts_exhausted",
        expired: "idempotency_window_expired",
        reaped: "attempts_exhausted",
    }
    assert database.row(canceled)["status"] == "canceled"
    assert database.row(taken)["status"] == "pending"


def test_a_late_success_after_the_failure_was_told_is_told_as_well(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    """failed -> submitted stays possible: whoever learns of the job records it."""
    queue = aws.queue("follow-ups")
    at_aws.set(FOLLOW_UP_QUEUE_URL=queue, MAX_ATTEMPTS=1)
    row = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    slow = at_aws.start("submit", container=at_aws.another())
    wait_until(fake.posts, "the POST arrives")
    database.age("11 minutes")
    at_aws.R()
    assert database.row(row)["status"] == "failed"
    O(at_aws)
    release.set()
    slow.result()
    job = database.row(row)["sume_job_id"]
    at_aws.W(fake.webhook_body(job, "completed"))
    O(at_aws)
    assert [event["id"] for event in aws.events(queue)] == [
        f"{key_of(row)}:submission.failed",
        f"{job}:job.completed",
    ]


def test_a_failed_row_is_purged_with_its_follow_up_but_not_before_it_is_sent(
    at_aws: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    row = database.insert()
    fake.on_submit(Behaviour(status=400))
    at_aws.D()
    database.age("40 days")
    at_aws.R()
    assert [each["id"] for each in database.rows()] == [row]
    at_aws.set(FOLLOW_UP_QUEUE_URL=aws.queue("follow-ups"))
    assert O(at_aws)["dispatched"] == 1
    at_aws.R()
    assert not database.rows()
    assert not database.query("select * from follow_up")
