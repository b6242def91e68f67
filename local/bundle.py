"""The whole bundle on one machine: database, functions, schedules, gateway, and a fake Sume.

With ``SUME_BASE_URL`` and ``SUME_API_KEY`` in the environment the real API takes the place of the
fake one; it cannot reach this machine, so there are no webhooks then and polling does it all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg
import requests

from local import running
from local.gateway import API, WEBHOOK, Gateway, Route
from local.guard import guarded
from local.postgres import EmbeddedPostgres, database
from local.runner import PROJECT, Function, Runner
from local.scheduler import Schedule, Scheduler

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from local.fake_sume import FakeSume
    from local.runner import Invocation

FOLDER = PROJECT / ".local"
START_SECONDS = 30.0
LOCK_TRIES = 5
LOG_BYTES = 20 * 1024 * 1024

# The functions with the limits and schedules of template.yaml (a test holds the two together).
# None: not scheduled. The concurrency is what one machine has room for. `archive` is left out: it
# needs S3.
LIMITS: Mapping[str, Function] = {
    function.name: function
    for function in (
        Function("submit", "functions.submit.app.handler", 120, 256, 3),
        Function("reap", "functions.reap.app.handler", 60, 256, 1),
        Function("poll", "functions.poll.app.handler", 60, 256, 2),
        Function("dispatch", "functions.dispatch.app.handler", 60, 256, 1),
        Function("webhook", "functions.webhook.app.handler", 10, 512, 4),
        Function("api", "functions.api.app.handler", 15, 512, 4),
        Function("migrate", "functions.migrate.app.handler", 300, 256),
    )
}
SCHEDULE_SECONDS: Mapping[str, float] = {"submit": 60, "reap": 60, "poll": 60, "dispatch": 60}
ROUTES: tuple[Route, ...] = (WEBHOOK, *API)

# Settings that the person who starts the bundle may give in the environment; they win.
SETTINGS = (
    "SUME_SUBMIT_PATH",
    "SUME_TIMEOUT_SECONDS",
    "SUME_WRITES_PER_MINUTE",
    "SUME_READS_PER_MINUTE",
    "SUBMIT_CONCURRENCY",
    "SUBMIT_DAILY_LIMIT",
    "ANOMALY_LIMIT",
    "LINGER_SECONDS",
    "CLAIM_TIMEOUT_SECONDS",
    "MAX_ATTEMPTS",
    "MAX_GENERATIONS",
    "IDEMPOTENCY_PREFIX",
    "IDEMPOTENCY_RETENTION_SECONDS",
    "IN_FLIGHT_DEADLINE_SECONDS",
    # Without a target, as by default, dispatch leaves the follow-ups where they are.
    "FOLLOW_UP_QUEUE_URL",
    "FOLLOW_UP_EVENT_BUS",
    "RETENTION_DAYS",
    "POWERTOOLS_LOG_LEVEL",
)
# How migrate fails where another version of this code made the database.
MADE_BY_OTHER_CODE = frozenset({"DatabaseIsNewer", "MigrationError"})


class BundleError(RuntimeError):
    """The bundle cannot run here; the message says why and what to do."""


@dataclass(frozen=True)
class Setup:
    """How a bundle differs from what the template deploys."""

    folder: Path = FOLDER
    # Seconds between two ticks; functions that are not named keep the template's.
    schedule_seconds: Mapping[str, float] = field(default_factory=dict)
    timeout_seconds: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    # Arguments of `python -m local.fake_sume`.
    fake_arguments: tuple[str, ...] = ()
    # Give every call a fresh container.
    cold: bool = False
    # Nothing of this process's environment: a database and a Sume of its own, whatever it names.
    private: bool = False
    # A fake Sume in this process, which is started and stopped with the bundle, in place of one in
    # a process of its own.
    fake: FakeSume | None = None
    # Where `functions` and `shared` are.
    code_folder: Path = PROJECT


class Fake:
    """The fake Sume of a bundle, in a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = requests.Session()
        # It is on this machine, whatever proxies the environment names.
        self._session.trust_env = False

    def stats(self, *, keys: bool = False) -> dict[str, Any]:
        """What happened at the fake so far; with ``keys``, also the jobs billed for each key."""
        return self._call("GET", "/stats" + ("?keys=true" if keys else ""))

    def order(self, on: str, behaviours: list[dict[str, Any]]) -> None:
        """Have the next requests of one kind misbehave, one after the other."""
        self._call("POST", "/behaviours", {"on": on, "behaviours": behaviours})

    def weather(self, shares: Mapping[str, float]) -> None:
        """Have a share of all requests and jobs misbehave."""
        self._call("POST", "/weather", dict(shares))

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            answer = self._session.request(method, f"{self.url}/_fake{path}", json=body, timeout=10)
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
        except requests.RequestException as error:
            raise BundleError(f"the fake Sume does not answer ({type(error).__name__})") from error
        return found


