"""What each customer has spent, kept up to date in a PostgreSQL table, exactly once.

    CREATE TABLE spent (customer text PRIMARY KEY, cents bigint);

    SHOP_DATABASE="service=shop" penstock run examples/postgres_upsert.py --store shop

The server must allow prepared transactions: max_prepared_transactions of at least 2. Each batch is
one of them.
"""

import os

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps


@ps.pipeline
def postgres_upsert(pipeline: ps.Pipeline) -> None:
    orders = pipeline.stream("orders", key="customer")
    spent = orders.groupBy("customer").agg(F.sum("cents").cast("bigint").alias("cents"))
    pipeline.write(
        spent,
        name="spent",
        mode="update",  # whoever has spent something since the last batch
        sink="postgres",
        conninfo=os.environ["SHOP_DATABASE"],
        table="spent",
        key="customer",  # the row that is there is replaced
    )
