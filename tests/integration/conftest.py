"""What the tests of whole products share: one Spark for the test process, which takes seconds to
start and more to warm up; and listings that do not let them wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.shuffle.slice import listing
from penstock.spark import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _frequent_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where members are in this process. Tests make journals while a shuffle runs, and wait until
    they are found."""
    monkeypatch.setattr(listing, "LISTING_SECONDS", 0.1)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf: dict[str, str | bool] = {
        # Tests are over before Java's second compiler pays for itself.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Filters are never taken over; with this on, Spark asks whether they would be.
        "spark.sql.python.filterPushdown.enabled": True,
    }
    session = local_session("penstock-tests", cores=2, **conf)
    yield session
    session.stop()
