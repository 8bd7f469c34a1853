"""Nexmark query 5: how many bids had each auction, in windows of ten seconds, every five?

Counts are written whenever they change, the newest last: the hottest auction of a window is a
matter of reading them. The demo's producers write different hours of the auctions' time side by
side, so the watermark is generous.

penstock run examples/nexmark/q5_hot_items.py --store auctions/store --once
"""

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps


@ps.pipeline
def hot_items(pipeline: ps.Pipeline) -> None:
    pipeline.store.create(
        ps.Collection.define(
            "hot_items",
            "auction BIGINT NOT NULL, begins TIMESTAMP NOT NULL, bids BIGINT",
            key=["auction", "begins"],
        )
    )
    bids = pipeline.stream("bids", key="auction")
    windows = F.window("date_time", "10 seconds", "5 seconds")
    counts = (
        bids.withWatermark("date_time", "1 hour")
        .groupBy("auction", windows)
        .agg(F.count("*").alias("bids"))
        .select("auction", F.col("window.start").alias("begins"), "bids")
    )
    pipeline.write(counts, "hot_items", mode="update")
