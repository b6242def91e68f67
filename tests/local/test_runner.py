"""The local runner holds Lambda's rules: cold and warm, overlap, limits, kill, no orphans."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from local.runner import PROJECT, Function, InvocationError, Runner

STUB = "tests.local.handlers.stub"


def functions(**changes):
    names = ["echo", "sleep", "fail", "leave", "vanish", "unserializable", "not_a_number", "huge"]
    return [
        Function(name, f"{STUB}.{name}", changes.get("timeout", 10.0), 128, changes.get(name))
        for name in names
    ]


@pytest.fixture
def runner(tmp_path):
    with Runner(functions(), log_folder=tmp_path / "logs") as runner:
        yield runner


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_first_call_is_cold_and_the_next_one_warm_in_the_same_process(runner):
    first, second = runner.invoke("echo", {"n": 1}), runner.invoke("echo", {"n": 2})
    assert (first.cold, second.cold) == (True, False)
    assert first.container == second.container == first.value["pid"]
    assert second.value["event"] == {"n": 2}
    assert second.value["calls"] == 2
    assert runner.statistics()["echo"].cold_starts == 1


def test_cold_mode_gives_every_call_a_fresh_process(tmp_path):
    with Runner(functions(), log_folder=tmp_path, cold=True) as runner:
        first, second = runner.invoke("echo", {}), runner.invoke("echo", {})
        assert first.container != second.container
        assert second.cold
        assert second.value["calls"] == 1
        assert runner.containers("echo") == []


def test_context_and_environment_look_like_lambda(runner, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "1")
    value = runner.invoke("echo", {}).value
    assert value["name"] == "echo"
    assert value["memory"] == "128"
    assert 9_000 < value["remaining"] <= 10_000
    assert value["arn"].endswith(":function:echo")
    assert value["environment"]["AWS_LAMBDA_FUNCTION_NAME"] == "echo"
    assert value["environment"]["TZ"] == ":UTC"
    assert "SECRET_OF_THE_SHELL" not in value["environment"]


def test_environment_of_the_runner_and_of_the_function(tmp_path):
    function = Function("echo", f"{STUB}.echo", 10, 128, None, {"A": "function"})
    environment = {"A": "bundle", "B": "bundle"}
    with Runner([function], log_folder=tmp_path, environment=environment) as runner:
        seen = runner.invoke("echo", {}).value["environment"]
    assert (seen["A"], seen["B"]) == ("function", "bundle")


def test_overlapping_calls_get_containers_of_their_own_and_keep_them_warm(runner):
    found = []

    def call():
        found.append(runner.invoke("sleep", {"seconds": 0.5}))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({invocation.container for invocation in found}) == 3
    assert len(runner.containers("sleep")) == 3
    assert not runner.invoke("sleep", {"seconds": 0}).cold


def test_calls_beyond_the_concurrency_are_throttled(tmp_path):
    with Runner(functions(sleep=1), log_folder=tmp_path) as runner:
        thread = threading.Thread(target=runner.invoke, args=("sleep", {"seconds": 0.5}))
        thread.start()
        wait_until(lambda: runner.running("sleep") == 1)
        refused = runner.invoke("sleep", {"seconds": 0})
        thread.join()
        assert refused.failure.kind == "TooManyRequestsException"
        assert runner.statistics()["sleep"].throttles == 1
        assert runner.invoke("sleep", {"seconds": 0}).failure is None


def test_a_call_longer_than_the_timeout_is_killed(tmp_path):
    with Runner(functions(timeout=0.4), log_folder=tmp_path) as runner:
        runner.invoke("sleep", {"seconds": 0})
        (container,) = runner.containers("sleep")
        started = time.monotonic()
        late = runner.invoke("sleep", {"seconds": 60})
        assert time.monotonic() - started < 5
        assert late.failure.kind == "Sandbox.Timedout"
        assert late.failure.message == "Task timed out after 0.40 seconds"
        assert late.peak_memory_bytes >= 0
        assert gone(container)
        assert runner.invoke("sleep", {"seconds": 0}).cold
        assert runner.statistics()["sleep"].timeouts == 1


def test_an_uncaught_error_is_reported_and_the_container_kept(runner):
    invocation = runner.invoke("fail", {})
    assert invocation.failure.kind == "LookupError"
    assert invocation.failure.message == "no such thing"
    with pytest.raises(InvocationError, match="LookupError: no such thing"):
        invocation.result()
    assert not runner.invoke("fail", {}).cold


@pytest.mark.parametrize(("name", "code"), [("leave", 7), ("vanish", 9)])
def test_a_crash_is_reported_and_the_next_call_works(runner, name, code):
    for _ in range(2):
        invocation = runner.invoke(name, {})
        assert invocation.failure.kind == "Runtime.ExitError"
        assert invocation.failure.message.endswith(f"exit status {code}")
    assert runner.statistics()[name].crashes == 2


@pytest.mark.parametrize("name", ["unserializable", "not_a_number"])
def test_an_answer_that_is_not_json_is_an_error(runner, name):
    assert runner.invoke(name, {}).failure.kind == "Runtime.MarshalError"


def test_payload_limits(runner):
    assert runner.invoke("huge", {}).failure.kind == "Function.ResponseSizeTooLarge"
    too_large = runner.invoke("echo", {"text": "x" * (7 * 1024 * 1024)})
    assert too_large.failure.kind == "RequestEntityTooLargeException"
    big = runner.invoke("echo", {"text": "x" * (4 * 1024 * 1024)})
    assert len(big.value["event"]["text"]) == 4 * 1024 * 1024


def test_a_handler_that_does_not_import_is_a_failure_each_time(tmp_path):
    names = ["tests.local.handlers.broken.handler", f"{STUB}.missing", "no.such.module"]
    broken = [Function(f"f{n}", name, 5, 128) for n, name in enumerate(names)]
    with Runner(broken, log_folder=tmp_path) as runner:
        kinds = [runner.invoke(function.name, {}).failure.kind for function in broken]
        assert kinds == ["ImportError", "AttributeError", "ModuleNotFoundError"]
        assert runner.invoke("f0", {}).failure.kind == "ImportError"


def test_a_container_that_died_while_idle_is_replaced_without_an_error(runner):
    runner.invoke("echo", {})
    (pid,) = runner.containers("echo")
    os.kill(pid, signal.SIGKILL)
    invocation = runner.invoke("echo", {})
    assert invocation.failure is None
    assert invocation.container != pid


def test_kill_ends_a_call_in_the_middle(runner, tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(runner.invoke("sleep", {"seconds": 60})))
    thread.start()
    log = tmp_path / "logs" / "sleep.log"
    wait_until(lambda: log.exists() and b"begins" in log.read_bytes())
    assert runner.kill("sleep") == 1
    thread.join(10)
    assert found[0].failure.kind == "Runtime.ExitError"
    assert found[0].failure.message.endswith("SIGKILL")
    assert runner.kill("sleep") == 0


def test_logs_go_to_a_file_of_the_function(runner, tmp_path, capfd):
    runner.invoke("sleep", {"seconds": 0})
    runner.invoke("fail", {})
    lines = (tmp_path / "logs" / "sleep.log").read_text().splitlines()
    assert lines[0] == "begins"
    report = json.loads(lines[1])
    assert report["type"] == "platform.report"
    assert report["record"]["status"] == "success"
    error = json.loads((tmp_path / "logs" / "fail.log").read_text().splitlines()[0])
    assert error["errorType"] == "LookupError"
    assert capfd.readouterr() == ("", "")


def test_memory_and_counts_are_kept(runner):
    for _ in range(3):
        runner.invoke("sleep", {"seconds": 0})
    found = runner.statistics()["sleep"]
    assert found.counts["slept"] == 3
    assert 5 < found.peak_memory_bytes / 2**20 < 128
    assert found.invocations == 3
    assert found.longest_seconds <= found.seconds


def test_closing_the_runner_ends_everything(tmp_path):
    runner = Runner(functions(), log_folder=tmp_path)
    runner.invoke("echo", {})
    thread = threading.Thread(target=runner.invoke, args=("sleep", {"seconds": 60}))
    thread.start()
    log = tmp_path / "sleep.log"
    wait_until(lambda: log.exists() and b"begins" in log.read_bytes())
    pids = runner.containers("echo") + runner.containers("sleep")
    runner.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        runner.invoke("echo", {})


OWNER = """
import sys, threading, time
from pathlib import Path
from local.runner import Function, Runner
runner = Runner(
    [Function(n, "tests.local.handlers.stub." + n, 60, 128) for n in ("echo", "sleep")],
    log_folder=Path(sys.argv[1]),
)
runner.invoke("echo", {})
threading.Thread(target=runner.invoke, args=("sleep", {"seconds": 50}), daemon=True).start()
while len(runner.containers("sleep")) < 1:
    time.sleep(0.01)
print(*runner.containers("echo"), *runner.containers("sleep"), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_container_outlives_a_killed_runner(tmp_path, how):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE
    ) as owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        log = Path(tmp_path / "sleep.log")
        wait_until(lambda: log.exists() and b"begins" in log.read_bytes())
        owner.send_signal(how)
        owner.wait()
    assert len(pids) == 2
    for pid in pids:
        wait_until(lambda pid=pid: gone(pid))
