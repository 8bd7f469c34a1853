"""What a collection may be, and what it may become."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import RESERVED_COLUMNS, is_reserved
from penstock.errors import ConfigurationError
from penstock.journal.collection import Collection
from penstock.journal.errors import IncompatibleSchemaError
from penstock.journal.frames import ID_FIELDS
from penstock.journal.views import META_FIELD, RAW_FIELDS
from penstock.routing.slicing import VNODE_FIELD
from penstock.shuffle.feed import Binding, BindingError, Feed
from penstock.shuffle.parcels import PARCEL_FIELDS
from penstock.shuffle.plan import make_plan
from penstock.shuffle.queue.snapshot import _KEY_FIELD

SCHEMA = "id BIGINT NOT NULL, region STRING, amount DOUBLE, tags ARRAY<STRING>"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"key": ()}, "needs at least one key column"),
        ({"key": "nope"}, "key column 'nope' is not in its schema; it has id, region"),
        ({"key": ("id", "id")}, "names a key column twice"),
        ({"key": "amount"}, "key column 'amount' is double; .* compare exactly"),
        ({"key": "tags"}, "key column 'tags' is list"),
        ({"partition_by": "amount"}, "partition column 'amount' is double"),
        ({"partition_by": ("region", "region")}, "names a partition column twice"),
        ({"partition_by": "zone"}, "partition column 'zone' is not in its schema"),
        ({"retention_seconds": 0}, "retention_seconds must be above zero"),
        ({"retention_bytes": -1}, "retention_bytes must be above zero"),
        ({"name": ""}, "'' is not a collection name"),
        ({"name": ".hidden"}, "'.hidden' is not a collection name"),
        ({"name": "a/b"}, "'a/b' is not a collection name"),
        ({"name": "a\n"}, "is not a collection name"),
        ({"name": "a" * 129}, "at most 128"),
    ],
)
def test_a_wrong_definition_is_refused(arguments: dict[str, object], said: str) -> None:
    given_: dict[str, object] = {"name": "orders", "schema": SCHEMA, "key": "id", **arguments}
    with pytest.raises(ConfigurationError, match=said):
        Collection.define(**given_)  # type: ignore[arg-type]


@pytest.mark.parametrize("column", RESERVED_COLUMNS)
def test_our_own_column_names_are_refused(column: str) -> None:
    with pytest.raises(ConfigurationError, match=f"column name '{column}' is Penstock's own"):
        Collection.define("orders", f"id BIGINT, {column} STRING", key="id")


@pytest.mark.parametrize("column", RESERVED_COLUMNS)
def test_our_own_column_names_cannot_come_in_later(column: str) -> None:
    with pytest.raises(ConfigurationError, match="Penstock's own"):
        orders().evolve(f"{SCHEMA}, {column} STRING")


def orders() -> Collection:
    return Collection.define("orders", SCHEMA, key="id", partition_by="region")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id BIGINT NOT NULL", "column 'region' must stay at position 1; add new columns after"),
        (SCHEMA.replace("region", "zone"), "column 'region' must stay at position 1"),
        ("region STRING, id BIGINT NOT NULL, amount DOUBLE, tags ARRAY<STRING>",
         "column 'id' must stay at position 0"),
        (f"new INT, {SCHEMA}", "column 'id' must stay at position 0; add new columns after 'tags'"),
        (SCHEMA.replace("amount DOUBLE", "amount FLOAT"),
         "column 'amount' is amount DOUBLE and cannot become amount FLOAT; add a new column"),
        (SCHEMA.replace("region STRING", "region STRING NOT NULL"),
         "column 'region' is region STRING and cannot become region STRING NOT NULL"),
        (SCHEMA.replace("BIGINT NOT NULL", "BIGINT"), "column 'id' .* cannot become id BIGINT"),
        (SCHEMA.replace("<STRING>", "<INT>"), "column 'tags' is .* cannot become"),
        (f"{SCHEMA}, new INT NOT NULL", "new column 'new' is NOT NULL, .* make it nullable"),
    ],
)  # fmt: skip
def test_a_change_that_breaks_documents_is_refused(schema: str, said: str) -> None:
    with pytest.raises(IncompatibleSchemaError, match=said):
        orders().evolve(schema)


def test_columns_are_added_last() -> None:
    first = orders()
    second = first.evolve(f"{SCHEMA}, note STRING")
    third = second.evolve(f"{SCHEMA}, note STRING, at TIMESTAMP, more STRUCT<a: INT NOT NULL>")
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert third.schemas[:2] == second.schemas
    assert third.schema.names == ["id", "region", "amount", "tags", "note", "at", "more"]
    assert (third.key, third.partition_by) == (("id",), ("region",))


def test_the_same_schema_is_no_new_version() -> None:
    assert orders().evolve(SCHEMA) is not None
    assert orders().evolve(orders().schema).version == 1


@given(
    st.sampled_from(["id", ("id",), ("id", "region")]),
    st.sampled_from([(), "region", ("region", "id")]),
    st.none() | st.integers(1, 2**40),
    st.none() | st.integers(1, 2**40),
    st.integers(0, 3),
)
def test_json_round_trip(
    key: str | tuple[str, ...],
    partition_by: str | tuple[str, ...],
    seconds: int | None,
    size: int | None,
    evolved: int,
) -> None:
    collection = Collection.define(
        "orders", SCHEMA, key, partition_by, retention_seconds=seconds, retention_bytes=size
    )
    schema = SCHEMA
    for number in range(evolved):
        schema += f", `new {number}` MAP<STRING, INT>"
        collection = collection.evolve(schema)
    back = Collection.from_json(json.loads(json.dumps(collection.to_json())))
    assert back == collection
    assert back.version == 1 + evolved
    assert back.schemas[0].equals(orders().schema)


def test_an_arrow_schema_is_as_good_as_ddl() -> None:
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.large_string()),
    ]
    arrow = pa.schema(fields)
    assert Collection.define("a", arrow, "id") == Collection.define(
        "a", "id BIGINT NOT NULL, name STRING", "id"
    )


def test_errors_survive_pickling() -> None:
    with pytest.raises(IncompatibleSchemaError) as caught:
        orders().evolve("id BIGINT NOT NULL")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("column", ["_READ", "_Vnode", "__penstock_anything", "__PENSTOCK_vnode"])
def test_our_names_are_ours_in_any_case(column: str) -> None:
    """Spark does not tell them apart."""
    with pytest.raises(ConfigurationError, match="Penstock's own"):
        Collection.define("orders", f"id BIGINT, {column} STRING", key="id")


def test_all_columns_that_we_add_are_reserved() -> None:
    fields: list[pa.Field[Any]] = [*ID_FIELDS, *RAW_FIELDS, *PARCEL_FIELDS]
    fields += [META_FIELD, VNODE_FIELD, _KEY_FIELD]
    assert all(is_reserved(field.name) for field in fields)


def test_a_column_of_an_earlier_release_can_be_read_and_not_shuffled() -> None:
    """A collection that has one is still there: it says so when it is bound."""
    data = Collection.define("orders", "id BIGINT, seen BIGINT", key="id").to_json()
    data["schemas"] = [text.replace("seen", "_read") for text in data["schemas"]]
    old = Collection.from_json(data)
    assert old.reserved_columns == ("_read",)
    assert old.evolve("id BIGINT, _read BIGINT, more STRING").version == 2

    class Store:
        def collection(self, _: str) -> Collection:
            return old

    with pytest.raises(BindingError, match="binding 0: collection: 'orders' has a column '_read'"):
        make_plan(Feed("feed", (Binding("orders"),)), Store())  # type: ignore[arg-type]
