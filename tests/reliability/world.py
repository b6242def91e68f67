"""A world that is stepped: tasks, a clock, database sessions and HTTP calls under one scheduler.

The real handlers run in it, unchanged, each invocation in threads of its own; but only one thread
runs at a time, and each database statement and each HTTP call is a place where it stops until it
is told to go on. What happens there (go on, commit late, lose the connection before or after the
commit, be killed) is decided by the seed. The database is a real PostgreSQL: a statement whose
commit is held back really holds its locks, and another one really waits for them.

Time is the world's own. It passes only when the scheduler says so, and then every instant in the
database is moved back by as much.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from sume_jobs.connection import Database
from sume_jobs.decisions.outcomes import Answer, NoAnswer
from sume_jobs.sume_client import SumeClient

# What PostgreSQL draws itself, as a row's time to come back, is a seed's own, too.
SAME_CHANCE = "select setseed(0.5)"
# How long the scheduler waits before it asks whether a statement is waiting for a lock; seconds.
LOCK_LOOK = 0.008
# A task that neither stops nor waits for a lock within this time is a fault of the test; seconds.
PATIENCE = 30.0


class Killed(BaseException):
    """The process of this task was killed: nothing of it goes on."""


@dataclass(eq=False)
class Actor:
    """One invocation of one function: what a SIGKILL takes away at once."""

    name: str
    deadline: float = float("inf")
    killed: bool = False
    faults: int = 0
    result: Any = None
    error: BaseException | None = None
    tasks: list[Task] = field(default_factory=list)
    done: bool = False
    # Whatever happens at its end; runs in the scheduler's thread.
    at_end: Callable[[], None] | None = None
    unclaimed: bool = True


class Task:
    """A thread that runs only while the scheduler waits for it."""

    def __init__(self, world: World, actor: Actor, work: Callable[[], None]) -> None:
        self.world, self.actor = world, actor
        # Bare locks: handed over from thread to thread, each is held whenever nobody may go on.
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        # ready, waiting, blocked or done: as the scheduler knows it, who takes over `stopped_as`
        # once the thread has stopped.
        self.state = self.stopped_as = "ready"
        self.until = float("inf")
        self.condition: Callable[[], bool] | None = None
        self.session: Session | None = None
        self._work = work
        actor.tasks.append(self)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.go.acquire()
        _current.task = self
        try:
            if not self.actor.killed:
                self._work()
        except Killed:
            pass
        except BaseException as error:
            self.actor.error = error
        self.stopped_as = "done"
        self.back.release()

    def stop_here(self, stopped_as: str = "ready") -> None:
        self.stopped_as = stopped_as
        self.back.release()
        self.go.acquire()
        if self.actor.killed:
            raise Killed


_current = threading.local()


def current() -> Task:
    task: Task = _current.task
    return task


def age_statement(admin: psycopg.Connection[Any]) -> str:
    """Moves every stored instant back by `@@` seconds; for a connection without triggers."""
    rows = admin.execute(
        "select c.table_name, c.column_name from information_schema.columns c"
        " join information_schema.tables t using (table_schema, table_name)"
        " where c.table_schema = 'public' and t.table_type = 'BASE TABLE'"
        " and c.data_type = 'timestamp with time zone'"
        " and c.table_name not like '%migration%' order by 1 desc, 2"
    ).fetchall()
    tables: dict[str, list[str]] = {}
    for row in rows:
        tables.setdefault(row["table_name"], []).append(row["column_name"])
    return "; ".join(
        f"update {table} set "
        + ", ".join(f"{column} = {column} - interval '@@ s'" for column in columns)
        for table, columns in tables.items()
    )


class World:
    """Tasks, clock, sessions and the history of one seed."""

    def __init__(self, admin: psycopg.Connection[Any], url: str, names: dict[str, str]) -> None:
        self.admin, self.url, self.names = admin, url, names
        self.clock = 0.0
        self.owed = 0.0
        self.actors: list[Actor] = []
        self.tasks: list[Task] = []
        self.history: list[str] = []
        self.idle_connections: list[psycopg.Connection[Any]] = []
        self.open_transactions: list[Session] = []
        self.fault: Callable[[str, Actor], str] = lambda _kind, _actor: ""
        self.on_time: Callable[[], None] = lambda: None
        # Sees the rows of every statement, by its name.
        self.on_rows: Callable[[str, list[dict[str, Any]]], None] = lambda _name, _rows: None
        self.statements = self.calls = 0
        self.blocked_ever = 0
        self.released = False
        self._age = age_statement(admin)

    def say(self, who: str, text: str) -> None:
        self.history.append(f"{self.clock:10.2f}  {who:<11} {text}")

    # Tasks --------------------------------------------------------------------------------------

    def begin(self, actor: Actor, work: Callable[[], None]) -> Actor:
        self.actors.append(actor)
        self.tasks.append(Task(self, actor, work))
        return actor

    def runnable(self) -> list[Task]:
        return [
            task
            for task in self.tasks
            if task.state == "ready"
            or (
                task.state == "waiting"
                and (task.until <= self.clock or (task.condition is not None and task.condition()))
            )
        ]

    def next_alarm(self) -> float | None:
        """When the first waiting task wakes by itself; None where none does."""
        times = [task.until for task in self.tasks if task.state == "waiting"]
        return min(times, default=None)

    def resume(self, task: Task) -> None:
        """Let a task run to its next stop (or until it waits for a lock)."""
        task.go.release()
        self._await(task)
        self._settle_blocked()
        self._end_killed()
        self._bury()

    def _end_killed(self) -> None:
        for task in self.tasks:
            # A statement that waits for a lock is not interrupted by its client's death.
            if task.actor.killed and task.state in ("ready", "waiting"):
                task.go.release()
                self._await(task)
                self._settle_blocked()

    def _await(self, task: Task) -> None:
        started = time.monotonic()
        while not task.back.acquire(timeout=LOCK_LOOK):
            session = task.session
            if session is not None and self._waits_for_lock(session):
                if task.state != "blocked":
                    self.blocked_ever += 1
                    self.say(task.actor.name, "  … waits for a lock")
                task.state = "blocked"
                return
            if time.monotonic() - started > PATIENCE:
                raise AssertionError(f"{task.actor.name} does not stop\n" + "\n".join(self.history))
        task.state = task.stopped_as

    def _waits_for_lock(self, session: Session) -> bool:
        row = self.admin.execute(
            "select cardinality(pg_blocking_pids(%s)) > 0 as waits", (session.pid,)
        ).fetchone()
        return bool(row and row["waits"])

    def _settle_blocked(self) -> None:
        """After a commit or rollback: whoever waited for it goes on to its next stop."""
        released, self.released = self.released, False
        for task in [task for task in self.tasks if task.state == "blocked"]:
            if released:
                self._await(task)
            elif task.back.acquire(blocking=False):
                task.state = task.stopped_as

    def _bury(self) -> None:
        self.tasks = [task for task in self.tasks if task.state != "done"]
        for actor in self.actors:
            if not actor.done and all(task.state == "done" for task in actor.tasks):
                actor.done = True
                if actor.at_end is not None:
                    actor.at_end()
        self.actors = [actor for actor in self.actors if not actor.done]

    def kill(self, actor: Actor) -> None:
        """SIGKILL: every thread of the process is gone, and what was not committed is undone."""
        if not actor.done and not actor.killed:
            actor.killed = True
            self.say(actor.name, "KILLED")
            self._end_killed()
            self._bury()

    def pause(self) -> None:
        """In a task: stop until told to go on."""
        current().stop_here()

    def wait(self, until: float, condition: Callable[[], bool] | None = None) -> None:
        """In a task: stop until the clock says `until` or the condition holds."""
        task = current()
        task.until, task.condition = until, condition
        task.stop_here("waiting")
        task.until, task.condition = float("inf"), None

    # Time ---------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.clock += seconds
        self.owed += seconds
        self.on_time()

    def pay_time(self) -> None:
        """Let the database's stored instants grow as old as the world says."""
        if self.owed > 0.02 and not self.open_transactions:
            blocked = any(task.state == "blocked" for task in self.tasks)
            if not blocked:
                self.admin.execute(self._age.replace("@@", f"{self.owed:.6f}"))
                self.owed = 0.0

    # Database -----------------------------------------------------------------------------------

    def lease(self) -> psycopg.Connection[Any]:
        if self.idle_connections:
            return self.idle_connections.pop()
        # Prepared, unlike the product's: planning each statement anew is most of its cost here.
        connection = psycopg.connect(
            self.url,
            autocommit=True,
            prepare_threshold=1,
            row_factory=dict_row,
            options="-c plan_cache_mode=force_generic_plan -c lock_timeout=20s"
            " -c statement_timeout=30s -c idle_in_transaction_session_timeout=0",
        )
        connection.execute(SAME_CHANCE)
        return connection

    def give_back(self, connection: psycopg.Connection[Any]) -> None:
        if not connection.closed:
            self.idle_connections.append(connection)

    def close(self) -> None:
        for connection in self.idle_connections:
            connection.close()
        self.idle_connections.clear()


