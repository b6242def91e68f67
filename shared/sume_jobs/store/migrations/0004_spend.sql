-- The guard of what is spent: a limit of jobs a day, and a gate that only a person opens.

-- Every key is counted once, in the UTC day in which its first request may have left. Its place is
-- given back where Sume certainly made nothing of it.
alter table render_jobs add column counted_at timestamptz;   -- null: it holds no place

-- Beside the budget, because a claim holds and writes that row anyway.
alter table pace_budget
  add column day_ends timestamptz,                    -- the midnight that ends the day counted
  add column day_sent integer not null default 0;     -- places that are taken in it

-- What holds a place already is sent again also when the day is full.
create index render_jobs_counted on render_jobs (run_after, id)
  where status = 'pending' and reaps < 2 and counted_at is not null;

-- closed_until 'infinity': what was seen must be looked at by a person, no probe opens it.
alter table pace_gate
  add column detail text,                -- the row and the job of it
  add column guarded_from timestamptz;   -- what was seen before is settled

create index job_conflict_seen on job_conflict (seen_at);

-- Opening takes one plain update, of closed_until alone; what led to the closing is settled by it.
create function pace_gate_settle() returns trigger language plpgsql as $$
begin
  new.guarded_from := now();
  new.detail := null;
  new.probe_until := null;
  if new.closed_until is null then
    new.reason := null;
    new.closures := 0;
  end if;
  return new;
end $$;

create trigger pace_gate_opened before update of closed_until on pace_gate
  for each row when (old.closed_until = 'infinity' and new.closed_until is distinct from 'infinity')
  execute function pace_gate_settle();

-- As before, and the next generation is counted anew. The job is found by its key and its status
-- tested on what was found: `job_id = … and status in (…)` may be answered from the work index of the
-- jobs, however long that is.
create or replace function render_jobs_start_generation() returns trigger language plpgsql as $$
begin
  if new.generation <> old.generation + 1 then
    raise exception using errcode = 'check_violation',
      message = 'generation of row ' || old.id || ' goes up by one, not from ' || old.generation
                || ' to ' || new.generation,
      hint = 'Use: set generation = generation + 1.';
  end if;
  if old.status in ('pending', 'submitting') or (
      select status from gen_job where job_id = old.sume_job_id) in ('queued', 'processing') then
    raise exception using errcode = 'check_violation',
      message = 'row ' || old.id || ' has not ended, a new generation would be billed beside it',
      hint = 'Wait until it has ended, or cancel it first.';
  end if;
  new.status := 'pending';
  new.run_after := greatest(now(), new.run_after);
  new.sume_job_id := null;
  new.idempotency_key := null;
  new.request_body := null;
  new.claim_token := null;
  new.attempts := 0;
  new.sends := 0;
  new.reaps := 0;
  new.unknown_since := null;
  new.counted_at := null;
  new.cancel_requested_at := null;
  new.error_code := null;
  new.error := null;
  new.request_id := null;
  new.updated_at := now();
  return new;
end $$;

-- A row that failed in several generations has one of these under each of their keys: retention finds
-- them by the row.
create index follow_up_failed on follow_up (render_job_id) where kind = 'submission.failed';
