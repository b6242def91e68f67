"""docs/integrate.md is held to what it says: its examples run, in order, and keep their word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrate.md").read_text(encoding="utf-8")


def configure_django(database: Any) -> None:
    import django
    from django.conf import settings
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(database.url)
    settings.configure(
        USE_TZ=True,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts["dbname"],
                "USER": parts["user"],
                "HOST": parts["host"],
                "PORT": parts["port"],
            }
        },
    )
    django.setup()


# The libraries' own warnings are not the page's matter.
@pytest.mark.filterwarnings("default")
def test_the_examples_run(database: Any) -> None:
    configure_django(database)
    blocks = re.findall(r"```(sql|python)\n(.*?)```", PAGE, re.DOTALL)
    assert len([kind for kind, _ in blocks if kind == "python"]) == 3
    for kind, text in blocks:
        if kind == "python":
            scope = {"database_url": database.url, "__name__": "example"}
            exec(compile(text, "integrate.md", "exec", dont_inherit=True), scope)
        else:
            # As the application's role, which is no superuser.
            with psycopg.connect(database.url) as connection:
                connection.execute(text)
    from django.db import connections

    connections.close_all()
    rows = database.query(
        "select o.id, r.reference, c.state from orders o"
        " join render_jobs r on r.id = o.render_job_id join job_customer c on c.id = r.id"
        " order by o.id"
    )
    assert [(row["id"], row["reference"], row["state"]) for row in rows] == [
        (number, f"order-{number}", "working") for number in (1, 2, 3, 4)
    ]
    assert {row["status"] for row in database.rows()} == {"pending"}
    changed = database.query("select priority from render_jobs where reference = 'calendar-5'")
    assert changed == [{"priority": 0}]


def test_every_file_that_is_linked_exists() -> None:
    folder = Path(__file__).parents[2] / "docs"
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", PAGE):
        assert (folder / target).exists(), target
