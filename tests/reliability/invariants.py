"""The four promises, checked on a database that has come to rest and on what Sume has billed.

Stricter than what one test would assert of its own scenario: these hold after any history of
crashes, lost answers and overlapping runs, so every explorer here ends with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

Query = Callable[..., list[dict[str, Any]]]

TERMINAL = {"completed": "job.completed", "failed": "job.failed", "canceled": "job.canceled"}


class Violation(AssertionError):
    """A promise was broken; the message says which, and on what."""


def row_and_generation(key: str) -> tuple[int, int]:
    """Read an idempotency key that the product made: `prefix-<row>` or `prefix-<row>-<n>`."""
    match = re.fullmatch(r"render-job-(\d+)(?:-(\d+))?", key)
    if match is None:
        raise Violation(f"billed: a key that no row makes: {key}")
    return int(match[1]), int(match[2] or 1)


def check_bills(
    billed_by_key: Mapping[str, int], posts: Iterable[tuple[str | None, bytes]]
) -> None:
    """Billed once: one job a key, one body a key, never a request without a key."""
    twice = {key: count for key, count in billed_by_key.items() if count > 1}
    if twice:
        raise Violation(f"billed twice: {twice}")
    bodies: dict[str, bytes] = {}
    for key, body in posts:
        if not key:
            raise Violation("billed: a submit without Idempotency-Key")
        if bodies.setdefault(key, body) != body:
            raise Violation(f"billed: key {key} was sent with two bodies")


def check_history(query: Query, generations: int, raised: Collection[int] = ()) -> None:
    """Forward only: every change of status and of job id that ever happened was allowed.

    `raised` are the rows that an operator asked a new generation of.
    """
    for move in query("select job_id, was, became from test_history.job order by seen"):
        if move["was"] in TERMINAL or (move["was"], move["became"]) == ("processing", "queued"):
            raise Violation(f"backwards: {move}")
    twice = query(
        "select job_id, count(*) as ends from job_history where machine = 'generation'"
        " and to_status in ('completed', 'failed', 'canceled') group by job_id having count(*) > 1"
    )
    if twice:
        raise Violation(f"backwards: jobs that ended more than once: {twice}")
    # By the history: retention takes the job of an earlier generation along with its row.
    lost = query(
        "select h.id, h.old_job, h.new_job from test_history.row h"
        " where h.old_job is not null and h.new_job is distinct from h.old_job"
        " and not (%s::boolean and exists (select from test_history.job j"
        "                                   where j.job_id = h.old_job and j.became = 'failed'))"
        " and not h.id = any(%s::bigint[])",
        generations > 1,
        list(raised),
    )
    if lost:
        raise Violation(f"a row lost its job: {lost}")


def check_follow_ups(query: Query, gone: Collection[int] = ()) -> None:
    """Follow-up once: none before the end, exactly one of the right kind after it.

    A row that failed before it had a job has one under its key instead.
    """
    kinds: dict[str, list[str]] = {}
    for each in query("select job_id, kind from follow_up order by kind"):
        kinds.setdefault(each["job_id"], []).append(each["kind"])
    for job in query("select job_id, status from gen_job"):
        expected = [TERMINAL[job["status"]]] if job["status"] in TERMINAL else []
        found = kinds.pop(job["job_id"], [])
        if found != expected:
            raise Violation(f"follow-up: {job['job_id']} is {job['status']} with {found}")
    generations = {}
    for row in query("select id, status, generation, idempotency_key as key from render_jobs"):
        generations[row["id"]] = row["generation"]
        if row["status"] == "failed" and kinds.get(row["key"]) != ["submission.failed"]:
            raise Violation(f"follow-up: {row} failed with {kinds.get(row['key'])}")
    for subject, found in kinds.items():
        row_id, generation = row_and_generation(subject)
        if row_id in gone:
            continue
        if found != ["submission.failed"] or generation > generations.get(row_id, 0):
            raise Violation(f"follow-up for what did not end: {subject} {found}")


def check_dispatched(
    query: Query, messages: Iterable[tuple[str, str]], gone: Collection[int] = ()
) -> None:
    """Handed on at least once, each under one id with one content, and nothing else.

    `messages` are what the target took: id and body. Not compared are the instant, because time
    is moved here by moving what is stored, and the error code, which may be learned after the end
    (or, of a row that failed without a job, go away with a late success).
    """
    bodies: dict[str, dict[str, Any]] = {}
    for message_id, text in messages:
        body = {**json.loads(text), "occurred_at": None, "error_code": None}
        if bodies.setdefault(message_id, body) != body:
            raise Violation(f"follow-up {message_id} was sent with two contents")
    enqueued = {f"{row['job_id']}:{row['kind']}" for row in query("select * from follow_up")}
    taken_away = {name for name, body in bodies.items() if int(body["render_job_id"]) in gone}
    if enqueued - bodies.keys() or bodies.keys() - enqueued - taken_away:
        raise Violation(
            f"follow-ups never sent: {enqueued - bodies.keys()},"
            f" sent and not enqueued: {bodies.keys() - enqueued - taken_away}"
        )


def unrest(query: Query) -> list[str]:
    """What is still between states; empty when the database has come to rest."""
    waiting = [
        f"row {row['id']} is {row['status']}"
        for row in query(
            "select id, status from render_jobs"
            " where status in ('pending', 'submitting') order by id"
        )
    ]
    waiting += [
        f"{job['job_id']} is {job['status']} (attention {job['attention']})"
        for job in query(
            "select job_id, status, attention from gen_job where status in ('queued', 'processing')"
            " or status = 'completed' and result is null and attention is null"
            " or regeneration_open order by job_id"
        )
    ]
    waiting += [
        f"event {event['event_id']} is held for {event['job_id']}"
        for event in query(
            "select event_id, job_id from webhook_event e where outcome = 'held'"
            " and exists (select from gen_job g where g.job_id = e.job_id)"
        )
    ]
    return waiting


def check_rest(
    query: Query,
    jobs: Mapping[str, Any],
    gone: Mapping[int, dict[str, Any]] | None = None,
    owes_follow_ups: bool = False,
    raised: Collection[int] = (),
) -> None:
    """Nothing lost: every row ended, every billed job is known or said to be possible.

    `jobs` are the fake's jobs by id, each with `key` and `status`; `gone` are the rows that
    retention took away, by id, as they were: `row`, its `job`, and how many follow-ups were
    `undispatched`, which is only looked at where nothing but dispatch may end them. An operator
    who has `raised` a row's generation has billed it anew on purpose: a job of the generation
    before may turn up late, as a conflict or not at all.
    """
    for row_id, last in (gone or {}).items():
        row, its_job = last["row"], last["job"]
        ended = row["status"] in ("failed", "canceled") or (
            row["status"] == "submitted" and its_job and its_job["status"] in TERMINAL
        )
        if not ended or (owes_follow_ups and last["undispatched"]):
            raise Violation(f"lost: row {row_id} was taken away: {last}")
    rows = {row["id"]: row for row in query("select * from render_jobs")}
    known = {job["job_id"]: job for job in query("select * from gen_job")}
    for row in rows.values():
        if row["status"] == "submitted":
            job = known.get(row["sume_job_id"])
            if job is None or job["render_job_id"] != row["id"]:
                raise Violation(f"lost: row {row['id']} has no record of {row['sume_job_id']}")
            if job["idempotency_key"] != row["idempotency_key"]:
                raise Violation(f"lost: row {row['id']} and its job differ in key")
        if row["status"] == "failed" and not row["error_code"]:
            raise Violation(f"lost: row {row['id']} failed without a reason")
    states = {each["id"]: each["state"] for each in query("select id, state from job_customer")}
    for row_id, row in rows.items():
        if states[row_id] not in ("done", "needs_attention"):
            raise Violation(f"lost: row {row_id} is {states[row_id]} for ever ({row['status']})")
    for job_id, job in jobs.items():
        row_id, generation = row_and_generation(job.key)
        owner = rows.get(row_id)
        if owner is None and row_id in (gone or {}):
            last = (gone or {})[row_id]
            if generation < last["row"]["generation"]:
                continue
            if last["row"]["sume_job_id"] == job_id:
                if last["job"]["status"] != job.status:
                    raise Violation(f"lost: {job_id} was {job.status} at Sume: {last}")
                continue
            owner = last["row"]
        if owner is None:
            raise Violation(f"lost: {job_id} was billed for row {row_id}, which is gone")
        if job_id in known:
            if known[job_id]["render_job_id"] != row_id:
                raise Violation(f"lost: {job_id} is recorded for another row")
            if known[job_id]["status"] != job.status:
                raise Violation(
                    f"lost: {job_id} is {job.status} at Sume and {known[job_id]['status']} here"
                )
        elif row_id in raised and generation < owner["generation"]:
            continue
        elif generation != owner["generation"] or not (
            owner["status"] == "failed" and owner["unknown_since"] is not None
        ):
            raise Violation(
                f"lost: {job_id} was billed for row {row_id}, which is {owner['status']}"
                f" ({owner['error_code']}) and does not say so"
            )
    for job_id in known:
        if job_id not in jobs:
            raise Violation(f"{job_id} is recorded and was never billed")
    conflicts = [
        conflict
        for conflict in query("select render_job_id, job_id, reason from job_conflict order by id")
        if conflict["render_job_id"] not in raised
    ]
    if conflicts:
        raise Violation(f"a conflict where nobody else used a key: {conflicts}")
    collided = [
        row["id"] for row in rows.values() if row["error_code"] == "idempotency_key_collision"
    ]
    if collided:
        raise Violation(f"rows ended as collisions, and nobody else used their keys: {collided}")