class _Info:
    transaction_status = TransactionStatus.IDLE


class Session:
    """What the product takes for its psycopg connection; a real one runs the statements."""

    info = _Info()

    def __init__(self, world: World) -> None:
        self.world = world
        self.closed = False
        self._real = world.lease()
        self.pid = self._real.info.backend_pid

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.world.give_back(self._real)

    def lose(self) -> psycopg.OperationalError:
        self.close()
        return psycopg.OperationalError("server closed the connection unexpectedly")

    def execute(self, statement: str, parameters: Any = None, *, binary: bool = False) -> Any:
        world, task = self.world, current()
        actor, name = task.actor, world.names.get(statement, statement.strip().split("\n")[0][:40])
        world.pause()
        fault = world.fault("statement", actor)
        if fault == "killed before":
            world.say(actor.name, f"{name}: killed before it left")
            actor.killed = True
            raise Killed
        if fault == "lost before":
            world.say(actor.name, f"{name}: connection lost before it arrived")
            raise self.lose()
        if fault in _RAISED:
            world.say(actor.name, f"{name}: refused with {fault}")
            if fault in ("57P01", "25006"):
                self.close()
            raise _RAISED[fault](f"injected {fault}")
        held = fault in ("held", "held and lost", "held and killed")
        world.statements += 1
        world.pay_time()
        task.session = self
        undo = True
        try:
            if held:
                self._real.execute("begin")
                world.open_transactions.append(self)
            real = self._real.execute(statement, parameters, binary=binary)  # type: ignore[call-overload]
            cursor = _Kept(real)
            said = _said(cursor)
            world.on_rows(name, cursor.rows)
            if held:
                world.say(actor.name, f"{name}{said}, commit held back")
                world.pause()
                if fault == "held":
                    self._real.execute("commit")
                    world.say(actor.name, f"{name} commits")
                    undo = False
            else:
                world.say(actor.name, f"{name}{said}")
                undo = False
        finally:
            if held:
                if undo and not self._real.closed:
                    self._real.execute("rollback")
                world.open_transactions.remove(self)
                world.released = True
            task.session = None
        if fault == "held and lost":
            world.say(actor.name, f"{name}: connection lost, rolled back")
            raise self.lose()
        if fault in ("held and killed", "killed after"):
            world.say(actor.name, f"{name}: killed, " + ("rolled back" if held else "committed"))
            actor.killed = True
            raise Killed
        if fault == "lost after":
            world.say(actor.name, f"{name}: committed, connection lost before the answer")
            raise self.lose()
        if task.actor.killed:
            raise Killed
        return cursor


