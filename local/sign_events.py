"""Sign the sample webhook events in `events/` anew: `python -m local.sign_events`.

A webhook is only taken within five minutes of its timestamp, so the samples must be signed again
before they are sent to a running function. `--check` only tells whether each sample still carries
the signature that its own body and timestamp call for, its age aside, and fails where one does not.

The functions must know the sample secret: `SUME_WEBHOOK_SECRETS=whsec_sample_for_events_only`.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sume_jobs.decisions.signature import sign

EVENTS: Final = Path(__file__).resolve().parent.parent / "events"
SAMPLE_SECRET: Final = "whsec_sample_for_events_only"  # noqa: S105 - public on purpose
OTHER_SECRET: Final = "whsec_of_somebody_else"  # noqa: S105 - what no function is told


@dataclass(frozen=True)
class Case:
    """What a webhook sample stands for.

    `status` and `outcome` are the answer when the samples are sent in the order of `CASES` to a
    database that holds `events/jobs.sql`; `outcome` is None where the answer is an error. `age` is
    how many seconds before now it is signed, `secret` what it is signed with.
    """

    status: int
    outcome: str | None
    age: int = 0
    secret: str = SAMPLE_SECRET


CASES: Final[dict[str, Case]] = {
    "webhook_applied.json": Case(200, "applied"),
    "webhook_duplicate.json": Case(200, "duplicate"),
    "webhook_noop.json": Case(200, "noop"),
    "webhook_applied_failed.json": Case(200, "applied"),
    "webhook_held.json": Case(200, "held"),
    "webhook_ignored.json": Case(200, "ignored"),
    "webhook_base64.json": Case(200, "applied"),
    "webhook_rest_api.json": Case(200, "applied"),
    "webhook_not_json.json": Case(400, None),
    "webhook_bad_signature.json": Case(401, None, secret=OTHER_SECRET),
    "webhook_old_timestamp.json": Case(401, None, age=3600),
}


def raw_body(event: dict[str, Any]) -> bytes:
    """The bytes that the sender signed. Raises ValueError for base64 that is none."""
    body: str = event["body"]
    if event.get("isBase64Encoded"):
        return base64.b64decode(body, validate=True)
    return body.encode()


def header(event: dict[str, Any], name: str) -> str | None:
    """A header's value whatever the case of its name, or None."""
    for key, value in event["headers"].items():
        if key.lower() == name:
            return str(value)
    return None


def resign(event: dict[str, Any], now: int, case: Case, secret: str | None = None) -> None:
    """Sign an API Gateway event in place; both payload formats.

    `now` is in Unix seconds. `secret` replaces the sample secret (never the wrong one that a
    bad signature is made with).
    """
    if case.secret != SAMPLE_SECRET or secret is None:
        secret = case.secret
    timestamp = str(now - case.age)
    values = {
        "x-sume-timestamp": timestamp,
        "x-sume-signature": sign(timestamp, raw_body(event), secret),
    }
    for key in event["headers"]:
        if key.lower() in values:
            event["headers"][key] = values[key.lower()]
            if "multiValueHeaders" in event:
                event["multiValueHeaders"][key] = [values[key.lower()]]
    context = event["requestContext"]
    written = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now))
    if event.get("version") == "2.0":
        context.update(time=written, timeEpoch=now * 1000)
    else:
        context.update(requestTime=written, requestTimeEpoch=now * 1000)


def is_genuine(event: dict[str, Any], case: Case) -> bool:
    """Tell whether an event carries the signature that `resign` would give it at its own time."""
    timestamp = header(event, "x-sume-timestamp") or ""
    return header(event, "x-sume-signature") == sign(timestamp, raw_body(event), case.secret)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m local.sign_events",
        description="Sign the sample webhook events with the time of now.",
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing, fail on a wrong signature"
    )
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write there instead")
    parser.add_argument("--secret", help="sign with this secret, not with the sample secret")
    options = parser.parse_args(arguments)
    if options.check and (options.into or options.secret):
        parser.error("--check goes with no other option")
    target: Path = options.into or EVENTS
    target.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, case in CASES.items():
        event = json.loads((EVENTS / name).read_text(encoding="utf-8"))
        if options.check:
            if not is_genuine(event, case):
                stale.append(name)
            continue
        resign(event, int(time.time()), case, options.secret)
        written = json.dumps(event, indent=2, ensure_ascii=False) + "\n"
        (target / name).write_text(written, encoding="utf-8")
        print(f"{name:28} {case.status} {case.outcome or ''}".rstrip())
    for name in stale:
        print(f"events/{name}: the signature does not fit; run python -m local.sign_events")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
