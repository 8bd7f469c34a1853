"""Buckets of keys: every key in one of them, the same one in every process.

Spark cannot be asked to shuffle what a Python source reads, so each task reads everything and
keeps the documents whose key falls into its bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigurationError
from penstock.routing import check_key_type, hash_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock.journal.collection import Collection


def check_key(collection: Collection, key: Sequence[str]) -> None:
    """A key to shuffle by is columns of plain values. Floating-point numbers are hashed by their
    value, as Spark does it: both zeros are one key, and so are all NaNs."""
    for name in key:
        index = collection.schema.get_field_index(name)
        if index < 0:
            raise ConfigurationError(
                f"option 'shuffle_key': collection {collection.name!r} has no column {name!r}; "
                f"it has {', '.join(collection.schema.names)}"
            )
        try:
            check_key_type(collection.schema.field(index).type)
        except ConfigurationError as error:
            raise ConfigurationError(f"option 'shuffle_key': column {name!r}: {error}") from None


def in_bucket(
    columns: Sequence[pa.Array[Any]], bucket: int, buckets: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row's key, given as columns, falls into the bucket."""
    own = hash_keys(columns) % np.uint64(buckets)
    found: np.ndarray[Any, np.dtype[np.bool_]] = own == np.uint64(bucket)
    return found
