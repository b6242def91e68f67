"""The only logger and the only metrics of the project.

Log lines carry an event name, ids and codes; never a prompt, key, signature, secret or the
query of a URL.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE: Final = "SumeJobs"
# The dimension of every metric: the stack's name, so that stages in one account do not mix.
SERVICE: Final = os.environ.get("POWERTOOLS_SERVICE_NAME") or "sume-jobs"
_FROM_OUTSIDE: Final = frozenset({"code", "event", "request_id", "word"})

logger: Final = Logger(service=SERVICE)
_metrics: Final = Metrics(namespace=NAMESPACE, service=SERVICE)


def count(name: str, value: float = 1) -> None:
    """Add to a counter of this invocation; nothing is written for 0."""
    if value:
        _metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)


def gauge(name: str, value: float, unit: MetricUnit = MetricUnit.Count) -> None:
    """Record a level, for example a depth or an age."""
    _metrics.add_metric(name=name, unit=unit, value=value)


def seconds(name: str, value: float) -> None:
    """Record an age or a duration in seconds."""
    gauge(name, value, MetricUnit.Seconds)


def event(name: str, **fields: Any) -> None:
    """Log what happened, in the ordinary course of things."""
    logger.info(name, extra=_shown(fields), stacklevel=3)


def warn(name: str, **fields: Any) -> None:
    """Log what a person may want to know."""
    logger.warning(name, extra=_shown(fields), stacklevel=3)


def alarm(name: str, **fields: Any) -> None:
    """Log what a person must look at."""
    logger.error(name, extra=_shown(fields), stacklevel=3)


def flush() -> None:
    """Write the metrics of this invocation; called at the end of every handler."""
    if _metrics.metric_set:
        _metrics.flush_metrics()


def word(value: str) -> str:
    """Show what came from outside only where it is one word, for an answer may quote a prompt."""
    return value if re.fullmatch(r"[!-~]{1,200}", value, re.ASCII) else "(text)"


def _shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: word(value) if key in _FROM_OUTSIDE and isinstance(value, str) else value
        for key, value in fields.items()
        if value is not None
    }
