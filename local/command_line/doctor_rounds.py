"""The doctor's rounds: everything is looked at in turn, whatever was found before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from sume_jobs.connection import DatabaseUnavailable
from sume_jobs.flows.sume_access import client_of
from sume_jobs.runtime import Runtime
from sume_jobs.secrets import Secrets, SecretUnavailable
from sume_jobs.settings import SettingsError
from sume_jobs.store import health

from local.command_line import doctor_database, doctor_queue, doctor_settings, doctor_sume
from local.command_line.doctor_finding import Finding, Limits, problem

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from sume_jobs.connection import Database


def examine(environment: Mapping[str, str], limits: Limits | None = None) -> Iterator[Finding]:
    """Look at everything, as the functions with these variables would find it."""
    limits = limits or Limits()
    yield from doctor_settings.check_settings(environment)
    settings = doctor_settings.usable_settings(environment)
    if settings is None:
        return
    runtime = Runtime(settings, Secrets(settings))
    try:
        yield from doctor_settings.check_secrets(settings, runtime.secrets)
        yield from doctor_settings.check_signature(settings, runtime.secrets)
        is_usable = yield from _look_at_database(runtime, limits)
        yield from _ask_sume(runtime, runtime.database if is_usable else None, limits)
    finally:
        runtime.close()


def _look_at_database(runtime: Runtime, limits: Limits) -> Generator[Finding, None, bool]:
    """Each look needs what the ones before found; tells whether the queue can be used."""
    database = runtime.database
    reached = doctor_database.check_connection(database)
    yield reached
    if reached.level != "ok":
        return False
    try:
        server = health.server(database)
        yield from doctor_database.judge_server(server, limits)
        yield from doctor_database.check_transactions(database, limits)
        yield from doctor_database.check_clock(database, limits)
        schema = [
            doctor_database.check_migrations(database),
            *doctor_database.check_tables(database, limits),
        ]
        yield from schema
        if any(each.level == "problem" for each in schema):
            return False
        yield from doctor_queue.check_queue(database, runtime.settings, limits)
    except (DatabaseUnavailable, psycopg.Error) as error:
        yield problem(
            "database",
            f"the database did not answer to the end: {doctor_database.words_of(error)}",
            "mend what it says, and look again",
        )
        return False
    return not server.is_read_only


def _ask_sume(runtime: Runtime, database: Database | None, limits: Limits) -> Iterator[Finding]:
    try:
        client = client_of(runtime)
    except (SettingsError, SecretUnavailable):
        return  # told with the secrets
    try:
        yield from doctor_sume.check_sume(client, runtime.settings, database, limits)
    finally:
        client.close()
