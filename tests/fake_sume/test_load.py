"""The fake is fast enough to be no part of what is measured with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from local.fake_sume import Behaviour

ROOT = Path(__file__).resolve().parents[2]


async def submit_all(port: int, keys: list[str], connections: int) -> None:
    """Submit over so many keep-alive connections, with as little work as possible."""
    waiting = iter(keys)

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for key in waiting:
            body = json.dumps({"model": "sume/auto", "prompt": f"prompt {key}"}).encode()
            head = (
                "POST /v1/images HTTP/1.1\r\nHost: fake\r\nContent-Type: application/json\r\n"
                f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 202 "), answer
            length = answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(work() for _ in range(connections)))


def test_submits_for_each_second_of_processor_time(tmp_path):
    command = [sys.executable, "-m", "local.fake_sume", "--port", "0"]
    command += ["--journal", str(tmp_path / "journal.jsonl"), "--job-seconds", "0.1-0.5"]
    count = 3_000
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            port = int(child.stdout.readline().rsplit(":", 1)[1])
            process = psutil.Process(child.pid)
            before = process.cpu_times()
            keys = [f"render-job-{n}" for n in range(count)]
            asyncio.run(submit_all(port, keys, 32))
            after = process.cpu_times()
        finally:
            child.terminate()
    used = after.user + after.system - before.user - before.system
    # Processor time, as the machine may be busy with other things; one core has one second of it.
    assert count / used > 1_500


def test_five_hundred_held_requests(make_fake):
    fake = make_fake(auto_advance=False)
    release = threading.Event()
    fake.always_on_submit(Behaviour(hold=release))
    port = int(fake.url.rsplit(":", 1)[1])
    keys = [f"render-job-{n}" for n in range(500)]
    thread = threading.Thread(target=lambda: asyncio.run(submit_all(port, keys, 500)))
    thread.start()
    deadline = time.monotonic() + 10
    while fake.billed < 500:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(item.status is None for item in fake.requests)
    release.set()
    thread.join(10)
    assert [item.status for item in fake.requests] == [202] * 500
