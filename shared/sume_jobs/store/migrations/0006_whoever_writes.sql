-- What the triggers look up does not depend on who writes.

-- After TRUNCATE too the history goes with its rows: numbers that begin anew would find that of others.
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
    -- Asked when a trigger is made, not when it fires: nobody hangs these on a table of his own.
    execute format('revoke execute on function %s from public', called);
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
