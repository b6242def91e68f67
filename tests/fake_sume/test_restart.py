"""The journal: jobs and keys outlive a stop, and a kill, of the fake."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import requests

from local.fake_sume import Behaviour, FakeSume

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "fake" / "journal.jsonl"


def test_jobs_and_keys_are_loaded(journal, make_fake, make_client):
    error = {"code": "boom", "message": "é\u0000"}
    first = make_fake(journal=journal, auto_advance=False)
    client = make_client(first.url)
    for key in ("queued", "failed", "completed", "forgotten"):
        client.submit(key, prompt=f"a {key} prompt, é")
    client.submit(None)
    first.set_status(first.job_for("failed").id, "failed", error=error)
    first.set_status(first.job_for("completed").id, "completed", artifacts=[{"url": "u"}])
    first.forget_key("forgotten")
    first.stop()

    second = make_fake(journal=journal, auto_advance=False)

    assert second.billed == 5
    assert second.billed_by_key == first.billed_by_key
    assert list(second.jobs) == list(first.jobs)
    for job_id, job in second.jobs.items():
        old = first.jobs[job_id]
        assert (job.key, job.body, job.status, job.created_at) == (
            old.key,
            old.body,
            old.status,
            old.created_at,
        )
    assert second.job_for("failed").error == error
    assert second.job_for("completed").artifacts == [{"url": "u"}]
    client = make_client(second.url)
    assert client.submit("queued", prompt="a queued prompt, é").json()["data"]["idempotency_hit"]
    assert client.submit("queued", prompt="other").status_code == 409
    fresh = client.submit("forgotten", prompt="a forgotten prompt, é").json()["data"]
    assert fresh["idempotency_hit"] is False


def test_unfinished_jobs_and_webhooks_go_on(journal, make_fake, make_client, receiver, eventually):
    first = make_fake(journal=journal, job_seconds=(60, 60), webhook_backoff=60)
    client = make_client(first.url)
    client.submit("running", webhook_url=receiver.url)
    client.submit("retrying", webhook_url=receiver.url)
    receiver.answers = [500]
    first.set_status(first.job_for("retrying").id, "completed")
    eventually(lambda: first.job_for("retrying").webhook_status == "retrying")
    first.stop()
    assert len(receiver.events) == 1

    second = make_fake(journal=journal)

    eventually(lambda: len(receiver.events) == 3)
    eventually(lambda: second.stats()["webhooks"]["jobs_by_delivery_state"] == {"delivered": 2})
    assert second.job_for("running").status == "completed"
    second.stop()
    third = make_fake(journal=journal)
    assert third.stats()["webhooks"]["under_way"] == 0


def test_line_that_was_not_finished_is_dropped(journal, make_fake, make_client):
    first = make_fake(journal=journal)
    make_client(first.url).submit("a")
    first.stop()
    with journal.open("ab") as file:
        file.write(b'{"change": "job", "id": "job_torn')

    second = make_fake(journal=journal)
    assert second.billed == 1
    assert make_client(second.url).submit("b").status_code == 202
    second.stop()
    lines = journal.read_bytes().splitlines()
    assert all(json.loads(line) for line in lines)
    assert make_fake(journal=journal).billed == 2


def test_line_that_is_only_a_torn_one(journal, make_fake):
    journal.parent.mkdir()
    journal.write_bytes(b"x" * 200_000)
    assert make_fake(journal=journal).billed == 0
    assert journal.read_bytes() == b""


def test_job_is_in_the_journal_before_the_answer_leaves(journal, make_fake, make_client):
    seen = []
    fake = make_fake(journal=journal, auto_advance=False)
    fake.on_submit(Behaviour(call=lambda job: seen.append(job.id in journal.read_text())))
    make_client(fake.url).submit()
    assert seen == [True]


class Process:
    """`python -m local.fake_sume` on a free port."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "local.fake_sume", "--port", "0", *arguments]
        self.child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        line = self.child.stdout.readline()
        assert line.startswith("fake Sume listens on http://127.0.0.1:")
        self.url = line.split()[-1]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.child.send_signal(number)
        output, _ = self.child.communicate(timeout=10)
        return self.child.returncode, output


