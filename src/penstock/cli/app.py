"""The root command: finds the command, and turns what goes wrong into one plain line."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import IO, Any

import click

from penstock.cli.commands.abort import abort
from penstock.cli.commands.append import append
from penstock.cli.commands.backup import backup
from penstock.cli.commands.completion import completion
from penstock.cli.commands.copy import copy
from penstock.cli.commands.demo import demo
from penstock.cli.commands.doctor import doctor
from penstock.cli.commands.explain import explain
from penstock.cli.commands.inspect import inspect
from penstock.cli.commands.journals import journals
from penstock.cli.commands.read import read
from penstock.cli.commands.recover import recover
from penstock.cli.commands.restore import restore
from penstock.cli.commands.run import run
from penstock.cli.commands.salvage import salvage
from penstock.cli.commands.shuffle import shuffle
from penstock.cli.commands.web import web
from penstock.errors import PenstockError


class RefusedError(click.ClickException):
    """What Penstock raised on purpose, as one line on standard error and exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.secho("error: ", fg="red", bold=True, nl=False, err=True, file=file)
        click.echo(self.message, err=True, file=file)


class Application(click.Group):
    """Shows no traceback for errors that a person can act on, unless asked with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever reads our output has enough, `| head` for example: that is no error. Python
            # would complain once more when it flushes at exit, so the rest goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except (PenstockError, OSError) as error:
            if ctx.meta.get("penstock.debug"):
                raise
            raise RefusedError(_plain(error)) from None


def _plain(error: PenstockError | OSError) -> str:
    if not isinstance(error, PenstockError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"penstock {importlib.metadata.version('penstock')}")
        ctx.exit()


@click.group(
    cls=Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`penstock demo` shows all of it at work in a minute. "
    "Each command has examples: `penstock read --help`.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def app(ctx: click.Context, debug: bool) -> None:
    """Exactly-once, disk-backed, coordinated shuffled reads for PySpark."""
    if debug:
        ctx.meta["penstock.debug"] = True


for command in (
    demo,
    run,
    journals,
    append,
    read,
    shuffle,
    copy,
    web,
    explain,
    recover,
    abort,
    backup,
    restore,
    salvage,
    inspect,
    doctor,
    completion,
):
    app.add_command(command)
