"""Which artifacts are copied, from where, and under which name. Nothing here touches a network."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import quote, urlsplit

MOST_ARTIFACTS: Final = 50
FOLDER: Final = "sume-jobs"

_EXTENSIONS: Final = {
    "audio/mpeg": ".mp3",
    "audio/wav": ".wav",
    "image/avif": ".avif",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/vtt": ".vtt",
    "video/mp4": ".mp4",
    "video/quicktime": ".mov",
    "video/webm": ".webm",
}
# What may come where Sume did not say what to expect, and what says nothing of its own.
_MEDIA: Final = frozenset({"image", "video", "audio", "model"})
_UNSPECIFIC: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class ArtifactRefused(Exception):
    """An artifact that is not copied. `code` says why; `is_dead`: a fresh URL may help."""

    def __init__(self, code: str, is_dead: bool = False) -> None:
        super().__init__(code)
        self.code = code
        self.is_dead = is_dead


def object_name(job_id: str, position: int, artifact: dict[str, object]) -> str:
    """Name an artifact's copy: always the same for the same one, whatever its URL is today."""
    declared = media_type(artifact.get("content_type"))
    extension = _EXTENSIONS.get(declared, "")
    if not extension:
        path = urlsplit(str(artifact.get("url") or "")).path.lower()
        suffix = re.search(r"\.[a-z0-9]{1,5}$", path, re.ASCII)
        extension = suffix[0] if suffix and suffix[0] in _EXTENSIONS.values() else ""
    return f"{FOLDER}/{_folder(job_id)}/{position + 1}{extension}"


def manifest_name(job_id: str) -> str:
    """Name the list of a job's copies."""
    return f"{FOLDER}/{_folder(job_id)}/manifest.json"


def _folder(job_id: str) -> str:
    # A name of dots alone would climb in whatever takes the name for a path.
    return quote(job_id, safe="") if job_id.strip(".") else job_id.replace(".", "%2E")


def media_type(value: object) -> str:
    """Take the media type out of a Content-Type, lower-case, without parameters."""
    return value.partition(";")[0].strip().lower() if isinstance(value, str) else ""


def check_url(url: str, may_be_local: bool) -> None:
    """Let https through, and http to this machine where `may_be_local`. Raises ArtifactRefused."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        raise ArtifactRefused("url_malformed") from None
    if not host or not has_port or not url.isprintable() or parts.username is not None:
        raise ArtifactRefused("url_malformed")
    try:
        address: str | None = str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        address = None
    if address is not None:
        check_address(address, may_be_local)
    is_here = host == "localhost" or (address is not None and _is_loopback(address))
    if parts.scheme != "https" and not (parts.scheme == "http" and may_be_local and is_here):
        raise ArtifactRefused("url_not_https")


def check_address(address: str, may_be_local: bool) -> None:
    """Refuse an address that is not of the public internet; loopback where `may_be_local`."""
    if may_be_local and _is_loopback(address):
        return
    for each in _embedded(address):
        if not each.is_global or each.is_multicast:
            raise ArtifactRefused("address_not_public")


def _is_loopback(address: str) -> bool:
    return all(each.is_loopback for each in _embedded(address)[-1:])


def _embedded(address: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Give what an address leads to: for one that carries an IPv4 address, that one."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return [parsed.ipv4_mapped]
        if parsed.sixtofour is not None:
            return [parsed, parsed.sixtofour]
        if parsed in _NAT64:
            return [ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)]
    return [parsed]


def check_type(declared: object, answered: object) -> str:
    """Compare what Sume announced with what its host sends; gives the type to keep it under.

    Raises ArtifactRefused: an error page comes with status 200, too.
    """
    expected, found = media_type(declared), media_type(answered)
    if found in _UNSPECIFIC:
        return expected or "application/octet-stream"
    if expected in _UNSPECIFIC:
        fits = found.partition("/")[0] in _MEDIA
    else:
        fits = found.partition("/")[0] == expected.partition("/")[0]
        fits = fits and (found != "text/html" or expected == "text/html")
    if not fits:
        raise ArtifactRefused("wrong_type", is_dead=True)
    return found


def check_beginning(beginning: bytes, content_type: str) -> None:
    """Refuse an empty body, and a page or message where a picture was promised."""
    if not beginning:
        raise ArtifactRefused("empty", is_dead=True)
    if content_type.partition("/")[0] in ("text", "application") and content_type not in (
        "application/octet-stream",
    ):
        return
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()[:200].lower()
    is_markup = re.match(rb"<(!doctype|\?xml|html|head|body|error|!--)", text) is not None
    if content_type == "image/svg+xml":
        is_markup = text.startswith((b"<!doctype html", b"<html"))
    if is_markup or re.match(rb'[{\[]\s*["{\[\]}]', text):
        raise ArtifactRefused("page_instead_of_media", is_dead=True)
