"""Options of values: what is accepted, and what an error names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.formats import Encoding, OnError, open_format, pinned, value_options

URL = {"schema.registry.url": "http://registry"}


def test_without_options_values_stay_as_they_are() -> None:
    assert value_options({"subscribe": "t"}).encoding is Encoding.RAW


def test_names_and_choices_are_read_as_spark_reads_them() -> None:
    options = value_options({"Format": "JSON", "SCHEMA": "a INT", "on_Error": "Dead_Letter"})
    assert options.encoding is Encoding.JSON
    assert options.on_error is OnError.DEAD_LETTER
    decoded = open_format(pinned(options, None, "t")).decode(pa.array([b'{"a":1}'], pa.binary()))
    assert decoded.batch.to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"format": "xml"}, "option format is 'xml', and must be one of raw, json, avro, protobuf"),
        (
            {"format": "json", "schema": "a INT", "on_error": "drop"},
            "one of fail, null, dead_letter",
        ),
        ({"schema": "a INT"}, "option schema needs a format"),
        ({"on_error": "null"}, "option on_error needs a format"),
        ({"format": "json"}, "format json needs the option schema"),
        ({"format": "json", "schema": "a INT", **URL}, "is for avro and protobuf"),
        ({"format": "avro"}, "format avro needs the option schema"),
        (
            {"format": "avro", "schema": "{}", "subject": "s"},
            "option subject needs schema.registry",
        ),
        ({"format": "avro", "message": "M", **URL}, "option message is for format protobuf"),
    ],
)
def test_what_does_not_fit_together(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        value_options(given)


def test_a_password_is_not_shown() -> None:
    options = value_options(
        {"format": "avro", **URL, "schema.registry.basic.auth.user.info": "me:secret"}
    )
    assert "secret" not in repr(options)
