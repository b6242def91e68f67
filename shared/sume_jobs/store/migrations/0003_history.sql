-- Every move of both machines is kept, in a table that is only added to and pruned with the rows;
-- and what the API and the board look up by.

create table job_history (
  render_job_id bigint not null,
  id            bigint generated always as identity,
  at            timestamptz not null default now(),
  machine       text not null,                 -- submission or generation
  job_id        text,                          -- of the generation machine: the job that moved
  by            text not null,                 -- submit, reap, webhook, poll, cancel or operator
  from_status   text not null,
  to_status     text not null,
  primary key (render_job_id, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);

-- Moves of the generation machine are kept by the one statement that makes them. Those of the
-- submission machine are kept here, so that an operator's plain SQL is in the history too; who
-- moved is told from what the statements of the bundle leave on the row and others do not.
-- Once a statement, not once a row: that costs a claim a few hundredths of its time.
create function render_jobs_keep_moves() returns trigger language plpgsql as $$
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
     and not (n.generation <> o.generation and exists (
       select from job_history h
        where h.render_job_id = n.id and h.at = now() and h.machine = 'submission' and h.by = 'reap'))
   order by n.id;
  return null;
end $$;

create trigger render_jobs_history after update on render_jobs
  referencing old table as was new table as became
  for each statement execute function render_jobs_keep_moves();

-- The history goes with its row, whoever deletes it.
create function render_jobs_forget_moves() returns trigger language plpgsql as $$
begin
  delete from job_history where render_job_id = any (array(select id from gone));
  return null;
end $$;

create trigger render_jobs_history_goes after delete on render_jobs
  referencing old table as gone
  for each statement execute function render_jobs_forget_moves();

-- Lookups of the API: newest first among those that need attention, and the events of one job.
create index render_jobs_ended_badly_by_id on render_jobs (id) where status in ('failed', 'canceled');
create index gen_job_attention_by_row on gen_job (render_job_id)
  where attention is not null or status in ('failed', 'canceled');
create index webhook_event_job on webhook_event (job_id) where job_id is not null;
create index job_conflict_row on job_conflict (render_job_id);

-- The three words that people see, now with one plain sentence for each row.
create or replace view job_customer as
select r.id,
       r.reference,
       case
         when r.status in ('failed', 'canceled') then 'needs_attention'
         when r.status = 'submitted' and (g.status in ('failed', 'canceled') or g.attention is not null)
           then 'needs_attention'
         when r.status = 'submitted' and g.status = 'completed' then 'done'
         else 'working'
       end as state,
       case when g.status = 'completed' then coalesce(g.result -> 'artifacts', '[]') end as artifacts,
       r.created_at,
       greatest(r.updated_at, g.updated_at) as updated_at,
       case
         when r.status = 'canceled' or r.status = 'submitted' and g.status = 'canceled'
           then 'This generation was canceled.'
         when r.status = 'failed' or r.status = 'submitted' and g.status = 'failed'
           then 'This generation did not succeed; our support can tell why.'
         when r.status = 'submitted' and g.attention = 'result_missing'
           then 'This generation is done, but its files are not here yet; our support can look into it.'
         when r.status = 'submitted' and g.attention is not null
           then 'This generation takes longer than it should; our support can look into it.'
         when r.status = 'submitted' and g.status = 'completed' and g.result is null
           then 'This generation is done; its files follow in a moment.'
         when r.status = 'submitted' and g.status = 'completed'
           then 'This generation is done.'
         when r.cancel_requested_at is not null or g.cancel_requested_at is not null
           then 'This generation is being canceled, if that is still possible.'
         when r.status = 'pending' and r.sends = 0 and r.run_after > now()
           then 'This generation is planned for later.'
         else 'This generation is being made.'
       end as sentence
  from render_jobs r
  left join gen_job g on g.job_id = r.sume_job_id;