def test_killed_while_busy(journal, make_client):
    """Every key that was answered 202 is the same job after a kill; no key ever has two."""
    arguments = ("--journal", str(journal), "--job-seconds", "0.01-0.5")
    process = Process(*arguments)
    accepted: dict[str, str] = {}
    stop = threading.Event()

    def submit(worker: int) -> None:
        client = make_client(process.url)
        for number in range(100_000):
            key = f"render-job-{worker}-{number}"
            try:
                accepted[key] = client.submit(key).json()["data"]["job"]["id"]
            except requests.RequestException:
                return
            if stop.is_set():
                return

    threads = [threading.Thread(target=submit, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    while len(accepted) < 300:
        assert any(thread.is_alive() for thread in threads)
    process.end(signal.SIGKILL)
    stop.set()
    for thread in threads:
        thread.join(10)

    process = Process(*arguments)
    client = make_client(process.url)
    for key, job_id in accepted.items():
        data = client.submit(key).json()["data"]
        assert (data["job"]["id"], data["idempotency_hit"]) == (job_id, True)
    stats = client.get("/_fake/stats").json()
    assert stats["most_jobs_for_one_key"] == 1
    assert len(accepted) <= stats["billed"] <= len(accepted) + 4
    assert process.end()[0] == 0


def test_command_line_and_control(make_client):
    process = Process(
        "--weather",
        "error500=1,slow_seconds=0.1",
        "--weather",
        "failed=1",
        "--failures",
        '[{"code": "mine"}]',
        "--keep-requests",
        "3",
        "--job-seconds",
        "0.01",
        "--api-key",
        "t",
        "--stats",
    )
    client = make_client(process.url)
    assert client.submit("a", token="wrong").status_code == 500, "weather before the door"
    assert client.submit("a").status_code == 500

    assert client.get("/_fake/weather").json()["error500"] == 1
    changed = client.post("/_fake/weather", json={"error500": 0}).json()
    assert changed == {"error500": 0, "failed": 1, "slow_seconds": 0.1}
    assert client.post("/_fake/weather", json={"rain": 1}).status_code == 400
    assert client.submit("a").json()["data"]["idempotency_hit"] is True
    assert client.submit("a", token="wrong").status_code == 401

    order = {"on": "submit", "key": "b", "behaviours": [{"status": 429, "code": "queue_full"}]}
    assert client.post("/_fake/behaviours", json=order).json() == {"ordered": 1}
    assert client.submit("b").json()["error"]["code"] == "queue_full"
    assert client.submit("b").status_code == 202
    lasting = {"on": "submit", "always": True, "behaviours": [{"status": 502, "body": "<p>"}]}
    client.post("/_fake/behaviours", json=lasting)
    assert [client.submit("c").status_code for _ in range(2)] == [502, 502]
    assert client.session.delete(f"{process.url}/_fake/behaviours").status_code == 200
    assert client.submit("c").status_code == 202
    hook = {"on": "webhook", "behaviours": [{"lost": True}]}
    assert client.post("/_fake/behaviours", json=hook).status_code == 200
    nested = {"on": "submit", "behaviours": [{"webhook": {"early": True}}]}
    assert client.post("/_fake/behaviours", json=nested).status_code == 200
    for wrong in (
        {"on": "nothing", "behaviours": []},
        {"on": "submit", "behaviours": [{"stauts": 500}]},
        {"on": "submit", "behaviours": [{"hold": 1}]},
        {"on": "submit"},
        [],
    ):
        assert client.post("/_fake/behaviours", json=wrong).status_code == 400

    job_id = client.submit("d").json()["data"]["job"]["id"]
    shown = client.post(f"/_fake/jobs/{job_id}", json={"status": "completed"}).json()
    assert shown == {"id": job_id, "key": "d", "status": "completed"}
    assert client.get(f"/_fake/jobs/{job_id}").json() == shown
    assert client.get("/_fake/jobs/job_unknown").status_code == 404
    client.post("/_fake/forget_key", json={"key": "d"})
    assert client.submit("d").json()["data"]["idempotency_hit"] is False

    log = client.get("/_fake/requests").json()
    assert len(log) == 3, "the log is bounded"
    assert "authorization" not in log[-1]["headers"]
    assert log[-1]["key"] == "d"
    stats = client.get("/_fake/stats?keys=true").json()
    assert stats["billed"] == 5
    assert stats["billed_by_key"] == {"a": 1, "b": 1, "c": 1, "d": 2}
    assert stats["most_jobs_for_one_key"] == 2
    assert stats["posts"] == stats["submits"] == stats["max_posts_in_60_seconds"] == 11
    assert stats["answers"]["POST 401"] == 1
    assert client.get("/_fake/nothing").status_code == 404
    code, output = process.end(signal.SIGINT)
    assert code == 0
    assert json.loads(output)["billed"] == 5


@pytest.mark.parametrize(
    "arguments",
    [("--weather", "rain=1"), ("--weather", "rate429"), ("--latency", "2-1"), ("--port", "x")],
)
def test_command_line_refuses_nonsense(arguments):
    command = [sys.executable, "-m", "local.fake_sume", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert run.returncode == 2
    assert "error:" in run.stderr


def test_port_that_is_taken(fake):
    port = int(fake.url.rsplit(":", 1)[1])
    with pytest.raises(OSError):
        FakeSume(port=port).start()


def test_no_file_is_left_open(journal, make_fake):
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(3):
        make_fake(journal=journal).stop()
    assert process.num_fds() <= before
