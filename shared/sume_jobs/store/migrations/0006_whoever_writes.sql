-- Paid work may not disappear by plain SQL, whichever way it is taken away; and what the triggers look
-- up does not depend on who writes.

-- A job goes with its row, or after it: without it the row would be in between for ever. Asked once a
-- statement, when the rows that the same statement deletes are gone.
create function gen_job_refuse_delete() returns trigger language plpgsql as $$
declare
  job gen_job;
begin
  select g.* into job from gone g
   where g.status in ('queued', 'processing')
      or (select r.sume_job_id from render_jobs r where r.id = g.render_job_id) = g.job_id
   limit 1;
  if not found then
    return null;
  elsif job.status in ('queued', 'processing') then
    raise exception using errcode = 'check_violation',
      message = 'job ' || job.job_id || ' is in flight and cannot be deleted',
      hint = 'Wait until it has ended, or cancel it first.';
  end if;
  raise exception using errcode = 'check_violation',
    message = 'job ' || job.job_id || ' cannot be deleted, row ' || job.render_job_id || ' would lose its end',
    hint = 'Delete the row first; or leave both to RETENTION_DAYS.';
end $$;

create trigger gen_job_delete after delete on gen_job
  referencing old table as gone
  for each statement execute function gen_job_refuse_delete();

-- TRUNCATE asks no row. What is in flight is what DELETE refuses; each is looked up in the index that
-- holds nothing else, or (what was perhaps sent and waits) nothing but pending rows.
create function sume_refuse_truncate() returns trigger language plpgsql set enable_seqscan = off as $$
declare
  what text;
begin
  select 'job ' || job_id into what from gen_job where status in ('queued', 'processing') limit 1;
  if what is null and tg_table_name = 'render_jobs' then
    select 'row ' || id into what from (
      (select id from render_jobs where status = 'submitting' limit 1)
      union all
      (select id from render_jobs
        where status = 'pending' and reaps < 2 and unknown_since is not null limit 1)
      union all
      (select id from render_jobs
        where status = 'pending' and reaps >= 2 and unknown_since is not null limit 1)) as x
     limit 1;
  end if;
  if what is null then
    return null;
  end if;
  raise exception using errcode = 'check_violation',
    message = what || ' is in flight, ' || tg_table_name || ' cannot be truncated',
    hint = 'Delete what has ended, or wait until nothing is in flight.';
end $$;

create trigger render_jobs_truncate before truncate on render_jobs
  for each statement execute function sume_refuse_truncate();
create trigger gen_job_truncate before truncate on gen_job
  for each statement execute function sume_refuse_truncate();

create function gen_job_refuse_truncate_alone() returns trigger language plpgsql as $$
begin
  if (select count(*) from (select from render_jobs where sume_job_id is not null limit 1) as x) > 0 then
    raise exception using errcode = 'check_violation',
      message = 'gen_job cannot be truncated alone, the rows of render_jobs would lose their ends',
      hint = 'Use: truncate render_jobs, gen_job.';
  end if;
  return null;
end $$;

create trigger gen_job_truncated after truncate on gen_job
  for each statement execute function gen_job_refuse_truncate_alone();

-- As with DELETE the history goes along: numbers that begin anew would find that of others.
create function render_jobs_forget_all_moves() returns trigger language plpgsql as $$
begin
  if (select count(*) from (select from job_history limit 1) as x) > 0 then
    truncate job_history;
  end if;
  return null;
end $$;

create trigger render_jobs_truncated after truncate on render_jobs
  for each statement execute function render_jobs_forget_all_moves();

-- The triggers find the tables that stand beside theirs, also where the search path of who writes has
-- others of these names or none, and with the rights of their owner: an application needs none on the
-- history and on the jobs. A function that is replaced loses both, a schema that is renamed is not
-- followed: then this is called again.
create function sume_pin_triggers() returns void language plpgsql as $$
declare
  home regnamespace := (select relnamespace from pg_class where oid = 'render_jobs'::regclass);
  called regprocedure;
begin
  for called in select oid from pg_proc
                 where pronamespace = home and prorettype = 'trigger'::regtype
                   and proname ~ '^(render_jobs|gen_job|pace_gate|sume)_' loop
    execute format('alter function %s security definer set search_path = %s, pg_temp', called, home);
  end loop;
end $$;

select sume_pin_triggers();

-- Read at each call, where a backslash in a text may be read in another way.
alter function render_jobs_refuse_prompt() set standard_conforming_strings = on;

-- Beside the time limits of the first migration: what would have statements fail, not read otherwise.
-- The claim waits for other claims, and goes on with what they left.
do $$
declare
  setting text;
begin
  foreach setting in array array['default_transaction_isolation = ''read committed''', 'array_nulls = on'] loop
    execute format('alter role %I in database %I set %s', current_user, current_database(), setting);
  end loop;
exception when insufficient_privilege then
  raise warning 'role % may not set its own isolation: run "alter role % in database % set default_transaction_isolation = ''read committed''" as an administrator',
    current_user, current_user, current_database();
end $$;
