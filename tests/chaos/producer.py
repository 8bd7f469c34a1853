"""A program that writes orders and payments until a file tells it to stop, or it is killed."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import penstock as ps
from tests.chaos.world import ORDERS, PAYMENTS

PACE_SECONDS = 0.05
ROWS_MAX = 20
BUCKET_ROUNDS = 25


def main(folder: Path, seed: str) -> None:
    chance = random.Random(seed)
    store = ps.open_store(folder / "store", durability="buffered", segment_bytes_max=500_000)
    with store.producer() as producer:
        number = 0
        while not (folder / "stop").exists():
            bucket = f"{producer.id}-{number // BUCKET_ROUNDS}"
            rows = [
                {"id": f"{producer.id}-{number}-{one}", "amount": chance.randrange(1_000)}
                for one in range(chance.randint(1, ROWS_MAX))
            ]
            write(producer, chance, rows, [{**row, "bucket": bucket} for row in rows])
            number += 1
            time.sleep(PACE_SECONDS)  # the pace of the writing, not a wait for anything


def write(
    producer: Any,
    chance: random.Random,
    payments: list[dict[str, Any]],
    orders: list[dict[str, Any]],
) -> None:
    """Alone, and perhaps once more, as who was not told whether it worked; or both collections in
    a transaction, which may be taken back."""
    way = chance.choice(("alone", "together", "together", "taken back"))
    if way == "alone":
        stamped = producer.stamp(ORDERS, orders)
        for _ in range(chance.choice((1, 2, 3))):
            producer.send(stamped)
        return
    transaction = producer.transaction()
    transaction.append(ORDERS, orders)
    transaction.append(PAYMENTS, payments)
    if way == "together":
        transaction.commit()
    else:
        transaction.rollback()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
