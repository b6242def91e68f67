"""Runs the fake by itself: `python -m local.fake_sume --port 8010 --weather rate429=0.02`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from typing import Any

from .behaviour import AMOUNTS, SHARES
from .options import Options
from .server import FakeSume


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted or terminated; 0 then, 2 where it can not be started."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        fake = FakeSume(_options(given))
        fake.start()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    # One line, flushed: who started this process reads the address from it.
    print(f"fake Sume listens on {fake.url}", flush=True)
    done.wait()
    fake.stop()
    if given.stats:
        print(json.dumps(fake.stats(), indent=2), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m local.fake_sume", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8010, help="0 takes a free one (default 8010)")
    add("--latency", type=_range, default=(0.0, 0.0), help="seconds, or LEAST-MOST")
    add("--job-seconds", type=_range, default=(1.0, 5.0), help="LEAST-MOST (default 1-5)")
    add("--no-auto-advance", action="store_true", help="jobs stay queued")
    add("--concurrency", type=int, help="jobs processed at once")
    add("--writes-per-minute", type=int, help="for each API key")
    add("--reads-per-minute", type=int, help="for each API key")
    add("--queue-capacity", type=int, help="queued jobs before 429 queue_full")
    add("--credits", type=int, help="jobs that the balance pays for before 402")
    add("--api-key", action="append", help="let only this key in (may be repeated)")
    add("--submit-path", default="/v1/images", help="one more path that takes submits")
    add("--twin", choices=("replay", "wait", "conflict"), default="replay")
    add("--webhook-secret", default=Options.webhook_secret)
    add("--webhook-retries", type=int, default=Options.webhook_retries)
    add("--webhook-backoff", type=float, default=Options.webhook_backoff, help="seconds")
    add("--webhook-timeout", type=float, default=Options.webhook_timeout, help="seconds")
    add("--artifact-seconds", type=float, help="how long an artifact URL works")
    add("--failures", type=json.loads, help="JSON list of the errors that failed jobs carry")
    add("--tell-keys", action="store_true", help="lists and records tell the idempotency key")
    add("--journal", help="file that keeps jobs and keys over a restart")
    add("--seed", type=int, default=0, help="the same seed misbehaves alike")
    add("--keep-requests", type=int, default=10_000, help="length of the request log")
    add("--stats", action="store_true", help="print the counts at the end")
    add(
        "--weather",
        action="append",
        default=[],
        type=_shares,
        metavar="NAME=SHARE[,NAME=SHARE…]",
        help=f"shares: {', '.join(sorted(SHARES))}; amounts: {', '.join(sorted(AMOUNTS))}",
    )
    return parser


def _options(given: argparse.Namespace) -> Options:
    settings: dict[str, Any] = {
        name: value for name, value in vars(given).items() if name in Options.__dataclass_fields__
    }
    settings["auto_advance"] = not given.no_auto_advance
    settings["api_keys"] = given.api_key
    settings["weather"] = {name: share for each in given.weather for name, share in each.items()}
    if given.failures is None:
        del settings["failures"]
    return Options(**settings)


def _range(text: str) -> tuple[float, float]:
    least, _, most = text.partition("-")
    bounds = (float(least), float(most or least))
    if not 0 <= bounds[0] <= bounds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seconds")
    return bounds


def _shares(text: str) -> dict[str, float]:
    shares = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=SHARE")
        shares[name.strip()] = float(value)
    return shares


if __name__ == "__main__":
    sys.exit(main())
