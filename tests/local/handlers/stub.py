"""Handlers that misbehave in one way each, for the tests of the local runner."""

import os
import sys
import time

CALLS = []


def echo(event, context):
    CALLS.append(context.aws_request_id)
    return {
        "event": event,
        "calls": len(CALLS),
        "pid": os.getpid(),
        "name": context.function_name,
        "memory": context.memory_limit_in_mb,
        "remaining": context.get_remaining_time_in_millis(),
        "arn": context.invoked_function_arn,
        "environment": dict(os.environ),
    }


def sleep(event, context):
    print("begins", flush=True)
    time.sleep(event["seconds"])
    return {"slept": 1, "remaining": context.get_remaining_time_in_millis()}


def fail(event, context):
    raise LookupError("no such thing")


def leave(event, context):
    sys.exit(7)


def vanish(event, context):
    os._exit(9)


def unserializable(event, context):
    return {"when": object()}


def not_a_number(event, context):
    return float("nan")


def huge(event, context):
    return "x" * (7 * 1024 * 1024)


def proxy(event, context):
    """Answers as the event's body asks, or with the event itself."""
    import json

    if event.get("routeKey", "").startswith("GET"):
        return event
    return json.loads(event["body"])


def slow(event, context):
    time.sleep(0.4)
    return {"slept": 1}
