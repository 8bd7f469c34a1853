"""Values of records become columns: JSON, Avro and Protobuf, with or without a schema registry, and
Debezium's envelopes.

1. `value_options` reads a user's options and refuses what does not fit together.
2. `pinned` asks the registry, at the start of a query, for the schema that gives the columns.
3. `open_format` makes the format; every process that decodes makes its own from the same options.
4. `Format.decode` turns a batch of values into rows, and names those that do not parse.
5. `judge` shows them, puts them aside, or raises, as `on_error` has it.

The other direction, for a sink: `written_options` reads what a user says, `settled` gives the
values a schema, registered if there is a registry, and `Written.encoder` turns rows into values.
"""

from penstock.formats.decoded import Decoded, Format
from penstock.formats.errors import (
    RegistryError,
    SchemaError,
    UnknownSchemaError,
    ValueFormatError,
)
from penstock.formats.opening import open_format
from penstock.formats.options import Encoding, ValueOptions, pinned, value_options
from penstock.formats.policies import DEAD_LETTERS, Judged, OnError, Records, judge
from penstock.formats.registry import Registry, RegistryOptions
from penstock.formats.writing import Written, WrittenOptions, settled, written_options

__all__ = [
    "value_options", "pinned", "open_format", "judge",
    "ValueOptions", "Encoding", "OnError", "Format", "Decoded", "Records", "Judged", "DEAD_LETTERS",
    "Registry", "RegistryOptions",
    "written_options", "settled", "Written", "WrittenOptions",
    "SchemaError", "RegistryError", "UnknownSchemaError", "ValueFormatError",
]  # fmt: skip
