"""Nexmark query 2: the bids on some auctions.

penstock run examples/nexmark/q2_selection.py --store auctions/store --once
"""

import penstock as ps

EVERY = 123


@ps.pipeline
def selection(pipeline: ps.Pipeline) -> None:
    pipeline.store.create(
        ps.Collection.define(
            "selected_bids",
            "id BIGINT NOT NULL, auction BIGINT NOT NULL, price BIGINT",
            key="auction",
        )
    )
    bids = pipeline.stream("bids", key="auction")
    pipeline.write(
        bids.where(bids.auction % EVERY == 0).select("id", "auction", "price"), "selected_bids"
    )
