"""One Spark for the whole test process: it takes seconds to start, and more to warm up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.spark import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


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
