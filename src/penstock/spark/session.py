"""A Spark session on this machine: for tests, the demo, and a first look."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark import SparkMissingError
from penstock.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES_DEFAULT: Final = 2
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def local_session(app: str, cores: int = CORES_DEFAULT, **conf: str | int | bool) -> SparkSession:
    """Starts Spark within this process, quietly; gives the running one if there is one.

    More settings go in by name: `local_session("x", **{"spark.sql.shuffle.partitions": 8})`.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - Penstock works without Spark
    except ModuleNotFoundError:
        raise SparkMissingError from None
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark would otherwise look up this machine's name, and warn when it finds no network.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings: dict[str, str | int | bool] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.python.filterPushdown.enabled": True,
        **conf,
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else value)
    return builder.getOrCreate()
