"""The columns of a streaming read: those of all its collections, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigurationError
from penstock.journal.views import META
from penstock.shuffle.plan import make_plan
from penstock.spark.columns import full_schema
from penstock.spark.options import View
from penstock.spark.plan import opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.spark.streaming.options import StreamOptions


def kafka_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a read by the options of Spark's Kafka source, stream or batch."""
    from penstock.spark.kafka_options import parse_kafka  # noqa: PLC0415 - it is an extra

    kafka, _ = parse_kafka(options)
    collection = opened(kafka.address.text).collection(kafka.collection)
    return full_schema(collection, View.DOCUMENTS)


def feed_schema(options: StreamOptions) -> StructType:
    """A column of several collections has one type; `_meta.binding` tells whose a row is."""
    store = opened(options.store)
    made: dict[str, tuple[StructField, str]] = {}
    for binding in make_plan(options.feed, store).bindings:
        for field in full_schema(store.collection(binding.collection), View.DOCUMENTS):
            known, owner = made.setdefault(field.name, (field, binding.collection))
            if known.dataType != field.dataType:
                raise ConfigurationError(
                    f"column {field.name!r} is {known.dataType.simpleString()} in {owner!r} and "
                    f"{field.dataType.simpleString()} in {binding.collection!r}: one frame cannot "
                    "have both. Read them as two streams"
                )
    own = [field for field, _ in made.values() if field.name != META]
    return StructType([*own, made[META][0]])
