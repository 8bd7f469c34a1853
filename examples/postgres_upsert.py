"""What each customer has spent, kept up to date in a PostgreSQL table, exactly once.

    CREATE TABLE spent (customer text PRIMARY KEY, cents bigint);

    SHOP_DATABASE=postgresql://... penstock run examples/postgres_upsert.py --store shop

The server must allow prepared transactions (max_prepared_transactions above 0).
"""

import os

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps


@ps.pipeline
def postgres_upsert(pipeline: ps.Pipeline) -> None:
    orders = pipeline.stream("orders", key="customer")
    spent = orders.groupBy("customer").agg(F.sum("cents").alias("cents"))
    writer = (
        spent.writeStream.format("penstock")
        .outputMode("update")
        .option("sink", "postgres")
        .option("database", os.environ["SHOP_DATABASE"])
        .option("table", "spent")
        .option("key", "customer")
    )
    pipeline.start(writer, "spent")