class Bundle:
    """Starts and stops everything, in order. A context manager; nothing is scheduled before
    ``start_schedules``.

    After the start these are set: ``database_url``, ``runner``, ``gateway``, ``prefix`` (of the
    idempotency keys) and ``fake`` (None with the real API). Raises `BundleError` or
    `local.postgres.PostgresError` when something cannot start, after stopping the rest.
    """

    def __init__(self, setup: Setup | None = None) -> None:
        self.setup = setup or Setup()
        self.folder = self.setup.folder
        self.logs = self.folder / "logs"
        self.database_url = ""
        self.prefix = ""
        self.fake: Fake | None = None
        self.scheduler: Scheduler | None = None
        self.base_url = None if self.setup.private else sume_address()
        # The embedded database of a private bundle.
        self.server: EmbeddedPostgres | None = None
        self.runner: Runner
        self.gateway: Gateway
        self.state: State
        self._fake_process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()

    @property
    def real(self) -> bool:
        """Whether the real Sume is used, which bills."""
        return self.base_url is not None

    def __enter__(self) -> Bundle:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start_schedules(self, on_result: Callable[[Invocation], None] | None = None) -> None:
        """Begin to invoke the scheduled functions."""
        seconds = {**SCHEDULE_SECONDS, **self.setup.schedule_seconds}
        schedules = [Schedule(name, every) for name, every in seconds.items()]
        self.scheduler = Scheduler(self.runner, schedules, on_result)
        self.scheduler.start()

    def stop_schedules(self, drain_seconds: float) -> bool:
        """Start no more scheduled calls; whether those in progress ended in time."""
        return self.scheduler is None or self.scheduler.stop(drain_seconds)

    def invoke(self, name: str, event: Any = None) -> Any:
        """Invoke a function once; raises `local.runner.InvocationError` when it fails."""
        return self.runner.invoke(name, {} if event is None else event).result()

    def check(self) -> None:
        """Raise `BundleError` if a process of the bundle has ended by itself."""
        if self._fake_process is not None and self._fake_process.poll() is not None:
            raise BundleError(f"the fake Sume has ended; see {self._fake_log}")

    def stop(self) -> None:
        """Stop everything that was started; safe to repeat."""
        if self.scheduler is not None:
            self.scheduler.stop()
        self._stack.close()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock()
        self.state = State(self.folder / "state.json")
        self.logs.mkdir(exist_ok=True)
        _shorten_logs(self.logs)
        if self.setup.private:
            self.server = self._stack.enter_context(EmbeddedPostgres(self.folder / "postgres"))
            self.database_url = self.server.url
        else:
            self.database_url = self._stack.enter_context(database(self.folder / "postgres"))
        environment = self._environment()
        self.runner = Runner(
            [self._function(function) for function in LIMITS.values()],
            log_folder=self.logs,
            environment=environment,
            code_folder=self.setup.code_folder,
            cold=self.setup.cold,
        )
        self._stack.callback(self.runner.close)
        migrated = self.runner.invoke("migrate", {})
        if migrated.failure is not None:
            text = f"the schema could not be applied: {migrated.failure.message}"
            if migrated.failure.kind in MADE_BY_OTHER_CODE and self._has_own_database():
                text += f". Or begin anew with an empty one: rm -r {self.folder / 'postgres'}"
            raise BundleError(text)
        self.prefix = self.runner.environment.setdefault(
            "IDEMPOTENCY_PREFIX", prefix_of(self.database_url)
        )
        if not self.real:
            self._refuse_rows_of_others()
            self._start_fake()
        self._start_gateway()
        # For the command line; taken back first of all when it stops.
        self._stack.callback(running.forget, self.folder)
        running.write(self.folder, self.runner.environment)

    def _has_own_database(self) -> bool:
        return self.setup.private or not os.environ.get("DATABASE_URL", "").strip()

    def _refuse_rows_of_others(self) -> None:
        """Keep the fake away from a database whose rows wait for the real Sume."""
        if self._has_own_database() or self.prefix in self.state.databases:
            return
        with psycopg.connect(self.database_url) as connection:
            found = connection.execute(
                "select count(*) from job_customer where state = 'working'"
            ).fetchone()
        if found is not None and found[0]:
            raise BundleError(
                f"the database in DATABASE_URL holds {found[0]} rows that are not finished, and "
                "the fake Sume would take them for its own: use an empty database, or set "
                "SUME_BASE_URL and SUME_API_KEY for the real API"
            )
        self.state.databases.append(self.prefix)
        self.state.save()

    def _lock(self) -> None:
        file = self._stack.enter_context((self.folder / running.LOCK).open("a+"))
        if not _locked(file.fileno()):
            file.seek(0)
            owner = file.read().strip()
            raise BundleError(
                f"the bundle is already running in {self.folder} (process {owner}): stop it first"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()

    def _function(self, function: Function) -> Function:
        seconds = self.setup.timeout_seconds.get(function.name, function.timeout_seconds)
        return replace(function, timeout_seconds=seconds)

    def _environment(self) -> dict[str, str]:
        environment = {
            "DATABASE_URL": self.database_url,
            "POWERTOOLS_SERVICE_NAME": "sume-jobs",
            "POWERTOOLS_METRICS_NAMESPACE": "SumeJobs",
            "POWERTOOLS_LOGGER_LOG_EVENT": "false",
            "POWERTOOLS_LOG_LEVEL": "INFO",
            "SUME_API_KEY": self.state.api_key,
        }
        if self.base_url is not None:
            environment["SUME_BASE_URL"] = self.base_url
            environment["SUME_API_KEY"] = os.environ["SUME_API_KEY"].strip()
        given = {name: os.environ[name] for name in SETTINGS if os.environ.get(name, "").strip()}
        return {**environment, **self.setup.environment, **({} if self.setup.private else given)}

    @property
    def _fake_log(self) -> Path:
        return self.logs / "fake_sume.log"

    def _start_fake(self) -> None:
        server = self.setup.fake
        if server is None:
            url = self._start_fake_process()
            # Kept, because jobs that are under way carry this address in their links.
            self.state.keep_port("fake", int(url.rpartition(":")[2]))
        else:
            server.options.webhook_secret = self.state.webhook_secret
            server.options.api_keys = [self.state.api_key]
            url = self._stack.enter_context(server).url
        self.fake = Fake(url)
        self.runner.environment["SUME_BASE_URL"] = url

    def _start_fake_process(self) -> str:
        log = self._fake_log
        with log.open("ab") as output:
            beginning = output.tell()
            self._fake_process = guarded(
                [
                    sys.executable,
                    "-m",
                    "local.fake_sume",
                    "--port",
                    str(_free_port(self.state.ports.get("fake"))),
                    "--journal",
                    str(self.folder / "fake_sume.journal"),
                    "--webhook-secret",
                    self.state.webhook_secret,
                    "--api-key",
                    self.state.api_key,
                    *self.setup.fake_arguments,
                ],
                stop_signal=signal.SIGTERM,
                grace_seconds=5.0,
                output=output,
                directory=PROJECT,
            )
        self._stack.callback(_stop, self._fake_process)
        said = "fake Sume listens on "
        deadline = time.monotonic() + START_SECONDS
        while True:
            with log.open("rb") as lines:
                lines.seek(beginning)
                text = lines.read().decode(errors="replace")
            if said in text and "\n" in text.partition(said)[2]:
                return text.partition(said)[2].split()[0]
            if self._fake_process.poll() is not None or time.monotonic() > deadline:
                raise BundleError(
                    f"the fake Sume did not start; the end of {log}:\n{text.strip()[-2000:]}"
                )
            time.sleep(0.02)

    def _start_gateway(self) -> None:
        port = _free_port(self.state.ports.get("gateway"))
        # As many as there may be webhook containers: a burst waits for a moment, as Sume's own
        # delivery would, instead of being throttled and delivered again.
        concurrency = LIMITS[WEBHOOK.function].concurrency or 8
        self.gateway = Gateway(self.runner, ROUTES, port=port, concurrency=concurrency)
        self.gateway.start()
        self._stack.callback(self.gateway.stop)
        # Kept, because jobs that are under way deliver their webhooks to this address.
        self.state.keep_port("gateway", int(self.gateway.url.rpartition(":")[2]))
        self.runner.environment["SUME_WEBHOOK_SECRETS"] = self.state.webhook_secret
        if not self.real:
            self.runner.environment["SUME_WEBHOOK_URL"] = self.gateway.url + WEBHOOK.path


class State:
    """What a folder remembers from one start to the next: secrets, ports, the demo's run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            found = {}
        except ValueError as error:
            raise BundleError(f"{path} is damaged: remove it") from error
        self.webhook_secret: str = found.get("webhook_secret") or f"whsec_{secrets.token_hex(24)}"
        self.api_key: str = found.get("api_key") or f"sume_local_{secrets.token_hex(24)}"
        self.ports: dict[str, int] = found.get("ports", {})
        # Prefixes of the databases that were first used with the fake.
        self.databases: list[str] = found.get("databases", [])
        self.run: dict[str, Any] = found.get("run", {})
        self.save()

    def keep_port(self, name: str, port: int) -> None:
        """Remember where something listens."""
        self.ports[name] = port
        self.save()

    def save(self) -> None:
        """Write everything, whole or not at all, readable by the owner only."""
        content = {
            "webhook_secret": self.webhook_secret,
            "api_key": self.api_key,
            "ports": self.ports,
            "databases": self.databases,
            "run": self.run,
        }
        unfinished = self._path.with_suffix(".unfinished")
        with open(unfinished, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump(content, file, indent=2)
        unfinished.replace(self._path)


def sume_address() -> str | None:
    """The real API's base URL from the environment, or None for the fake.

    Raises `BundleError` if an address is given without a key: nothing is guessed about money.
    """
    base_url = os.environ.get("SUME_BASE_URL", "").strip()
    if not base_url:
        return None
    if not os.environ.get("SUME_API_KEY", "").strip():
        raise BundleError("SUME_BASE_URL is set, but SUME_API_KEY is not: set both, or neither")
    return base_url


def prefix_of(url: str) -> str:
    """A prefix for idempotency keys that no other database has.

    Keys are made from row ids, and the fake remembers them: a table that was made anew, or
    another database in the same folder, must not meet the keys of the one before.
    """
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select system_identifier, (select oid from pg_database where datname = "
            "current_database()), 'render_jobs'::regclass::oid from pg_control_system()"
        ).fetchone()
    return f"local-{hashlib.sha256(repr(row).encode()).hexdigest()[:10]}"


def _locked(descriptor: int) -> bool:
    """Take the lock; not given up at once, because who looks whether a bundle runs touches it."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def _free_port(wanted: int | None) -> int:
    """The port of the last time if nobody took it meanwhile, else 0 for any."""
    if wanted is None:
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


def _shorten_logs(folder: Path) -> None:
    for path in folder.glob("*.log"):
        if path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
