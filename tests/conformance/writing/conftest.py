"""The place of each test's store, once for each kind that can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.writing.places import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal import OpenStore
    from tests.conformance.writing.places import Place


@pytest.fixture(params=KINDS, ids=str)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def store(place: Place) -> Iterator[OpenStore]:
    with place.open() as opened:
        place.create(opened)
        yield opened
