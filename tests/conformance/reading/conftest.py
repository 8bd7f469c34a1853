"""The log of each test, once for each kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.reading.logs import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal.store import ReadableStore
    from tests.conformance.reading.logs import Log


@pytest.fixture(
    params=[
        pytest.param(kind, marks=[pytest.mark.slow] if kind == "kafka" else []) for kind in KINDS
    ]
)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    made = KINDS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(log: Log) -> Iterator[ReadableStore]:
    with log.open() as opened:
        yield opened
