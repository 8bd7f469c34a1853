"""What becomes of values that do not parse."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ddl import schema_from_ddl
from penstock.formats import DEAD_LETTERS, OnError, Records, ValueFormatError, judge
from penstock.formats.json_format import JsonFormat

FORMAT = JsonFormat(schema_from_ddl("a BIGINT"))


def records(values: list[bytes | None]) -> Records:
    return Records(
        "orders",
        3,
        pa.array([10 + 2 * row for row in range(len(values))], pa.int64()),
        pa.array([None if row % 2 else b"k%d" % row for row in range(len(values))], pa.binary()),
        pa.array(values, pa.binary()),
    )


def test_fail_names_the_record_and_what_to_do() -> None:
    given_ = records([b'{"a":1}', b"x", b"y"])
    with pytest.raises(ValueFormatError) as caught:
        judge(FORMAT.decode(given_.values), given_, OnError.FAIL)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.topic, error.partition, error.offset) == ("orders", 3, 12)
    assert "offset 12 of orders-3 does not parse: a document is an object" in str(error)
    assert "on_error" in str(error)


def test_null_shows_a_row_of_nulls() -> None:
    given_ = records([b'{"a":1}', b"x", None])
    judged = judge(FORMAT.decode(given_.values), given_, OnError.NULL)
    assert judged.batch.column("a").to_pylist() == [1, None, None]
    assert judged.dead_letters.num_rows == 0
    assert judged.shown is None


def test_tombstones_are_no_dead_letters() -> None:
    given_ = records([None, b"x", None])
    judged = judge(FORMAT.decode(given_.values), given_, OnError.DEAD_LETTER)
    assert judged.batch.num_rows == 2
    assert judged.dead_letters.column("offset").to_pylist() == [12]


@given(st.lists(st.none() | st.booleans(), max_size=20))
def test_every_record_is_shown_or_put_aside(kinds: list[bool | None]) -> None:
    values = {None: None, True: b'{"a":1}', False: b"bad"}
    given_ = records([values[kind] for kind in kinds])
    judged = judge(FORMAT.decode(given_.values), given_, OnError.DEAD_LETTER)
    bad = [row for row, kind in enumerate(kinds) if kind is False]
    good = [row for row, kind in enumerate(kinds) if kind is not False]
    assert judged.batch.column("a").to_pylist() == [1 if kinds[row] else None for row in good]
    shown = None if judged.shown is None else judged.shown.to_pylist()
    assert shown == (good if bad else None)
    assert judged.dead_letters.schema == DEAD_LETTERS
    assert judged.dead_letters.drop_columns(["reason"]).to_pylist() == [
        {
            "topic": "orders",
            "partition": 3,
            "offset": 10 + 2 * row,
            "key": None if row % 2 else b"k%d" % row,
            "value": b"bad",
        }
        for row in bad
    ]
