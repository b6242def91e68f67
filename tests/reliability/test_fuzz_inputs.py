"""Bad input in CI's time; `python -m tests.reliability.fuzz --seconds N` runs for longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.conftest import TEMPLATE
from tests.reliability import fuzz_inputs as inputs
from tests.reliability.fuzz_targets import SEEDS, TARGETS, Bench, check_http, check_stored_answers
from tests.reliability.fuzz_targets import Spoken as SpokenAnswer
from tests.support.postgres import Database, Server, create_database, drop_database

# Hypothesis' inputs for each target in CI, and how many are tried around each.
EXAMPLES = {
    "webhook": 40,
    "reread": 20,
    "answers": 60,
    "stored": 6,
    "http": 30,
    "prompts": 15,
}
NEIGHBOURS = 10


@pytest.fixture(scope="module")
def bench(postgres: Server, template: str) -> Iterator[Bench]:
    name = TEMPLATE.replace("template", "fuzz")
    create_database(postgres, name, template)
    database = Database(postgres, name)
    with Bench(database) as bench:
        yield bench
    database.close()
    drop_database(postgres, name)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_it(bench: Bench, name: str) -> None:
    target = TARGETS[name]
    before = bench.tried[name]

    @seed(20260310)
    @settings(
        max_examples=EXAMPLES[name],
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.strategy, SEEDS)
    def attempt(value: object, number: int) -> None:
        target.try_all(bench, value, number, NEIGHBOURS)

    attempt()
    assert bench.tried[name] - before >= EXAMPLES[name]
    bench.check_promises()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 202 Accepted\r\nContent-Length\x1a 74\r\n",
        b"HTTP/1.1 202 Accepted\r\nA: 1\r\n\x02%s\r\n" % inputs.PROMPT.encode(),
        b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    ],
    ids=["separator", "prompt", "two lengths"],
)
def test_a_malformed_answer_is_not_quoted_in_the_log(bench: Bench, head: bytes) -> None:
    """urllib3 warns of such headers with the text that it could not read."""
    check_http(bench, inputs.RawAnswer(head + b"\r\n" + inputs.PROMPT.encode(), "submit"))


@pytest.mark.parametrize("status", [200, 400, 402, 429, 500])
@pytest.mark.parametrize("place", ["code", "request_id", "message", "status"])
def test_a_prompt_that_sume_sends_back_is_not_logged(bench: Bench, status: int, place: str) -> None:
    body = b'{"error":{"%s":"%s"},"data":{"job":{"id":"job_fuzz_1","%s":"%s"}}}' % (
        place.encode(), inputs.PROMPT.encode(), place.encode(), inputs.PROMPT.encode(),
    )  # fmt: skip
    check_stored_answers(bench, SpokenAnswer(status, {}, body, True, True))
