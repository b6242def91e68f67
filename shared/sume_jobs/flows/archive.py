"""archive: copies a completed job's artifacts to a bucket before their URLs lapse."""

from __future__ import annotations

import ipaddress
import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sume_jobs import targets, telemetry
from sume_jobs.decisions import artifact_rules, backoff, follow_up_event
from sume_jobs.decisions.artifact_rules import ArtifactRefused
from sume_jobs.decisions.pacing import pace
from sume_jobs.settings import RECORD_SECONDS, SettingsError
from sume_jobs.store import gen_jobs
from sume_jobs.store import pace as pace_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sume_jobs.bucket import Bucket
    from sume_jobs.flows.time_left import TimeLeft
    from sume_jobs.runtime import Runtime
    from sume_jobs.store.gen_jobs import Archivable

MANIFEST_VERSION: Final = 1
# Below this there is no use in starting a copy; seconds.
LEAST_SECONDS: Final = 15.0


class NotArchived(RuntimeError):
    """The job's artifacts are not all copied: the message is to be delivered again."""


def receive(runtime: Runtime, record: Mapping[str, Any], left: TimeLeft) -> str:
    """Take one SQS record. Gives archived, already, or ignored (nothing is to be copied).

    Raises NotArchived, or whatever went wrong, after asking the queue to wait with the next
    delivery; a record that fails for ever ends in the queue's dead-letter queue.
    """
    if not runtime.settings.archive_bucket:
        raise SettingsError("the archive is off: set ARCHIVE_BUCKET to switch it on")
    job_id = None
    try:
        event = follow_up_event.parse(record.get("body"))
        job_id = str(event.get("job_id"))
        outcome = "ignored"
        if event["kind"] == "job.completed":
            outcome = _Archive(runtime, job_id, left).run()
    except Exception as error:
        # Only what this project words itself is shown: other texts may hold a URL.
        own = isinstance(error, NotArchived | ArtifactRefused)
        reason = str(error) if own else type(error).__name__
        telemetry.count("ArchiveFailed")
        receives = _receives(record)
        telemetry.alarm("artifact_not_archived", job=job_id, reason=reason, receives=receives)
        wait = backoff.after_failure(receives, random.random())
        targets.deliver_later(record, wait)
        raise
    telemetry.count("Archived", outcome == "archived")
    telemetry.event("archive_ran", job=job_id, outcome=outcome)
    return outcome


def _receives(record: Mapping[str, Any]) -> int:
    attributes = record.get("attributes") or {}
    text = str(attributes.get("ApproximateReceiveCount", "1"))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1


@dataclass(slots=True)
class _Archive:
    runtime: Runtime
    job_id: str
    left: TimeLeft
    # The result as Sume gave it in this run, JSON text; None until it was needed.
    result: str | None = None

    def run(self) -> str:
        job = gen_jobs.for_archive(self.runtime.database, self.job_id)
        if job is None:
            telemetry.warn("archive_without_job", job=self.job_id)
            return "ignored"
        if job.is_archived:
            return "already"
        if job.status != "completed":
            raise NotArchived(f"job_is_{job.status}")
        from sume_jobs.bucket import Bucket

        bucket = Bucket(self.runtime.settings.archive_bucket or "")
        artifacts = job.artifacts or self._fresh()
        if len(artifacts) > artifact_rules.MOST_ARTIFACTS:
            raise NotArchived("too_many_artifacts")
        copies = [self._copy(bucket, place, artifact) for place, artifact in enumerate(artifacts)]
        manifest = artifact_rules.manifest_name(self.job_id)
        bucket.write(manifest, self._manifest(job, copies))
        gen_jobs.archived(
            self.runtime.database,
            self.job_id,
            [bucket.url(copy["name"]) for copy in copies],
            bucket.url(manifest),
            self.result,
        )
        return "archived"

    def _copy(self, bucket: Bucket, place: int, artifact: dict[str, Any]) -> dict[str, Any]:
        """Copy one artifact; where its URL is dead, once more with a fresh one."""
        name = artifact_rules.object_name(self.job_id, place, artifact)
        try:
            return self._stream(bucket, name, artifact)
        except ArtifactRefused as error:
            if not error.is_dead:
                raise
            telemetry.warn("artifact_url_dead", job=self.job_id, reason=error.code)
        fresh = self._fresh()
        if place >= len(fresh):
            raise NotArchived("artifact_is_gone")
        return self._stream(bucket, name, fresh[place])

    def _stream(self, bucket: Bucket, name: str, artifact: dict[str, Any]) -> dict[str, Any]:
        from sume_jobs import artifacts

        settings = self.runtime.settings
        seconds = self.left.seconds() - RECORD_SECONDS
        if seconds < LEAST_SECONDS:
            raise NotArchived("no_time_left")
        with artifacts.download(
            str(artifact.get("url")),
            artifact.get("content_type"),
            settings.archive_max_bytes,
            seconds,
            _is_local(settings.sume_base_url),
        ) as source:
            bucket.copy(source, name)
            return {
                "name": name,
                "bytes": source.size,
                "sha256": source.sha256,
                "content_type": source.content_type,
                "type": artifact.get("type") or artifact.get("kind"),
            }

    def _fresh(self) -> list[dict[str, Any]]:
        """Ask Sume for the result, within the read budget that all functions share."""
        if self.result is None:
            settings = self.runtime.settings
            if self.left.seconds() < settings.sume_timeout + RECORD_SECONDS + LEAST_SECONDS:
                raise NotArchived("no_time_left")
            if not pace_store.take(self.runtime.database, "reads", pace(settings.reads_per_minute)):
                raise NotArchived("reads_are_held_back")
            from sume_jobs.decisions import outcomes
            from sume_jobs.flows.sume_access import client_of

            client = client_of(self.runtime)
            try:
                answer = client.result(self.job_id)
            finally:
                client.close()
            outcome = outcomes.decide_result(answer, self.job_id, time.time())
            if outcome.result is None:
                raise NotArchived(f"result_not_there ({outcome.reason or outcome.action})")
            self.result = outcome.result
        found: list[dict[str, Any]] = json.loads(self.result)["artifacts"]
        return found

    def _manifest(self, job: Archivable, copies: list[dict[str, Any]]) -> str:
        return json.dumps(
            {
                "version": MANIFEST_VERSION,
                "job_id": self.job_id,
                "idempotency_key": job.idempotency_key,
                "render_job_id": None if job.render_job_id is None else str(job.render_job_id),
                "artifacts": copies,
            },
            indent=2,
        )


def _is_local(base_url: str) -> bool:
    """Tell whether Sume itself is on this machine: then its artifacts may be, too."""
    host = urlsplit(base_url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
