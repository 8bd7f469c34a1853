"""What a client of Kafka's is told, from the command line: settings, files of them, secrets.

Settings have Kafka's own names, with or without `kafka.` before them. `${env:NAME}` in a value
stands for a variable of the environment, as in files of Kafka's own tools: so no secret has to
stand in a command, where everybody on the machine sees it. What is given goes into the address of
the store, and nobody shows that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = TypeVar("Command", bound=Callable[..., Any])

CONFIG_VARIABLE: Final = "PENSTOCK_CLIENT_CONFIG"
_META: Final = "penstock.client_settings"
_BY_OPTION: Final = "penstock.has_client_option"
_PREFIX: Final = "kafka."
_SCHEME: Final = "kafka://"
_FROM_ENVIRONMENT: Final = re.compile(r"\$\{env:(\w+)\}")
_CONTINUED: Final = re.compile(r"\\\n\s*")
_COMMENTS: Final = ("#", "!")


def client_options(command: Command) -> Command:
    """--option and --client-config."""
    given = click.option(
        "--option",
        multiple=True,
        metavar="NAME=VALUE",
        expose_value=False,
        callback=_remember_options,
        help="A setting of the Kafka client: kafka.security.protocol=SASL_SSL. May be repeated; "
        "${env:NAME} stands for a variable of the environment.",
    )
    file = click.option(
        "--client-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar=CONFIG_VARIABLE,
        expose_value=False,
        is_eager=True,  # what --option says goes before it
        callback=_remember_file,
        help=f"A file of such settings, as Kafka's own tools take.  [default: ${CONFIG_VARIABLE}]",
    )
    return given(file(command))


def with_settings(url: str) -> str:
    """A store's address, with what was given for its client."""
    settings = client_settings(is_for_kafka=url.startswith(_SCHEME))
    if not url.startswith(_SCHEME):
        return url
    from penstock.journal.kafka.address import KafkaAddress  # noqa: PLC0415 - not for --help

    address = KafkaAddress.parse(url)
    return KafkaAddress({**settings, **address.options}).text if settings else url


def client_settings(*, is_for_kafka: bool) -> dict[str, str]:
    """What was given for a client. --option is refused where there is none."""
    if is_for_kafka:
        return dict(click.get_current_context().meta.get(_META, {}))
    if click.get_current_context().meta.get(_BY_OPTION):
        raise click.UsageError("--option is for a store in Kafka: --store kafka://broker:9092")
    return {}


def read_properties(text: str) -> dict[str, str]:
    """Lines of NAME=VALUE, as Java's files of properties; a backslash goes on in the next line."""
    settings = {}
    for line in _CONTINUED.sub("", text).splitlines():
        name, _, value = line.strip().partition("=")
        if name and not name.startswith(_COMMENTS):
            settings[_plain(name)] = value.strip()
    return settings


def _remember_options(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> None:
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            # What stands there may be a secret: it is not repeated.
            raise click.BadParameter("write NAME=VALUE", ctx, parameter)
        _settings(ctx)[_plain(name)] = _resolved(value, ctx, parameter)
        ctx.meta[_BY_OPTION] = True


def _remember_file(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is not None:
        for name, value in read_properties(path.read_text()).items():
            _settings(ctx)[name] = _resolved(value, ctx, parameter)


def _settings(ctx: click.Context) -> dict[str, str]:
    found: dict[str, str] = ctx.meta.setdefault(_META, {})
    return found


def _plain(name: str) -> str:
    return name.strip().removeprefix(_PREFIX)


def _resolved(value: str, ctx: click.Context, parameter: click.Parameter) -> str:
    def from_environment(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in os.environ:
            raise click.BadParameter(f"the environment has no variable {name}", ctx, parameter)
        return os.environ[name]

    return _FROM_ENVIRONMENT.sub(from_environment, value)
