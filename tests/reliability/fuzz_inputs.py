"""What the fuzzing tries: webhook deliveries, answers of Sume, raw HTTP, and files of prompts.

Inputs are near misses more than noise: real shapes with a part replaced, a place swapped or the
bytes damaged, because noise alone is turned away at the first check.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

SECRET = "whsec_fuzz_7a1c95e0"
OTHER_SECRET = "whsec_other_0e59c1a7"
API_KEY = "sume_live_fuzz_key_4b2d"
# Stands for the text of a prompt, wherever an input may carry it back.
PROMPT = "PROMPT-MARKER a heron in the reeds"
LARGEST_BODY = 256 * 1024

JOBS = [f"job_fuzz_{number}" for number in range(24)]
STATUSES = [
    "queued", "processing", "completed", "failed", "canceled", "cancelled", "expired", "SUCCEEDED",
    "running", "Completed ", "throttled", "", "null", "error",
]  # fmt: skip
KEYS = [
    "id", "job_id", "request_id", "status", "sume_status", "type", "data", "object", "job", "error",
    "code", "message", "retryable", "is_retryable", "public_reason", "webhook_status", "result",
    "artifacts", "image_url", "url", "idempotency_hit", "generation_limits",
    "queue_capacity_remaining", "detail",
]  # fmt: skip

odd_texts = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(exclude_categories=()), max_size=12),
    st.sampled_from(
        ["\x00", "a\x00b", "\ud800", "\udfff\ud800", "\ud83d\ude00", "\ufeff", "\u2028", "\x1b[31m",
         "'; drop table gen_job; --", "%s %(x)s", "{}", "x" * 3000, "\U0001f98a" * 600, "\r\n", " "]
    ),
)  # fmt: skip
odd_numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([10**30, -(10**400), 2**63, 2**31, 1e308, 5e-324, -0.0, 0.1, 1e999]),
)
scalars = st.one_of(st.none(), st.booleans(), odd_numbers, odd_texts, st.sampled_from(STATUSES))
names = st.one_of(st.sampled_from(KEYS), odd_texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
job_ids = st.one_of(
    st.sampled_from(JOBS),
    st.sampled_from([" job_fuzz_1 ", "job/fuzz", "job_fuzz_\u0661", "x" * 201, "", "job_unknown"]),
    st.from_regex(r"job_[0-9a-f]{8}", fullmatch=True),
    scalars,
)
errors = st.one_of(
    st.none(),
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "code": st.one_of(st.just("generation_failed"), values),
            "message": st.one_of(st.just(PROMPT), values),
            "retryable": st.one_of(st.booleans(), st.just("retryable"), values),
            "public_reason": values,
        },
    ),
)


@st.composite
def records(draw: st.DrawFn) -> Any:
    """A job record, or something like one."""
    record: dict[str, Any] = {
        "id": draw(job_ids),
        "type": "image_generation",
        "status": draw(st.sampled_from(STATUSES)),
        "prompt": PROMPT,
    }
    if draw(st.booleans()):
        record["error"] = draw(errors)
    for name, value in draw(st.dictionaries(names, values, max_size=2)).items():
        record[name] = value
    if draw(st.integers(0, 5)) == 0:
        record.pop(draw(st.sampled_from(sorted(record))), None)
    return record


@st.composite
def events(draw: st.DrawFn) -> Any:
    """A webhook event in one of the known nestings, or some other JSON."""
    record = draw(records())
    event: Any = draw(
        st.sampled_from(
            [
                {"data": {"object": record}},
                {"data": {"job": record}},
                {"job": record},
                {"data": record},
                record if isinstance(record, dict) else {},
            ]
        )
    )
    event = {"type": f"job.{record.get('status')}", **event}
    if draw(st.booleans()):
        event["id"] = draw(st.one_of(st.from_regex(r"evt_[0-9a-f]{2}", fullmatch=True), job_ids))
    for name, value in draw(st.dictionaries(names, values, max_size=1)).items():
        event[name] = value
    return event


def _dump(value: Any, ascii_only: bool) -> bytes:
    text = json.dumps(value, ensure_ascii=ascii_only)
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """The same bytes with one thing wrong."""
    place = draw(st.integers(0, len(raw)))
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return raw[:place]
    if kind == 1:
        return raw[:place] + draw(st.binary(min_size=1, max_size=4)) + raw[place:]
    if kind == 2:
        return raw[:place] + draw(st.binary(min_size=1, max_size=2)) + raw[place + 1 :]
    if kind == 3:
        return raw + raw
    if kind == 4:
        return b"\xef\xbb\xbf" + raw
    if kind == 5:
        return raw.decode("utf-8", "replace").encode("utf-16")
    return raw[:place] + b"\x00" + raw[place:]


def _deep(opening: str, depth: int) -> bytes:
    closing = {"[": "]", '{"error":': "}"}[opening]
    middle = "1" if opening != "[" else ""
    return (opening * depth + middle + closing * depth).encode()


@st.composite
def json_bodies(draw: st.DrawFn, shaped: st.SearchStrategy[Any]) -> bytes:
    """JSON of this shape as bytes: whole in most cases, else damaged, deep, or no JSON at all."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.binary(max_size=60))
    if kind == 1:
        opening = draw(st.sampled_from(["[", '{"error":']))
        deep = _deep(opening, draw(st.sampled_from([3, 90, 400, 990, 5000, 20_000])))
        return draw(
            st.sampled_from(
                [
                    deep,
                    b'{"data":{"object":{"id":"job_fuzz_0","status":"failed","error":%s}}}' % deep,
                ]
            )
        )
    if kind == 2:
        number = draw(st.sampled_from(["1" * 5000, "1e99999", "-" + "9" * 400, "NaN", "-Infinity"]))
        return b'{"data":{"object":{"id":"job_fuzz_1","status":"failed","error":{"n":%s}}}}' % (
            number.encode()
        )
    if kind == 3:
        return _dump(draw(values), draw(st.booleans()))
    raw = _dump(draw(shaped), draw(st.booleans()))
    if kind < 7:
        return draw(damaged(raw))
    if kind == 7:
        # Two keys with one name.
        return raw[:-1] + b',"type":"job.failed"}' if raw.endswith(b"}") else raw
    return raw


