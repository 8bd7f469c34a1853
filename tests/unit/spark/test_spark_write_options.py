"""What `df.writeStream.format("penstock").option(...)` may say, and the words when it is wrong."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError
from penstock.spark.writing import WriteOptions, sink_for, stream_writer

COLLECTION = {"store": "file:///data", "collection": "totals"}


def test_options_are_read_in_any_case_and_sparks_own_passed_over() -> None:
    given = {"STORE": " file:///data ", "Collection": "totals", "checkpointLocation": "/c"}
    assert WriteOptions.parse(given) == WriteOptions(store="file:///data", collection="totals")
    assert WriteOptions.parse({"sink": "parquet", "path": "/out"}).path == "/out"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option 'store' is missing; say for example .option('store', 'file:///"),
        ({"store": "x"}, "option 'collection' is missing"),
        ({**COLLECTION, "colection": "x"}, "there is no option 'colection' for writing; choose"),
        (
            {**COLLECTION, "sink": "kafka"},
            "option 'sink' is 'collection' or 'parquet' or 'postgres'",
        ),
        ({**COLLECTION, "key": "id"}, "option 'key' does not go with sink 'collection'"),
        ({**COLLECTION, "batch": "-1"}, "option 'batch' is the number that foreachBatch gives"),
        ({"sink": "parquet"}, "option 'path' is missing"),
        ({"sink": "postgres", "conninfo": "x"}, "option 'table' is missing"),
    ],
)
def test_wrong_options_are_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WriteOptions.parse(given)
    assert words in str(caught.value)


def test_overwriting_and_numbering_a_stream_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing is ever overwritten here"):
        sink_for(COLLECTION, StructType(), overwrite=True)
    with pytest.raises(ConfigurationError, match="a streaming query numbers its batches"):
        stream_writer({**COLLECTION, "batch": "3"}, StructType(), overwrite=False)
