"""Spark's classes, loaded and verified once, for every Java that the tests start.

Each of some forty Javas would load ten thousand classes from jars, which is more work than what it
is started for. With an archive of them (Java's class data sharing) it maps them into its memory.
`make test` writes the archive into the virtual environment: `python -m tests.java_archive`. Without
it the tests take longer, and find the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from penstock.journal import Collection, open_store
from penstock.spark import local_session

ARCHIVE: Final = Path(sys.prefix) / "penstock-tests.jsa"
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""Tests are over before Java's second compiler pays for itself. Without it Java reserves 48 MB for
compiled code; the Spark that many files of tests share fills them, and dies of it."""
_QUIET: Final = "-Xlog:disable"
"""An archive of another Java, or of other jars, is not used; no test wants to read about it."""


def brief_java() -> str:
    """Options of a Java of Spark's that lives for a test: a driver, an executor, a daemon."""
    if ARCHIVE.exists():
        return f"{_BRIEF} {_QUIET} -XX:SharedArchiveFile={ARCHIVE}"
    return _BRIEF


def use_brief_java() -> None:
    """Has every Spark that this process and its children start begin sooner. Spark's launcher adds
    these to the options that a program gives itself; executors have only what it gives them."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", brief_java())
    os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", brief_java())
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _BRIEF)


def write_archive() -> None:
    """What a query of each kind loads: a table, SQL, a stream that is read and written."""
    unfinished = ARCHIVE.with_name(f"{ARCHIVE.name}.{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_BRIEF} {_QUIET} -XX:ArchiveClassesAtExit={unfinished}"
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"{folder}/store", durability="buffered")
        store.create(Collection.define("a", "id BIGINT NOT NULL, name STRING", "id"))
        store.create(Collection.define("b", "name STRING NOT NULL, count BIGINT NOT NULL", "name"))
        with store.producer() as producer:
            producer.append("a", [{"id": one, "name": f"n{one % 3}"} for one in range(20)])
        spark = local_session("archive")
        table = spark.read.format("penstock").options(store=store.url, collection="a").load()
        table.createOrReplaceTempView("a")
        spark.sql("SELECT name, count(*) AS count FROM a GROUP BY name ORDER BY name").collect()
        stream = spark.readStream.format("penstock").options(
            store=store.url, collection="a", members=1
        )
        counts = stream.load().groupBy("name").count()
        query = counts.writeStream.format("memory").queryName("counts").outputMode("update")
        query.trigger(availableNow=True).start().awaitTermination()
        spark.table("counts").write.format("penstock").options(
            store=store.url, collection="b"
        ).mode("append").save()
        gateway = spark.sparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()  # Spark's Java ends with its standard input
        gateway.proc.wait()
    if unfinished.exists():
        unfinished.rename(ARCHIVE)
    else:
        sys.stderr.write("this Java writes no archive of its classes: tests will take longer\n")


if __name__ == "__main__":
    write_archive()
