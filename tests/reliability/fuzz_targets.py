"""The fuzzed parts of the product, each with the properties that must hold for any input.

Everything runs in this process, against a real PostgreSQL: `Bench` is the environment, `TARGETS`
names what can be fuzzed. A check raises AssertionError where a property does not hold.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from hypothesis import strategies as st

from tests.reliability import fuzz_inputs as inputs
from tests.support.postgres import Database

CALL_SECONDS = 0.5
# A JSON text nested less than this must be read; deeper ones may be refused.
SURELY_READABLE = 80
STATUSES = {"queued", "processing", "completed", "failed", "canceled"}
ENDS = {"completed", "failed", "canceled"}


class Bench:
    """Handlers and flows in this process, with a database of their own and their output kept."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tried: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.server = RawServer()
        self._output = io.StringIO()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        environment = {
            "DATABASE_URL": self.database.url,
            "SUME_BASE_URL": self.server.url,
            "SUME_API_KEY": inputs.API_KEY,
            "SUME_WEBHOOK_SECRETS": inputs.SECRET,
            "SUME_WRITES_PER_MINUTE": "10000000",
            "SUME_READS_PER_MINUTE": "10000000",
            "SUME_TIMEOUT_SECONDS": str(CALL_SECONDS),
            "NO_PROXY": "127.0.0.1",
        }
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        self._stack.callback(_restore, before)
        self._stack.callback(self.server.close)

        from sume_jobs import runtime, telemetry

        runtime.reset()
        self._stack.callback(runtime.reset)
        for handler in telemetry.logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                old = handler.setStream(self._output)
                self._stack.callback(handler.setStream, old)
        # What libraries log goes to the root logger, as in Lambda.
        catcher = logging.StreamHandler(self._output)
        catcher.addFilter(lambda record: record.name != telemetry.logger.name)
        logging.getLogger().addHandler(catcher)
        self._stack.callback(logging.getLogger().removeHandler, catcher)
        self.refill()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def runtime(self) -> Any:
        from sume_jobs import runtime

        return runtime.current()

    def quiet(self) -> contextlib.AbstractContextManager[object]:
        """Keep what is printed (metrics) with what is logged."""
        stack = contextlib.ExitStack()
        stack.enter_context(contextlib.redirect_stdout(self._output))
        stack.enter_context(contextlib.redirect_stderr(self._output))
        return stack

    def check_output(self, markers: list[str]) -> None:
        """No secret, key, signature or prompt was written; forget what was."""
        text = self._output.getvalue()
        self._output.seek(0)
        self._output.truncate()
        for marker in (inputs.SECRET, inputs.API_KEY, *markers):
            assert marker not in text, f"{marker!r} in the log: {text[:2000]}"
        for line in text.split("\n")[:-1]:
            assert line.startswith("{"), f"a line that is no JSON: {line[:500]}"
            json.loads(line)

    # The tables --------------------------------------------------------------------------------

    def refill(self) -> None:
        """Begin anew: jobs in every status, no event."""
        self.database.execute(
            "truncate render_jobs, gen_job, webhook_event, job_conflict, follow_up,"
            " test_history.job, test_history.row"
        )
        self.database.execute(
            """insert into gen_job (job_id, idempotency_key, render_job_id, status)
               select job, job, null, (array['queued', 'processing'])[1 + n %% 2]
                 from unnest(%s::text[]) with ordinality as known (job, n)""",
            inputs.JOBS,
        )
        self.open_gates()

    def open_gates(self) -> None:
        self.database.execute(
            "update pace_gate set closed_until = null, ambiguous = '{}', closures = 0,"
            " probe_until = null"
        )

    def contents(self, without: str = "") -> str:
        """All that the product's tables hold, as one hash."""
        row = f"to_jsonb(t) - '{without}'"
        parts = [
            f"(select coalesce(md5(string_agg(({row})::text, ',' order by ({row})::text)), '')"
            f" from {table} t)"
            for table in ("render_jobs", "gen_job", "webhook_event", "job_conflict", "follow_up")
        ]
        return str(self.database.one("select " + " || ".join(parts)))

    def check_promises(self) -> None:
        """Forward only, terminal for ever, one follow-up for each end."""
        for move in self.database.query("select * from test_history.job"):
            assert move["was"] not in ENDS, move
            assert (move["was"], move["became"]) != ("processing", "queued"), move
        odd = self.database.query(
            """select g.job_id, g.status, array_agg(f.kind) as kinds
                 from gen_job g left join follow_up f on f.job_id = g.job_id
                group by g.job_id, g.status
               having case when g.status in ('completed', 'failed', 'canceled')
                           then array_agg(f.kind) is distinct from array['job.' || g.status]
                           else count(f.kind) > 0 end"""
        )
        assert not odd, odd


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class RawServer:
    """Answers each connection with the bytes it was given, then closes it."""

    def __init__(self) -> None:
        self.answer = b""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(5)
                asked = b""
                while b"\r\n\r\n" not in asked:
                    more = client.recv(1 << 16)
                    if not more:
                        break
                    asked += more
                head, _, body = asked.partition(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                while len(body) < length:
                    body += client.recv(1 << 16)
                client.sendall(self.answer)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass

    def close(self) -> None:
        # Wakes the accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


# Webhook ------------------------------------------------------------------------------------------


def check_webhook(bench: Bench, attempt: inputs.Attempt) -> None:
    """200, 400, 401 or 413 and never 5xx; what is not genuine never reaches the database."""
    from sume_jobs.connection import Database as Connection

    from functions.webhook import app

    statements = 0
    run = Connection.run

    def counted(self: Any, *arguments: Any) -> Any:
        nonlocal statements
        statements += 1
        return run(self, *arguments)

    if bench.tried["webhook"] % 500 == 0:
        bench.check_promises()
        bench.refill()
    looked_at = not attempt.genuine and bench.tried["webhook"] % 16 == 0
    before = bench.contents() if looked_at else None
    Connection.run = counted  # type: ignore[method-assign]
    try:
        with bench.quiet():
            answer = app.handler(attempt.event, None)
    finally:
        Connection.run = run  # type: ignore[method-assign]
    bench.tried["webhook"] += 1
    status, body = answer["statusCode"], json.loads(answer["body"])
    json.dumps(answer)
    bench.seen[f"webhook {attempt.label} {status} {body.get('outcome', '')}".strip()] += 1
    if attempt.genuine:
        assert attempt.raw is not None
        _check_genuine(status, body, attempt.raw)
    else:
        assert status in (400, 401, 413), (status, body)
        assert statements == 0, "an unverified body reached the database"
        assert before is None or bench.contents() == before
    bench.check_output([*attempt.markers])


def _check_genuine(status: int, body: Mapping[str, str], raw: bytes) -> None:
    if len(raw) > inputs.LARGEST_BODY:
        assert status == 413
        return
    try:
        parsed = json.loads(raw.decode(), parse_int=str)
    except RecursionError:
        assert status in (200, 400)
        return
    except ValueError:
        assert status == 400, (status, body)
        return
    if status == 400:
        assert _depth(parsed) > SURELY_READABLE, (status, body)
        return
    assert status == 200, (status, body)
    assert body["outcome"] in {"applied", "noop", "duplicate", "held", "ignored"}


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        level = [
            inner
            for each in level
            for inner in (
                each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            )
        ]
    return depth


def check_reread(bench: Bench, attempt: inputs.Attempt) -> None:
    """In `reread` mode what is not genuine changes nothing but the next poll time of a job."""
    from functions.webhook import app

    if bench.tried["reread"] % 500 == 0:
        bench.refill()
    os.environ["WEBHOOK_VERIFICATION"] = "reread"
    try:
        before = None if attempt.genuine else bench.contents(without="next_poll_at")
        with bench.quiet():
            answer = app.handler(attempt.event, None)
    finally:
        del os.environ["WEBHOOK_VERIFICATION"]
    bench.tried["reread"] += 1
    assert answer["statusCode"] in (200, 400, 401, 413), answer
    assert before is None or bench.contents(without="next_poll_at") == before
    bench.seen[f"reread {attempt.label} {answer['statusCode']}"] += 1
    bench.check_output([*attempt.markers])


# Sume's answers -----------------------------------------------------------------------------------


class Spoken(NamedTuple):
    """An HTTP answer of Sume, and whether it is the first to this row."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    first_send: bool


spoken = st.builds(
    Spoken,
    inputs.http_statuses,
    inputs.answer_headers,
    inputs.answer_bodies,
    st.sampled_from([True] * 9 + [False]),
    st.booleans(),
)


def check_answers(bench: Bench, spoken: Spoken) -> None:
    """Reading an answer never raises, and what it says is fit to be stored."""
    from sume_jobs.decisions import answers, outcomes

    bench.tried["answers"] += 1
    answer = outcomes.Answer(spoken.status, spoken.headers, spoken.body, spoken.complete)
    now = time.time()
    outcome = outcomes.decide_submit(answer, spoken.first_send, now)
    bench.seen[f"submit {outcome.line.action}"] += 1
    accepted = outcome.line.action in ("accepted", "collision")
    assert accepted == (200 <= spoken.status < 300 and outcome.job_id is not None)
    _check_storable(outcome.job_id, 200, ascii_only=True)
    _check_storable(outcome.error.code, 200)
    _check_storable(outcome.error.message, 2000)
    _check_storable(outcome.error.request_id, 200)
    _check_storable(outcome.error_code, 200)
    reads = (
        outcomes.decide_read(answer, "job_fuzz_1", now),
        outcomes.decide_result(answer, "job_fuzz_1", now),
        outcomes.decide_cancel(answer, "job_fuzz_1", now),
    )
    for read in reads:
        bench.seen[f"read {read.action}"] += 1
        assert (read.action == "state") <= (read.state is not None)
        assert (read.action == "result") == (read.result is not None)
        if read.result is not None:
            assert json.loads(read.result)["artifacts"]
        if read.state is not None:
            _check_storable(read.state.job_id, 200, ascii_only=True)
            _check_storable(read.state.error_code, 200)
            _check_storable(read.state.webhook_status, 100)
            assert read.state.reported is None or read.state.reported.status in STATUSES
            assert read.state.job_id in (None, "job_fuzz_1") or read.action != "state"
            if read.state.error_json is not None:
                json.loads(read.state.error_json, parse_int=str, parse_constant=_no_constant)
    for wait in (outcome.retry_after, *(read.retry_after for read in reads)):
        assert wait is None or 0 < wait <= 900
    with contextlib.suppress(answers.NotJson):
        answers.event_state(answers.parse_json(spoken.body))


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _check_storable(text: str | None, longest: int, ascii_only: bool = False) -> None:
    if text is None:
        return
    assert text, "an empty text says nothing"
    assert len(text) <= longest
    assert "\x00" not in text
    text.encode("ascii" if ascii_only else "utf-8")


def check_stored_answers(bench: Bench, spoken: Spoken) -> None:
    """Recording any answer to a submit or a read works, and leaves no row between states."""
    from sume_jobs.decisions.outcomes import Answer
    from sume_jobs.flows import poll, submit, sume_access
    from sume_jobs.flows.paced_run import Done

    if bench.tried["stored"] % 200 == 0:
        bench.check_promises()
        bench.refill()
    bench.tried["stored"] += 1
    database = bench.database
    database.execute("delete from render_jobs where status = 'pending' and unknown_since is null")
    database.execute("update render_jobs set status = 'failed' where status = 'pending'")
    bench.open_gates()
    answer = Answer(spoken.status, spoken.headers, spoken.body, spoken.complete)
    row = database.one("insert into render_jobs (prompt) values (%s) returning id", inputs.PROMPT)
    with bench.quiet():
        client = sume_access.client_of(bench.runtime)
        try:
            sending = submit._Submit(bench.runtime, client, Counter())
            admission, claims = sending.claim(1, True)
            assert [each.row_id for each in claims] == [row], admission
            sending.record([Done(claims[0], answer, False)])
            sending.after(True)
            after = database.row(row)
            bench.seen[f"row {after['status']}"] += 1
            assert after["status"] != "submitting", after
            if after["status"] == "submitted":
                assert database.job(after["sume_job_id"])["render_job_id"] == row
            bench.open_gates()
            database.execute("update gen_job set next_poll_at = null")
            database.execute(
                "update gen_job set next_poll_at = now() - interval '1 hour' where job_id = %s",
                inputs.JOBS[1],
            )
            reading = poll._Poll(bench.runtime, client, Counter())
            _, jobs = reading.claim(1, True)
            if jobs:
                reading.record([Done(jobs[0], answer, False)])
        finally:
            client.close()
    bench.check_output([inputs.PROMPT[:13]])


# Raw HTTP -----------------------------------------------------------------------------------------


def check_http(bench: Bench, attempt: inputs.RawAnswer) -> None:
    """Whatever bytes come back: an Answer or a NoAnswer, in time, and nothing raised."""
    from sume_jobs.decisions import outcomes
    from sume_jobs.sume_client import LARGEST_BODY, SumeClient

    bench.tried["http"] += 1
    bench.server.answer = attempt.raw
    client = SumeClient(bench.server.url, "/v1/images", inputs.API_KEY, CALL_SECONDS, 1)
    started = time.monotonic()
    with bench.quiet():
        try:
            if attempt.call == "submit":
                answer = client.submit("render-job-1", json.dumps({"prompt": inputs.PROMPT}))
            elif attempt.call == "job":
                answer = client.job("job_raw")
            else:
                answer = client.result("job_raw")
        finally:
            client.close()
    assert time.monotonic() - started < CALL_SECONDS + 1.5
    if isinstance(answer, outcomes.Answer):
        bench.seen["http answer"] += 1
        assert 100 <= answer.status <= 999
        assert len(answer.body) <= LARGEST_BODY + (1 << 20)
        assert all(name == name.lower() for name in answer.headers)
    else:
        bench.seen[f"http {answer.reason}"] += 1
        assert answer.sent, "the request had left"
    outcomes.decide_submit(answer, True, time.time())
    outcomes.decide_read(answer, "job_raw", time.time())
    outcomes.decide_result(answer, "job_raw", time.time())
    bench.check_output([inputs.PROMPT[:13]])


# Files of prompts ---------------------------------------------------------------------------------


def check_prompts(bench: Bench, file: inputs.PromptsFile) -> None:
    """Each record is loaded or named with a reason; again, nothing new; and no other error."""
    from local import prompts

    if bench.tried["prompts"] % 200 == 0:
        bench.refill()
    bench.tried["prompts"] += 1
    with tempfile.TemporaryDirectory(prefix="sume-jobs-fuzz-") as folder:
        path = Path(folder) / file.name
        path.write_bytes(file.content)
        try:
            records = list(prompts.read(path))
        except prompts.PromptsFileError:
            bench.seen["file refused"] += 1
            return
        lines = file.content.count(b"\n") + file.content.count(b"\r") + 1
        for record in records:
            assert 1 <= record.line <= lines
            if isinstance(record, prompts.BadLine):
                record.reason.encode("utf-8", "replace")
                assert record.reason
        with psycopg.connect(bench.database.url, autocommit=True) as connection:
            first = prompts.load(connection, path)
            second = prompts.load(connection, path)
        bench.seen["records loaded"] += first.inserted
        bench.seen["records refused"] += len(first.bad)
        assert first.inserted + first.present + len(first.bad) == len(records)
        assert (second.inserted, len(second.bad)) == (0, len(first.bad))


def answers_near(answer: Spoken, chance: random.Random, count: int) -> Iterator[Spoken]:
    """The same answer with other statuses and changed bodies."""
    for _ in range(count):
        status = chance.choice((200, 202, 400, 404, 409, 429, 500, answer.status))
        body = answer.body if len(answer.body) > 20_000 else inputs.mutate(answer.body, chance)
        yield answer._replace(status=status, body=body)


class Target(NamedTuple):
    """Something to fuzz: Hypothesis makes an input, `near` makes others close to it."""

    strategy: st.SearchStrategy[Any]
    check: Callable[[Bench, Any], None]
    near: Callable[[Any, random.Random, int], Iterator[Any]]

    def try_all(self, bench: Bench, value: Any, seed: int, neighbours: int) -> None:
        """Check the input and so many near it."""
        self.check(bench, value)
        for other in self.near(value, random.Random(seed), neighbours):
            self.check(bench, other)


TARGETS: dict[str, Target] = {
    "webhook": Target(inputs.attempts, check_webhook, inputs.deliveries_near),
    "reread": Target(inputs.attempts, check_reread, inputs.deliveries_near),
    "answers": Target(spoken, check_answers, answers_near),
    "stored": Target(spoken, check_stored_answers, answers_near),
    "http": Target(inputs.raw_answers, check_http, inputs.raw_answers_near),
    "prompts": Target(inputs.prompt_files(), check_prompts, inputs.files_near),
}
SEEDS = st.integers(0, 2**32 - 1)


@contextlib.contextmanager
def own_database() -> Iterator[Database]:
    """A server and a migrated database for a run outside pytest."""
    from tests.support.invariants import HISTORY
    from tests.support.postgres import Server, create_database

    server = Server().start()
    try:
        create_database(server, "sume_fuzz")
        database = Database(server, "sume_fuzz")
        before = {"DATABASE_URL": os.environ.get("DATABASE_URL")}
        os.environ["DATABASE_URL"] = database.url
        try:
            from sume_jobs import runtime

            from functions.migrate import app

            app.handler({}, None)
            runtime.reset()
        finally:
            _restore(before)
        database.execute(HISTORY)
        yield database
        database.close()
    finally:
        server.stop()
