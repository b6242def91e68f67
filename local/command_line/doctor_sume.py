"""The doctor's look at Sume: two reads that cost nothing and bill nothing."""

from __future__ import annotations

import email.utils
import time
from typing import TYPE_CHECKING

from sume_jobs.decisions import listing
from sume_jobs.decisions.outcomes import NoAnswer
from sume_jobs.decisions.pacing import pace
from sume_jobs.store import pace as pace_store

from local.command_line.doctor_database import compare_clocks
from local.command_line.doctor_finding import Finding, Limits, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sume_jobs.connection import Database
    from sume_jobs.settings import Settings
    from sume_jobs.sume_client import SumeClient

# The Date header counts in whole seconds.
DATE_DOUBT = 1.0


def check_sume(
    client: SumeClient, settings: Settings, database: Database | None, limits: Limits
) -> Iterator[Finding]:
    """Ask for one job of the list and for the balance, out of the budget of reads.

    Asked also while the gate is closed: two reads that a person wants, to learn why.
    """
    rate = pace(settings.reads_per_minute)
    if database is not None:
        pace_store.take(database, "reads", rate)
    before = time.time()
    answer = client.jobs(limit=1)
    after = time.time()
    if isinstance(answer, NoAnswer):
        yield problem(
            "sume",
            f"{settings.sume_base_url} does not answer ({answer.reason})",
            "check SUME_BASE_URL, the network path (a function in a VPC needs a way out) and "
            "Sume's status page",
        )
        return
    yield _judge(answer.status, settings)
    yield from _check_date(answer.headers, (before + after) / 2, (after - before) / 2, limits)
    if 200 <= answer.status < 300:
        yield from _check_read_limit(answer.headers, settings)
        if database is not None:
            pace_store.take(database, "reads", rate)
        yield from _check_balance(client)


def _judge(status: int, settings: Settings) -> Finding:
    where = settings.sume_base_url
    if 200 <= status < 300:
        return ok("sume", f"{where} accepts the API key")
    if status in (401, 402, 403):
        advice = {
            401: "put the right key into its secret; it is read anew by itself",
            402: "the workspace has no credits",
            403: "the key is valid, but its workspace lacks access",
        }[status]
        return problem("sume", f"{where} refuses the API key ({status})", advice)
    if status in (429, 503):
        return warning(
            "sume",
            f"{where} asks for patience ({status})",
            "does another program use this key? Lower SUME_READS_PER_MINUTE, or wait",
        )
    if status == 404 or 300 <= status < 400:
        return problem(
            "sume",
            f"{where} has no list of jobs ({status})",
            "is SUME_BASE_URL the address of Sume's API?",
        )
    return warning("sume", f"{where} answers {status}", "Sume's status page; wait")


def _check_date(
    headers: Mapping[str, str], at: float, doubt: float, limits: Limits
) -> Iterator[Finding]:
    try:
        theirs = email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (TypeError, ValueError):
        yield ok("clocks", "Sume's answer has no date to compare with")
        return
    # Cut to the second: on the average it was half a second later.
    yield compare_clocks("Sume server", theirs + 0.5 - at, doubt + DATE_DOUBT, limits)


def _check_read_limit(headers: Mapping[str, str], settings: Settings) -> Iterator[Finding]:
    told = headers.get("ratelimit-limit") or headers.get("x-ratelimit-limit") or ""
    if not (told.isascii() and told.isdigit()):
        yield ok(
            "budget",
            f"SUME_READS_PER_MINUTE is {settings.reads_per_minute}; Sume does not tell this key's "
            "limit of reads",
        )
    elif settings.reads_per_minute > int(told):
        yield warning(
            "budget",
            f"SUME_READS_PER_MINUTE is {settings.reads_per_minute}, Sume allows this key {told}",
            f"set it to {told} or less: above it Sume answers 429 and the gate closes",
        )
    else:
        yield ok(
            "budget",
            f"SUME_READS_PER_MINUTE is {settings.reads_per_minute} of the {told} that Sume allows "
            "this key",
        )


def _check_balance(client: SumeClient) -> Iterator[Finding]:
    answer = client.balance()
    left = None if isinstance(answer, NoAnswer) else listing.balance(answer)
    if left is None:
        yield ok("balance", "Sume does not tell the balance")
    elif left <= 0:
        yield problem(
            "balance",
            "nothing is left of the balance",
            "buy credits at Sume: until then submits are answered 402 and the queue stands still",
        )
    else:
        yield ok("balance", f"{left / 1_000_000:.2f} left of the balance")
