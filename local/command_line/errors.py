"""What goes wrong at the command line, in words that say what to do next."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

# Exit statuses: nothing to do; something to act on; used wrongly; interrupted; nobody reads on.
OK, ACT, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

MIGRATE = "run `./sume-jobs migrate`"


class CommandError(Exception):
    """Ends a command: a message that says what to do next, and the exit status."""

    def __init__(self, message: str, status: int = ACT) -> None:
        super().__init__(message)
        self.status = status


def explain(error: Exception) -> CommandError | None:
    """Put what a command raised into words; None for a fault of this program."""
    if isinstance(error, CommandError):
        return error
    name = type(error).__name__
    # By the names of their types, so that nothing is imported to learn that it was not raised.
    if name == "SettingsError":
        return CommandError(str(error), USAGE)
    if name in ("BundleError", "PostgresError", "MigrationError", "DatabaseIsNewer"):
        return CommandError(f"Cannot run: {error}")
    if name == "SecretUnavailable":
        return CommandError(str(error))
    if name == "DatabaseUnavailable":
        reason = _connection_reason(error.__cause__) or str(error)
        return CommandError(
            f"The database cannot be reached ({reason}). Check --database-url or DATABASE_URL, "
            "and that the server runs and lets this machine in."
        )
    if "psycopg" in sys.modules:
        import psycopg

        if isinstance(error, psycopg.Error):
            return _of_database(error)
    return None


def _of_database(error: psycopg.Error) -> CommandError:
    import psycopg
    from psycopg import errors

    if isinstance(error, (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction)):
        return CommandError(f"The database does not have the schema of this program: {MIGRATE}.")
    if isinstance(error, errors.LockNotAvailable):
        return CommandError("A row is being changed by another session: repeat the command.")
    if isinstance(error, errors.QueryCanceled):
        return CommandError(
            "The database took longer than its statement_timeout allows: ask for less, or repeat "
            "the command when it is less busy."
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return CommandError(
            f"The database does not allow it ({_words(error)}): use the role that the functions "
            "use, or one that owns the tables."
        )
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        reason = _connection_reason(error) or "connection lost"
        return CommandError(f"The database went away ({reason}): repeat the command.")
    return CommandError(f"The database refuses: {_words(error)}")


def _words(error: psycopg.Error) -> str:
    # Without the detail, which quotes the row and so may quote a prompt.
    parts = [error.diag.message_primary or type(error).__name__, error.diag.message_hint]
    return ". ".join(part.rstrip(".") for part in parts if part)


def _connection_reason(error: BaseException | None) -> str | None:
    """The line of libpq: it names host, port, user and database, never the password."""
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else None
