"""The demo's verdict: each broken promise is found and named."""

import io
from collections import Counter
from types import SimpleNamespace

import psycopg
import pytest
from rich.console import Console

from local import progress
from local.progress import Display, Gate, Standing, standing
from local.report import functions_table, report, summary_table
from local.runner import Function, Statistics


@pytest.fixture
def database(local_database):
    with psycopg.connect(local_database, autocommit=True) as connection:
        connection.execute("truncate render_jobs, gen_job, follow_up, job_conflict, webhook_event")
        connection.execute(progress.CREATE)
        yield connection


class Row:
    """Puts one row, and its job, into any state by plain SQL."""

    def __init__(self, database, billed):
        self.database, self.billed, self.number = database, billed, 0

    def __call__(self, status="submitted", job="completed", follow_ups=None, bills=1, result="{}"):
        self.number += 1
        key, job_id = f"k-{self.number}", f"job_{self.number}" if status == "submitted" else None
        (row,) = self.database.execute(
            "insert into render_jobs (prompt, status, sume_job_id, idempotency_key, error_code) "
            "values ('p', %s, %s, %s, %s) returning id",
            (status, job_id, key, "invalid_request" if status == "failed" else None),
        ).fetchone()
        self.database.execute("insert into run_rows values (%s)", (row,))
        if job_id:
            self.database.execute(
                "insert into gen_job (job_id, idempotency_key, render_job_id, status, result, "
                "error_code) values (%s, %s, %s, %s, %s, %s)",
                (job_id, key, row, job, result, "x" if job == "failed" else None),
            )
            ended = job in ("completed", "failed", "canceled")
            for kind in ([f"job.{job}"] if ended else []) if follow_ups is None else follow_ups:
                self.database.execute(
                    "insert into follow_up (job_id, kind, render_job_id) values (%s, %s, %s)",
                    (job_id, kind, row),
                )
        if bills:
            self.billed[key] = bills
        return row


@pytest.fixture
def bills():
    return {}


@pytest.fixture
def row(database, bills):
    return Row(database, bills)


@pytest.fixture
def verdict(database, bills):
    def look():
        functions = {name: Statistics(invocations=2) for name in ("submit", "poll")}
        bundle = SimpleNamespace(
            fake=SimpleNamespace(stats=lambda keys: {"replays": 0, "billed_by_key": bills}),
            gateway=SimpleNamespace(
                responses=Counter({("webhook", 200): 5, ("webhook", 503): 1}),
                outcomes=Counter(applied=4, held=1),
            ),
            runner=SimpleNamespace(
                statistics=lambda: functions,
                functions={name: Function(name, "x.y", 1, 128) for name in functions},
            ),
        )
        return report(database, bundle)

    return look


def printed(renderable):
    text = io.StringIO()
    Console(file=text, width=100).print(renderable)
    return text.getvalue()


def test_a_run_in_order(row, verdict):
    row()
    row(job="failed", result=None)
    row(status="failed", bills=0)
    found = verdict()
    assert found.broken == []
    assert (found.billed, found.accepted, found.standing.rows) == (2, 2, 3)
    assert found.reasons == [("invalid_request", 1), ("x", 1)]
    text = printed(summary_table(found, 1.0))
    assert "1 refused by Sume, never billed" in text
    assert "webhooks refused" in text
    assert "128 MB" in printed(functions_table(found))


@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        ({"status": "pending", "bills": 0}, "1 rows are neither done nor in need of attention"),
        ({"job": "processing"}, "1 rows are neither done nor in need of attention"),
        ({"result": None}, "1 completed jobs are without their result"),
        ({"bills": 2}, "billed more than once: 1 rows (id "),
        ({"bills": 0}, "said to be submitted, but never billed: 1 rows"),
        ({"status": "failed", "bills": 1}, "billed, but without their job: 1 rows"),
        ({"follow_ups": []}, "1 jobs that ended do not have exactly one follow-up"),
        ({"follow_ups": ["job.failed"]}, "1 jobs that ended do not have exactly one follow-up"),
        (
            {"follow_ups": ["job.completed", "job.failed"]},
            "1 jobs that ended do not have exactly one follow-up",
        ),
    ],
)
def test_each_broken_promise_is_named(row, verdict, arguments, broken):
    row()
    row(**arguments)
    found = verdict()
    assert len(found.broken) == 1
    assert found.broken[0].startswith(broken)


def test_other_kinds_of_follow_up_do_not_count(row, verdict):
    row(follow_ups=["job.completed", "job.archived"])
    assert verdict().broken == []


def test_a_conflict_is_a_broken_promise(row, verdict, database):
    found = row()
    database.execute(
        "insert into job_conflict (render_job_id, job_id, reason) values (%s, 'job_x', 'r')",
        (found,),
    )
    assert verdict().broken == ["1 entries in job_conflict: a row met a job that is not its own"]


def test_the_standing_counts_what_people_see(row, database):
    row()
    row(result=None)
    row(job="queued")
    row(job="processing")
    row(status="pending", bills=0)
    row(status="canceled", bills=0)
    database.execute("update pace_gate set closed_until = now() + interval '9 s', reason = 'why'")
    now = standing(database)
    database.execute("update pace_gate set closed_until = null, reason = null")
    assert (now.working, now.done, now.needs_attention, now.rows) == (3, 2, 1, 6)
    assert (now.pending, now.queued, now.processing, now.lacks_result) == (1, 1, 1, 1)
    assert now.submitted == 4
    assert not now.finished
    assert [(gate.name, gate.reason) for gate in now.gates] == [("reads", "why"), ("writes", "why")]


def test_progress_on_a_terminal_and_elsewhere():
    gates = (Gate("writes", "queue_full", 12.0, 0), Gate("reads", "x", -1.0, 0))
    moments = [
        Standing(working=3, pending=2, queued=1, gates=gates),
        Standing(working=1, processing=1, done=2, lacks_result=1),
        Standing(done=3),
    ]
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=120)
        with Display(console) as display:
            for moment in moments:
                display.show(moment)
        shown = text.getvalue()
        assert "gate closed for 12 s (queue_full)" in shown
        assert "reads gate half open (x)" in shown
        assert "\x1b[" in shown if terminal else "\x1b[" not in shown
        if not terminal:
            # The second one came too soon after the first; the last is always said.
            assert len(shown.splitlines()) == 2
            assert "done 3" in shown.splitlines()[-1]
