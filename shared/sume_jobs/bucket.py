"""The S3 bucket that artifacts are copied to. Knows no tables; boto3 is imported when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sume_jobs.artifacts import Download

# Memory for one copy: two parts. Nothing is written to disk.
PART_BYTES: Final = 8 * 1024 * 1024


class BucketUnavailable(RuntimeError):
    """The bucket does not take the object; the message is S3's error code."""


class Bucket:
    """Writes objects under the names it is given; the same name is overwritten as a whole."""

    def __init__(self, name: str) -> None:
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        patience = Config(connect_timeout=3, read_timeout=20, retries={"total_max_attempts": 3})
        self._client: Any = boto3.client("s3", config=patience)
        # One thread: the download is read where its deadline is known.
        self._transfer = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False
        )
        self.name = name

    def copy(self, source: Download, name: str) -> None:
        """Stream a download into an object: whole, or not at all. Raises BucketUnavailable.

        What the download raises is passed on, and nothing is left in the bucket.
        """
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.upload_fileobj(
                source,
                self.name,
                name,
                ExtraArgs={"ContentType": source.content_type},
                Config=self._transfer,
            )
        except (BotoCoreError, ClientError, S3UploadFailedError) as error:
            raise BucketUnavailable(_code(error)) from None

    def write(self, name: str, text: str) -> None:
        """Write a JSON text. Raises BucketUnavailable."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.put_object(
                Bucket=self.name, Key=name, Body=text.encode(), ContentType="application/json"
            )
        except (BotoCoreError, ClientError) as error:
            raise BucketUnavailable(_code(error)) from None

    def url(self, name: str) -> str:
        """Give the s3:// URL of an object."""
        return f"s3://{self.name}/{name}"


def _code(error: Any) -> str:
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code") or type(error).__name__)
