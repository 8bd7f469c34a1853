"""What formats raise. Values that do not parse are no errors by themselves: see policies.py."""

from __future__ import annotations

from penstock.errors import ConfigurationError, PeerUnavailableError, UnreadableRowError


class SchemaError(ConfigurationError):
    """A schema of values cannot be read, or cannot become columns. Give another one."""


class RegistryError(PeerUnavailableError):
    """The schema registry did not answer in time. Start it, or correct `schema.registry.url`; the
    read goes on from where it was."""


class UnknownSchemaError(ConfigurationError):
    """The schema registry does not know what was asked for, or does not let this client see it."""


class RefusedSchemaError(ConfigurationError):
    """The schema registry does not register a schema: most often it is not compatible with that of
    its subject. Give another schema, or another subject."""


class ValueFormatError(UnreadableRowError):
    """A record's value does not parse, and `on_error` is `fail`. Correct the schema, or choose
    another `on_error`."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (
            f"the value at offset {self.offset} of {self.topic}-{self.partition} does not parse: "
            f"{self.reason}. Correct the schema, or set on_error to null (a row of nulls) or "
            "dead_letter (the row is put aside with its topic, partition, offset and reason)"
        )


class UnencodableRowError(ConfigurationError):
    """A row cannot be written in the format: nothing of its batch was. Change it in the query."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column, self.reason = column, reason

    def __str__(self) -> str:
        return f"a row's column {self.column!r} cannot be written: {self.reason}"
