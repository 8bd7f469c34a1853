"""What `df.writeStream.format("penstock").option(...)` may say, and the words when it is wrong."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.ddl import schema_from_ddl
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
            {**COLLECTION, "sink": "kafk"},
            "option 'sink' is 'collection' or 'parquet' or 'postgres' or 'kafka'",
        ),
        ({**COLLECTION, "key": "id"}, "option 'key' does not go with sink 'collection'"),
        ({**COLLECTION, "batch": "-1"}, "option 'batch' is the number that foreachBatch gives"),
        ({"sink": "parquet"}, "option 'path' is missing"),
        ({"sink": "postgres", "conninfo": "x"}, "option 'table' is missing"),
        ({**COLLECTION, "kafka.acks": "all"}, "options 'kafka.*' do not go with sink 'collection'"),
        ({"sink": "kafka", "store": "x"}, "option 'store' does not go with sink 'kafka'"),
        ({**COLLECTION, "format": "json"}, "option 'format' does not go with sink 'collection'"),
        ({"sink": "kafka", "key": "id"}, "option 'key' needs option 'format'"),
        ({"sink": "kafka", "schema.id": "5"}, "option schema.id needs a format"),
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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option 'folder' is missing: name a folder that the driver and all executors share"),
        ({"folder": "/f"}, "'kafka.bootstrap.servers' cannot be used: it is missing"),
        ({"folder": "/f", "transaction_bytes": "0"}, "'transaction_bytes' is a whole number"),
        ({"folder": "/f", "kafka.bootstrap.servers": "a:1"}, "has no column 'value'"),
    ],
)
def test_wrong_options_of_the_kafka_sink_are_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sink_for({"sink": "kafka", **given}, StructType(), overwrite=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "ddl", "words"),
    [
        ({}, "id BIGINT", "say where rows go with .option('topic'"),
        ({"topic": "t"}, "key STRING", "no column that could become the value"),
        ({"topic": "t"}, "key INT, id INT", "as Kafka's own key must be STRING or BINARY"),
        ({"topic": "t", "key": "id, x"}, "id BIGINT", "option 'key' names a column 'x'"),
        ({"topic": "t", "key": "m"}, "m MAP<STRING, INT>", "is or has a MAP"),
        ({"topic": "t"}, "m MAP<INT, INT>", "those of JSON are STRING"),
        ({"topic": "t", "format": "avro"}, "`a-b` INT", "cannot be a name in Avro"),
        ({"topic": "t"}, "id INT, _meta STRUCT<journal: STRING>", "Drop it with .drop('_meta')"),
    ],
)
def test_frames_that_no_format_and_key_fit_are_told(
    given: dict[str, str], ddl: str, words: str
) -> None:
    options = {"sink": "kafka", "format": "json", "folder": "/f", "kafka.bootstrap.servers": "a:1"}
    frame = from_arrow_schema(schema_from_ddl(ddl))
    with pytest.raises(ConfigurationError) as caught:
        sink_for(options | given, frame, overwrite=False)
    assert words in str(caught.value)


def test_no_secret_of_the_registry_goes_to_tasks() -> None:
    url = "https://registry:8081"
    secret = {"schema.registry.basic.auth.user.info": "me:not-for-tasks"}
    options = WriteOptions.parse(
        {"sink": "kafka", "format": "avro", "topic": "t", "schema.registry.url": url, **secret}
    )
    assert "not-for-tasks" not in repr(options)
