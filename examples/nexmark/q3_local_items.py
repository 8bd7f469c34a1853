"""Nexmark query 3: who sells in Oregon, Idaho or California, in category 10?

A join of two streams. Both are read by the seller, so that each seller's rows are together.

penstock run examples/nexmark/q3_local_items.py --store auctions/store --once
"""

import penstock as ps

STATES = ["OR", "ID", "CA"]
CATEGORY = 10


@ps.pipeline
def local_items(pipeline: ps.Pipeline) -> None:
    pipeline.store.create(
        ps.Collection.define(
            "local_items",
            "id BIGINT NOT NULL, name STRING, city STRING, state STRING",
            key="id",
        )
    )
    people = pipeline.stream("people", key="id")
    people = people.where(people.state.isin(STATES))
    people = people.select(people.id.alias("person"), "name", "city", "state")
    auctions = pipeline.stream("auctions", key="seller")
    auctions = auctions.where(auctions.category == CATEGORY).select("id", "seller")
    joined = auctions.join(people, auctions.seller == people.person)
    pipeline.write(joined.select("id", "name", "city", "state"), "local_items")
