"""CloudFormation's protocol for custom resources: work that a deployment waits for.

CloudFormation invokes the function and then waits until an answer is put to the address that the
request names. An answer is sent whatever happens, so that a deployment fails at once and with a
reason instead of hanging until it gives up.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from sume_jobs import telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

# One for ever: a changed id would make CloudFormation delete the resource it had before.
PHYSICAL_ID: Final = "sume-jobs-schema"
TRIES: Final = 3
# CloudFormation takes at most 4096 bytes of answer.
REASON_CHARACTERS: Final = 1000


class AnswerNotDelivered(RuntimeError):
    """CloudFormation could not be told; the message leaves out the signed address."""


def is_request(event: Any) -> bool:
    """Tell whether CloudFormation sent this event."""
    return isinstance(event, dict) and "RequestType" in event and "ResponseURL" in event


def serve(
    event: Any,
    work: Callable[[], dict[str, Any]],
    harmless_on_update: type[Exception] | tuple[type[Exception], ...] = (),
) -> dict[str, Any]:
    """Do the work and tell CloudFormation, where it asked, how that went.

    For an event of anybody else the value or the exception of the work is the caller's. For
    CloudFormation's, Create and Update do the work unless the resource says `Enabled: false`,
    Delete does nothing, and the value is the answer that was sent. `harmless_on_update` are
    exceptions that do not fail an Update. Raises AnswerNotDelivered.
    """
    if not is_request(event):
        return work()
    answer = {
        "Status": "SUCCESS",
        "PhysicalResourceId": event.get("PhysicalResourceId") or PHYSICAL_ID,
        "StackId": event.get("StackId"),
        "RequestId": event.get("RequestId"),
        "LogicalResourceId": event.get("LogicalResourceId"),
    }
    kind = event["RequestType"]
    try:
        if kind in ("Create", "Update") and _is_enabled(event):
            work()
    except Exception as error:  # whatever it is, CloudFormation must hear of it
        harmless = kind == "Update" and isinstance(error, harmless_on_update)
        answer |= {"Status": "SUCCESS" if harmless else "FAILED", "Reason": reason(error)}
        telemetry.alarm("deployment_work_failed", request=kind, harmless=harmless, **_kind(error))
    _deliver(str(event["ResponseURL"]), answer)
    telemetry.event("deployment_answered", request=kind, status=answer["Status"])
    return answer


def _is_enabled(event: dict[str, Any]) -> bool:
    properties = event.get("ResourceProperties") or {}
    return str(properties.get("Enabled", "true")).lower() != "false"


def reason(error: Exception) -> str:
    """Say why in one line. Of a database error only its main message: the rest may quote rows."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    text = " ".join(str(primary or error).split()) or "no message"
    return f"{type(error).__name__}: {text}"[:REASON_CHARACTERS]


def _kind(error: Exception) -> dict[str, Any]:
    return {"reason": reason(error), "sqlstate": getattr(error, "sqlstate", None)}


def _deliver(url: str, answer: dict[str, Any]) -> None:
    import requests

    body = json.dumps(answer).encode()
    failure = ""
    for number in range(TRIES):
        if number:
            time.sleep(number)
        try:
            # The address is signed for an empty content type.
            answered = requests.put(url, data=body, headers={"content-type": ""}, timeout=(3, 10))
        except requests.RequestException as error:
            failure = type(error).__name__
            continue
        if answered.ok:
            return
        failure = f"HTTP {answered.status_code}"
    raise AnswerNotDelivered(
        f"CloudFormation could not be told ({failure}): a function in a VPC needs a way out to S3"
    )
