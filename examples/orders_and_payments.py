"""Orders and their payments, committed together, read by Spark at one and the same point.

    python examples/orders_and_payments.py

Needs the extra `spark`. It writes to a temporary folder.
"""

import tempfile
from decimal import Decimal
from pathlib import Path

import penstock as ps
from penstock.frontier import to_json
from penstock.spark import local_session

PRICE = Decimal("9.50")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ps.open_store(Path(folder) / "journals")
        store.create(
            ps.Collection.define(
                "orders",
                "id BIGINT NOT NULL, region STRING, amount DECIMAL(10,2)",
                key="id",
                partition_by="region",
            )
        )
        store.create(ps.Collection.define("payments", "id BIGINT NOT NULL, card STRING", key="id"))

        with store.producer() as producer:
            for id_ in range(10):
                region = "eu" if id_ % 2 else "us"
                with producer.transaction() as transaction:  # both visible, or neither
                    transaction.append("orders", {"id": id_, "region": region, "amount": PRICE})
                    transaction.append("payments", {"id": id_, "card": f"card-{id_ % 3}"})

            # A batch that is sent twice, as after a lost answer, is read once.
            stamped = producer.stamp("orders", {"id": 10, "region": "eu", "amount": PRICE})
            producer.send(stamped)
            producer.send(stamped)

            try:
                with producer.transaction() as transaction:
                    transaction.append("orders", {"id": 11, "region": "eu", "amount": PRICE})
                    transaction.append("payments", {"id": "not a number", "card": "?"})
            except ps.PenstockError as error:
                print(f"rolled back: {error}")

        # One frontier for both: whatever is appended meanwhile, they fit together.
        frontier = to_json(store.frontier("orders", "payments"))
        spark = local_session("orders and payments")
        reader = spark.read.format("penstock").option("store", store.url).option("as_of", frontier)
        orders = reader.option("collection", "orders").load()
        payments = reader.option("collection", "payments").load()
        print(f"{orders.count()} orders, {payments.count()} payments")
        joined = orders.join(payments, "id").groupBy("card").sum("amount").orderBy("card")
        for row in joined.collect():
            print(f"{row['card']}: {row['sum(amount)']}")
        spark.stop()


if __name__ == "__main__":
    main()
