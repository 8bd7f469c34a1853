"""Spark's account of its batches, beside the feed that they read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from penstock.journal import Collection, open_store
from penstock.spark.batches import Batches
from penstock.spark.streaming.folders import feeds_folder
from penstock.watch.loading import load_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WAIT_SECONDS_MAX = 120.0

pytestmark = pytest.mark.slow


def test_every_batch_is_noted_with_its_epoch_and_steps(spark: SparkSession, tmp_path: Path) -> None:
    with open_store(tmp_path / "store", durability="buffered") as store:
        store.create(Collection.define("orders", "id BIGINT NOT NULL", "id"))
        feeds = feeds_folder(store.url)
        batches = Batches(spark, lambda feed: feeds / feed)
        begun = time.time()
        try:
            for first in (0, 100):
                with store.producer() as producer:
                    producer.append("orders", [{"id": first + n} for n in range(100)])
                _read_all(spark, store.url, tmp_path)
            [folder] = list(feeds.iterdir())
            deadline = time.monotonic() + WAIT_SECONDS_MAX  # listeners are called behind a query
            while sum(batch.rows for batch in load_spark(folder)) < 200:
                assert time.monotonic() < deadline, load_spark(folder)
                time.sleep(0.05)
        finally:
            batches.close()
        noted = load_spark(folder)
        assert [batch.batch for batch in noted] == sorted({batch.batch for batch in noted})
        assert sum(batch.rows for batch in noted) == 200
        for batch in noted:
            assert batch.epoch
            assert begun <= batch.at <= time.time(), "it is noted when it happens"
            assert batch.milliseconds["triggerExecution"] >= batch.milliseconds["addBatch"] > 0
        count = len(noted)
        with store.producer() as producer:
            producer.append("orders", [{"id": -1}])
        _read_all(spark, store.url, tmp_path)
        assert len(load_spark(folder)) == count, "nobody listens any more"


def _read_all(spark: SparkSession, store: str, folder: Path) -> None:
    read = spark.readStream.format("penstock").option("store", store).option("members", 1)
    query = (
        read.option("collection", "orders").load().writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
