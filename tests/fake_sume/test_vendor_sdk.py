"""The vendor's own client works against the fake."""

from __future__ import annotations

import pytest
import sume_client

from local.fake_sume import Behaviour


@pytest.fixture
def sdk(fake):
    client = sume_client.SyncClient(base_url=fake.url, api_key="sume_live_test", timeout=5)
    yield client
    client._client.close()


def test_submit_status_result(fake, sdk):
    controller = sdk.submit("sume/auto", {"prompt": "a lighthouse"})

    job_id = controller.request_id
    assert list(fake.jobs) == [job_id]
    (post,) = fake.posts()
    assert post.path == "/v1/image-router/generate"
    assert post.headers["authorization"] == "Bearer sume_live_test"
    assert isinstance(sdk.status(job_id), sume_client.Queued)
    fake.set_status(job_id, "processing")
    assert isinstance(sdk.status(job_id), sume_client.InProgress)
    fake.set_status(job_id, "completed")
    assert isinstance(sdk.status(job_id), sume_client.Completed)
    result = sdk.result(job_id)
    assert result["status"] == "COMPLETED"
    assert result["result"]["artifacts"][0]["url"].startswith(fake.url)


def test_submit_with_a_webhook(fake, sdk, receiver, eventually):
    job_id = sdk.submit("sume/auto", {"prompt": "x"}, webhook_url=receiver.url).request_id
    fake.set_status(job_id, "completed")
    eventually(lambda: len(receiver.events) == 1)
    assert fake.jobs[job_id].mode == "webhook"


def test_failures(fake, sdk):
    job_id = sdk.submit("sume/auto", {"prompt": "x"}).request_id
    fake.set_status(job_id, "failed", error={"code": "boom"})
    assert isinstance(sdk.status(job_id), sume_client.Failed)
    assert sdk.result(job_id)["job"]["error"] == {"code": "boom"}
    rejected = {"code": "refused", "public_reason": "content_policy_rejected"}
    fake.set_status(job_id, "failed", error=rejected)
    assert isinstance(sdk.status(job_id), sume_client.NSFW)


def test_cancel(fake, sdk):
    job_id = sdk.submit("sume/auto", {"prompt": "x"}).request_id
    sdk.cancel(job_id)
    assert isinstance(sdk.status(job_id), sume_client.Cancelled)

    job_id = sdk.submit("sume/auto", {"prompt": "y"}).request_id
    fake.set_status(job_id, "processing")
    with pytest.raises(sume_client.SumeClientError) as caught:
        sdk.cancel(job_id)
    assert caught.value.status_code == 409
    assert caught.value.code == "job_generation_already_started"
    assert caught.value.request_id.startswith("req_")
    assert caught.value.details["cancelable"] is False


def test_its_retries_keep_the_key(fake, sdk):
    fake.on_submit(Behaviour(drop="after"), Behaviour(status=500))
    sdk.submit("sume/auto", {"prompt": "x"})
    assert len(fake.posts()) == 3
    assert fake.billed == 1


def test_it_does_not_retry_what_is_not_retryable(fake, sdk):
    fake.on_submit(Behaviour(status=429, retryable=False))
    with pytest.raises(sume_client.SumeClientError):
        sdk.submit("sume/auto", {"prompt": "x"})
    assert len(fake.posts()) == 1
