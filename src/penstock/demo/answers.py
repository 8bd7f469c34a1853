"""The demo's query, after the benchmark's fourth: what auctions brought, by category.

Spark answers it from journals; `true_answer` answers it with Arrow from what was committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, order=True)
class CategoryAnswer:
    """One category: bids that came while their auction was open, and what they offered."""

    category: int
    bids: int
    offered_cents: int
    auctions: int
    won_cents: int
    """The sum of the highest bid of each auction."""

    @property
    def average_won(self) -> float:
        return self.won_cents / self.auctions / 100


def documents_once(spark: SparkSession, store: str, collection: str) -> DataFrame:
    """The documents as Penstock reads them."""
    return (
        spark.read.format("penstock").option("store", store).option("collection", collection).load()
    )


def rows_as_written(spark: SparkSession, store: str, collection: str) -> DataFrame:
    """What a reader that knows nothing of identities and transactions would take for documents."""
    raw = (
        spark.read.format("penstock")
        .option("store", store)
        .option("collection", collection)
        .option("view", "raw")
        .load()
    )
    return raw.where("_kind <> 'ACK'")


def spark_answer(auctions: DataFrame, bids: DataFrame) -> list[CategoryAnswer]:
    spark = auctions.sparkSession
    rows = spark.sql(
        """
        SELECT category, sum(bids), sum(offered), count(*), sum(highest)
        FROM (
            SELECT auction.id, category,
                   count(*) AS bids, sum(price) AS offered, max(price) AS highest
            FROM {auctions} AS auction JOIN {bids} AS bid ON bid.auction = auction.id
            WHERE bid.date_time BETWEEN auction.date_time AND auction.expires
            GROUP BY auction.id, category
        )
        GROUP BY category ORDER BY category
        """,
        auctions=auctions,
        bids=bids,
    ).collect()
    return [CategoryAnswer(*row) for row in rows]


def true_answer(auctions: pa.Table, bids: pa.Table) -> list[CategoryAnswer]:
    """The same without Spark. Auction ids are unique here: what was committed was so once."""
    order = np.argsort(auctions["id"].to_numpy())
    ids, categories = (auctions[name].to_numpy()[order] for name in ("id", "category"))
    begins, ends = (_micros(auctions[name])[order] for name in ("date_time", "expires"))
    place = np.searchsorted(ids, bids["auction"].to_numpy())
    place = np.minimum(place, len(ids) - 1)
    moments = _micros(bids["date_time"])
    counts = (ids[place] == bids["auction"].to_numpy()) & (begins[place] <= moments)
    counts &= moments <= ends[place]
    place, prices = place[counts], bids["price"].to_numpy()[counts]
    highest = np.zeros(len(ids), np.int64)
    np.maximum.at(highest, place, prices)
    has_bids = np.bincount(place, minlength=len(ids)) > 0
    answers = []
    for category in np.unique(categories[has_bids]).tolist():
        is_bid, is_auction = categories[place] == category, (categories == category) & has_bids
        answers.append(
            CategoryAnswer(
                category,
                int(is_bid.sum()),
                int(prices[is_bid].sum()),
                int(is_auction.sum()),
                int(highest[is_auction].sum()),
            )
        )
    return answers


def same_documents(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables hold the same rows, each as often, in whatever order."""
    one, other = one.flatten(), other.flatten()
    if set(one.column_names) != set(other.column_names) or len(one) != len(other):
        return False
    other = other.select(one.column_names).cast(one.schema)
    equal: Any = _sorted(one).equals(_sorted(other))
    return bool(equal)


def _sorted(table: pa.Table) -> pa.Table:
    keys: list[Any] = [(name, "ascending") for name in table.column_names]
    return table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()


def _micros(column: Any) -> Any:
    return column.cast("int64").to_numpy()