# Webhook deliveries -------------------------------------------------------------------------------


@dataclass
class Attempt:
    """An event for the webhook handler; `genuine` tells that its signature is right."""

    event: dict[str, Any]
    genuine: bool
    raw: bytes | None
    label: str = ""
    markers: list[str] = field(default_factory=list)


@st.composite
def deliveries(draw: st.DrawFn) -> Attempt:
    """A delivery in one of the two payload formats, genuine or not."""
    raw = draw(json_bodies(events()))
    size = draw(st.integers(0, 60))
    if size == 0:
        raw = raw + b" " * (LARGEST_BODY - len(raw) + draw(st.integers(-1, 1)))
    kind = draw(st.sampled_from(["genuine"] * 6 + list(_FORGERIES)))
    now = int(time.time())
    stamp, secret, signed = str(now + draw(st.integers(-200, 200))), SECRET, raw
    if kind == "old":
        stamp = str(now + draw(st.sampled_from([-86_400, -400, 400, 10**9])))
    elif kind == "secret":
        secret = draw(st.sampled_from([OTHER_SECRET, "", SECRET + " ", SECRET[:-1]]))
    elif kind == "body":
        signed = raw + b" "
    digest = _sign(signed, stamp, secret)
    header: str | None = f"v1={digest}"
    if kind == "hex":
        place = draw(st.integers(0, 63))
        other = "0" if digest[place] != "0" else "1"
        header = f"v1={digest[:place]}{other}{digest[place + 1 :]}"
    elif kind == "prefix":
        header = (
            draw(st.sampled_from(["", "v2=", "v1:", "V1=", "v1", "v1=v1=", "sha256="])) + digest
        )
    elif kind == "cut":
        header = f"v1={digest[: draw(st.integers(0, 63))]}"
    elif kind == "text":
        header = draw(odd_texts)
    elif kind == "none":
        header = None
    elif kind == "stamp":
        stamp = draw(
            st.one_of(
                odd_texts,
                st.sampled_from(
                    ["", "1e10", f"{stamp}.0", f"+{stamp}", f"-{stamp}", f"0x{now:x}", "nan",
                     "".join(chr(0x660 + int(d)) for d in stamp), "9" * 400, f"{stamp},{stamp}0"]
                ),
            )
        )  # fmt: skip
    elif kind == "genuine" and header is not None and draw(st.integers(0, 3)) == 0:
        more = draw(st.sampled_from(["v1=" + "0" * 64, "v0=abc", "", "v1=", "t=1", "\u00e9"]))
        header = draw(st.sampled_from([f"{more},{header}", f"{header} , {more}"]))
    headers: dict[str, Any] = {"content-type": "application/json", "x-sume-timestamp": stamp}
    if header is not None:
        headers["x-sume-signature"] = header
    if draw(st.booleans()):
        headers["x-sume-event-id"] = draw(st.one_of(st.just("evt_header"), odd_texts))
    return Attempt(
        event=draw(_api_events(raw, headers)),
        genuine=kind == "genuine",
        raw=raw,
        label=kind,
        markers=[digest, PROMPT[:13]],
    )


