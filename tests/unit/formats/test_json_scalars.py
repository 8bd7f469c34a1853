"""Dates, times, decimals and bytes in JSON: a whole column at once, and one by one the same."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl import schema_from_ddl
from penstock.formats.decoded import UnparsableError
from penstock.formats.json_document import JsonDocuments
from penstock.formats.json_format import JsonFormat
from penstock.formats.json_scalars import bytes_of, bytes_of_all


@given(st.lists(st.none() | st.binary(max_size=9), max_size=9), st.integers(0, 3))
def test_base64_of_a_column(raws: list[bytes | None], skipped: int) -> None:
    texts = [None if raw is None else base64.b64encode(raw).decode() for raw in raws]
    column = pa.array(texts, pa.string()).slice(skipped)
    decoded = bytes_of_all(column)
    decoded.validate(full=True)
    assert decoded.to_pylist() == [raw or b"" for raw in raws[skipped:]]


@given(st.lists(st.text("Ab+/=-", max_size=8), min_size=1, max_size=3))
def test_a_column_with_a_text_that_is_no_base64_is_refused(texts: list[str]) -> None:
    try:
        wanted = [bytes_of(text) for text in texts]
    except UnparsableError:
        with pytest.raises(UnparsableError):
            bytes_of_all(pa.array(texts, pa.string()))
    else:
        assert bytes_of_all(pa.array(texts, pa.string())).to_pylist() == wanted


times = st.from_regex(
    r"\A(00|19|20)\d\d-(0?[1-9]|1[0-3])-[0-3]?\d"
    r"([ T][0-2]?\d(:?[0-6]?\d(:?[0-6]\d([.,]\d{0,9})?)?)?"
    r"(Z|z| ?UTC|[+-][0-2]\d(:?[0-6]\d)?)?)?\Z"
)
numbers = st.from_regex(r"\A[+-]?\d{0,4}\.?\d{0,4}([eE][+-]?\d{1,2})?\Z")


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(["DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(5,2)", "DECIMAL(38,3)"]),
    times | numbers,
)
def test_what_arrow_reads_is_what_the_rules_read(kind: str, text: str) -> None:
    schema = schema_from_ddl(f"a {kind}")
    value = json.dumps({"a": text}).encode()
    try:
        block = JsonFormat(schema)._block(pa.array([value], pa.binary()))
    except UnparsableError:
        return
    rule: Any = JsonDocuments(schema).read(value)["a"]
    assert block.column("a").equals(pa.array([rule], block.schema.field("a").type)), text
