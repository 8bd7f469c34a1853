"""Options that several commands share, with one wording."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.file.store import FileStore

Command = TypeVar("Command", bound="Callable[..., Any]")

STORE_VARIABLE = "PENSTOCK_STORE"


def store_option(command: Command) -> Command:
    """--store URL, or the environment's store."""
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        envvar=STORE_VARIABLE,
        help=f"The store: file:///data/journals or a plain path.  [default: ${STORE_VARIABLE}]",
    )(debug_option(command))


def debug_option(command: Command) -> Command:
    """--debug after the command's name too: that is where one adds it when something failed."""

    def remember(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.meta["penstock.debug"] = True

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show the traceback of an error.",
    )(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")(
        command
    )


def log_json_option(command: Command) -> Command:
    return click.option(
        "--log-json",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Append log records to this file, a line of JSON for each.",
    )(command)


def partitions_option(command: Command) -> Command:
    return click.option(
        "--partitions",
        metavar="SELECTOR",
        default="",
        help='Only these: "region=eu,region=us,!tier=2". A column\'s values are or-ed, columns '
        "are and-ed, ! leaves out.",
    )(command)


def examples(*lines: str) -> str:
    """An epilog of examples, kept as they are written. Paragraphs that start with \\b are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def open_store(url: str | None, *, create: bool = False) -> FileStore:
    """Opens the store that --store or the environment names."""
    # Imported here: it brings Arrow and NumPy, which --help does not need.
    import penstock.journal  # noqa: PLC0415

    if not url:
        raise click.UsageError(
            f"which store? Say --store file:///data/journals, or set {STORE_VARIABLE}"
        )
    return penstock.journal.open_store(os.path.expanduser(url), create=create)  # noqa: PTH111
