"""Pitfalls of Postgres: overlap, clocks, zones, plans, deadlocks, bloat, and large ids."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from local.fake_sume import Behaviour, FakeSume
from tests.support.bundle import Bundle, event_body, key_of
from tests.support.container import Container
from tests.support.postgres import APP_ROLE, Database
from tests.support.waiting import slack, wait_until

# ------------------------------------------------------------------------------------------- P57


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_p57_overlapping_schedules(
    bundle: Bundle, database: Database, fake: FakeSume, delay: float
) -> None:
    database.insert_many(100)
    fake.options.latency = delay
    names = ["submit"] * 8 + ["reap"] * 3 + ["poll"] * 4
    containers = [bundle.another() for _ in names]

    def tick() -> None:
        calls = [
            bundle.start(name, container=container)
            for name, container in zip(names, containers, strict=True)
        ]
        for call in calls:
            call.result()

    tick()
    assert database.statuses() == {"submitted": 100}
    assert fake.billed == 100
    assert len(fake.posts()) == 100, "every row was posted once"
    for job in fake.jobs.values():
        fake.set_status(job.id, "completed")
    for _ in range(2):
        database.age("1 hour")
        before = [r.path for r in fake.requests if r.method == "GET"]
        tick()
        after = [r.path for r in fake.requests if r.method == "GET"][len(before) :]
        twice = sorted({path for path in after if after.count(path) > 1})
        assert not twice, f"overlapping polls never read one job twice: {twice}"
    assert {job["status"] for job in database.jobs()} == {"completed"}
    assert "deadlock" not in bundle.output()


def test_p57_migrations_that_overlap(
    make_database: Callable[..., Database], make_bundle: Callable[..., Bundle]
) -> None:
    """The sibling: several deployments migrate one empty database at once, and again later."""
    database = make_database(migrated=False)
    bundle = make_bundle(database, None)
    containers = [bundle.another() for _ in range(4)]
    for _ in range(2):
        calls = [container.start("migrate", {}) for container in containers]
        for call in calls:
            call.result()
    assert {"render_jobs", "gen_job", "follow_up"} <= set(database.tables())
    assert database.insert() == 1


def test_p57_migrating_under_load(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    database.insert_many(60)
    calls = [bundle.start("submit", container=bundle.another()) for _ in range(2)]
    calls += [bundle.another().start("migrate", {}) for _ in range(2)]
    for call in calls:
        call.result()
    assert database.statuses() == {"submitted": 60}
    assert len(fake.posts()) == 60


# ------------------------------------------------------------------------------------------- P59


@pytest.mark.parametrize("shift", [1800.0, -1800.0])
def test_p59_only_the_database_s_clock_counts(
    bundle: Bundle, database: Database, fake: FakeSume, shift: float
) -> None:
    def skewed() -> Container:
        container = bundle.another()
        container.shift_clock(shift)
        return container

    submit, reap, poll = skewed(), skewed(), skewed()
    held = database.insert("held")
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    running = bundle.start("submit", container=skewed())
    wait_until(fake.posts, "the POST arrives")
    claimed = database.one("select abs(extract(epoch from now() - claimed_at)) from render_jobs")
    assert claimed < 60, "stamped by the database"
    bundle.R(container=reap)
    assert database.row(held)["status"] == "submitting", "a live claim is not reaped"
    # A back-off is not skipped, and not doubled.
    waiting = database.insert("waiting")
    fake.on_submit(Behaviour(status=500, accept=False))
    bundle.D(container=submit)
    bundle.D(container=submit)
    assert len(fake.posts(key_of(waiting))) == 1
    database.age("20 seconds", "render_jobs", where="id = %s", values=(waiting,))
    bundle.D(container=submit)
    assert database.row(waiting)["status"] == "submitted"
    release.set()
    running.result()
    # A read that is not due is not made; one that is due is.
    job = database.row(held)["sume_job_id"]
    database.execute("update gen_job set next_poll_at = now() + interval '10 minutes'")
    before = len(fake.requests)
    bundle.P(container=poll)
    assert len(fake.requests) == before
    database.execute("update gen_job set next_poll_at = now() - interval '1 second'")
    bundle.P(container=poll)
    assert len(fake.requests) == before + 2
    next_poll = database.one(
        "select extract(epoch from next_poll_at - now()) from gen_job where job_id = %s", job
    )
    assert 0 < next_poll < 1200


@pytest.mark.parametrize("shift", [1800.0, -1800.0])
def test_p59_a_gate_keeps_the_database_s_time(
    bundle: Bundle, database: Database, fake: FakeSume, shift: float
) -> None:
    database.insert()
    fake.on_submit(Behaviour(status=429, headers={"Retry-After": "60"}))
    bundle.D()
    container = bundle.another()
    container.shift_clock(shift)
    bundle.D(container=container)
    assert len(fake.posts()) == 1
    database.age("2 minutes")
    bundle.D(container=container)
    assert database.statuses() == {"submitted": 1}


# ------------------------------------------------------------------------------------------- P60


def set_for_role(database: Database, name: str, value: str) -> None:
    with database.server.connect() as admin:
        admin.execute(
            sql.SQL("alter role {} in database {} set {} = {}").format(
                sql.Identifier(APP_ROLE),
                sql.Identifier(database.name),
                sql.Identifier(name),
                sql.Literal(value),
            )
        )
    database.terminate_sessions()


def set_zone(database: Database, zone: str) -> None:
    set_for_role(database, "timezone", zone)


def test_p60_the_session_s_zone_does_not_matter(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    row = database.insert()
    set_zone(database, "Asia/Tokyo")
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release), Behaviour(status=500))
    running = bundle.start("submit", container=bundle.another())
    wait_until(fake.posts, "the POST arrives")
    set_zone(database, "America/New_York")
    bundle.cold()
    assert bundle.R()["reaped"] == 0
    database.age("9 minutes")
    assert bundle.R()["reaped"] == 0
    database.age("2 minutes")
    set_zone(database, "Asia/Kathmandu")
    bundle.cold()
    assert bundle.R()["reaped"] == 1
    bundle.D()
    assert len(fake.posts()) == 1, "not due yet"
    database.age("15 seconds")
    bundle.D()
    assert len(fake.posts()) == 2
    release.set()
    running.result()
    assert database.row(row)["status"] == "submitted"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_p60_nor_does_the_session_s_encoding(
    encoding: str, bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    database.insert("a 👍 for Zoë")
    set_for_role(database, "client_encoding", encoding)
    bundle.D()
    assert "👍" in json.loads(fake.posts()[0].body)["prompt"]
    bundle.R()
    assert database.statuses() == {"submitted": 1}


def test_p60_every_instant_has_a_zone(database: Database) -> None:
    columns = database.query(
        "select table_name, column_name, data_type from information_schema.columns"
        " where table_schema = 'public'"
    )
    assert not [c for c in columns if c["data_type"] == "timestamp without time zone"]
    instants = [
        c for c in columns if c["column_name"].endswith(("_at", "_until", "_after", "_since"))
    ]
    assert len(instants) > 8
    assert {c["data_type"] for c in instants} == {"timestamp with time zone"}


# ------------------------------------------------------------------------------------------- P61

BAD_PLANNER = ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_indexscan")


def claim_size(bundle: Bundle, database: Database, fake: FakeSume) -> int:
    """How many rows one run holds claimed at once, with every POST held."""
    release = threading.Event()
    before = len(fake.posts())
    # A run may begin with one row alone; all that come after it are held.
    fake.on_submit(Behaviour())
    fake.always_on_submit(Behaviour(hold=release))
    container = bundle.another()
    bundle.start("submit", remaining=30.0, container=container)
    wait_until(lambda: len(fake.posts()) >= before + 5, "the first POSTs arrive")
    claimed = database.statuses().get("submitting", 0)
    container.kill()
    release.set()
    fake.behave()
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        database.execute("delete from render_jobs where status = 'submitting'")
    return claimed


def test_p61_a_claim_never_takes_more_than_it_asked_for(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    bundle.set(SUBMIT_CONCURRENCY=4)
    database.execute("analyze render_jobs")  # while it is empty: stale statistics
    database.insert_many(10_000)
    usual = claim_size(bundle, database, fake)
    assert 4 <= usual <= 200
    with database.server.connect() as admin:
        for name in BAD_PLANNER:
            admin.execute(
                sql.SQL("alter role {} in database {} set {} = off").format(
                    sql.Identifier(APP_ROLE), sql.Identifier(database.name), sql.Identifier(name)
                )
            )
    unlucky = claim_size(bundle, database, fake)
    assert unlucky <= usual
    # Every row is claimed once, by whomever.
    database.execute("delete from render_jobs where status = 'pending' and id > 700")
    containers = [bundle.another() for _ in range(6)]
    calls = [bundle.start("submit", container=container) for container in containers]
    for call in calls:
        call.result()
    fresh = [post.key for post in fake.posts() if post.status == 202]
    assert len(fresh) == len(set(fresh))
    assert max(row["attempts"] for row in database.rows()) == 1


# ------------------------------------------------------------------------------------------- P62


@pytest.mark.slow
def test_p62_batch_writers_do_not_deadlock(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    with database.server.connect() as admin:
        admin.execute(
            sql.SQL("alter database {} set deadlock_timeout = '50ms'").format(
                sql.Identifier(database.name)
            )
        )
    pairs = bundle.accepted(150)
    for index, (_, job) in enumerate(pairs):
        fake.set_status(
            job, "completed" if index % 2 else "failed", {"code": "c"} if not index % 2 else None
        )
    database.insert_many(400)
    end = time.monotonic() + 3.0
    failures: list[BaseException] = []
    answers: list[int] = []

    def loop(name: str) -> None:
        container = bundle.another()
        try:
            while time.monotonic() < end:
                bundle.start(name, container=container).result()
        except BaseException as error:
            failures.append(error)

    def deliver(share: list[tuple[int, str]]) -> None:
        container = bundle.another()
        try:
            for _, job in share:
                status = fake.jobs[job].status
                answers.append(bundle.W(event_body(job, status), container=container).status)
        except BaseException as error:
            failures.append(error)

    def age() -> None:
        try:
            while time.monotonic() < end:
                with database.server.connect(database.name) as admin:
                    # In no order at all, like a careless operator's statement.
                    admin.execute(
                        "update gen_job set next_poll_at = now() - interval '1 second'"
                        " where job_id = any(array(select job_id from gen_job"
                        " where status in ('queued', 'processing') order by random() limit 5"
                        " for update skip locked))"
                    )
                time.sleep(0.1)
        except psycopg.errors.DeadlockDetected:
            pass

    threads = [
        threading.Thread(target=loop, args=(name,))
        for name in ("reap", "poll", "poll", "submit", "submit")
    ]
    threads += [threading.Thread(target=deliver, args=(pairs[start::2],)) for start in (0, 1)]
    threads.append(threading.Thread(target=age))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert set(answers) == {200}
    assert "40P01" not in bundle.output()
    for _, job in pairs:
        assert database.job(job)["status"] in ("completed", "failed")


def test_p62_events_in_opposite_orders(bundle: Bundle, database: Database) -> None:
    """The sibling: two receivers, the same jobs, opposite orders, at once."""
    jobs = [job for _, job in bundle.accepted(30)]
    statuses: list[int] = []

    def deliver(order: list[str], mark: str) -> None:
        container = bundle.another()
        for job in order:
            statuses.append(
                bundle.W(event_body(job, event_id=f"{mark}_{job}"), container=container).status
            )

    threads = [
        threading.Thread(target=deliver, args=(jobs, "a")),
        threading.Thread(target=deliver, args=(jobs[::-1], "b")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [200] * 60


# ------------------------------------------------------------------------------------------- P79


def history(database: Database, count: int) -> None:
    """So many rows that are finished, with their jobs."""
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        columns = {
            column["column_name"]
            for column in database.query(
                "select column_name from information_schema.columns"
                " where table_schema = 'public' and table_name = 'render_jobs'"
            )
        }
        assert {"sume_job_id", "idempotency_key"} <= columns
        database.execute(
            "insert into render_jobs select (jsonb_populate_record(r, jsonb_build_object("
            "'id', 1000000 + n, 'sume_job_id', 'job_old_' || n, 'idempotency_key', 'old-' || n))).*"
            " from (select t as r from render_jobs t where status = 'submitted' limit 1) one,"
            f" generate_series(1, {count}) n"
        )
        database.execute(
            "insert into gen_job select (jsonb_populate_record(g, jsonb_build_object("
            "'render_job_id', 1000000 + n, 'job_id', 'job_old_' || n,"
            " 'idempotency_key', 'old-' || n))).*"
            " from (select t as g from gen_job t where status = 'completed' limit 1) one,"
            f" generate_series(1, {count}) n"
        )
        database.execute(
            "insert into follow_up select (jsonb_populate_record(f, to_jsonb(k))).*"
            " from (select t as f from follow_up t limit 1) one,"
            f" (select 'job_old_' || n as job_id {follow_up_id(database)}"
            f" from generate_series(1, {count}) n) k"
        )
    database.execute("vacuum analyze render_jobs")
    database.execute("vacuum analyze gen_job")


def follow_up_id(database: Database) -> str:
    known = database.query(
        "select 1 from information_schema.columns"
        " where table_name = 'follow_up' and column_name = 'id'"
    )
    return ", 1000000 + n as id" if known else ""


def rows_read(database: Database) -> int:
    """Rows that scans, of tables or of indexes, have fetched from the two queue tables."""
    database.query("select pg_stat_force_next_flush()")
    value: int = database.one(
        "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_user_tables"
        " where relname in ('render_jobs', 'gen_job')"
    )
    return value


@pytest.mark.slow
def test_p79_history_costs_nothing(bundle: Bundle, database: Database, fake: FakeSume) -> None:
    row, job = bundle.job()
    fake.set_status(job, "completed")
    assert bundle.W(event_body(job)).outcome == "applied"
    bundle.poll_now()
    assert database.job(job)["result"] is not None
    history(database, 20_000)
    bundle.P()
    bundle.R()
    bundle.D()
    bundle.cold()
    wait_until(lambda: not database.sessions(), "the sessions end, and report their counts")
    database.query("select pg_stat_clear_snapshot()")
    before = rows_read(database)
    fresh = database.insert_many(200)
    started = time.monotonic()
    bundle.D()
    bundle.R()
    database.execute(
        "update gen_job set next_poll_at = now() - interval '1 s' where status = 'queued'"
    )
    middle = rows_read(database)
    bundle.P()
    bundle.W(event_body(database.row(fresh[0])["sume_job_id"]))
    spent = time.monotonic() - started
    bundle.cold()
    wait_until(lambda: not database.sessions(), "the sessions end, and report their counts")
    read = rows_read(database) - before
    assert middle >= before
    assert read < 20_000, f"{read} rows were read for 200 jobs: some scan walks the history"
    assert spent < 10.0 * slack()
    assert {database.row(identity)["status"] for identity in fresh} == {"submitted"}
    assert database.row(row)["status"] == "submitted"


@pytest.mark.slow
def test_p79_claims_stay_quick_under_an_old_snapshot(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    with database.session(user=None) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from render_jobs")
        rates = []
        for _ in range(4):
            database.insert_many(250)
            started = time.monotonic()
            while database.statuses().get("pending"):
                bundle.D()
            rates.append(250 / (time.monotonic() - started))
        other.rollback()
    assert rates[-1] > 0.3 * rates[0], rates


def test_p79_the_queue_tables_are_tuned(database: Database) -> None:
    for table in ("render_jobs", "gen_job"):
        options = database.one(
            "select coalesce(array_to_string(reloptions, ','), '')"
            " from pg_class where oid = %s::regclass",
            table,
        )
        assert "autovacuum_vacuum" in options
        assert "fillfactor" in options


def test_p79_no_full_index_on_status(database: Database) -> None:
    """Such an index would be written at every move; a partial one only for the rows it holds."""
    indexes = database.query(
        "select indexname, indexdef from pg_indexes where schemaname = 'public'"
        " and tablename in ('render_jobs', 'gen_job')"
    )
    for index in indexes:
        definition = index["indexdef"]
        columns = definition[definition.index("(") : definition.index(")")]
        if "status" in columns.replace("webhook_status", "") or "updated_at" in columns:
            assert " WHERE " in definition, definition


def test_p79_old_rows_are_purged_and_only_those(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    done_row, done = bundle.job()
    fake.set_status(done, "completed")
    bundle.poll_now()
    bundle.poll_now()
    failed = database.insert("refused")
    fake.on_submit(Behaviour(status=400))
    bundle.D()
    _, in_flight = bundle.job()
    dispatched = [
        column["column_name"]
        for column in database.query(
            "select column_name from information_schema.columns where table_name = 'follow_up'"
            " and data_type = 'timestamp with time zone' and column_name like '%%dispatched%%'"
        )
    ]
    waiting_row, waiting = bundle.job()
    fake.set_status(waiting, "failed", {"code": "c"})
    bundle.poll_now()
    if dispatched:
        # Of the job that is done, and of the row that failed without ever having one.
        database.execute(
            f"update follow_up set {dispatched[0]} = now() where job_id = any(%s)",
            [done, database.row(failed)["idempotency_key"]],
        )
    database.age("20 days")
    bundle.R()
    assert len(database.rows()) == 4, "younger than the retention"
    database.age("11 days")
    pending = database.insert("new")
    for _ in range(2):
        bundle.R()
    left = {row["id"] for row in database.rows()}
    assert failed not in left
    assert (done_row not in left) == bool(dispatched)
    assert {waiting_row, pending} <= left, "a follow-up that is not dispatched is never purged"
    assert database.job(in_flight)["status"] == "queued", "never rows in flight"


# ------------------------------------------------------------------------------------------- P80


def test_p80_ids_are_bigint(database: Database) -> None:
    columns = database.query(
        "select c.table_name, c.column_name, c.data_type from information_schema.columns c"
        " join information_schema.tables t using (table_schema, table_name)"
        " where c.table_schema = 'public' and t.table_type = 'BASE TABLE'"
        " and (c.column_name = 'id' or c.column_name like '%%\\_id')"
    )
    narrow = [c for c in columns if c["data_type"] in ("integer", "smallint")]
    assert not narrow, narrow
    assert {"render_jobs"} <= {c["table_name"] for c in columns}
    sequences = database.query(
        "select sequencename, data_type::text t from pg_sequences where schemaname = 'public'"
    )
    assert {s["t"] for s in sequences} == {"bigint"}


def test_p80_a_whole_flow_past_two_to_the_31(
    bundle: Bundle, database: Database, fake: FakeSume
) -> None:
    for row in database.query(
        "select sequencename s from pg_sequences where schemaname = 'public'"
    ):
        database.query("select setval(%s::regclass, %s)", row["s"], 2**31 + 5)
    (identity, job), (second, other) = bundle.accepted(2)
    assert identity > 2**31
    early = database.insert()
    fake.on_submit(Behaviour(call=lambda made: bundle.W(event_body(made.id))))
    bundle.D()
    assert database.state(early) == "done"
    fake.set_status(job, "completed")
    bundle.poll_now()
    assert bundle.W(event_body(other, "failed", error={"code": "c"})).outcome == "applied"
    assert database.state(identity) == "done"
    assert database.state(second) == "needs_attention"
    assert fake.posts()[0].key == key_of(identity)
    held = database.insert()
    release = threading.Event()
    fake.on_submit(Behaviour(hold=release))
    running = bundle.start("submit")
    wait_until(lambda: fake.posts(key_of(held)), "the POST arrives")
    database.age("11 minutes")
    assert bundle.R()["reaped"] == 1
    release.set()
    running.result()
    assert database.row(held)["status"] == "submitted"
