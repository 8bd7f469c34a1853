"""A Spark session whose driver is this process: for tests, the demo, `penstock run`, and a first
look."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.spark import SparkMissingError
from penstock.spark.home import use_spark_home
from penstock.spark.java import use_java
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark import SparkConf
    from pyspark.sql import SparkSession

CORES_DEFAULT: Final = 2
LOOPBACK: Final = "127.0.0.1"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_NOISE: Final = (
    b"Using incubator modules",
    b"WARNING: package sun.security.action not in java.base",
)
"""Java says this of what Spark asks every Java for, whatever the logging is set to."""
_DAEMON: Final = b"pyspark/daemon.py"
_is_muted: Final = threading.Event()
_PANDAS_WARNING: Final = "PySpark does not yet fully support pandas"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


STREAMING: Final[dict[str, str | bool]] = {
    "spark.python.unix.domain.socket.enabled": True,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
"""For queries with a checkpoint on a disk of this machine. docs/performance.md says what each of
them is worth."""


def local_session(app: str, cores: int = CORES_DEFAULT, **conf: str | int | bool) -> SparkSession:
    """Starts Spark within this process, quietly; gives the running one if there is one.

    More settings go in by name: `local_session("x", **{"spark.sql.shuffle.partitions": 8})`.
    """
    try:
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - Penstock works without Spark
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError:
        raise SparkMissingError from None
    if (running := SparkSession.getActiveSession()) is not None:
        return running
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here: dict[str, str | int | bool] = {}
    if is_here(str(conf.get("spark.master", "local"))):
        # Spark would otherwise look up this machine's name, and warn when it finds no network.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        use_spark_home()
        here = {"spark.driver.host": LOOPBACK, "spark.sql.shuffle.partitions": cores}
    # Its Python processes would each tell that pandas is newer than they know; it is not used.
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{_PANDAS_WARNING}:FutureWarning")
    warnings.filterwarnings("ignore", _PANDAS_WARNING, FutureWarning)
    more_java_options = conf.get(_JAVA_OPTIONS, "")
    settings: dict[str, str | int | bool] = {
        "spark.master": f"local[{cores}]",
        "spark.app.name": app,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.session.timeZone": "UTC",
        **here,
        **conf,
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {more_java_options}",
    }
    spark_conf = SparkConf()
    for name, value in settings.items():
        spark_conf.set(name, str(value).lower() if isinstance(value, bool) else str(value))
    if SparkContext._gateway is None:  # noqa: SLF001 - a Java that runs already is used again
        return _start_java(spark_conf)
    return SparkSession.builder.config(conf=spark_conf).getOrCreate()


def mute_java() -> None:
    """Drops what Spark's Java and its Python processes write to stderr from now on: after Ctrl-C
    they complain of each other's end, and nobody can do anything about it."""
    _is_muted.set()


def is_here(master: str) -> bool:
    """Whether all of Spark is on this machine. Elsewhere others have to reach the driver, too, by
    an address that Spark finds out or `spark.driver.host` names."""
    return master.startswith("local") or urlsplit(master).hostname in (LOOPBACK, "localhost")


def _start_java(conf: SparkConf) -> SparkSession:
    """Starts Spark's Java with its errors passing through here."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    launch: Any = launch_gateway
    gateway = launch(conf, popen_kwargs={"stderr": subprocess.PIPE})
    supervised("java errors", _repeat, gateway.proc.stderr).start()
    SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _repeat(lines: IO[bytes]) -> None:
    """What Java and its Python processes say, a traceback at a time, without the noise."""
    traceback: list[bytes] = []
    for line in itertools.chain(lines, [b""]):
        if line.startswith(b"Traceback") or (traceback and line[:1].isspace()):
            traceback.append(line)
            continue
        if not _is_muted.is_set() and not is_noise(line, traceback):
            sys.stderr.write(b"".join([*traceback, line]).decode(errors="replace"))
            sys.stderr.flush()
        traceback = []


def is_noise(line: bytes, traceback: Sequence[bytes]) -> bool:
    """A line, or the last one of a traceback."""
    if traceback:
        # A process of Spark's had something to say to Java, which is about to end.
        return line.startswith(b"BrokenPipeError") and any(_DAEMON in each for each in traceback)
    return any(noise in line for noise in _NOISE)
