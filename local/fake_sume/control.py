"""`/_fake/*`: what a program outside this process tells the fake, and asks it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .behaviour import Behaviour, Script, webhook_from_json
from .views import Answer

if TYPE_CHECKING:
    from .service import Received, Service


def control(service: Service, received: Received) -> Answer:
    """Answer one control request; these are in no log and no count."""
    try:
        value = _answer(service, received)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _json(400, {"error": f"{type(error).__name__}: {error}"})
    return _json(404, {"error": "unknown path or job"}) if value is None else _json(200, value)


def _answer(service: Service, received: Received) -> Any:
    method, path = received.method, received.path.removeprefix("/_fake")
    body = json.loads(received.body) if received.body else {}
    if (method, path) == ("GET", "/stats"):
        return service.stats(keys=received.query.get("keys") == "true")
    if (method, path) == ("GET", "/weather"):
        return service.weather.values
    if (method, path) == ("POST", "/weather"):
        service.weather.update(body)
        return service.weather.values
    if (method, path) == ("PUT", "/weather"):
        service.weather.replace(body)
        return service.weather.values
    if (method, path) == ("POST", "/behaviours"):
        return _order(service, body)
    if (method, path) == ("DELETE", "/behaviours"):
        service.scripts.clear()
        return {"cleared": True}
    if (method, path) == ("POST", "/forget_key"):
        service.forget(body["key"])
        return {"forgotten": body["key"]}
    if (method, path) == ("GET", "/requests"):
        last = int(received.query.get("last", "100"))
        return [_shown(item) for item in list(service.log.requests)[-last:]]
    if path.startswith("/jobs/"):
        job = service.book.jobs.get(path.removeprefix("/jobs/"))
        if job is None:
            return None
        if method == "POST":
            service.set_status(
                job, body["status"], error=body.get("error"), artifacts=body.get("artifacts")
            )
        return {"id": job.id, "key": job.key, "status": job.status}
    return None


def _order(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """`{"on": "submit", "behaviours": [{…}], "always": false, "key": null, "job_id": null}`"""
    name = body["on"]
    if name not in vars(service.scripts):
        raise ValueError(f"on must be one of {', '.join(vars(service.scripts))}")
    script: Script[Any] = getattr(service.scripts, name)
    read = webhook_from_json if name == "webhook" else Behaviour.from_json
    behaviours = tuple(read(item) for item in body["behaviours"])
    selector = body.get("job_id") or body.get("key")
    if body.get("always"):
        script.set(behaviours[0] if behaviours else None, selector)
    else:
        script.add(behaviours, selector)
    return {"ordered": len(behaviours)}


def _shown(received: Received) -> dict[str, Any]:
    secret = {"authorization", "x-api-key"}
    return {
        "at": received.at,
        "method": received.method,
        "path": received.path,
        "query": dict(received.query),
        "headers": {k: v for k, v in received.headers.items() if k not in secret},
        "body": received.body.decode("utf-8", "replace"),
        "key": received.key,
        "status": received.status,
        "job_id": received.job_id,
    }


def _json(status: int, value: Any) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})
