"""The local scheduler ticks, overlaps up to the concurrency, and never stops on errors."""

import time
from collections import Counter

import pytest

from local.runner import Function, Runner
from local.scheduler import Schedule, Scheduler, scheduled_event

STUB = "tests.local.handlers.stub"


@pytest.fixture
def runner(tmp_path):
    functions = [
        Function("echo", f"{STUB}.echo", 10, 128, 2),
        Function("fail", f"{STUB}.fail", 10, 128, 2),
        Function("vanish", f"{STUB}.vanish", 10, 128, 2),
        Function("slow", "tests.local.handlers.stub.slow", 10, 128, 2),
    ]
    with Runner(functions, log_folder=tmp_path) as runner:
        yield runner


def collect(runner, schedules, enough):
    found = []
    scheduler = Scheduler(runner, schedules, found.append)
    deadline = time.monotonic() + 20
    with scheduler:
        while not enough(Counter(invocation.function for invocation in found)):
            assert time.monotonic() < deadline, Counter(i.function for i in found)
            time.sleep(0.01)
        assert scheduler.stop(drain_seconds=10)
    return found, scheduler


def test_events_look_like_those_of_eventbridge_scheduler():
    event = scheduled_event("submit")
    assert event["source"] == "aws.scheduler"
    assert event["detail-type"] == "Scheduled Event"
    assert event["detail"] == "{}"
    assert event["resources"][0].endswith(":schedule/default/submit")
    assert time.strptime(event["time"], "%Y-%m-%dT%H:%M:%SZ")
    assert scheduled_event("submit")["id"] != event["id"]


def test_handler_errors_and_crashes_do_not_stop_the_ticks(runner):
    schedules = [Schedule(name, 0.02) for name in ("echo", "fail", "vanish")]
    found, _ = collect(
        runner, schedules, lambda counts: all(counts[n] >= 3 for n in ("echo", "fail", "vanish"))
    )
    kinds = {i.function: i.failure.kind for i in found if i.failure}
    assert kinds == {"fail": "LookupError", "vanish": "Runtime.ExitError"}
    assert all(i.value["event"]["source"] == "aws.scheduler" for i in found if not i.failure)


def test_slow_calls_overlap_up_to_the_concurrency_and_no_further(runner):
    found, scheduler = collect(runner, [Schedule("slow", 0.05)], lambda counts: counts["slow"] >= 4)
    assert len({invocation.container for invocation in found}) == 2
    assert scheduler.dropped["slow"] > 0
    assert runner.statistics()["slow"].throttles == 0


def test_stop_waits_no_longer_than_told(runner):
    scheduler = Scheduler(runner, [Schedule("slow", 5)])
    scheduler.start()
    while not runner.running("slow"):
        time.sleep(0.01)
    assert scheduler.stop(drain_seconds=0.01) is False
    assert scheduler.stop(drain_seconds=10) is True


def test_a_runner_closed_under_it_is_no_error(runner):
    scheduler = Scheduler(runner, [Schedule("slow", 0.05)])
    scheduler.start()
    while not runner.running("slow"):
        time.sleep(0.01)
    runner.close()
    assert scheduler.stop(drain_seconds=10)
