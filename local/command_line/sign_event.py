"""The command that signs a webhook for tests: sign-event."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from local.command_line.context import Session
from local.command_line.errors import ACT, OK, USAGE, CommandError


def sign_event(
    session: Session,
    file: Annotated[
        str,
        typer.Argument(help="The webhook's body, or an event of API Gateway; - is the input."),
    ],
    send: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send it there, as Sume would ('bundle': the local one)."),
    ] = None,
    age: Annotated[
        int,
        typer.Option(metavar="SECONDS", help="Sign it as of so long ago (more than 300: late)."),
    ] = 0,
) -> int:
    """Sign a webhook's body as Sume does, with the first secret of SUME_WEBHOOK_SECRETS.

    Where nothing is set it is the local bundle's secret, else that of the samples in events/.
    """
    from sume_jobs.decisions.signature import sign

    from local import sign_events

    raw = _read(file)
    secret = _secret(session)
    now = int(time.time()) - age
    event = _gateway_event(raw)
    if event is not None and send is None:
        sign_events.resign(event, now, sign_events.Case(200, None), secret)
        session.output.document(event)
        return OK
    body = raw if event is None else sign_events.raw_body(event)
    headers = {
        "content-type": "application/json",
        "x-sume-timestamp": str(now),
        "x-sume-signature": sign(str(now), body, secret),
    }
    if send is None:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        session.output.result({"headers": headers, "body": body.decode(errors="replace")}, *lines)
        return OK
    return _send(session, send, body, headers)


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", USAGE) from None


def _secret(session: Session) -> str:
    from sume_jobs.settings import parse_secrets

    from local.sign_events import SAMPLE_SECRET

    for environment in (os.environ, session.running or {}):
        secrets = parse_secrets(environment.get("SUME_WEBHOOK_SECRETS", ""))
        if secrets:
            return secrets[0]
    return SAMPLE_SECRET


def _gateway_event(raw: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    is_one = isinstance(event, dict) and {"headers", "requestContext", "body"} <= event.keys()
    return event if is_one else None


def _send(session: Session, url: str, body: bytes, headers: dict[str, str]) -> int:
    import requests

    if url == "bundle":
        url = (session.running or {}).get("SUME_WEBHOOK_URL", "")
        if not url:
            raise CommandError("The bundle does not run here: start it with ./sume-jobs up.", USAGE)
    http = requests.Session()
    http.trust_env = False
    try:
        answer = http.post(url, data=body, headers=headers, timeout=10, allow_redirects=False)
    except requests.RequestException as error:
        raise CommandError(f"{url} does not answer ({type(error).__name__}).") from None
    text = f"{answer.status_code} {answer.text}"
    session.output.result({"status": answer.status_code, "answer": answer.text}, text)
    return OK if answer.status_code < 400 else ACT