_RAISED: dict[str, type[psycopg.Error]] = {
    "57P01": psycopg.errors.AdminShutdown,
    "25006": psycopg.errors.ReadOnlySqlTransaction,
    "40P01": psycopg.errors.DeadlockDetected,
    "55P03": psycopg.errors.LockNotAvailable,
    "57014": psycopg.errors.QueryCanceled,
}


class _Kept:
    """A cursor whose rows were looked at."""

    def __init__(self, cursor: psycopg.Cursor[dict[str, Any]]) -> None:
        self.description = cursor.description
        self.rows = cursor.fetchall() if cursor.description else []

    def fetchall(self) -> list[dict[str, Any]]:
        return self.rows


_TOLD = ("id", "row_id", "job_id", "fate", "outcome", "won", "n", "first_send", "sends")


def _said(cursor: _Kept) -> str:
    """A few words on what a statement gave."""
    if cursor.description is None:
        return ""
    rows = cursor.rows
    told = [
        " ".join(f"{name}={row[name]}" for name in _TOLD if name in row and row[name] is not None)
        for row in rows
    ]
    shown = "; ".join(text for text in told if text)
    return f" → {shown}" if shown else f" → {len(rows)} rows"


class StepDatabase(Database):
    """The product's own Database on a session of the world."""

    def _open(self, refresh: bool) -> Any:
        world, actor = current().world, current().actor
        if world.fault("connect", actor):
            world.say(actor.name, "cannot connect to the database")
            raise psycopg.OperationalError("connection refused")
        return Session(world)


