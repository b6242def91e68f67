"""Where follow-ups go: an SQS queue, an EventBridge bus. Knows no tables.

boto3 is imported when the first message is to be sent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from sume_jobs import telemetry
from sume_jobs.decisions.follow_up_event import SOURCE, queue_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sume_jobs.decisions.follow_up_event import Message
    from sume_jobs.settings import Settings

# A call to a target takes no longer than this, its repetition and the wait between included.
CALL_SECONDS: Final = 15.0

# Faults of a request as a whole that a single message in it may have caused.
_ABOUT_CONTENT: Final = frozenset(
    {
        "BatchRequestTooLong",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "ValidationException",
    }
)


class TargetUnavailable(RuntimeError):
    """The target takes nothing now: permission, name, network. The message is a code."""


class Target(Protocol):
    """Takes up to ten messages at once."""

    name: str

    def send(self, messages: Sequence[Message]) -> dict[str, str]:
        """Send; gives the ids of those that were refused, each with an error code.

        Raises TargetUnavailable where nothing can be said about any single message.
        """


def names(settings: Settings) -> tuple[str, ...]:
    """Name the targets that are set."""
    wanted = {"sqs": settings.follow_up_queue_url, "eventbridge": settings.follow_up_event_bus}
    return tuple(name for name, value in wanted.items() if value)


def open_targets(settings: Settings) -> list[Target]:
    """Open every target that is set. Raises TargetUnavailable, for example without a region."""
    targets: list[Target] = []
    if settings.follow_up_queue_url:
        targets.append(_queue(settings.follow_up_queue_url))
    if settings.follow_up_event_bus:
        targets.append(_bus(settings.follow_up_event_bus))
    return targets


def _queue(url: str) -> Queue:
    return Queue(_client("sqs", _region_of_url(url)), url)


def _bus(bus: str) -> Bus:
    return Bus(_client("events", _region_of_bus(bus)), bus)


class Queue:
    """An SQS queue. A FIFO queue drops a message that it had within the last five minutes."""

    name = "sqs"

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url
        self._is_fifo = url.endswith(".fifo")

    def send(self, messages: Sequence[Message]) -> dict[str, str]:
        """Send as one batch; see `Target`."""
        return _send(self._send, messages)

    def _send(self, messages: Sequence[Message]) -> dict[str, str]:
        answer = self._client.send_message_batch(
            QueueUrl=self._url,
            Entries=[
                {"Id": str(number), "MessageBody": each.body, **self._extras(each)}
                for number, each in enumerate(messages)
            ],
        )
        sent = {entry["Id"] for entry in answer.get("Successful", ())}
        codes = {entry["Id"]: entry.get("Code") for entry in answer.get("Failed", ())}
        return {
            each.id: codes.get(str(number)) or "unknown"
            for number, each in enumerate(messages)
            if str(number) not in sent
        }

    def _extras(self, message: Message) -> dict[str, Any]:
        extras: dict[str, Any] = {
            "MessageAttributes": {
                "kind": {"DataType": "String", "StringValue": message.kind},
                "deduplication_id": {"DataType": "String", "StringValue": message.id},
            }
        }
        if self._is_fifo:
            extras["MessageGroupId"] = queue_id(message.group)
            extras["MessageDeduplicationId"] = queue_id(message.id)
        return extras


class Bus:
    """An EventBridge bus, by its name or ARN: source `sume-jobs`, detail-type is the kind."""

    name = "eventbridge"

    def __init__(self, client: Any, bus: str) -> None:
        self._client = client
        self._bus = bus

    def send(self, messages: Sequence[Message]) -> dict[str, str]:
        """Put as one call; see `Target`."""
        return _send(self._send, messages)

    def _send(self, messages: Sequence[Message]) -> dict[str, str]:
        answer = self._client.put_events(
            Entries=[
                {
                    "EventBusName": self._bus,
                    "Source": SOURCE,
                    "DetailType": each.kind,
                    "Detail": each.body,
                    "Time": each.occurred_at,
                }
                for each in messages
            ]
        )
        # One entry for each message, in order; without an id it was refused.
        entries = [*answer.get("Entries", ()), *([{}] * len(messages))]
        return {
            each.id: entry.get("ErrorCode") or "unknown"
            for each, entry in zip(messages, entries, strict=False)
            if not entry.get("EventId")
        }


def deliver_later(record: Mapping[str, Any], seconds: float) -> None:
    """Ask the queue of a received record to wait so long before it delivers it again.

    Without it the record waits for the queue's own time, which is made for the longest run.
    """
    arn, handle = str(record.get("eventSourceARN", "")), record.get("receiptHandle")
    parts = arn.split(":")
    if len(parts) != 6 or not handle:
        return
    from botocore.exceptions import BotoCoreError, ClientError

    _, partition, _, region, account, name = parts
    suffix = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    try:
        _client("sqs", region).change_message_visibility(
            QueueUrl=f"https://sqs.{region}.{suffix}/{account}/{name}",
            ReceiptHandle=handle,
            VisibilityTimeout=round(seconds),
        )
    except (BotoCoreError, ClientError, TargetUnavailable) as error:
        telemetry.warn("delivery_not_put_off", reason=_code(error))


def _send(
    call: Callable[[Sequence[Message]], dict[str, str]], messages: Sequence[Message]
) -> dict[str, str]:
    """Call; where one message may have spoiled the whole request, send each by itself."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call(messages)
    except ClientError as error:
        code = _code(error)
        if code not in _ABOUT_CONTENT:
            raise TargetUnavailable(code) from None
    except BotoCoreError as error:
        # The text may hold parts of the request: only the kind is passed on.
        raise TargetUnavailable(type(error).__name__) from None
    if len(messages) == 1:
        return {messages[0].id: code}
    refused: dict[str, str] = {}
    for each in messages:
        refused |= _send(call, [each])
    if len(refused) == len(messages):
        raise TargetUnavailable(code)
    return refused


def _code(error: Any) -> str:
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code") or type(error).__name__)


def _region_of_url(url: str) -> str | None:
    found = re.match(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.", url, re.ASCII)
    return found[1] if found else None


def _region_of_bus(bus: str) -> str | None:
    parts = bus.split(":")
    return parts[3] if len(parts) > 3 and parts[0] == "arn" else None


def _client(service: str, region: str | None) -> Any:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    patience = Config(connect_timeout=2, read_timeout=4, retries={"total_max_attempts": 2})
    try:
        # Without the stubs' overloads: not every service has them.
        make: Any = boto3.client
        return make(service, region_name=region or None, config=patience)
    except BotoCoreError as error:
        raise TargetUnavailable(type(error).__name__) from None
