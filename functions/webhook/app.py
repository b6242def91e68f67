"""Receives Sume's webhooks behind API Gateway (payload 2.0 and 1.0)."""

from __future__ import annotations

import json
from typing import Any

from sume_jobs import runtime, telemetry
from sume_jobs.flows import webhook
from sume_jobs.flows.time_left import TimeLeft


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answer one delivery: 200 with its outcome, 400, 401, 413, or 503 to be asked again."""
    left = TimeLeft(context, webhook.ANSWER_SECONDS)
    try:
        response = webhook.receive(runtime.current(left.seconds), event)
    finally:
        telemetry.flush()
    return {
        "statusCode": response.status,
        "headers": {"content-type": "application/json"},
        "body": json.dumps(response.body),
        "isBase64Encoded": False,
    }
