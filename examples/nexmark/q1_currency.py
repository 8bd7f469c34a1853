"""Nexmark query 1: every bid, its price in euros.

penstock demo --folder auctions              # makes people, auctions and bids
penstock run examples/nexmark/q1_currency.py --store auctions/store --once
"""

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps

EUROS_PER_DOLLAR = 0.908


@ps.pipeline
def currency(pipeline: ps.Pipeline) -> None:
    pipeline.store.create(
        ps.Collection.define(
            "bids_in_euros",
            "id BIGINT NOT NULL, auction BIGINT, bidder BIGINT, euros DOUBLE, date_time TIMESTAMP",
            key="id",
        )
    )
    bids = pipeline.stream("bids")
    euros = (F.col("price") * EUROS_PER_DOLLAR).alias("euros")
    converted = bids.select("id", "auction", "bidder", euros, "date_time")
    pipeline.write(converted, "bids_in_euros")
