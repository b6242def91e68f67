"""Contender: HTTP alone, with threads and one requests session, no database. The ceiling."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
from requests.adapters import HTTPAdapter


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """POST ``event["rows"]`` times over ``event["threads"]`` threads. Gives rows and seconds."""
    del context
    threads: int = event["threads"]
    address = os.environ["SUME_BASE_URL"] + "/v1/images"
    with requests.Session() as session, ThreadPoolExecutor(threads) as pool:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {os.environ['SUME_API_KEY']}"
        session.mount("http://", HTTPAdapter(pool_maxsize=threads))

        def post(number: int) -> str:
            prompt = f"A lighthouse at dusk, oil on canvas, number {number}"
            body = json.dumps({"model": "sume/auto", "prompt": prompt, "mode": "async"})
            headers = {"Idempotency-Key": f"alone-{number}", "Content-Type": "application/json"}
            answer = session.post(address, data=body, headers=headers, timeout=20)
            answer.raise_for_status()
            found: str = answer.json()["data"]["job"]["id"]
            return found

        begun = time.monotonic()
        rows = len(set(pool.map(post, range(event["rows"]))))
        seconds = time.monotonic() - begun
    return {"rows": rows, "seconds": seconds}