# Time and threads, as the product's modules see them ------------------------------------------


class StepTime:
    """Stands for the module `time`."""

    def __init__(self, world: Callable[[], World], epoch: float) -> None:
        self._world, self._epoch = world, epoch

    def monotonic(self) -> float:
        return self._world().clock

    def time(self) -> float:
        return self._epoch + self._world().clock

    def sleep(self, seconds: float) -> None:
        world = self._world()
        world.wait(world.clock + seconds)


class StepQueue:
    """Stands for `queue.SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()

    def empty(self) -> bool:
        return not self._items

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, timeout: float) -> Any:
        if not self._items:
            self._world.wait(self._world.clock + timeout, lambda: bool(self._items))
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class StepPool:
    """Stands for `ThreadPoolExecutor`: each call is a task of the actor that asked for it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._actor = current().actor
        self._world = current().world

    def submit(self, work: Callable[..., None], *arguments: Any) -> None:
        self._world.tasks.append(Task(self._world, self._actor, lambda: work(*arguments)))

    def shutdown(self, **_: Any) -> None:
        """Calls that are under way go on or are killed with their actor."""


Transport = Callable[
    [str, str, str | None, bytes, Callable[[], Answer | NoAnswer]], Answer | NoAnswer
]


class StepClient(SumeClient):
    """The product's client; `transport` carries its calls and decides what comes back.

    It is given method, path, key, body, and the way that the product itself would go.
    """

    transport: Transport

    def submit(self, key: str, body: str) -> Answer | NoAnswer:
        path = urlsplit(self._submit_url).path
        return type(self).transport(
            "POST", path, key, body.encode(), lambda: SumeClient.submit(self, key, body)
        )

    def job(self, job_id: str) -> Answer | NoAnswer:
        path = f"/v1/jobs/{job_id}"
        return type(self).transport("GET", path, None, b"", lambda: SumeClient.job(self, job_id))

    def result(self, job_id: str) -> Answer | NoAnswer:
        path = f"/v1/jobs/{job_id}/result"
        return type(self).transport("GET", path, None, b"", lambda: SumeClient.result(self, job_id))

    def cancel(self, job_id: str) -> Answer | NoAnswer:
        path = f"/v1/jobs/{job_id}/cancel"
        return type(self).transport(
            "POST", path, None, b"{}", lambda: SumeClient.cancel(self, job_id)
        )
