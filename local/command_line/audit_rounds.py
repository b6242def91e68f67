"""The rounds of an audit: list, look up, and look once more before anything is said."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sume_jobs.store import audit as store

from local.command_line.audit_compare import (
    Difference,
    Owners,
    Stranger,
    Twice,
    billed_twice,
    compare,
)
from local.command_line.audit_reads import Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from sume_jobs.connection import Database
    from sume_jobs.decisions.listing import Listed
    from sume_jobs.settings import Settings
    from sume_jobs.store.audit import Conflict, Held

    from local.command_line.audit_reads import Reads


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to audit: a window in seconds since the epoch, and how much of it at most."""

    since: float
    until: float
    most: int
    checks: int


@dataclass
class Report:
    """What an audit came to; see `document` for what each list holds."""

    wanted: Wanted
    walk: Walk
    reads: int = 0
    ours: int = 0
    matched: int = 0
    only_ours: list[Held] = field(default_factory=list)
    strangers: list[Stranger] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    twice: list[Twice] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    @property
    def only_theirs(self) -> list[Stranger]:
        """Paid work without an owner, second jobs of a row among it."""
        return [each for each in self.strangers if each.kind in ("owned_by_none", "second_job")]

    @property
    def status_differs(self) -> list[Difference]:
        """Those that will not come right by themselves."""
        return [each for each in self.differences if each.must_act]

    @property
    def billed_twice(self) -> int:
        """How many jobs there are beyond one for each row and generation."""
        return sum(each.extra for each in self.twice)

    @property
    def must_act(self) -> bool:
        """Whether there is anything that a person has to look into."""
        return bool(
            self.only_ours
            or self.only_theirs
            or self.status_differs
            or self.billed_twice
            or self.conflicts
        )

    def count(self, kind: str) -> int:
        """Count the jobs that we do not hold of one kind."""
        return sum(each.kind == kind for each in self.strangers)

    def document(self) -> dict[str, Any]:
        """The report as one JSON document; times are seconds since the epoch."""
        return {
            "window": {"since": self.wanted.since, "until": self.wanted.until},
            "must_act": self.must_act,
            "billed_twice": self.billed_twice,
            "ours": self.ours,
            "theirs": self.walk.jobs,
            "matched": self.matched,
            "only_ours": [asdict(each) for each in self.only_ours],
            "only_theirs": [asdict(each) for each in self.only_theirs],
            "status_differs": [asdict(each) for each in self.status_differs],
            "two_jobs_for_one_key": [asdict(each) for each in self.twice],
            "conflicts": [asdict(each) for each in self.conflicts],
            "settles_itself": self.count("settles_itself"),
            "of_others": self.count("of_others"),
            "catching_up": len(self.differences) - len(self.status_differs),
            "reads": self.reads,
            "pages": self.walk.pages,
            "unseen": self.unseen,
        }


