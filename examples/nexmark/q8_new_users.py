"""Nexmark query 8: who put something up for auction within ten seconds of joining?

penstock run examples/nexmark/q8_new_users.py --store auctions/store --once
"""

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps

WINDOW = "10 seconds"


@ps.pipeline
def new_users(pipeline: ps.Pipeline) -> None:
    pipeline.store.create(
        ps.Collection.define(
            "new_users", "person BIGINT NOT NULL, name STRING, auction BIGINT", key="person"
        )
    )
    people = pipeline.stream("people", key="id")
    people = people.select(
        people.id.alias("person"), "name", F.window("date_time", WINDOW).alias("joined")
    )
    auctions = pipeline.stream("auctions", key="seller")
    auctions = auctions.select(
        auctions.id.alias("auction"), "seller", F.window("date_time", WINDOW).alias("begun")
    )
    found = people.join(
        auctions, (people.person == auctions.seller) & (people.joined == auctions.begun)
    )
    pipeline.write(found.select("person", "name", "auction"), "new_users")
