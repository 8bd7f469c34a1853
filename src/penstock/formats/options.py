"""The options of values: what a user of Spark writes, checked.

`format` is raw, json, avro, protobuf or debezium. A schema is given (`schema`), or the registry
has it (`schema.registry.url`). At the start of a query `pinned` asks it for the newest schema,
once: the columns of a query do not change while it runs.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import ConfigurationError
from penstock.formats.policies import OnError
from penstock.formats.registry import DEADLINE_SECONDS, RegistryOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.formats.registry import Registry

_Choice = TypeVar("_Choice", bound=enum.Enum)
URL: Final = "schema.registry.url"
USER_INFO: Final = "schema.registry.basic.auth.user.info"
FILES: Final = {
    "schema.registry.ssl.ca.location": "ca_file",
    "schema.registry.ssl.certificate.location": "certificate_file",
    "schema.registry.ssl.key.location": "key_file",
}
NAMES: Final = frozenset(
    {"format", "schema", "subject", "message", "on_error", URL, USER_INFO, *FILES}
)
"""All options that `value_options` reads."""
SECRETS: Final = frozenset({USER_INFO, URL})
"""Never shown: the address may hold a password too."""


class Encoding(enum.Enum):
    """The option `format`."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """How values become columns. `referenced` are schemas, by name, that `schema` refers to."""

    encoding: Encoding = Encoding.RAW
    schema: str = ""
    referenced: tuple[tuple[str, str], ...] = ()
    message: str = ""
    subject: str = ""
    on_error: OnError = OnError.FAIL
    registry: RegistryOptions | None = None


def value_options(given: Mapping[str, str]) -> ValueOptions:
    """Reads a source's options; those that concern something else are left alone. Spark does not
    tell upper case from lower in their names."""
    options = {name.lower(): text for name, text in given.items() if name.lower() in NAMES}
    encoding = chosen_encoding(options)
    on_error = _chosen(OnError, options, "on_error", OnError.FAIL)
    registry = registry_options(options)
    found = ValueOptions(
        encoding,
        options.get("schema", ""),
        (),
        options.get("message", ""),
        options.get("subject", ""),
        on_error,
        registry,
    )
    _check(found, options)
    return found


def chosen_encoding(options: Mapping[str, str]) -> Encoding:
    """The option `format`."""
    return _chosen(Encoding, options, "format", Encoding.RAW)


def registry_options(options: Mapping[str, str]) -> RegistryOptions | None:
    """Where the registry is, if the options name one."""
    if not options.get(URL):
        return None
    files = {part: options.get(name, "") for name, part in FILES.items()}
    return RegistryOptions(
        options[URL], options.get(USER_INFO, ""), **files, deadline_seconds=DEADLINE_SECONDS
    )


def _check(found: ValueOptions, options: Mapping[str, str]) -> None:
    match found.encoding:
        case Encoding.RAW:
            for name in sorted(options.keys() - {"format"}):
                raise ConfigurationError(
                    f"option {name} needs a format: json, avro, protobuf or debezium; without one "
                    "the value stays as it is"
                )
        case Encoding.JSON:
            if not found.schema:
                raise ConfigurationError(
                    "format json needs the option schema: columns such as "
                    "'id BIGINT, name STRING, at TIMESTAMP'"
                )
            if found.registry is not None:
                raise ConfigurationError(
                    f"option {URL} is for avro and protobuf; format json takes the option schema"
                )
        case Encoding.DEBEZIUM:
            _check_changes(found)
        case Encoding.AVRO | Encoding.PROTOBUF:
            if not found.schema and found.registry is None:
                raise ConfigurationError(
                    f"format {found.encoding.value} needs the option schema (its text) or {URL}"
                )
    if found.registry is None:
        for name in sorted(options.keys() & {USER_INFO, "subject", *FILES}):
            raise ConfigurationError(f"option {name} needs {URL}")
    if found.message and found.encoding is not Encoding.PROTOBUF:
        raise ConfigurationError("option message is for format protobuf only")


def _check_changes(found: ValueOptions) -> None:
    if not found.schema:
        raise ConfigurationError(
            "format debezium needs the option schema: the table's columns, such as "
            "'id BIGINT, name STRING'"
        )
    if found.registry is not None:
        raise ConfigurationError(
            f"option {URL} is for avro and protobuf; format debezium reads what Kafka Connect's "
            "JsonConverter writes"
        )
    if found.on_error is OnError.NULL:
        raise ConfigurationError(
            "on_error is null, and format debezium takes fail or dead_letter: a row of nulls "
            "would be a change without a place in the database's log"
        )


def _chosen(
    kind: type[_Choice], options: Mapping[str, str], name: str, default: _Choice
) -> _Choice:
    text = options.get(name)
    if text is None:
        return default
    for choice in kind:
        if choice.value == text.strip().lower():
            return choice
    accepted = ", ".join(choice.value for choice in kind)
    raise ConfigurationError(f"option {name} is {text!r}, and must be one of {accepted}")


def pinned(options: ValueOptions, registry: Registry | None, topic: str) -> ValueOptions:
    """The options with a schema in them: the one given, or else the newest of the subject, which is
    the topic's `TOPIC-value` unless another is named."""
    if options.schema or registry is None:
        return options
    subject = options.subject or f"{topic}-value"
    latest = registry.latest(subject)
    if latest.kind != options.encoding.value.upper():
        raise ConfigurationError(
            f"the newest schema of subject {subject!r} is {latest.kind}; set the option format to "
            f"{latest.kind.lower()}, or name another subject"
        )
    return dataclasses.replace(
        options, subject=subject, schema=latest.text, referenced=latest.referenced
    )
