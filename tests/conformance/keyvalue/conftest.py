"""The family of each test, once for each kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.keyvalue.families import KINDS, OUTLIVED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.keyvalue.families import Family, GossipFamily, PostgresFamily


@pytest.fixture(params=KINDS, ids=str)
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    made = KINDS[request.param]()
    yield made
    made.close()


@pytest.fixture(params=OUTLIVED, ids=str)
def processes(request: pytest.FixtureRequest) -> Iterator[PostgresFamily | GossipFamily]:
    """Only the stores whose members can be started again."""
    made = KINDS[request.param]()
    yield made  # type: ignore[misc]
    made.close()
