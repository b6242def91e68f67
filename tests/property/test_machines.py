"""Both machines, walked at random: the store's statements against a model of Sume and of time.

The model is Sume itself (which key made which job, and how each job stands), the workers (claims
that are out, answers that come late, workers that were killed) and the webhooks (early, doubled, in
any order). After every step the promises must hold; at the end everything comes to rest.

EXAMPLES=50 walks fifty times as many ways as CI does.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sume_jobs.connection import Database as Store
from sume_jobs.decisions.pacing import pace
from sume_jobs.decisions.status import TERMINAL, may_move
from sume_jobs.secrets import Secrets
from sume_jobs.settings import Settings
from sume_jobs.store import gen_jobs, render_jobs, webhook_events
from sume_jobs.store.gen_jobs import Looked, Wish
from sume_jobs.store.render_jobs import Accepted, Claim, ClaimSettings, Refused

from tests.support.examples import examples
from tests.support.postgres import Database

MAX_ATTEMPTS = 3
MAX_GENERATIONS = 2
CLAIM_TIMEOUT = 600
RETENTION = 7200
CLAIMING = ClaimSettings("render-job", None, RETENTION, MAX_ATTEMPTS, 25.0, pace(10**6))

EMPTY = """
delete from follow_up; delete from webhook_event; delete from job_conflict; delete from gen_job;
delete from render_jobs;
update pace_gate set closed_until = null, closures = 0, probe_until = null, ambiguous = '{}'
"""


# What `Database.age` does, put together once instead of for each of some thousand steps.
AGE = """
do $$
declare
  moves text;
begin
  for moves in
    select format('update %I set %s', c.table_name,
                  string_agg(format('%1$I = %1$I - interval ''{interval}''', c.column_name), ', '))
      from information_schema.columns c
      join information_schema.tables t using (table_schema, table_name)
     where c.table_schema = 'public' and t.table_type = 'BASE TABLE'
       and c.data_type = 'timestamp with time zone' and c.is_generated = 'NEVER'
     group by c.table_name order by c.table_name desc loop
    execute moves;
  end loop;
end $$"""

MOVING = "select id, status from render_jobs where status in ('pending', 'submitting')"


@dataclass
class Sume:
    """What Sume knows: a job for each key, for ever, and each job's status."""

    jobs: dict[str, str] = field(default_factory=dict)  # key -> job id
    status: dict[str, str] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def submit(self, key: str) -> tuple[str, bool]:
        """The job of a key, and whether it was there before."""
        hit = key in self.jobs
        if not hit:
            self.jobs[key] = f"job_{len(self.jobs) + 1}"
            self.status[self.jobs[key]] = "queued"
            self.seen[self.jobs[key]].append("queued")
        return self.jobs[key], hit

    def move(self, job_id: str, status: str) -> None:
        if may_move(self.status[job_id], status):  # type: ignore[arg-type]
            self.status[job_id] = status
            self.seen[job_id].append(status)