def _sign(body: bytes, stamp: str, secret: str) -> str:
    message = stamp.encode("utf-8", "surrogatepass") + b"." + body
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


_FORGERIES = ("old", "secret", "body", "hex", "prefix", "cut", "text", "none", "stamp")


@st.composite
def _api_events(draw: st.DrawFn, raw: bytes, headers: dict[str, Any]) -> dict[str, Any]:
    """What API Gateway makes of the request: payload 2.0, or 1.0 with both kinds of headers."""
    try:
        text = raw.decode()
        encoded = draw(st.integers(0, 3)) == 0
    except UnicodeDecodeError:
        encoded, text = True, ""
    if encoded:
        text = base64.b64encode(raw).decode()
    spelling = draw(st.sampled_from([str.lower, str.title, str.upper, str]))
    spelled = {spelling(name): value for name, value in headers.items()}
    extra = draw(st.dictionaries(st.text(max_size=8), values, max_size=1))
    spelled = {**{k: v for k, v in extra.items() if not k.lower().startswith("x-sume")}, **spelled}
    event: dict[str, Any] = {"headers": spelled, "body": text, "isBase64Encoded": encoded}
    if draw(st.booleans()):
        event |= {"version": "2.0", "requestContext": {"http": {"method": "POST"}}}
    else:
        event |= {"version": "1.0", "httpMethod": "POST", "path": "/webhooks/sume"}
        event["multiValueHeaders"] = {name: [value] for name, value in spelled.items()}
        if draw(st.booleans()):
            event["headers"] = draw(st.sampled_from([None, {}, spelled]))
    return event


@st.composite
def nonsense_events(draw: st.DrawFn) -> Attempt:
    """An event whose own fields are anything at all."""
    event = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "headers": st.one_of(values, st.dictionaries(st.text(max_size=20), values)),
                "multiValueHeaders": st.one_of(
                    values, st.dictionaries(st.text(max_size=20), st.lists(values, max_size=3))
                ),
                "body": values,
                "isBase64Encoded": values,
                "version": values,
                "requestContext": values,
            },
        )
    )
    return Attempt(event=event, genuine=False, raw=None, label="nonsense")


attempts = st.one_of(deliveries(), deliveries(), deliveries(), nonsense_events())


# Answers of Sume ----------------------------------------------------------------------------------

_retry_after = st.one_of(
    st.sampled_from(
        ["7", "0", "-5", "1.5", "inf", "nan", "1e3", "9" * 400, "", "Fri, 31 Dec 9999 23:59:59 GMT",
         "Fri, 99 Foo 2030 25:61:61 GMT", "Fri, 31 Dec", "rand(30)", "\u0663", "\uff17",
         "Mon, 01 Jan 0001 00:00:00 -9999", "Thu, 01 Jan 1970 00:00:00 GMT"]
    ),
    odd_texts,
)  # fmt: skip
answer_headers = st.fixed_dictionaries(
    {},
    optional={
        "retry-after": _retry_after,
        "date": st.one_of(st.just("Mon, 30 Nov 2026 20:00:00 GMT"), odd_texts),
        "x-sume-request-id": odd_texts,
        "content-type": odd_texts,
    },
)
http_statuses = st.one_of(
    st.sampled_from(
        [200, 201, 202, 204, 301, 302, 307, 400, 401, 402, 403, 404, 408, 409, 410, 413, 418, 422,
         425, 429, 499, 500, 502, 503, 504, 520]
    ),
    st.integers(100, 999),
)  # fmt: skip


