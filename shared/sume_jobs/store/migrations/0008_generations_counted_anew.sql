-- 0004 has each generation counted in its own day, 0007 has its job looked up by key; each replaced the
-- whole function. This one does both, in whatever order a database came by those two.

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
