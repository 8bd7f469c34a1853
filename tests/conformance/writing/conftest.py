"""The place of each test's store, once for each kind that can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.writing.places import KINDS, PRODUCING_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal import OpenStore, ProducingStore
    from tests.conformance.writing.places import Place, ProducingPlace


@pytest.fixture(params=KINDS, ids=str)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def store(place: Place) -> Iterator[OpenStore]:
    with place.open() as opened:
        place.create(opened)
        yield opened


@pytest.fixture(
    params=[
        pytest.param(kind, marks=[pytest.mark.slow] if kind == "kafka" else [])
        for kind in PRODUCING_KINDS
    ]
)
def producing_place(request: pytest.FixtureRequest, tmp_path: Path) -> ProducingPlace:
    return PRODUCING_KINDS[request.param](tmp_path)


@pytest.fixture
def producing_store(producing_place: ProducingPlace) -> Iterator[ProducingStore]:
    with producing_place.open() as opened:
        yield opened
