"""Applies the migrations: on deploy, by hand, or by CI. Safe to repeat."""

from __future__ import annotations

from typing import Any

from sume_jobs import runtime, telemetry
from sume_jobs.store import migrations


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Bring the schema up to the code; gives the names of the migrations that were applied."""
    applied = migrations.migrate(runtime.current().database.connection())
    telemetry.event("migrated", applied=applied)
    return {"applied": applied}
