"""The columns that Spark sees, for each view, and the choice of some of them.

Everything is nullable, as Spark expects of a source; `_meta` tells where a document comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigurationError
from penstock.journal import views
from penstock.journal.views import META, META_FIELD
from penstock.spark.options import View

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.journal.collection import Collection

META_TYPE: Final = cast("StructType", from_arrow_type(META_FIELD.type))
RAW_FIELDS: Final = tuple(
    StructField(field.name, from_arrow_type(field.type)) for field in views.RAW_FIELDS
)


def full_schema(collection: Collection, view: View) -> StructType:
    """All the columns of a view of a collection."""
    own = [
        StructField(field.name, from_arrow_type(field.type), nullable=True)
        for field in collection.schema
    ]
    if view is View.DOCUMENTS:
        return StructType([*own, StructField(META, META_TYPE)])
    taken = {field.name for field in RAW_FIELDS} & set(collection.schema.names)
    if taken:
        raise ConfigurationError(
            f"collection {collection.name!r} has a column {min(taken)!r}, which the raw view needs "
            "for itself; read view 'documents'"
        )
    return StructType([*RAW_FIELDS, *own])


def check_chosen(chosen: StructType, full: StructType) -> None:
    """Refuses a schema given by `.schema(...)` that is not a choice among the view's columns."""
    offered = {field.name: field for field in full}
    if len(set(chosen.names)) != len(chosen.names):
        raise ConfigurationError(f"the schema names a column twice: {', '.join(chosen.names)}")
    for field in chosen:
        known = offered.get(field.name)
        if known is None:
            raise ConfigurationError(
                f"the schema asks for column {field.name!r}; there are {', '.join(full.names)}"
            )
        fits = field.dataType == known.dataType
        if field.name == META and isinstance(field.dataType, StructType):
            fits = len(field.dataType) > 0 and all(part in META_TYPE for part in field.dataType)
        if not fits:
            raise ConfigurationError(
                f"the schema asks for column {field.name!r} as {field.dataType.simpleString()}; "
                f"it is {known.dataType.simpleString()}, NULL where the collection says so"
            )
        if not field.nullable:
            raise ConfigurationError(
                f"the schema asks for column {field.name!r} as NOT NULL; every column that Spark "
                "reads from a source may be null, so leave NOT NULL out"
            )


def arrow_schema(chosen: StructType) -> pa.Schema:
    """What Spark demands of the batches, to the letter."""
    return to_arrow_schema(chosen, timezone="UTC")
