"""Contender: a worker as the article describes it, one row at a time with psycopg and requests.

Our own small version of it: claim one row with SKIP LOCKED, POST it with the row's id as its
key, store the job's id on the row. Its table has the partial index that the article leaves out.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg
import requests

CREATE = """
create table if not exists article_jobs (
  id bigserial primary key, prompt text, status text default 'pending', sume_job_id text,
  claimed_at timestamptz);
create index if not exists article_jobs_pending on article_jobs (id) where status = 'pending'"""
ADD = """
insert into article_jobs (prompt)
select 'A lighthouse at dusk, oil on canvas, number ' || n from generate_series(1, %s) as n"""
CLAIM = """
update article_jobs set status = 'submitting', claimed_at = now()
 where id = (select id from article_jobs where status = 'pending'
              order by id for update skip locked limit 1)
returning id, prompt"""
DONE = "update article_jobs set status = 'submitted', sume_job_id = %s where id = %s"


def claim(connection: psycopg.Connection[Any]) -> tuple[int, str] | None:
    """Take one row; None when none is pending."""
    row: tuple[int, str] | None = connection.execute(CLAIM.encode()).fetchone()
    return row


def done(connection: psycopg.Connection[Any], row_id: int, job_id: str) -> None:
    """Store the job of a row."""
    connection.execute(DONE, (job_id, row_id))


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Send ``event["rows"]`` rows. Gives rows and seconds."""
    del context
    address = os.environ["SUME_BASE_URL"] + "/v1/images"
    bearer = {"Authorization": f"Bearer {os.environ['SUME_API_KEY']}"}
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(CREATE.encode())
        connection.execute(ADD, (event["rows"],))
        rows = 0
        begun = time.monotonic()
        while row := claim(connection):
            row_id, prompt = row
            answer = requests.post(
                address,
                headers={**bearer, "Idempotency-Key": f"article-job-{row_id}"},
                json={"model": "sume/auto", "prompt": prompt, "mode": "async"},
                timeout=20,
            )
            answer.raise_for_status()
            done(connection, row_id, answer.json()["data"]["job"]["id"])
            rows += 1
        seconds = time.monotonic() - begun
    return {"rows": rows, "seconds": seconds, "statements": {"claim": rows, "record": rows}}
