"""Pictures of the board in each of its states, and how fast it is there: to be looked at.

`python -m tests.api.board_pictures FOLDER` starts a server of its own, fills it, and opens the
board in a headless Chromium: empty, busy, with closed gates, and beside 1,000,000 rows; light and
dark, wide and on a phone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from playwright.sync_api import Browser, sync_playwright
from psycopg.rows import dict_row
from sume_jobs import runtime
from sume_jobs.store.migrations import migrate

from tests.api.serving import serving
from tests.support import history
from tests.support.postgres import Database, Server, create_database, drop_database

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VIEWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1120, "height": 680}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1120, "height": 680}},
    "phone": {
        "color_scheme": "light",
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
    },
}
REPEATS = 5

# Rows of all stages, made in the last minutes; ids from `first` on.
BUSY = """
insert into render_jobs (id, prompt, reference, status, sume_job_id, idempotency_key, error_code,
                         created_at, updated_at, run_after)
select id, 'a lighthouse at dusk, in oil', case when id %% 3 > 0 then 'order-' || 48000 + id end,
       status, case when status = 'submitted' then 'job_' || id end, 'render-job-' || id,
       case when status = 'failed' then 'attempts_exhausted' end, at, at, at
  from (select %(first)s + n as id, now() - (40 - n) * interval '7 seconds' as at,
               case when n = 12 then 'failed' when n > 35 then 'pending' else 'submitted' end
          from generate_series(0, 40) n) x (id, at, status);
insert into gen_job (job_id, idempotency_key, render_job_id, status, error_code, attention, result,
                     created_at, updated_at)
select sume_job_id, idempotency_key, id,
       case when id - %(first)s > 27 then case when id %% 2 = 0 then 'queued' else 'processing' end
            when (id - %(first)s) %% 10 = 4 then 'failed' else 'completed' end,
       case when id - %(first)s <= 27 and (id - %(first)s) %% 10 = 4 then 'content_policy' end,
       case when id - %(first)s = 28 then 'overdue' end,
       '{"artifacts": [{"url": "https://media.example/1.png", "content_type": "image/png"}]}',
       created_at, updated_at
  from render_jobs where id >= %(first)s and status = 'submitted';
insert into follow_up (job_id, kind, render_job_id, created_at)
select job_id, 'job.' || status, render_job_id, updated_at from gen_job
 where render_job_id >= %(first)s and status in ('completed', 'failed') order by render_job_id;
insert into job_history (render_job_id, at, machine, job_id, by, from_status, to_status)
select render_job_id, updated_at, 'generation', job_id, 'webhook', 'queued', status from gen_job
 where render_job_id >= %(first)s and status in ('completed', 'failed')"""

STOPPED = """
update pace_gate set closed_until = now() + interval '9 minutes', closures = 2,
                     reason = 'insufficient_credits'"""


def main() -> None:
    """Make the pictures and print the times."""
    parser = argparse.ArgumentParser(prog="python -m tests.api.board_pictures", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with board() as (url, database), sync_playwright() as playwright:
        # The sandbox needs rights that root in a container does not have; only our page is read.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for state, change in (
            ("empty", lambda: None),
            ("busy", lambda: fill(database, 1)),
            ("stopped", lambda: database.execute(STOPPED)),
            ("large", lambda: enlarge(database, given.rows)),
        ):
            change()
            picture(browser, url, given.folder, state)
        browser.close()


@contextmanager
def board() -> Iterator[tuple[str, Database]]:
    """The API on a database of its own: its URL and the database."""
    server = Server().start()
    create_database(server, "board")
    database = Database(server, "board")
    with psycopg.connect(database.url, autocommit=True, row_factory=dict_row) as connection:
        migrate(connection)
    os.environ |= {"DATABASE_URL": database.url, "POWERTOOLS_METRICS_NAMESPACE": "SumeJobs"}
    try:
        with serving() as url:
            yield url, database
    finally:
        runtime.reset()
        database.close()
        drop_database(server, "board")
        server.stop()


def fill(database: Database, first: int) -> None:
    """Add rows of all stages."""
    with database.connection.transaction():
        database.execute("set local session_replication_role = replica")
        for statement in BUSY.split(";\n"):
            database.connection.execute(statement.encode(), {"first": first})


def enlarge(database: Database, rows: int) -> None:
    """Begin anew: a long history, and the same rows of all stages above it."""
    database.execute("truncate " + ", ".join(history.TABLES))
    database.execute("update pace_gate set closed_until = null, closures = 0, reason = null")
    history.load(database.connection, rows, newest="10 minutes")
    fill(database, rows + 1)
    database.execute("vacuum analyze")


def picture(browser: Browser, url: str, folder: Path, state: str) -> None:
    """Take the pictures of one state: the board in each view, and a job in two of them."""
    paints, figures = [], []
    for view, options in VIEWS.items():
        context = browser.new_context(**options)  # type: ignore[arg-type]
        page = context.new_page()
        for _ in range(REPEATS):
            paint, shown = arrive(page, url)
            paints.append(paint)
            figures.append(shown)
        page.screenshot(path=folder / f"{state}-{view}.png", full_page=view == "phone")
        if state == "busy" and view != "light":
            page.click("#attention .job")
            page.wait_for_selector("dialog[open] .line")
            page.screenshot(path=folder / f"job-{view}.png")
        context.close()
    print(
        f"{state}: first contentful paint {statistics.median(paints):.0f} ms "
        f"(most {max(paints):.0f}), figures {statistics.median(figures):.0f} ms "
        f"(most {max(figures):.0f}), {len(paints)} times"
    )


def arrive(page: Any, url: str) -> tuple[float, float]:
    """Open the board; milliseconds until its first paint, and until its figures are there."""
    page.goto(f"{url}/board")
    page.wait_for_selector("#working li")
    now: float = page.evaluate("performance.now()")
    paint: float = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? performance.now()"
    )
    return paint, now


if __name__ == "__main__":
    main()