def audit(
    database: Database,
    settings: Settings,
    reads: Reads,
    wanted: Wanted,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Compare Sume's jobs of a window with ours. Raises CommandError where Sume does not list.

    Whatever differs is asked of Sume and of the tables once more before it is reported, because
    jobs go on while they are listed.
    """
    report = Report(wanted, Walk(wanted.since))
    listed: dict[str, Listed] = {}
    unknown: list[Listed] = []
    differing: list[str] = []
    for page in report.walk.over(reads, wanted.most):
        listed.update((job.job_id, job) for job in page)
        inside = [job for job in page if _is_inside(job, wanted)]
        held = store.by_ids(database, [job.job_id for job in inside])
        for job in inside:
            if job.job_id not in held:
                unknown.append(job)
                continue
            report.matched += 1
            if compare(held[job.job_id], job, time.time()):
                differing.append(job.job_id)
        progress(f"{report.walk.jobs} jobs listed")
    missing = []
    for ours in store.in_window(database, wanted.since, wanted.until):
        report.ours += 1
        if ours.job_id not in listed:
            missing.append(ours.job_id)
    again = _Again(database, reads, wanted.checks, progress)
    report.strangers = again.strangers(unknown, settings, report, listed)
    report.differences = again.differences(differing)
    report.only_ours = again.only_ours(missing)
    report.reads = reads.count
    report.unseen = [*_unseen(report, listed, settings), *again.unseen]
    return report


def _is_inside(job: Listed, wanted: Wanted) -> bool:
    return job.created_at is None or wanted.since <= job.created_at < wanted.until


@dataclass
class _Again:
    """The second look: at Sume first, then at the tables, which may have learned meanwhile."""

    database: Database
    reads: Reads
    left: int
    progress: Callable[[str], None]
    unseen: list[str] = field(default_factory=list)

    def _look(self, job_ids: list[str], what: str) -> dict[str, Listed | bool]:
        """Ask Sume about each; those that it did not answer for, or that are too many, lack."""
        found: dict[str, Listed | bool] = {}
        allowed = job_ids[: max(0, self.left)]
        self.left -= len(allowed)
        for number, job_id in enumerate(allowed, 1):
            answer = self.reads.job(job_id)
            if answer is not None:
                found[job_id] = answer
            self.progress(f"{number} of {len(allowed)} {what} looked at again")
        if lack := len(job_ids) - len(found):
            self.unseen.append(
                f"{lack} {what} were not looked at again (more than --checks, or Sume did not "
                "answer), so nothing is said of them"
            )
        return found

    def strangers(
        self, jobs: list[Listed], settings: Settings, report: Report, listed: dict[str, Listed]
    ) -> list[Stranger]:
        """Judge the jobs that we do not hold, and what was billed twice."""
        wanted = report.wanted
        report.conflicts = store.conflicts(self.database, wanted.since, wanted.until)
        looked = self._look([job.job_id for job in jobs], "jobs that only Sume has")
        still = [job for job in looked.values() if not isinstance(job, bool)]
        listed.update((job.job_id, job) for job in still)
        held = store.by_ids(self.database, [job.job_id for job in still])
        still = [job for job in still if job.job_id not in held]
        keys = {job.key for job in still} | {each.key for each in report.conflicts}
        keys |= _keys_with_two(listed.values())
        wanted_keys = sorted(key for key in keys if key)
        by_key = store.owners(self.database, wanted_keys)
        job_by_key = store.jobs_of_keys(self.database, wanted_keys)
        owners = Owners(
            settings.idempotency_prefix,
            by_key,
            job_by_key,
            store.doubtful(self.database) if still else [],
            store.heard_of(self.database, [job.job_id for job in still]) if still else set(),
            {each.job_id: each for each in report.conflicts},
        )
        ours = [job for job in listed.values() if _is_of(job.key, settings, by_key, job_by_key)]
        report.twice = billed_twice(
            report.conflicts,
            ours,
            job_by_key,
            {key: owner.row_id for key, owner in by_key.items()},
        )
        # The oldest first, as the rows that may have made them are.
        still.sort(key=lambda job: job.created_at or 0.0)
        return [owners.judge(job) for job in still]

    def differences(self, job_ids: list[str]) -> list[Difference]:
        """Compare once more what differed."""
        looked = self._look(job_ids, "jobs whose status differs")
        held = store.by_ids(self.database, list(looked))
        found = []
        for job_id, theirs in looked.items():
            ours = held.get(job_id)
            if ours is None or isinstance(theirs, bool):
                continue
            if difference := compare(ours, theirs, time.time()):
                found.append(difference)
        return found

    def only_ours(self, job_ids: list[str]) -> list[Held]:
        """Those of our jobs that Sume does not know, when it is asked for each."""
        looked = self._look(job_ids, "jobs that Sume did not list")
        unknown = [job_id for job_id, theirs in looked.items() if theirs is False]
        return list(store.by_ids(self.database, unknown).values())


def _keys_with_two(jobs: Iterable[Listed]) -> set[str]:
    seen: defaultdict[str, int] = defaultdict(int)
    for job in jobs:
        if job.key:
            seen[job.key] += 1
    return {key for key, number in seen.items() if number > 1}


def _is_of(key: str | None, settings: Settings, *known: Container[str]) -> bool:
    """Whether a key is one of ours: by its prefix, or because a row or a job has it."""
    return key is not None and (
        key.startswith(settings.idempotency_prefix + "-") or any(key in each for each in known)
    )


def _unseen(report: Report, listed: dict[str, Listed], settings: Settings) -> list[str]:
    """Say what this audit could not see, and what that means."""
    walk, unseen = report.walk, []
    if not walk.reached:
        unseen.append(
            f"the list ended after {walk.jobs} jobs ({walk.ends_early}): older jobs that only Sume "
            "has were not seen"
        )
    if listed and not walk.tells_key:
        unseen.append(
            "Sume does not tell the idempotency keys: jobs were matched by their ids, and those "
            "that we do not hold by the time of a send without a known outcome; two jobs for one "
            "row show in job_conflict, and among the jobs without an owner"
        )
    if listed and not walk.dated:
        unseen.append(
            "Sume does not tell when each job was made: the whole list was compared, whatever the "
            "window"
        )
    if walk.unread:
        unseen.append(f"{walk.unread} entries of the list have no job id that could be read")
    words = sorted({job.word for job in listed.values() if job.word and job.status is None})
    if words:
        unseen.append(f"statuses that nobody knows were not compared: {', '.join(words)}")
    if report.wanted.until - report.wanted.since > settings.retention_days * 86400:
        unseen.append(
            f"what ended more than {settings.retention_days} days ago (RETENTION_DAYS) is deleted "
            "here, so those jobs look as if only Sume had them"
        )
    return unseen
