"""What a database can tell about itself and about the queue, for whoever looks for a fault.

Nothing here writes. Ages are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sume_jobs.connection import Database

TABLES: Final = (
    "render_jobs",
    "gen_job",
    "webhook_event",
    "job_conflict",
    "follow_up",
    "job_history",
    "pace_budget",
    "pace_gate",
)

SERVER: Final = """
select current_database()::text as database, current_user::text as role,
       current_setting('server_version') as version,
       current_setting('server_version_num')::int as version_number,
       current_setting('server_encoding') as encoding,
       pg_is_in_recovery() or current_setting('transaction_read_only') = 'on' as is_read_only,
       current_setting('default_transaction_isolation') as isolation,
       coalesce((select ssl from pg_stat_ssl where pid = pg_backend_pid()), false) as is_encrypted,
       inet_server_addr() is not null and not inet_server_addr() <<= '127.0.0.0/8'::inet
         and inet_server_addr() <> '::1'::inet as is_remote,
       current_setting('autovacuum') = 'on' and current_setting('track_counts') = 'on' as has_autovacuum,
       current_setting('max_connections')::int as most_connections,
       (select count(*) from pg_stat_activity where datname is not null)::int as connections,
       (select age(datfrozenxid) from pg_database where datname = current_database())::bigint as oldest_transaction,
       (select setting::bigint from pg_settings where name = 'lock_timeout') as lock_timeout,
       (select setting::bigint from pg_settings where name = 'statement_timeout') as statement_timeout,
       (select setting::bigint from pg_settings
         where name = 'idle_in_transaction_session_timeout') as idle_in_transaction_session_timeout"""


@dataclass(frozen=True, slots=True)
class Server:
    """The server and this very session. The three time limits are in milliseconds, 0: none.

    `oldest_transaction` counts the transactions since the oldest that is not frozen.
    """

    database: str
    role: str
    version: str
    version_number: int
    encoding: str
    is_read_only: bool
    isolation: str
    is_encrypted: bool
    is_remote: bool
    has_autovacuum: bool
    most_connections: int
    connections: int
    oldest_transaction: int
    lock_timeout: int
    statement_timeout: int
    idle_in_transaction_session_timeout: int


def server(database: Database) -> Server:
    """Ask the server about itself and this session."""
    return Server(**database.run(SERVER)[0])


CLOCK: Final = "select extract(epoch from clock_timestamp())::float8 as now"


def clock(database: Database) -> float:
    """Tell the database's time in seconds since the epoch."""
    now: float = database.run(CLOCK)[0]["now"]
    return now


# A trigger that is switched off and an index that is not valid are guards that are gone.
SCHEMA: Final = """
with named as (
  select name, to_regclass(name) as id from unnest(%(tables)s::text[]) as t (name))
select name,
       id is null as is_missing,
       coalesce((select array_agg(p order by p) from unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as p
                  where not has_table_privilege(id, p)), '{}') as lacks,
       coalesce((select array_agg(tgname::text order by tgname) from pg_trigger
                  where tgrelid = id and not tgisinternal and tgenabled in ('D', 'R')), '{}') as triggers_off,
       coalesce((select array_agg(indexrelid::regclass::text order by indexrelid) from pg_index
                  where indrelid = id and not indisvalid), '{}') as invalid_indexes,
       coalesce((select 'autovacuum_enabled=false' = any (reloptions) or 'autovacuum_enabled=off' = any (reloptions)
                   from pg_class c where c.oid = id), false) as is_never_vacuumed,
       coalesce((select n_live_tup from pg_stat_user_tables where relid = id), 0)::bigint as live,
       coalesce((select n_dead_tup from pg_stat_user_tables where relid = id), 0)::bigint as dead
  from named order by name"""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the bundle: what this role lacks on it, and which of its guards are off.

    `live` and `dead` are the estimates of row versions that autovacuum goes by.
    """

    name: str
    is_missing: bool
    lacks: tuple[str, ...]
    triggers_off: tuple[str, ...]
    invalid_indexes: tuple[str, ...]
    is_never_vacuumed: bool
    live: int
    dead: int


def tables(database: Database) -> list[Table]:
    """Look at each table of the bundle, also at those that are not there."""
    rows = database.run(SCHEMA, {"tables": list(TABLES)})
    listed = ("lacks", "triggers_off", "invalid_indexes")
    return [Table(**{**row, **{name: tuple(row[name]) for name in listed}}) for row in rows]


# Of the sessions of other roles only the number shows, unless this role may read all statistics.
SESSIONS: Final = """
select pid, coalesce(usename, '')::text as role, coalesce(application_name, '') as application,
       coalesce(state, '') like 'idle in transaction%%' as is_idle,
       extract(epoch from clock_timestamp() - xact_start)::float8 as transaction_age,
       extract(epoch from clock_timestamp() - state_change)::float8 as state_age
  from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
   and xact_start < clock_timestamp() - make_interval(secs => %(longer_than)s)
 order by xact_start"""

HIDDEN_SESSIONS: Final = """
select count(*)::int as n from pg_stat_activity
 where datname = current_database() and backend_type is null"""

# A prepared transaction and a slot that nobody reads hold dead rows as an open transaction does.
FORGOTTEN: Final = """
select 'prepared transaction ' || gid as what, extract(epoch from clock_timestamp() - prepared)::float8 as age
  from pg_prepared_xacts where database = current_database()
