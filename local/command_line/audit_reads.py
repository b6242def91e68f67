"""Reading at Sume for an audit: out of the shared budget of reads, patient, never guessing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sume_jobs.decisions import backoff, listing, outcomes
from sume_jobs.decisions.outcomes import NoAnswer
from sume_jobs.decisions.pacing import pace
from sume_jobs.store import pace as pace_store

from local.command_line.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sume_jobs.connection import Database
    from sume_jobs.decisions.listing import Listed
    from sume_jobs.decisions.outcomes import Answer
    from sume_jobs.settings import Settings
    from sume_jobs.sume_client import SumeClient

TRIES: Final = 4
# The longest that a closed gate or an empty budget is waited for, in seconds.
PATIENCE: Final = 120.0
# A job may be listed a little out of order, and clocks differ a little; seconds.
MARGIN: Final = 60.0


@dataclass
class Reads:
    """Reads one thing after the other; `count` is how many requests that took."""

    client: SumeClient
    database: Database
    settings: Settings
    sleep: Callable[[float], None] = time.sleep
    count: int = 0

    def page(self, cursor: str | None) -> listing.Page:
        """Read one page of the list. Raises CommandError where Sume does not give it."""
        answer = self._ask(lambda: self.client.jobs(listing.LARGEST_PAGE, cursor))
        if isinstance(answer, NoAnswer):
            raise CommandError(f"Sume does not answer ({answer.reason}): check SUME_BASE_URL.")
        page = listing.page(answer)
        if page is None:
            raise CommandError(
                f"Sume does not list its jobs (HTTP {answer.status}): `./sume-jobs doctor` tells "
                "whether the API key and SUME_BASE_URL are right."
            )
        return page

    def job(self, job_id: str) -> Listed | bool | None:
        """Read one job; False where Sume does not know it, None where it does not say."""
        answer = self._ask(lambda: self.client.job(job_id))
        if isinstance(answer, NoAnswer):
            return None
        if answer.status in (404, 410):
            return False
        outcome = outcomes.decide_read(answer, job_id, time.time())
        return listing.single(answer) if outcome.action == "state" else None

    def _ask(self, call: Callable[[], Answer | NoAnswer]) -> Answer | NoAnswer:
        for attempt in range(1, TRIES + 1):
            self._take_token()
            answer = call()
            self.count += 1
            wait = _wait_before_another(answer, attempt)
            if wait is None or attempt == TRIES:
                break
            if wait > PATIENCE:
                raise CommandError(f"Sume asks to come back in {wait:.0f} s: repeat the audit.")
            self.sleep(wait)
        return answer

    def _take_token(self) -> None:
        rate = pace(self.settings.reads_per_minute)
        waited = 0.0
        while not pace_store.take(self.database, "reads", rate):
            if waited >= PATIENCE:
                raise CommandError(self._why_not())
            wait = min(max(1.0 / rate.rate, 0.05), 5.0)
            waited += wait
            self.sleep(wait)

    def _why_not(self) -> str:
        gate = next(each for each in pace_store.state(self.database) if each["name"] == "reads")
        if gate["is_closed"]:
            return (
                f"The gate for reads is not open ({gate['reason']}): mend the reason, or open it "
                "with `./sume-jobs gate open`, and repeat the audit."
            )
        return "Others use up the budget of reads: repeat the audit when there is less to poll."


def _wait_before_another(answer: Answer | NoAnswer, attempt: int) -> float | None:
    """How long to wait before the same is asked again, in seconds; None: it need not be.

    Also after a 429 no gate is closed: the next poll finds out by itself, and can open it again.
    """
    if isinstance(answer, NoAnswer):
        return float(attempt)
    if answer.status in (429, 503):
        asked = backoff.parse_retry_after(
            answer.headers.get("retry-after"), answer.headers.get("date"), time.time()
        )
        return asked or backoff.DEFAULT_RETRY_AFTER
    return float(attempt) if answer.status >= 500 else None


@dataclass
class Walk:
    """A walk over the list: what it came to is known when it has ended.

    `reached` tells that the list was read as far back as `since`; `dated` that every job told
    when it was made.
    """

    since: float
    pages: int = 0
    jobs: int = 0
    unread: int = 0
    reached: bool = False
    dated: bool = True
    tells_key: bool = False
    ends_early: str | None = None

    def over(self, reads: Reads, most: int) -> Iterator[list[Listed]]:
        """Give the pages, each job once, until the window is left, the list ends, or at `most`."""
        cursor: str | None = None
        seen: set[str] = set()
        cursors: set[str] = set()
        # The order is not documented: where it was not seen to be newest first, all is read.
        falls = rises = False
        last: float | None = None
        while True:
            page = reads.page(cursor)
            fresh = [job for job in page.jobs if job.job_id not in seen]
            seen.update(job.job_id for job in fresh)
            self.pages += 1
            self.jobs += len(fresh)
            self.unread += page.unread
            self.tells_key = self.tells_key or any(job.key for job in fresh)
            times = [job.created_at for job in page.jobs]
            dates = [each for each in times if each is not None]
            self.dated = self.dated and len(dates) == len(times)
            for each in dates:
                falls = falls or (last is not None and each < last)
                rises = rises or (last is not None and each > last + MARGIN)
                last = each
            yield fresh
            is_dated = bool(dates) and len(dates) == len(times)
            if is_dated and falls and not rises and max(dates) < self.since - MARGIN:
                self.reached = True
                return
            cursor = page.next_cursor
            if cursor is None:
                # A full page without a way on is not the end of the list.
                self.reached = len(page.jobs) < listing.LARGEST_PAGE
                self.ends_early = None if self.reached else "Sume gives no cursor after it"
                return
            if cursor in cursors or not page.jobs:
                self.ends_early = "Sume's cursor leads in a circle"
                return
            cursors.add(cursor)
            if self.jobs >= most:
                self.ends_early = f"--most {most} was reached"
                return
