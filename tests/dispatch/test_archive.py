"""archive with the real handler in its own process, against the fake and the S3 of moto."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sume_jobs import targets

from local.fake_sume import Behaviour, FakeSume
from local.fake_sume.picture import png
from tests.dispatch.artifact_host import ArtifactHost
from tests.dispatch.conftest import Aws
from tests.support.bundle import Bundle, key_of
from tests.support.container import BASE_ENVIRONMENT
from tests.support.invariants import check_invariants
from tests.support.postgres import Database

PNG = png("any")
BUCKET = "archive"


@pytest.fixture
def archive(at_aws: Bundle, aws: Aws) -> Bundle:
    """The deployment with a bucket."""
    at_aws.set(ARCHIVE_BUCKET=aws.bucket(BUCKET))
    return at_aws


@pytest.fixture
def host() -> Iterator[ArtifactHost]:
    with ArtifactHost() as server:
        yield server


def done(
    bundle: Bundle, fake: FakeSume, artifacts: list[dict[str, Any]] | None = None, poll: bool = True
) -> str:
    """A completed job; with `poll` its result is known."""
    _, job = bundle.job()
    fake.set_status(job, "completed", artifacts=artifacts)
    if poll:
        bundle.poll_now()
        bundle.poll_now()
        assert bundle.database.job(job)["result"]
    else:
        bundle.W(fake.webhook_body(job, "completed"))
    return job


def follow_up(job: str, kind: str = "job.completed") -> dict[str, Any]:
    return {"version": 1, "id": f"{job}:{kind}", "kind": kind, "job_id": job}


def sqs_event(*bodies: Any, fifo: bool = False, receives: int = 1) -> dict[str, Any]:
    """What Lambda hands over for messages with these bodies; the numbers are the message ids."""
    return {
        "Records": [
            {
                "messageId": str(number),
                "receiptHandle": f"handle-{number}",
                "body": body if isinstance(body, str) else json.dumps(body),
                "attributes": {
                    "ApproximateReceiveCount": str(receives),
                    **({"MessageGroupId": f"group-{number}"} if fifo else {}),
                },
                "messageAttributes": {},
                "md5OfBody": "",
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:archive"
                + (".fifo" if fifo else ""),
                "awsRegion": "eu-central-1",
            }
            for number, body in enumerate(bodies)
        ]
    }


def A(bundle: Bundle, *bodies: Any, **options: Any) -> list[int]:
    """archive, once; the places of the messages that are to be delivered again."""
    shape = {name: options.pop(name) for name in ("fifo", "receives") if name in options}
    result = bundle.start("archive", event=sqs_event(*bodies, **shape), **options).result()
    return [int(each["itemIdentifier"]) for each in result["batchItemFailures"]]


def reasons(bundle: Bundle) -> list[str]:
    return [
        line["reason"]
        for line in bundle.logs("ERROR")
        if line["message"] == "artifact_not_archived"
    ]


def test_a_follow_up_from_the_queue_becomes_objects_and_a_manifest(
    archive: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    queue = aws.queue("archive")
    archive.set(FOLLOW_UP_QUEUE_URL=queue)
    job = done(archive, fake)
    database.execute(
        'update gen_job set result = result || \'{"seed": 1285704473650888702, "price": 0.30}\''
    )
    (message,) = aws.received(queue)
    assert A(archive, message["Body"]) == []
    objects = aws.objects(BUCKET)
    picture = fake_picture(job)
    manifest = json.loads(objects.pop(f"sume-jobs/{job}/manifest.json"))
    assert objects == {f"sume-jobs/{job}/1.png": picture}
    row = database.row(1)["id"]
    assert manifest == {
        "version": 1,
        "job_id": job,
        "idempotency_key": key_of(row),
        "render_job_id": str(row),
        "artifacts": [
            {
                "name": f"sume-jobs/{job}/1.png",
                "bytes": len(picture),
                "sha256": hashlib.sha256(picture).hexdigest(),
                "content_type": "image/png",
                "type": "image",
            }
        ],
    }
    result = database.job(job)["result"]
    assert result["artifacts"][0]["location"] == f"s3://{BUCKET}/sume-jobs/{job}/1.png"
    assert result["artifacts"][0]["url"].startswith(fake.url)
    assert result["archive"] == {"manifest": f"s3://{BUCKET}/sume-jobs/{job}/manifest.json"}
    digits = database.one("select result ->> 'seed' || ' ' || (result ->> 'price') from gen_job")
    assert digits == "1285704473650888702 0.30"
    downloads = [each for each in fake.requests if each.path.startswith("/artifacts/")]
    assert len(downloads) == 1
    assert "authorization" not in downloads[0].headers
    assert "x-api-key" not in downloads[0].headers
    # Delivered again: nothing is read or written.
    assert A(archive, message["Body"], message["Body"]) == []
    assert len([each for each in fake.requests if each.path.startswith("/artifacts/")]) == 1
    assert archive.metric("Archived") == 1
    check_invariants(archive)


def fake_picture(job: str) -> bytes:
    return png(job.removeprefix("job_"))


def test_the_sample_events_are_understood(archive: Bundle, root: Path) -> None:
    tick = json.loads((root / "events" / "dispatch.json").read_text())
    assert archive.start("dispatch", event=tick).result()["backlog"] == 0
    batch = json.loads((root / "events" / "archive.json").read_text())
    assert archive.start("archive", event=batch).result() == {"batchItemFailures": []}
    (line,) = [each for each in archive.logs() if each["message"] == "archive_without_job"]
    assert line["job"] == json.loads(batch["Records"][0]["body"])["job_id"]


def test_it_is_off_without_a_bucket(at_aws: Bundle, fake: FakeSume) -> None:
    assert A(at_aws, follow_up("job_1")) == [0], "nothing is lost: the queue keeps it"


def test_other_messages_are_taken_and_poison_fails_alone(
    archive: Bundle, aws: Aws, fake: FakeSume
) -> None:
    job = done(archive, fake)
    by_bus = {"source": "sume-jobs", "detail-type": "job.completed", "detail": follow_up(job)}
    bodies = [
        "not json",
        "[]",
        {**follow_up(job), "version": 99},
        follow_up("job_failed", "job.failed"),
        follow_up("job_that_is_gone"),
        by_bus,
    ]
    assert A(archive, *bodies) == [0, 1, 2]
    assert f"sume-jobs/{job}/1.png" in aws.objects(BUCKET)
    assert A(archive, "not json", follow_up(job), fifo=True) == [0]


@pytest.mark.parametrize("status", [403, 404, 410])
def test_p46_a_dead_url_is_replaced_by_a_fresh_one(
    archive: Bundle, aws: Aws, fake: FakeSume, database: Database, status: int
) -> None:
    job = done(archive, fake)
    fake.on_artifact(Behaviour(status=status))
    reads = len([each for each in fake.requests if each.path.endswith("/result")])
    assert A(archive, follow_up(job)) == []
    assert aws.objects(BUCKET)[f"sume-jobs/{job}/1.png"] == fake_picture(job)
    assert len([each for each in fake.requests if each.path.endswith("/result")]) == reads + 1
    assert database.job(job)["status"] == "completed"


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(status=200, body=b"<html>This image is not available</html>"),
        Behaviour(
            status=200, body=b"<html>Not available</html>", headers={"Content-Type": "image/png"}
        ),
        Behaviour(drop="mid_body"),
        Behaviour(drop="after"),
        Behaviour(status=500),
        Behaviour(status=403),
    ],
    ids=["page", "page_as_png", "short", "reset", "500", "403"],
)
def test_p46_what_is_not_the_artifact_is_not_stored(
    archive: Bundle, aws: Aws, fake: FakeSume, database: Database, behaviour: Behaviour
) -> None:
    job = done(archive, fake)
    fake.always_on_artifact(behaviour)
    before = database.job(job)
    assert A(archive, follow_up(job)) == [0]
    assert aws.objects(BUCKET) == {}
    assert database.job(job) == before
    assert len(reasons(archive)) == 1
    fake.always_on_artifact(None)
    assert A(archive, follow_up(job)) == []
    assert aws.objects(BUCKET)[f"sume-jobs/{job}/1.png"] == fake_picture(job)


def test_p47_a_result_that_is_not_there_yet(
    archive: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    job = done(archive, fake, poll=False)
    late = Behaviour(status=409, code="job_not_completed")
    empty = Behaviour(json={"data": {"status": "COMPLETED", "result": {"artifacts": []}}})
    fake.on_result(late, late, empty)
    queue = aws.queue("archive")
    archive.set(FOLLOW_UP_QUEUE_URL=queue)
    archive.start("dispatch").result()
    (message,) = aws.received(queue)
    for receives in (1, 2, 3):
        assert A(archive, message["Body"], receives=receives) == [0]
    assert database.job(job)["status"] == "completed"
    assert A(archive, message["Body"], receives=4) == []
    assert aws.objects(BUCKET)[f"sume-jobs/{job}/1.png"] == fake_picture(job)
    result = database.job(job)["result"]
    assert result["artifacts"][0]["location"]
    archive.poll_now()
    assert database.job(job)["result"] == result
    assert database.state(1) == "done"


def test_a_failed_message_is_put_off_for_less_than_the_queues_own_time(
    archive: Bundle, aws: Aws, fake: FakeSume, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = aws.queue("archive", VisibilityTimeout="1800")
    sqs = aws.client("sqs")
    job = done(archive, fake)
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(follow_up(job)))
    fake.always_on_artifact(Behaviour(status=500))
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    event = sqs_event(message["Body"])
    (record,) = event["Records"]
    record["receiptHandle"] = message["ReceiptHandle"]
    assert archive.start("archive", event=event).result()["batchItemFailures"]
    assert not [x for x in archive.logs() if x["message"] == "delivery_not_put_off"]
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    # The same request, without the wait of five seconds.
    for name, value in {**archive.environment, **BASE_ENVIRONMENT}.items():
        monkeypatch.setenv(name, value)
    targets.deliver_later(record, 0.0)
    assert len(sqs.receive_message(QueueUrl=queue)["Messages"]) == 1
    targets.deliver_later({**record, "receiptHandle": "nonsense"}, 0.0)
    targets.deliver_later({}, 0.0)


def test_p65_a_worker_that_dies_after_the_copy_leaves_one_object(
    archive: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    job = done(archive, fake)
    database.sleep_at_commit("gen_job", "update", 30, "new.result ? 'archive'")
    victim = archive.another()
    run = archive.start("archive", event=sqs_event(follow_up(job)), container=victim)
    database.wait_for_sleeper()
    victim.kill()
    database.terminate_sessions()
    run.wait()
    database.stop_sleeping("gen_job", "update")
    first = aws.objects(BUCKET)
    assert "archive" not in database.job(job)["result"]
    assert A(archive, follow_up(job)) == []
    assert aws.objects(BUCKET) == first
    assert sorted(first) == [f"sume-jobs/{job}/1.png", f"sume-jobs/{job}/manifest.json"]
    assert database.job(job)["result"]["archive"]


def test_two_at_once_write_the_same(
    archive: Bundle, aws: Aws, fake: FakeSume, database: Database
) -> None:
    job = done(archive, fake)
    fake.always_on_artifact(Behaviour(delay=0.3))
    runs = [
        archive.start("archive", event=sqs_event(follow_up(job)), container=archive.another())
        for _ in range(2)
    ]
    assert [run.result()["batchItemFailures"] for run in runs] == [[], []]
    assert len(aws.objects(BUCKET)) == 2
    assert len(database.job(job)["result"]["artifacts"]) == 1


def test_p87_large_files_are_streamed_and_nothing_stays_on_disk(
    archive: Bundle,
    aws: Aws,
    fake: FakeSume,
    database: Database,
    host: ArtifactHost,
    tmp_path: Path,
) -> None:
    """Warm, file after file under the same name, every third one cut in the middle."""
    archive.set(TMPDIR=str(tmp_path))
    size = 20 * 1024 * 1024
    block = b"\x00\x00\x00\x18ftypmp42" + b"v" * (size - 12)
    turns = itertools.count()
    headers = {"Content-Type": "video/mp4"}

    def video() -> tuple[int, dict[str, str], bytes]:
        if next(turns) % 3 == 2:
            return 200, {**headers, "Content-Length": str(size)}, block[: size // 2]
        return 200, headers, block

    host.answers["/out.mp4"] = video
    artifact = {"url": f"{host.url}/out.mp4", "type": "video", "content_type": "video/mp4"}
    jobs = [done(archive, fake, [artifact]) for _ in range(3)]
    container = archive.warm("archive")
    failures = [A(archive, follow_up(job)) for job in jobs]
    assert failures == [[], [], [0]]
    stored = aws.objects(BUCKET)
    assert [f"sume-jobs/{job}/1.mp4" in stored for job in jobs] == [True, True, False]
    assert {len(body) for name, body in stored.items() if name.endswith(".mp4")} == {size}
    uploads = aws.client("s3").list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    assert not uploads, "a cut upload is taken back"
    assert list(tmp_path.iterdir()) == []
    assert container.peak_memory() < 250 * 1024 * 1024


def test_a_file_over_the_cap_is_refused_announced_or_not(
    archive: Bundle, aws: Aws, fake: FakeSume, host: ArtifactHost
) -> None:
    archive.set(ARCHIVE_MAX_BYTES=1000)
    big = PNG + b"\x00" * 2000

    def chunked() -> tuple[int, dict[str, str], bytes]:
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(big), big)
        return 200, {"Content-Type": "image/png", "Transfer-Encoding": "chunked"}, framed

    host.answers["/announced.png"] = (200, {"Content-Type": "image/png"}, big)
    host.answers["/chunked.png"] = chunked
    for name in ("announced", "chunked"):
        job = done(archive, fake, [{"url": f"{host.url}/{name}.png", "content_type": "image/png"}])
        assert A(archive, follow_up(job)) == [0]
    assert aws.objects(BUCKET) == {}
    assert reasons(archive) == ["too_large", "too_large"]


def test_redirects_are_followed_a_few_times_and_never_inwards(
    archive: Bundle, aws: Aws, fake: FakeSume, host: ArtifactHost
) -> None:
    host.answers |= {
        "/ok": (302, {"Location": "/ok2"}, b""),
        "/ok2": (307, {"Location": f"{host.url}/picture"}, b""),
        "/picture": (200, {"Content-Type": "image/png"}, PNG),
        "/loop": (302, {"Location": "/loop"}, b""),
        "/metadata": (302, {"Location": "http://169.254.169.254/latest/meta-data"}, b""),
        "/inside": (302, {"Location": "https://10.0.0.7/"}, b""),
        "/file": (302, {"Location": "file:///etc/passwd"}, b""),
    }

    def outcome(path: str) -> list[int]:
        job = done(
            archive, fake, [{"url": f"{host.url}{path}?token=secret-token", "type": "image"}]
        )
        return A(archive, follow_up(job))

    for path in list(host.answers):
        host.answers[f"{path}?token=secret-token"] = host.answers[path]
    assert outcome("/ok") == []
    assert all("authorization" not in headers for _, headers in host.seen)
    for path in ("/loop", "/metadata", "/inside", "/file"):
        assert outcome(path) == [0]
    assert reasons(archive) == [
        "too_many_redirects",
        "address_not_public",
        "address_not_public",
        "url_malformed",
    ]
    assert "secret-token" not in archive.output()


def test_no_artifact_from_this_machine_unless_sume_is_on_it(
    archive: Bundle, aws: Aws, fake: FakeSume
) -> None:
    job = done(archive, fake)
    archive.set(SUME_BASE_URL="https://api.sume.com")
    assert A(archive, follow_up(job)) == [0]
    assert reasons(archive) == ["address_not_public"]
    assert not [each for each in fake.requests if each.path.startswith("/artifacts/")]


def test_several_files_one_of_them_dead_for_good(
    archive: Bundle, aws: Aws, fake: FakeSume, host: ArtifactHost, database: Database
) -> None:
    host.answers["/a.png"] = (200, {"Content-Type": "image/png"}, PNG)
    artifacts = [
        {"url": f"{host.url}/a.png", "type": "image"},
        {"url": f"{host.url}/b.png", "type": "image"},
    ]
    job = done(archive, fake, artifacts)
    assert A(archive, follow_up(job)) == [0]
    assert "archive" not in database.job(job)["result"], "half is not archived"
    host.answers["/b.png"] = (200, {"Content-Type": "application/octet-stream"}, PNG + b"2")
    assert A(archive, follow_up(job)) == []
    stored = aws.objects(BUCKET)
    assert stored[f"sume-jobs/{job}/1.png"] == PNG
    assert stored[f"sume-jobs/{job}/2.png"] == PNG + b"2"


def test_a_bucket_that_takes_nothing(archive: Bundle, aws: Aws, fake: FakeSume) -> None:
    job = done(archive, fake)
    archive.set(ARCHIVE_BUCKET="nowhere")
    assert A(archive, follow_up(job)) == [0]
    archive.set(ARCHIVE_BUCKET=BUCKET)
    assert A(archive, follow_up(job)) == []


def test_too_little_time_gives_the_message_back(archive: Bundle, aws: Aws, fake: FakeSume) -> None:
    job = done(archive, fake)
    assert A(archive, follow_up(job), remaining=10.0) == [0]
    assert reasons(archive) == ["no_time_left"]
    assert aws.objects(BUCKET) == {}
