"""Options of a read: what is understood, and the words for what is not."""

from __future__ import annotations

import pickle

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.options import Order, ReadOptions, View

PLACE = {"store": " /data ", "collection": "orders"}


def test_defaults() -> None:
    options = ReadOptions.parse(PLACE)
    assert options == ReadOptions("/data", "orders")
    assert options.cut_at() is None
    assert options.view is View.DOCUMENTS


def test_everything_given() -> None:
    given = {
        **PLACE,
        "AS_OF": "2026-11-15T20:00:00+00:00",
        "binding": "65535",
        "shuffle_key": "a, b,",
        "shuffle_partitions": "3",
        "order": "Clock",
        "partitions": "region=eu",
    }
    options = ReadOptions.parse(given)
    assert options.shuffle_key == ("a", "b")
    assert (options.binding, options.shuffle_partitions, options.order) == (65535, 3, Order.CLOCK)
    assert options.cut_at() is not None
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"collection": " "}, "option 'collection' is missing; say for example .option("),
        ({"store": ""}, "option 'store' is missing"),
        (
            {"path": "/x"},
            "there is no option 'path' of a batch read; choose from store, collection, partitions",
        ),
        ({"binding": "65536"}, "'binding' is a whole number from 0 to 65535, not '65536'"),
        ({"binding": "x"}, "'binding' is a whole number from 0 to 65535, not 'x'"),
        ({"order": "size"}, "'order' is 'clock' or 'offset', not 'size'"),
        ({"view": "all"}, "'view' is 'documents' or 'raw', not 'all'"),
        ({"as_of": "2026-11-15T20:00:00"}, "has no time zone"),
        ({"as_of": "{}"}, "not a frontier"),
        ({"shuffle_partitions": "2"}, "no 'shuffle_key' is given"),
        ({"shuffle_key": "a", "shuffle_partitions": "0"}, "from 1 to 1024, not '0'"),
        ({"view": "raw", "shuffle_key": "a"}, "'shuffle_key' does not go with view 'raw'"),
        ({"view": "raw", "as_of": "2026-11-15T20:00:00Z"}, "'as_of' does not go with view 'raw'"),
        ({"bounds": "{}"}, "'bounds' goes with view 'raw' only"),
        ({"view": "raw", "bounds": "[1]"}, "option 'bounds' is JSON like"),
    ],
)
def test_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({**PLACE, **given})
    assert words in str(caught.value)
