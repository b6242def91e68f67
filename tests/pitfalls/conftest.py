"""Every test of this folder that deploys the bundle ends with the six invariants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import failed_tests
from tests.support.bundle import Bundle
from tests.support.invariants import check_invariants


@pytest.fixture(autouse=True)
def invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    """Part 0 of the pitfall cases: checked when the test itself passed."""
    bundle: Bundle | None = None
    if "bundle" in request.fixturenames:
        bundle = request.getfixturevalue("bundle")
    yield
    if bundle is not None and not request.node.stash.get(failed_tests, True):
        try:
            check_invariants(bundle)
        except BaseException:
            print(bundle.output()[-20_000:])
            raise