class Machines(RuleBasedStateMachine):
    database: ClassVar[Database]
    store: ClassVar[Store]

    def __init__(self) -> None:
        super().__init__()
        self.sume = Sume()
        self.claims: list[Claim] = []  # claims that nobody has answered yet
        self.late: list[Claim] = []  # claims whose worker may still come with its answer
        self.events = 0
        self.delivered: list[tuple[str, str, str]] = []
        self.ends: dict[str, str] = {}  # job id -> its end, as first seen in the database
        self.known: set[str] = set()  # job ids that were handed to `record` as a success
        self.generations: dict[int, int] = {}

    @initialize()
    def empty(self) -> None:
        with self.database.connection.transaction():
            self.database.execute("set local session_replication_role = replica")
            self.database.execute(EMPTY)

    # ------------------------------------------------------------------ what happens

    @rule(count=st.integers(1, 3), priority=st.integers(0, 3))
    def insert(self, count: int, priority: int) -> None:
        for _ in range(count):
            self.store.run(
                "insert into render_jobs (prompt, priority) values ('a fox', %(p)s)",
                {"p": priority},
            )

    @rule(wanted=st.integers(1, 4), alone=st.booleans())
    def claim(self, wanted: int, alone: bool) -> None:
        result = render_jobs.claim(self.store, CLAIMING, wanted, alone)
        assert len(result.claims) <= wanted
        rows = {claim.row_id for claim in result.claims}
        # Whose row was claimed anew comes late now.
        self.late += [claim for claim in self.claims if claim.row_id in rows]
        self.claims = [claim for claim in self.claims if claim.row_id not in rows]
        self.claims += result.claims

    def take(self, data: st.DataObject, late: bool) -> Claim:
        claims = self.late if late else self.claims
        return claims.pop(data.draw(st.integers(0, len(claims) - 1)))

    def answer(self, claim: Claim) -> None:
        """Sume accepts: the worker tells the database what it heard."""
        job_id, hit = self.sume.submit(claim.key)
        self.known.add(job_id)
        if hit and claim.first_send:
            given: Accepted | Refused = Refused(
                claim.row_id,
                claim.token,
                claim.key,
                "collision",
                error_code="idempotency_key_collision",
                job_id=job_id,
            )
        else:
            given = Accepted(claim.row_id, claim.token, claim.key, job_id)
        (recorded,) = render_jobs.record(self.store, [given], MAX_ATTEMPTS, 5.0)
        assert recorded.fate in ("submitted", "already"), (recorded, "one row, one key, one job")

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), look_again=st.booleans())
    def accept(self, data: st.DataObject, look_again: bool) -> None:
        claim = self.take(data, late=False)
        self.answer(claim)
        if look_again:
            webhook_events.apply_held(self.store, [self.sume.jobs[claim.key]])

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def accepted_but_the_worker_dies(self, data: st.DataObject) -> None:
        """Sume has the job, nobody heard of it; its row is left to the reaper."""
        self.sume.submit(self.take(data, late=False).key)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def killed_before_the_send(self, data: st.DataObject) -> None:
        self.take(data, late=False)

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["polite", "never sent", "try again", "no answer", "lost", "refused"]),
        delay=st.sampled_from([0.0, 0.0, 30.0]),
    )
    def refuse(self, data: st.DataObject, kind: str, delay: float) -> None:
        claim = self.take(data, late=False)
        if kind == "lost":
            self.sume.submit(claim.key)  # Sume accepted, and the answer was lost on its way
        self.record_refusal(claim, kind, delay)

    def record_refusal(self, claim: Claim, kind: str, delay: float) -> None:
        given = Refused(
            claim.row_id,
            claim.token,
            claim.key,
            "fail" if kind == "refused" else "requeue",
            delay=delay,
            give_back_attempt=kind in ("polite", "never sent"),
            give_back_send=kind == "never sent",
            unknown=kind in ("no answer", "lost"),
            error_code=kind.replace(" ", "_"),
        )
        render_jobs.record(self.store, [given], MAX_ATTEMPTS, 5.0)

    @precondition(lambda self: self.late)
    @rule(
        data=st.data(), kind=st.sampled_from(["accepted", "accepted", "polite", "lost", "refused"])
    )
    def a_late_answer(self, data: st.DataObject, kind: str) -> None:
        """A worker whose row was reaped comes back with what it heard long ago."""
        claim = self.take(data, late=True)
        if kind == "accepted":
            self.answer(claim)
        else:
            if kind == "lost":
                self.sume.submit(claim.key)
            self.record_refusal(claim, kind, 0.0)

    def age(self, interval: str) -> None:
        with self.database.connection.transaction():
            self.database.execute("set local session_replication_role = replica")
            self.database.execute(AGE.replace("{interval}", interval))

    @rule(interval=st.sampled_from(["20 seconds", "11 minutes", "11 minutes", "3 hours"]))
    def time_passes(self, interval: str) -> None:
        self.age(interval)

    @rule()
    def reap(self) -> None:
        render_jobs.reap(self.store, CLAIM_TIMEOUT, RETENTION, MAX_ATTEMPTS, "render-job")
        rows = self.database.query("select id, claim_token::text as t from render_jobs")
        tokens = {row["id"]: row["t"] for row in rows}
        self.late += [c for c in self.claims if tokens.get(c.row_id) != c.token]
        self.claims = [c for c in self.claims if tokens.get(c.row_id) == c.token]

    # ------------------------------------------------------------------ Sume

    @precondition(lambda self: self.sume.status)
    @rule(
        data=st.data(),
        status=st.sampled_from(["processing", "completed", "failed", "canceled"]),
    )
    def sume_moves(self, data: st.DataObject, status: str) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.sume.status)))
        self.sume.move(job_id, status)

    @precondition(lambda self: self.sume.status)
    @rule(data=st.data(), look_again=st.booleans())
    def webhook(self, data: st.DataObject, look_again: bool) -> None:
        """Any status that the job has ever had, in any order, known here or not yet."""
        job_id = data.draw(st.sampled_from(sorted(self.sume.status)))
        status = data.draw(st.sampled_from(self.sume.seen[job_id]))
        self.events += 1
        self.deliver(f"evt_{self.events}", job_id, status, look_again)

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def webhook_again(self, data: st.DataObject) -> None:
        assert self.deliver(*data.draw(st.sampled_from(self.delivered)), False) == "duplicate"

    def deliver(self, event_id: str, job_id: str, status: str, look_again: bool) -> str:
        error = json.dumps({"code": "c", "retryable": True}) if status == "failed" else None
        event = webhook_events.Event(event_id, "{}", job_id, status=status, error=error)
        outcome = webhook_events.receive(self.store, event).outcome
        self.delivered.append((event_id, job_id, status))
        if outcome == "held" and look_again:
            webhook_events.apply_held(self.store, [job_id])
        return outcome

    @rule(data=st.data(), stale=st.booleans(), wanted=st.integers(1, 5))
    def poll(self, data: st.DataObject, stale: bool, wanted: int) -> None:
        webhook_events.apply_all_held(self.store)
        _, due = gen_jobs.claim_due(self.store, CLAIMING.pace, wanted, 50.0, 25.0)
        wishes, looks = [], []
        for job in due:
            if job.status == "completed":
                looks.append(Looked(job.job_id, 60.0, "found", result='{"artifacts": []}'))
                continue
            seen = self.sume.seen[job.job_id]
            status = data.draw(st.sampled_from(seen)) if stale else seen[-1]
            error = '{"code": "c", "retryable": true}' if status == "failed" else None
            wishes.append(Wish(job.job_id, status, None, error))
            looks.append(Looked(job.job_id, 60.0, "found", error=error))
        gen_jobs.apply(self.store, wishes)
        gen_jobs.record_looks(self.store, looks)

    # ------------------------------------------------------------------ people

    def a_row(self, data: st.DataObject) -> int | None:
        rows = [row["id"] for row in self.database.query("select id from render_jobs order by id")]
        return data.draw(st.sampled_from(rows)) if rows else None

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        row = self.a_row(data)
        if row is not None:
            render_jobs.request_cancel(self.store, row)

    @rule()
    def hand_on_cancels(self) -> None:
        for job_id in gen_jobs.claim_cancels(self.store, 5, 30.0):
            if self.sume.status[job_id] == "queued":
                self.sume.move(job_id, "canceled")
                gen_jobs.apply(self.store, [Wish(job_id, "canceled")])
            gen_jobs.cancel_asked(self.store, job_id, None)

    @rule()
    def regenerate(self) -> None:
        failed = gen_jobs.open_regenerations(self.store, 10)
        again = [(job_id, row_id) for job_id, row_id, _ in failed if row_id is not None]
        if again:
            render_jobs.regenerate(self.store, again, MAX_GENERATIONS)
        gen_jobs.close_regenerations(self.store, [job_id for job_id, _, _ in failed])

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def promises(self) -> None:
        rows = self.database.rows()
        jobs = {job["job_id"]: job for job in self.database.jobs()}
        conflicts = {conflict["job_id"] for conflict in self.database.conflicts()}
        by_row = {row["id"]: row for row in rows}

        # Billed once: a key of Sume's is a key of one row and one generation.
        keys = [row["idempotency_key"] for row in rows if row["idempotency_key"]]
        assert len(keys) == len(set(keys))
        for row in rows:
            assert row["generation"] >= self.generations.get(row["id"], 1)
            self.generations[row["id"]] = row["generation"]
            made = [job for job in jobs.values() if job["render_job_id"] == row["id"]]
            assert len(made) <= row["generation"] <= MAX_GENERATIONS
            assert row["attempts"] <= MAX_ATTEMPTS
            assert row["sends"] >= 0
            assert (row["status"] == "submitted") == (row["sume_job_id"] is not None)
            assert (row["status"] == "submitting") == (row["claim_token"] is not None)
            if row["sume_job_id"]:
                assert jobs[row["sume_job_id"]]["render_job_id"] == row["id"]
            if row["status"] == "pending":
                assert row["request_body"] is None or row["idempotency_key"] is not None

        # Nothing lost: every job id that was heard of is somewhere, and under its own key.
        for job_id in self.known:
            assert job_id in jobs or job_id in conflicts, f"{job_id} is lost"
        assert not conflicts, "one row, one key, one job: there is nothing to contradict"
        for job in jobs.values():
            assert self.sume.jobs[job["idempotency_key"]] == job["job_id"]
            assert job["render_job_id"] in by_row

        # Forward only, and follow-up once.
        follow_ups = self.database.query(
            "select job_id, kind from follow_up where kind like 'job.%' order by 1, 2"
        )
        kinds = defaultdict(list)
        for follow_up in follow_ups:
            kinds[follow_up["job_id"]].append(follow_up["kind"])
        for job_id, job in jobs.items():
            assert job["status"] in self.sume.seen[job_id], "only what Sume reported"
            if job_id in self.ends:
                assert job["status"] == self.ends[job_id], "an end never changes"
            if job["status"] in TERMINAL:
                self.ends[job_id] = job["status"]
            end = [f"job.{job['status']}"] if job["status"] in TERMINAL else []
            assert kinds.pop(job_id, []) == end
        assert not kinds

    def teardown(self) -> None:
        """Time goes on without anything new: every row comes to rest."""
        self.claims, self.late = [], []
        for _ in range(MAX_ATTEMPTS * MAX_GENERATIONS + 2):
            self.age("16 minutes")
            self.reap()
            self.claims = []
            while claims := render_jobs.claim(self.store, CLAIMING, 50, True).claims:
                for claim in claims:
                    self.answer(claim)
            for job_id in list(self.sume.status):
                self.sume.move(job_id, "completed")
            self.rest()
            self.regenerate()
            if not self.database.query(MOVING):
                break
        self.promises()
        moving = self.database.query(MOVING)
        assert not moving, f"between two states for ever: {moving}"
        unended = self.database.query(
            "select job_id from gen_job where status in ('queued', 'processing')"
        )
        assert not unended
        held = self.database.query(
            "select e.event_id from webhook_event e join gen_job g using (job_id)"
            " where e.outcome = 'held'"
        )
        assert not held, "a held event for a known job"

    def rest(self) -> None:
        """Poll until nothing is due, with what Sume really says."""
        for _ in range(20):
            self.database.execute(
                "update gen_job set next_poll_at = now() where next_poll_at is not null"
            )
            webhook_events.apply_all_held(self.store)
            _, due = gen_jobs.claim_due(self.store, CLAIMING.pace, 500, 50.0, 25.0)
            if not due:
                return
            gen_jobs.apply(
                self.store,
                [
                    Wish(job.job_id, self.sume.status[job.job_id], None, '{"code": "c"}')
                    for job in due
                    if job.status != "completed"
                ],
            )
            gen_jobs.record_looks(
                self.store,
                [
                    Looked(job.job_id, 60.0, "found", result='{"artifacts": []}')
                    for job in due
                    if job.status == "completed"
                ],
            )
        raise AssertionError("jobs stay due")


@pytest.fixture
def machines(machine_database: Database) -> Iterator[type[Machines]]:
    product = Settings(database_url=machine_database.url)
    store = Store(product, Secrets(product))
    Machines.database, Machines.store = machine_database, store
    yield Machines
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_both_machines(machines: Any) -> None:
    run_state_machine_as_test(
        machines, settings=settings(max_examples=examples(20), stateful_step_count=30)
    )
