-- Four jobs in flight that the webhook events speak of: with them each event has the outcome that
-- README.md lists. Safe to repeat.
with job (n) as (
  select generate_series(1, 4)
), row_of as (
  insert into render_jobs (prompt, status, sume_job_id, idempotency_key)
  select 'a lighthouse in the fog, number ' || n, 'submitted',
         'job_00000000-0000-4000-8000-00000000000' || n, 'sample-event-' || n
    from job
  on conflict (idempotency_key) where idempotency_key is not null do nothing
  returning id, sume_job_id, idempotency_key
)
insert into gen_job (job_id, idempotency_key, render_job_id)
select sume_job_id, idempotency_key, id from row_of
on conflict (job_id) do nothing;
