-- What 1,000,000 rows of history cost, measured and mended.

-- The check of the key is made at every write of a row. As one regular expression with a counted
-- repetition it took 10.7 microseconds a row, a third of a whole claim; the same rule with the
-- length apart takes 0.2.

alter table render_jobs
  drop constraint render_jobs_idempotency_key,
  add constraint render_jobs_idempotency_key check (
    idempotency_key is null
    or octet_length(idempotency_key) between 1 and 255 and idempotency_key ~ '^[!-~]([ -~]*[!-~])?$'
    or sume_refuse('idempotency_key cannot be sent as a header',
                   'Leave it null (it is made at the first claim), or use 1 to 255 printable ASCII '
                   'characters without a space at either end.'));

-- The levels count what came to need a person within a day: by the time that it did, not by the time
-- when the row was made, behind which a week of failures had to be read.
drop index render_jobs_ended_badly;
create index render_jobs_failed on render_jobs (updated_at) where status = 'failed';
drop index gen_job_attention;
create index gen_job_in_need on gen_job (updated_at) where attention is not null or status = 'failed';

-- Old events are found in the order in which they came. What a BRIN index offers is passed over by a
-- planner without statistics, who then reads the whole table to find that nothing is old.
drop index webhook_event_received;
create index webhook_event_received on webhook_event (received_at);

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
