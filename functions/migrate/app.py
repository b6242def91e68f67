"""Applies the migrations: on every deployment, by hand, or by CI. Safe to repeat."""

from __future__ import annotations

from typing import Any

from sume_jobs import custom_resource, runtime, telemetry
from sume_jobs.store import migrations


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Bring the schema up to the code; gives the names of the migrations that were applied.

    CloudFormation is told by its own protocol. It never migrates down: deleting the stack leaves
    the database as it is, and so does going back to older code.
    """
    return custom_resource.serve(event, _migrate, harmless_on_update=migrations.DatabaseIsNewer)


def _migrate() -> dict[str, Any]:
    applied = migrations.migrate(runtime.current().database.connection())
    telemetry.event("migrated", applied=applied)
    return {"applied": applied}
