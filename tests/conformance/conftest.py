"""The fabric of each test, once for each carrier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.fabric import KINDS, Fabric

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An error in a finalizer, which nobody could catch, fails the test."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(
                pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(params=KINDS, ids=str)
def fabric(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    made = Fabric(request.param)
    yield made
    made.close()
    made.check_nothing_left()
