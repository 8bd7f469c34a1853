"""Two pipelines in one: payments per order are summed up, and what is paid in full goes on.

The stages meet in a collection, `paid`. Each batch of the first is one transaction there, so the
second sees it whole, and once, whatever happens to either. With --once the second begins when the
first has ended.

    penstock run examples/two_stages.py --store shop --once
"""

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps


@ps.pipeline
def two_stages(pipeline: ps.Pipeline) -> None:
    store = pipeline.store
    store.create(
        ps.Collection.define("paid", "order_id BIGINT NOT NULL, cents BIGINT", key="order_id")
    )
    store.create(
        ps.Collection.define("large", "order_id BIGINT NOT NULL, cents BIGINT", key="order_id")
    )
    payments = pipeline.stream("payments", key="order_id")
    sums = payments.groupBy("order_id").agg(F.sum("cents").alias("cents"))
    pipeline.write(sums, "paid", mode="update")
    pipeline.write(pipeline.stream("paid").where("cents >= 10000").drop("_meta"), "large")
