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
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
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

# What a request can come to; "slow" leaves it under way.
ANSWERS = [
    "accepted", "accepted", "accepted", "slow", "slow", "dies before the send",
    "dies after the send", "lost", "no answer", "polite", "never sent", "try again", "refused",
]  # fmt: skip
INTERVALS = ["20 seconds", "20 seconds", "11 minutes", "3 hours"]
MOVES = ["processing", "completed", "failed", "canceled"]
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

MAKE_DUE = "update gen_job set next_poll_at = now() where next_poll_at is not null"
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


# What can happen depends on the database and so on its clock: drawn from Hypothesis directly, a
# walk on a busy machine would differ from its repetition. So each step draws a seed alone.
SEEDS = st.integers(0, 2**32 - 1)


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
        self.said: dict[str, set[str]] = defaultdict(set)  # what webhooks told of a job

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        with self.database.connection.transaction():
            self.database.execute("set local session_replication_role = replica")
            self.database.execute(EMPTY)
        self.insert(Random(seed))

    @rule(seed=SEEDS)
    def something_happens(self, seed: int) -> None:
        """One rule that draws among all that can happen now: Hypothesis itself would leave out
        whole rules for whole walks, and rows would seldom get as far as a job."""
        chance = Random(seed)
        can = [self.insert, self.work, self.work, self.time_passes, self.cancel]
        if self.claims or self.late:
            can += [self.slow_worker, self.slow_worker]
        if self.claims:
            can += [self.overtaken, self.overtaken]
        if self.sume.status:
            can += [self.sume_works, self.webhook, self.webhook, self.poll]
        if self.delivered:
            can += [self.webhook_again]
        if "failed" in self.ends.values():
            can += [self.regenerate]
        names = [each.__name__ for each in can]
        getattr(self, chance.choice(names))(chance)

    # ------------------------------------------------------------------ workers

    def insert(self, chance: Random) -> None:
        priority = chance.randint(0, 3)
        for _ in range(chance.randint(1, 3)):
            self.store.run(
                "insert into render_jobs (prompt, priority) values ('a fox', %(p)s)",
                {"p": priority},
            )

    def work(self, chance: Random) -> None:
        """Claim, and let each request come to whatever it comes to."""
        wanted, alone = chance.randint(1, 4), chance.random() < 0.5
        result = render_jobs.claim(self.store, CLAIMING, wanted, alone)
        assert len(result.claims) <= wanted
        for claim in result.claims:
            # Whose row was claimed anew comes late now.
            self.late += [each for each in self.claims if each.row_id == claim.row_id]
            self.claims = [each for each in self.claims if each.row_id != claim.row_id]
            self.answer(claim, chance.choice(ANSWERS))

    def slow_worker(self, chance: Random) -> None:
        """A worker that took its time comes back, its row may be somebody else's by now."""
        claim = chance.choice([*self.late, *self.claims])
        self.claims = [each for each in self.claims if each is not claim]
        self.late = [each for each in self.late if each is not claim]
        self.answer(claim, chance.choice([word for word in ANSWERS if word != "slow"]))

    def overtaken(self, chance: Random) -> None:
        """A slow worker's row is reaped and claimed by another, who is slow, too; then it comes.

        Drawn step by step, that happens so seldom that a missing fence would go unnoticed.
        """
        self.age("11 minutes")
        self.reap()
        self.age("20 seconds")
        for claim in render_jobs.claim(self.store, CLAIMING, 4, True).claims:
            self.answer(claim, "slow")
        anew = {claim.row_id for claim in self.claims}
        overtaken = [claim for claim in self.late if claim.row_id in anew]
        if overtaken and chance.random() < 0.75:
            claim = chance.choice(overtaken)
            self.late = [each for each in self.late if each is not claim]
            self.answer(claim, chance.choice([word for word in ANSWERS if word != "slow"]))

    def answer(self, claim: Claim, word: str) -> None:
        if word in ("accepted", "dies after the send", "lost"):
            job_id, hit = self.sume.submit(claim.key)
        if word == "slow":
            self.claims.append(claim)
        elif word == "accepted":
            self.known.add(job_id)
            given: Accepted | Refused = Accepted(claim.row_id, claim.token, claim.key, job_id)
            if hit and claim.first_send:
                code = "idempotency_key_collision"
                given = Refused(
                    claim.row_id,
                    claim.token,
                    claim.key,
                    "collision",
                    error_code=code,
                    job_id=job_id,
                )
            (recorded,) = render_jobs.record(self.store, [given], MAX_ATTEMPTS, 5.0)
            assert recorded.fate in ("submitted", "already"), (
                recorded,
                "one row, one key, one job",
            )
        elif not word.startswith("dies"):
            given = Refused(
                claim.row_id,
                claim.token,
                claim.key,
                "fail" if word == "refused" else "requeue",
                give_back_attempt=word in ("polite", "never sent"),
                give_back_send=word == "never sent",
                unknown=word in ("no answer", "lost"),
                error_code=word.replace(" ", "_"),
            )
            render_jobs.record(self.store, [given], MAX_ATTEMPTS, 5.0)

    def age(self, interval: str) -> None:
        with self.database.connection.transaction():
            self.database.execute("set local session_replication_role = replica")
            self.database.execute(AGE.replace("{interval}", interval))

    def time_passes(self, chance: Random) -> None:
        self.age(chance.choice(INTERVALS))
        self.reap()

    def reap(self) -> None:
        render_jobs.reap(self.store, CLAIM_TIMEOUT, RETENTION, MAX_ATTEMPTS, "render-job")
        rows = self.database.query("select id, claim_token::text as t from render_jobs")
        tokens = {row["id"]: row["t"] for row in rows}
        self.late += [c for c in self.claims if tokens.get(c.row_id) != c.token]
        self.claims = [c for c in self.claims if tokens.get(c.row_id) == c.token]

    # ------------------------------------------------------------------ Sume

    def sume_works(self, chance: Random) -> None:
        for _ in range(chance.randint(1, 3)):
            job_id = chance.choice(sorted(self.sume.status))
            self.sume.move(job_id, chance.choice(MOVES))

    def webhook(self, chance: Random) -> None:
        """Any status that the job ever had, in any order, known here or not; at times nonsense."""
        job_id = chance.choice(sorted(self.sume.status))
        said = MOVES if chance.randint(0, 2) == 2 else self.sume.seen[job_id]
        status = chance.choice(said)
        self.said[job_id].add(status)
        self.events += 1
        self.deliver(f"evt_{self.events}", job_id, status, chance.random() < 0.5)

    def webhook_again(self, chance: Random) -> None:
        event_id, job_id, _ = chance.choice(self.delivered)
        status = chance.choice(MOVES)
        assert self.deliver(event_id, job_id, status, False) == "duplicate"

    def deliver(self, event_id: str, job_id: str, status: str, look_again: bool) -> str:
        error = json.dumps({"code": "c", "retryable": True}) if status == "failed" else None
        event = webhook_events.Event(event_id, "{}", job_id, status=status, error=error)
        outcome = webhook_events.receive(self.store, event).outcome
        self.delivered.append((event_id, job_id, status))
        if outcome == "held" and look_again:
            webhook_events.apply_held(self.store, [job_id])
        return outcome

    def poll(self, chance: Random) -> None:
        stale = chance.random() < 0.5
        webhook_events.apply_all_held(self.store)
        if chance.random() < 0.5:
            self.database.execute(MAKE_DUE)
        _, due = gen_jobs.claim_due(self.store, CLAIMING.pace, 5, 50.0, 25.0)
        wishes, looks = [], []
        for job in due:
            if job.status == "completed":
                looks.append(Looked(job.job_id, 60.0, "found", result='{"artifacts": []}'))
                continue
            seen = self.sume.seen[job.job_id]
            status = chance.choice(seen) if stale else seen[-1]
            error = '{"code": "c", "retryable": true}' if status == "failed" else None
            wishes.append(Wish(job.job_id, status, None, error))
            looks.append(Looked(job.job_id, 60.0, "found", error=error))
        gen_jobs.apply(self.store, wishes)
        gen_jobs.record_looks(self.store, looks)

    # ------------------------------------------------------------------ people

    def cancel(self, chance: Random) -> None:
        rows = [row["id"] for row in self.database.query("select id from render_jobs order by id")]
        render_jobs.request_cancel(self.store, chance.choice(rows))
        for job_id in gen_jobs.claim_cancels(self.store, 5, 30.0):
            if self.sume.status[job_id] == "queued":
                self.sume.move(job_id, "canceled")
                gen_jobs.apply(self.store, [Wish(job_id, "canceled")])
            gen_jobs.cancel_asked(self.store, job_id, None)

    def regenerate(self, chance: Random | None = None) -> None:
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

        # Fenced: a claim that nobody took back is its worker's, whatever others answer late.
        for claim in self.claims:
            row = by_row[claim.row_id]
            assert row["status"] == "submitted" or str(row["claim_token"]) == claim.token

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
            told = {*self.sume.seen[job_id], *self.said[job_id]}
            assert job["status"] in told, "only what Sume reported"
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
                    self.answer(claim, "accepted")
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
            self.database.execute(MAKE_DUE)
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
        machines, settings=settings(max_examples=examples(40), stateful_step_count=40)
    )