@st.composite
def api_answers(draw: st.DrawFn) -> Any:
    """The body of an answer: a submit, a record, a result, an error envelope, or odd ones."""
    kind = draw(st.integers(0, 4))
    if kind == 0:
        data: dict[str, Any] = {"job": draw(records()), "request_id": draw(job_ids)}
        if draw(st.booleans()):
            data["idempotency_hit"] = draw(st.one_of(st.booleans(), st.just("true"), values))
        if draw(st.booleans()):
            data["generation_limits"] = {
                "queue_capacity_remaining": draw(st.one_of(st.integers(-5, 50), values))
            }
        return {"data": data}
    if kind == 1:
        return {"data": draw(st.one_of(records(), values))}
    if kind == 2:
        artifact = st.one_of(values, st.fixed_dictionaries({"url": values}))
        result = {"artifacts": draw(st.one_of(values, st.lists(artifact, max_size=3)))}
        return {"data": {"request_id": draw(job_ids), "status": "COMPLETED", "result": result}}
    if kind == 3:
        error: Any = draw(errors)
        return {"error": error, "request_id": draw(st.one_of(st.just("req_1"), values))}
    return draw(values)


answer_bodies = json_bodies(api_answers())


# Raw HTTP -----------------------------------------------------------------------------------------

ACCEPTED = b'{"data":{"job":{"id":"job_raw","status":"queued"},"request_id":"job_raw"}}'


