-- What the triggers look up, they look up by key, whatever the planner knows of the tables.

-- `exists` may be answered by hashing the whole history: 34,917 pages for one new generation, beside
-- 1,000,000 ended rows and without statistics. With `limit 1` it is a lookup.
create or replace function render_jobs_keep_moves() returns trigger language plpgsql as $$
begin
  insert into job_history (render_job_id, machine, by, from_status, to_status)
  select n.id, 'submission',
         case when n.generation <> o.generation then 'operator'
              when n.reaps > o.reaps then 'reap'
              when o.status = 'submitting' and n.status = 'submitted' and o.sume_job_id is not null then 'reap'
              when n.status = 'canceled' then 'cancel'
              when n.status = 'submitting' and n.claim_token is distinct from o.claim_token then 'submit'
              when o.status = 'submitting' and o.claim_token is not null and n.claim_token is null then 'submit'
              when n.status = 'submitted' and o.sume_job_id is null then 'submit'
              when o.status = 'pending' and n.status = 'failed'
                   and n.error_code in ('idempotency_window_expired', 'attempts_exhausted') then 'submit'
              else 'operator' end,
         o.status, n.status
    from was o join became n on n.id = o.id
   where n.status <> o.status
     -- A statement that told of the move itself, in the same transaction.
     and not (n.generation <> o.generation and coalesce((
       select true from job_history h
        where h.render_job_id = n.id and h.at = now() and h.machine = 'submission' and h.by = 'reap'
        limit 1), false))
   order by n.id;
  return null;
end $$;

-- `job_id = … and status in (…)` may be answered from the work index of the jobs, however long that
-- is. The job is found by its key, and the status tested on what was found.
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
  new.cancel_requested_at := null;
  new.error_code := null;
  new.error := null;
  new.request_id := null;
  new.updated_at := now();
  return new;
end $$;

create or replace function render_jobs_refuse_delete() returns trigger language plpgsql as $$
begin
  if old.status = 'submitted' and coalesce(
      (select status from gen_job where job_id = old.sume_job_id), '') not in ('queued', 'processing') then
    return old;
  end if;
  raise exception using errcode = 'check_violation',
    message = 'row ' || old.id || ' is in flight and cannot be deleted',
    hint = 'Wait until it has ended, or cancel it first.';
end $$;
