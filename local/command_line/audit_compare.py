"""The judgements of an audit: what a difference means, and whether somebody must act on it.

Nothing here reads or asks; what it judges was looked at twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from sume_jobs.decisions.status import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sume_jobs.decisions.listing import Listed
    from sume_jobs.store.audit import Conflict, Held, Owner

# An end at Sume that is older than this should have come by webhook or poll; seconds.
CATCH_UP: Final = 900.0
# Clocks differ a little; seconds.
MARGIN: Final = 60.0
# Conflicts that name a job which belongs to somebody else, and so is no second job of the row.
OF_OTHERS: Final = ("idempotency_key_collision", "job_of_another_row")

Kind = Literal["owned_by_none", "second_job", "settles_itself", "of_others"]


@dataclass(frozen=True, slots=True)
class Stranger:
    """A job at Sume that we do not hold, and what is known of its owner.

    owned_by_none: paid work that nobody follows. second_job: its row and generation have another
    job. settles_itself: its row will be sent again with the same key and learn of it. of_others:
    its key is none of ours.
    """

    job_id: str
    kind: Kind
    status: str | None
    created_at: float | None
    key: str | None
    row_id: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A job whose status is another one at Sume; `must_act` is False while it is catching up."""

    job_id: str
    row_id: int | None
    ours: str
    theirs: str | None
    must_act: bool
    why: str


@dataclass(frozen=True, slots=True)
class Twice:
    """Several jobs for one row and generation, which is to say for one key."""

    key: str
    row_id: int | None
    job_ids: tuple[str, ...]

    @property
    def extra(self) -> int:
        """How many of them should not be there."""
        return len(self.job_ids) - 1


def compare(ours: Held, theirs: Listed, now: float) -> Difference | None:
    """Judge one job that both have; None where they agree or Sume's word is unknown."""
    if theirs.status is None or theirs.status == ours.status:
        return None

    def differs(must_act: bool, why: str) -> Difference:
        return Difference(ours.job_id, ours.row_id, ours.status, theirs.word, must_act, why)

    if ours.status in TERMINAL:
        if theirs.status in TERMINAL:
            return differs(True, "two ends that contradict each other; the first one stands here")
        return differs(True, "it has ended here, and Sume says that it goes on")
    if theirs.status not in TERMINAL:
        # Between queued and processing a poll may be a while behind; nobody waits for it.
        return differs(False, "not the last look yet")
    if ours.next_look is None or ours.next_look < -CATCH_UP:
        return differs(True, "it has ended at Sume, and no poll looks at it")
    if theirs.updated_at is not None and now - theirs.updated_at > CATCH_UP:
        return differs(True, "it ended at Sume a while ago, and neither webhook nor poll told")
    return differs(False, "it has just ended; webhook or poll will tell")


@dataclass
class Owners:
    """What the tables say of who may own a job. `doubtful` rows answer for one job each."""

    prefix: str
    by_key: Mapping[str, Owner]
    job_by_key: Mapping[str, str]
    doubtful: list[Owner]
    heard_of: set[str]
    conflicts: Mapping[str, Conflict]
    _used: set[int] = field(default_factory=set)

    def judge(self, job: Listed) -> Stranger:
        """Judge a job that we do not hold."""
        conflict = self.conflicts.get(job.job_id)
        if conflict is not None and conflict.reason == "idempotency_key_collision":
            return self._stranger(
                job, "of_others", conflict.row_id, "kept in job_conflict: another made its key"
            )
        key = job.key or (conflict.key if conflict else None)
        if key is not None:
            return self._by_key(job, key)
        return self._by_time(job)

    def _by_key(self, job: Listed, key: str) -> Stranger:
        owner, held = self.by_key.get(key), self.job_by_key.get(key)
        row_id = owner.row_id if owner else None
        if held is not None and held != job.job_id:
            return self._stranger(job, "second_job", row_id, f"its key has made {held} already")
        if owner is None:
            if key.startswith(self.prefix + "-"):
                why = "its key is ours, but no row has it: deleted, or of another database"
                return self._stranger(job, "owned_by_none", None, why)
            return self._stranger(job, "of_others", None, f"keys of ours begin with {self.prefix}-")
        if owner.status in ("pending", "submitting"):
            why = f"row {owner.row_id} is {owner.status} and will learn of it with its key"
            return self._stranger(job, "settles_itself", row_id, why)
        why = f"row {owner.row_id} is {owner.status} and does not know it"
        return self._stranger(job, "owned_by_none", row_id, why)

    def _by_time(self, job: Listed) -> Stranger:
        """Without its key: a row whose send had no known outcome may have made it."""
        for owner in self.doubtful:
            if owner.row_id not in self._used and _may_have_made(owner, job):
                self._used.add(owner.row_id)
                if owner.status == "failed":
                    why = f"it may be row {owner.row_id}'s, which failed without a known outcome"
                    return self._stranger(job, "owned_by_none", owner.row_id, why)
                why = f"it may be row {owner.row_id}'s, which is {owner.status}"
                return self._stranger(job, "settles_itself", owner.row_id, why)
        if job.job_id in self.heard_of:
            why = "its webhook came here, so a request of ours made it"
        else:
            why = "no row can have made it; another application of the workspace may have"
        return self._stranger(job, "owned_by_none", None, why)

    @staticmethod
    def _stranger(job: Listed, kind: Kind, row_id: int | None, why: str) -> Stranger:
        return Stranger(job.job_id, kind, job.word, job.created_at, job.key, row_id, why)


def _may_have_made(owner: Owner, job: Listed) -> bool:
    if owner.unknown_from is None or job.created_at is None:
        return True
    if job.created_at < owner.unknown_from - MARGIN:
        return False
    # A row that has failed sends no more.
    return owner.status != "failed" or job.created_at <= owner.updated_at + MARGIN


def billed_twice(
    conflicts: Iterable[Conflict],
    listed: Iterable[Listed],
    job_by_key: Mapping[str, str],
    row_by_key: Mapping[str, int],
) -> list[Twice]:
    """Find the keys with more than one job, in what we hold, in job_conflict and at Sume."""
    jobs: defaultdict[str, set[str]] = defaultdict(set)
    rows = dict(row_by_key)
    for conflict in conflicts:
        if conflict.key and conflict.reason not in OF_OTHERS:
            jobs[conflict.key].add(conflict.job_id)
            if conflict.row_id is not None:
                rows.setdefault(conflict.key, conflict.row_id)
    for job in listed:
        if job.key:
            jobs[job.key].add(job.job_id)
    for key, job_id in job_by_key.items():
        if key in jobs:
            jobs[key].add(job_id)
    return [
        Twice(key, rows.get(key), tuple(sorted(found)))
        for key, found in sorted(jobs.items())
        if len(found) > 1
    ]
