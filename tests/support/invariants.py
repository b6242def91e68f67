"""The six invariants of the pitfall cases, checked after every test on top of its own outcome."""

from __future__ import annotations

from tests.support.bundle import Bundle

TERMINAL = {"completed": "job.completed", "failed": "job.failed", "canceled": "job.canceled"}
REAP_LIMIT = "11 minutes"

HISTORY = """
create schema test_history;
create table test_history.job (seen bigserial, job_id text, was text, became text);
create table test_history.row (
  seen bigserial, id bigint, was text, became text, old_job text, new_job text);
create function test_history.keep_job() returns trigger language plpgsql security definer as $$
begin
  insert into test_history.job (job_id, was, became) values (old.job_id, old.status, new.status);
  return null;
end $$;
create function test_history.keep_row() returns trigger language plpgsql security definer as $$
begin
  insert into test_history.row (id, was, became, old_job, new_job)
  values (old.id, old.status, new.status, old.sume_job_id, new.sume_job_id);
  return null;
end $$;
create trigger test_history_job after update on gen_job for each row
  when (old.status is distinct from new.status) execute function test_history.keep_job();
create trigger test_history_row after update on render_jobs for each row
  when (old.status is distinct from new.status or old.sume_job_id is distinct from new.sume_job_id)
  execute function test_history.keep_row();
"""


def check_invariants(bundle: Bundle) -> None:
    """Raise AssertionError naming the first broken invariant."""
    database, fake = bundle.database, bundle.fake

    # 1. One bill a row and deliberate generation. (The forgotten keys of P49 are billed anew by the
    #    fake on purpose: a second job is then the product's fault all the same.)
    if fake is not None:
        twice = {key: count for key, count in fake.billed_by_key.items() if count > 1}
        assert not twice, f"invariant 1: billed more than once: {twice}"
        bodies: dict[str, set[bytes]] = {}
        for post in fake.posts():
            assert post.key, f"invariant 1: a submit without Idempotency-Key: {post}"
            bodies.setdefault(post.key, set()).add(post.body)
        changed = {key for key, seen in bodies.items() if len(seen) > 1} - bundle.reused_keys
        assert not changed, f"invariant 1: one key, several bodies: {changed}"

    # 2. A terminal job never changes, and nothing moves backwards.
    moves = database.query("select job_id, was, became from test_history.job order by seen")
    for move in moves:
        assert move["was"] not in TERMINAL, f"invariant 2: a terminal status changed: {move}"
        assert not (move["was"] == "processing" and move["became"] == "queued"), (
            f"invariant 2: backwards: {move}"
        )

    # 3. Follow-up work: none before the end, exactly one after.
    for job in database.jobs():
        kinds = [row["kind"] for row in database.follow_ups(job["job_id"])]
        expected = [TERMINAL[job["status"]]] if job["status"] in TERMINAL else []
        assert kinds == expected, f"invariant 3: {job['job_id']} is {job['status']} with {kinds}"

    # 4. A row that has a job id keeps it. Only for a deliberate next generation does it take leave
    #    of the last one, which has failed and stays recorded as this row's.
    lost = database.query(
        "select h.id, h.old_job, h.new_job, j.status from test_history.row h"
        " left join gen_job j on j.job_id = h.old_job and j.render_job_id = h.id"
        " where h.old_job is not null and h.new_job is distinct from h.old_job"
        " and not (%s and j.status is not distinct from 'failed')",
        int(bundle.environment.get("MAX_GENERATIONS", "1")) > 1,
    )
    assert not lost, f"invariant 4: lost job ids: {lost}"

    # 6. Nobody's content makes a 5xx, and a good delivery is never refused.
    for answer in bundle.answers:
        if answer.status >= 500:
            assert answer.status == 503, f"invariant 6: {answer}"
            assert answer.unavailable_allowed, f"invariant 6: 503 with the storage up: {answer}"
        assert not (answer.good and 400 <= answer.status < 500), f"invariant 6: {answer}"

    # 5. Nothing stays `submitting`. Last, because it changes the database.
    bundle.environment["DATABASE_URL"] = database.url
    bundle.cold()
    for _ in range(20):
        database.age(REAP_LIMIT)
        bundle.R()
        if not database.one("select count(*) from render_jobs where status = 'submitting'"):
            break
        # One run reaps a bounded batch; a test with more rows than that needs some runs.
        assert len(database.rows()) > 100, "invariant 5: one reap left rows submitting"
    else:
        raise AssertionError(f"invariant 5: rows stay submitting: {database.statuses()}")