@st.composite
def raw_responses(draw: st.DrawFn) -> bytes:
    """The bytes that a server, or something that is none, may send back."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return draw(st.binary(max_size=200))
    start = draw(
        st.sampled_from([b"HTTP/1.1 202 Accepted", b"HTTP/1.1 200 OK", b"HTTP/1.1 503 x"])
        if kind < 8
        else st.one_of(
            st.sampled_from(
                [b"HTTP/1.1 202 Accepted", b"HTTP/1.0 200 OK", b"HTTP/1.1 429 Slow Down",
                 b"HTTP/1.1 500 x", b"HTTP/1.1 202", b"HTTP/1.1 ", b"HTTP/9.9 202 OK",
                 b"ICY 200 OK",
                 b"HTTP/1.1 000 x", b"HTTP/1.1 99999 x", b"HTTP/1.1 -1 x", b"HTTP/1.1 2O2 OK",
                 b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 OK", b"HTTP/1.1 101 Switching",
                 b"HTTP/1.1 204 Nothing", b"HTTP/1.1 304 Same", b"HTTP/1.1 302 Found", b"", b"\r\n",
                 b"HTTP/1.1 202 " + b"x" * 70_000, b"HTTP/1.1 202 \xff\xfe\x00"]
            ),
            st.binary(max_size=30),
        )
    )  # fmt: skip
    body = draw(st.one_of(st.just(ACCEPTED), answer_bodies))
    lines = draw(
        st.lists(
            st.one_of(
                st.sampled_from(
                    [b"Content-Type: application/json", b"Retry-After: 5", b"Retry-After: \xff",
                     b"Location: http://127.0.0.1:9/", b"Location: \x00", b"Set-Cookie: a=b; c",
                     b"Set-Cookie: \xff=;;;=", b"Set-Cookie: a=b; expires=Fri, 99 Foo", b"no colon",
                     b": empty name", b" folded: x", b"A: " + b"y" * 70_000, b"B:\x00", b"Date: 0",
                     b"Content-Encoding: gzip", b"Content-Encoding: deflate, gzip, br, zstd",
                     b"Content-Encoding: identity, nonsense", b"Connection: upgrade",
                     b"X-Echo: " + PROMPT.encode(), PROMPT.encode(), b"\r", b"X-Sume-Request-Id: r"]
                ),
                st.binary(max_size=20),
            ),
            max_size=4,
        )
    )  # fmt: skip
    if draw(st.integers(0, 40)) == 0:
        lines += [b"X-%d: 1" % number for number in range(150)]
    if b"Content-Encoding: gzip" in lines and draw(st.booleans()):
        body = draw(st.sampled_from([gzip.compress(body), zlib.compress(body), body[:5] + b"\x1f"]))
    framing = draw(st.integers(0, 6))
    length = len(body)
    if framing == 0:
        lines.append(b"Content-Length: %d" % length)
    elif framing == 1:
        lines.append(
            b"Content-Length: "
            + draw(
                st.sampled_from(
                    [b"-1", b"", b"abc", b"999999999999999999999", b"%d" % (length + 9), b"1",
                     b"0x10", b"%d, %d" % (length, length), b"%d, 3" % length, b"\xb2"]
                )
            )
        )  # fmt: skip
    elif framing in (2, 3):
        lines.append(b"Transfer-Encoding: chunked")
        sizes = [b"%x" % length]
        if framing == 3:
            sizes = [b"%x;ext=1" % length, b"-1", b"zz", b"", b"f" * 40, b"%x" % (length + 7)]
        body = draw(st.sampled_from(sizes)) + b"\r\n" + body + b"\r\n"
        body += draw(st.sampled_from([b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"0", b"\r\n\r\n"]))
    elif framing == 4:
        lines += [b"Transfer-Encoding: chunked", b"Content-Length: %d" % length]
    raw = b"\r\n".join([start, *lines]) + draw(st.sampled_from([b"\r\n\r\n", b"\n\n", b"\r\n"]))
    raw += body
    if draw(st.integers(0, 5)) == 0:
        raw = raw[: draw(st.integers(0, len(raw)))]
    return raw


@dataclass(frozen=True)
class RawAnswer:
    """The answer of a raw server, and what is called."""

    raw: bytes
    call: str


raw_answers = st.builds(RawAnswer, raw_responses(), st.sampled_from(["submit", "job", "result"]))


# Files of prompts ---------------------------------------------------------------------------------

_cells = st.one_of(
    odd_texts,
    st.sampled_from(
        ["a fox", '"', '""', '"a, b"', "a;b", "\n", "sume/auto", "{}", '{"seed": 1}', '{"mode": 1}',
         "[1]", "0", "3", "9", "2030-01-31T09:00:00Z", "2030-01-31", "9999-12-31T23:59:59+00:00",
         "0001-01-01T00:00:00+14:00", '{"a": "\\u0000"}', '{"a": 1e999}', "x" * 33_000]
    ),
)  # fmt: skip
_columns = st.sampled_from(
    ["prompt", "model", "params", "priority", "reference", "run_after", "Prompt ", "other", ""]
)


@st.composite
def _csv_files(draw: st.DrawFn) -> bytes:
    delimiter = draw(st.sampled_from([",", ";", "\t"]))
    header = draw(st.lists(_columns, min_size=1, max_size=5))
    if draw(st.integers(0, 4)):
        header = list(dict.fromkeys(["prompt", *header]))
    rows = draw(st.lists(st.lists(_cells, min_size=1, max_size=6), max_size=6))
    text = "\n".join(delimiter.join(row) for row in [header, *rows])
    return text.encode("utf-8", "surrogatepass")


@st.composite
def _json_files(draw: st.DrawFn) -> bytes:
    record = st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(_cells, values)
            for name in ("prompt", "model", "params", "priority", "reference", "run_after", "x")
        },
    )
    lines = draw(st.lists(st.one_of(record, values), max_size=6))
    return b"\n".join(_dump(line, draw(st.booleans())) for line in lines)


@dataclass(frozen=True)
class PromptsFile:
    """A file of prompts: its name and its bytes."""

    name: str
    content: bytes


@st.composite
def prompt_files(draw: st.DrawFn) -> PromptsFile:
    content = draw(st.one_of(_csv_files(), _json_files(), st.binary(max_size=200)))
    if draw(st.integers(0, 3)) == 0:
        content = draw(damaged(content))
    suffix = draw(st.sampled_from([".csv", ".tsv", ".jsonl", ".ndjson", ".txt", "", ".dat"]))
    return PromptsFile(f"prompts{suffix}", content)


# Neighbours ---------------------------------------------------------------------------------------

_TOKENS = [
    b"null", b"true", b"-1", b"1e999", b"NaN", b"[]", b"{}", b'""', b'"\\u0000"', b'"\\ud800"',
    b'"completed"', b'"failed"', b'"queued"', b'"id"', b'"status"', b'"error"', b'"data"', b'"job"',
    b'"job_fuzz_3"', b'"evt_1"', b"\xff", b"\x00", b"\r\n", b",", b":", b"}", b"]", b"{",
    b"[", b'"',
    b"\xed\xa0\x80", b"\xc2\x85", b"  ", b"0" * 40, b"prompt", b";", b"\t",
]  # fmt: skip


_VALUES: list[Any] = [
    None, True, False, 0, -1, 2**63, 10**40, 1e308, float("nan"), "", " ", "\x00",
    "\ud800", "a\x00b",
    [], {}, [[]], [None], {"": None}, {"id": "job_fuzz_2"}, {"code": 5}, {"url": "u"}, "x" * 3000,
    "completed", "failed", "queued", "processing", "canceled", "cancelled", "expired",
    "FAILED", "none",
    "job_fuzz_3", "job_fuzz_9", "job_new", "evt_1", "evt_2", PROMPT, "\u2028\x85", "true", "1e999",
]  # fmt: skip


def mutate_value(value: Any, chance: random.Random) -> Any:
    """One change somewhere inside: a value or key replaced, left out, put in, or wrapped."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        kind = chance.randrange(8)
        if kind == 0:
            return {name: inner for name, inner in value.items() if name != key}
        if kind == 1:
            return {chance.choice(KEYS) if name == key else name: v for name, v in value.items()}
        if kind == 2:
            return {**value, chance.choice(KEYS): chance.choice(_VALUES)}
        return {**value, key: mutate_value(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        return [*value[:at], mutate_value(value[at], chance), *value[at + chance.randint(0, 1) :]]
    wrapped = chance.randrange(12)
    if wrapped == 0:
        return [value]
    if wrapped == 1:
        return {chance.choice(KEYS): value}
    return chance.choice(_VALUES)


def mutate(raw: bytes, chance: random.Random) -> bytes:
    """A small change: of a value where it is JSON (in most cases), else of the bytes."""
    if chance.random() < 0.75:
        try:
            value = mutate_value(json.loads(raw), chance)
            return _dump(value, chance.random() < 0.7)
        except (ValueError, RecursionError):
            pass
    return mutate_bytes(raw, chance)


def mutate_bytes(raw: bytes, chance: random.Random) -> bytes:
    """One to three small changes: a token put in, put over another, a piece cut, doubled, moved."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randint(0, len(raw))
        end = min(len(raw), at + chance.randint(1, 8))
        kind = chance.randrange(6)
        if kind == 0:
            raw = raw[:at] + chance.choice(_TOKENS) + raw[at:]
        elif kind == 1:
            raw = raw[:at] + chance.choice(_TOKENS) + raw[end:]
        elif kind == 2:
            raw = raw[:at] + raw[end:]
        elif kind == 3:
            raw = raw[:end] + raw[at:]
        elif kind == 4 and raw:
            at = min(at, len(raw) - 1)
            raw = raw[:at] + bytes([raw[at] ^ (1 << chance.randrange(8))]) + raw[at + 1 :]
        else:
            # A quoted text for another: keys and values change places.
            parts = raw.split(b'"')
            if len(parts) > 4:
                one, two = chance.randrange(1, len(parts), 2), chance.randrange(1, len(parts), 2)
                parts[one], parts[two] = parts[two], parts[one]
                raw = b'"'.join(parts)
    return raw


def deliveries_near(attempt: Attempt, chance: random.Random, count: int) -> Iterator[Attempt]:
    """Deliveries of changed bodies: some signed anew, some with the signature of the first."""
    if attempt.raw is None or len(attempt.raw) > 20_000:
        return
    for _ in range(count):
        raw = mutate(attempt.raw, chance)
        stamp = str(int(time.time()))
        genuine = chance.random() < 0.7 or raw == attempt.raw
        digest = _sign(raw if genuine else attempt.raw, stamp, SECRET)
        names = chance.choice((str.lower, str.title))
        yield Attempt(
            event={
                "version": "2.0",
                "headers": {
                    names("x-sume-timestamp"): stamp,
                    names("x-sume-signature"): f"v1={digest}",
                },
                "body": base64.b64encode(raw).decode(),
                "isBase64Encoded": True,
            },
            genuine=genuine,
            raw=raw,
            label="near genuine" if genuine else "near forged",
            markers=[digest],
        )


def raw_answers_near(answer: RawAnswer, chance: random.Random, count: int) -> Iterator[RawAnswer]:
    for _ in range(count):
        if len(answer.raw) < 20_000:
            head, gap, body = answer.raw.partition(b"\r\n\r\n")
            if gap and chance.random() < 0.4:
                yield replace(answer, raw=head + gap + mutate(body, chance))
            elif gap and chance.random() < 0.6:
                yield replace(answer, raw=mutate_bytes(head, chance) + gap + body)
            else:
                yield replace(answer, raw=mutate_bytes(answer.raw, chance))


def files_near(file: PromptsFile, chance: random.Random, count: int) -> Iterator[PromptsFile]:
    for _ in range(count):
        yield replace(file, content=mutate_bytes(file.content, chance))