union all
select 'replication slot ' || slot_name, null from pg_replication_slots
 where not active and (xmin is not null or catalog_xmin is not null)
   and (database is null or database = current_database())"""


@dataclass(frozen=True, slots=True)
class Session:
    """A session with an open transaction. `state_age` counts since its last statement ended."""

    pid: int
    role: str
    application: str
    is_idle: bool
    transaction_age: float
    state_age: float


@dataclass(frozen=True, slots=True)
class Transactions:
    """What keeps dead rows from being vacuumed, and how many sessions could not be looked at."""

    sessions: list[Session]
    hidden: int
    forgotten: list[tuple[str, float | None]]


def transactions(database: Database, longer_than: float) -> Transactions:
    """List the transactions that have been open for more than `longer_than` seconds."""
    rows = database.run(SESSIONS, {"longer_than": longer_than})
    return Transactions(
        [Session(**row) for row in rows],
        database.run(HIDDEN_SESSIONS)[0]["n"],
        [(row["what"], row["age"]) for row in database.run(FORGOTTEN)],
    )


QUEUE: Final = """
select stale.n as stale_claims, coalesce(stale.age, 0)::float8 as oldest_claim,
       suspect.n as suspects,
       held.n as held, coalesce(held.age, 0)::float8 as oldest_held, held.known as held_for_known,
       dead.n as dead_follow_ups, dead.reason as dead_reason,
       waiting.n as waiting_follow_ups,
       late.n as late_polls, coalesce(late.age, 0)::float8 as latest_poll,
       overdue.n as overdue
  from (select count(*) as n, extract(epoch from now() - min(claimed_at)) as age from render_jobs
         where status = 'submitting' and claimed_at < now() - make_interval(secs => %(claim_age)s)) as stale,
       (select count(*) as n from render_jobs where status = 'pending' and reaps >= 2) as suspect,
       (select count(*) as n, extract(epoch from now() - min(received_at)) as age,
               count(*) filter (where exists (
                 select from gen_job where gen_job.job_id = webhook_event.job_id)) as known
          from webhook_event where outcome = 'held') as held,
       (select count(*) as n, max(dead_reason) as reason from follow_up where dead_reason is not null) as dead,
       (select count(*) as n from follow_up where dispatched_at is null and dead_reason is null) as waiting,
       (select count(*) as n, extract(epoch from now() - min(next_poll_at)) as age from gen_job
         where next_poll_at < now() - make_interval(secs => %(poll_age)s)) as late,
       (select count(*) as n from gen_job where attention is not null) as overdue"""


@dataclass(frozen=True, slots=True)
class Queue:
    """What does not move on as it should.

    `stale_claims` should have been reaped, `late_polls` should have been polled; `suspects` were
    reaped twice or more; `held_for_known` are held events whose job is known; `dead_reason` is
    one of the reasons; `overdue` counts jobs with an attention mark.
    """

    stale_claims: int
    oldest_claim: float
    suspects: int
    held: int
    oldest_held: float
    held_for_known: int
    dead_follow_ups: int
    dead_reason: str | None
    waiting_follow_ups: int
    late_polls: int
    latest_poll: float
    overdue: int


def queue(database: Database, claim_age: float, poll_age: float) -> Queue:
    """Look for claims older than `claim_age` and polls later than `poll_age`, and the like."""
    return Queue(**database.run(QUEUE, {"claim_age": claim_age, "poll_age": poll_age})[0])


CONFLICTS: Final = """
select reason, count(*)::int as n from job_conflict
 where seen_at > now() - make_interval(days => %(days)s) group by reason order by reason"""


def conflicts(database: Database, days: int) -> dict[str, int]:
    """Count what contradicted the promises in the last `days` days, by reason."""
    rows: list[dict[str, Any]] = database.run(CONFLICTS, {"days": days})
    return {row["reason"]: row["n"] for row in rows}
