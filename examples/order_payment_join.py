"""Orders and their payments, joined as they come.

Both streams are read by the order's number. Payments are held back for a second, so that an order
is there before what was paid for it, mostly. Spark keeps an order for an hour of the journals' own
time; since documents come by clock, a log that lags makes nothing late.

    penstock run examples/order_payment_join.py --store shop --once
"""

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps


@ps.pipeline
def order_payment_join(pipeline: ps.Pipeline) -> None:
    pipeline.store.create(
        ps.Collection.define(
            "paid_orders",
            "order_id BIGINT NOT NULL, customer STRING, cents BIGINT, waited_seconds DOUBLE",
            key="order_id",
        )
    )
    orders = (
        pipeline.stream("orders", key="id")
        .select("id", "customer", F.col("_meta.clock").alias("ordered"))
        .withWatermark("ordered", "1 minute")
    )
    payments = (
        pipeline.stream("payments", key="order_id", read_delay="1s")
        .select("order_id", "cents", F.col("_meta.clock").alias("paid"))
        .withWatermark("paid", "1 minute")
    )
    is_soon = F.expr("paid BETWEEN ordered AND ordered + INTERVAL 1 HOUR")
    joined = orders.join(payments, (orders.id == payments.order_id) & is_soon)
    waited = (F.col("paid").cast("double") - F.col("ordered").cast("double")).alias(
        "waited_seconds"
    )
    pipeline.write(joined.select("order_id", "customer", "cents", waited), "paid_orders")
