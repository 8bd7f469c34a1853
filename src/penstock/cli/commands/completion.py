"""`penstock completion`: the Tab key."""

from __future__ import annotations

import json

import click
from click.shell_completion import get_completion_class

from penstock.cli.options import examples, json_option

_VARIABLE = "_PENSTOCK_COMPLETE"
"""Click answers a shell that sets it."""


@click.command(
    epilog=examples(
        "penstock completion bash > ~/.local/share/bash-completion/completions/penstock",
        "penstock completion zsh > ~/.zfunc/_penstock     with fpath+=~/.zfunc before compinit",
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, *, as_json: bool) -> None:
    """Print a script that lets SHELL complete commands, options and files.

    To try it in this shell only: `source <(penstock completion bash)`.
    """
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"the installed click knows nothing of {shell}; update it")
    script = made(ctx.find_root().command, {}, "penstock", _VARIABLE).source()
    click.echo(json.dumps({"shell": shell, "script": script}) if as_json else script)
