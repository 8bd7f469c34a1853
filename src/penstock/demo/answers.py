"""The demo's query, after the benchmark's fourth: what auctions brought, by category.

Offers are bids that came while their auction was open. Spark finds them, in a stream or in tables;
`true_offers` finds them with Arrow in what was committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from penstock.journal import Collection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OFFERS: Final = Collection.define(
    "offers",
    "bid BIGINT NOT NULL, auction BIGINT NOT NULL, category BIGINT, price BIGINT",
    key="bid",
)


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


def offers(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """The same for streams and for tables."""
    auctions = auctions.select(
        F.col("id").alias("of"), "category", F.col("date_time").alias("begins"), "expires"
    )
    bids = bids.select(F.col("id").alias("bid"), "auction", "price", F.col("date_time").alias("at"))
    joined = bids.join(auctions, F.expr("auction = of AND at BETWEEN begins AND expires"))
    return joined.select("bid", "auction", "category", "price")


def true_offers(auctions: pa.Table, bids: pa.Table) -> pa.Table:
    """The same without Spark. Auction ids are unique here: what was committed was so once."""
    order = np.argsort(auctions["id"].to_numpy())
    ids, categories = (auctions[name].to_numpy()[order] for name in ("id", "category"))
    begins, ends = (_micros(auctions[name])[order] for name in ("date_time", "expires"))
    place = np.searchsorted(ids, bids["auction"].to_numpy())
    place = np.minimum(place, len(ids) - 1)
    moments = _micros(bids["date_time"])
    counts = (ids[place] == bids["auction"].to_numpy()) & (begins[place] <= moments)
    counts &= moments <= ends[place]
    return pa.table(
        {
            "bid": bids["id"].to_numpy()[counts],
            "auction": bids["auction"].to_numpy()[counts],
            "category": categories[place[counts]],
            "price": bids["price"].to_numpy()[counts],
        }
    )


def answer(offers: pa.Table) -> list[CategoryAnswer]:
    """By category, ascending."""
    auctions = offers.group_by(["category", "auction"]).aggregate(
        [("price", "count"), ("price", "sum"), ("price", "max")]
    )
    categories = auctions.group_by("category").aggregate(
        [
            ("price_count", "sum"),
            ("price_sum", "sum"),
            ("auction", "count"),
            ("price_max", "sum"),
        ]
    )
    columns = ("category", "price_count_sum", "price_sum_sum", "auction_count", "price_max_sum")
    found = zip(*(categories[name].to_pylist() for name in columns), strict=True)
    return sorted(CategoryAnswer(*values) for values in found)


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
