"""`penstock explain`: what feeds are doing, what they wait for, and what a person could do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import click

from penstock.cli.options import STORE_VARIABLE, examples, is_kafka, json_option, store_option
from penstock.watch import StateFormatError, StateMissingError, find_folders, load
from penstock.watch.encoding import plain

if TYPE_CHECKING:
    from penstock.watch import FeedState

FEEDS: Final = "feeds"
"""Where a store has the folders of those that Spark reads."""


@click.command(
    epilog=examples(
        "penstock explain /data/shuffle                     the feed in a folder",
        "penstock explain --store file:///data/journals     all feeds of a store",
        "penstock explain --store kafka://broker:9092       those that were given no folder",
        "penstock explain /data/shuffle --json | jq '.[0].waits[] | select(.is_stall)'",
        "watch -n 1 penstock explain /data/shuffle",
    )
)
@click.argument(
    "folder",
    required=False,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@json_option
@store_option
@click.pass_context
def explain(ctx: click.Context, folder: Path | None, as_json: bool, store_url: str | None) -> None:
    """Say what a feed is doing, what it waits for, and what could be done.

    FOLDER is what `penstock shuffle --folder` or the option `folder` of a streaming read named, or
    one that has several such. With --store, all feeds in the store are told of. Whoever can read
    the folder can ask, while the feed runs and after its process died.

    The exit code is 1 if a feed is stuck, has failed, or its process is gone.
    """
    place = folder if folder is not None else _feeds_of(store_url)
    folders = find_folders(place)
    if not folders and folder is not None:
        raise StateMissingError(
            f"{folder} has no feed: none was started there, or by an older release"
        )
    told = [_told(each) for each in folders]
    if as_json:
        click.echo(json.dumps([each for each, _ in told], indent=2))
    elif not told:
        click.echo(f"there are no feeds in {place}")
    else:
        for place_in_list, (_, state) in enumerate(told):
            _say(folders[place_in_list], state, is_first=place_in_list == 0)
    ctx.exit(1 if any(_is_bad(state) for _, state in told) else 0)


def _feeds_of(store_url: str | None) -> Path:
    if not store_url:
        raise click.UsageError(
            f"which feed? Name its folder, or say --store file:///data/journals, or set "
            f"{STORE_VARIABLE}"
        )
    if is_kafka(store_url):
        from penstock.spark.streaming.folders import feeds_folder  # noqa: PLC0415 - it brings much

        return feeds_folder(store_url)
    parts = urlsplit(store_url)
    if parts.scheme not in ("", "file"):
        raise click.UsageError(
            f"the feeds of {store_url} are not in the store; name the folder that they were given"
        )
    return Path(unquote(parts.path)).expanduser() / FEEDS


def _told(folder: Path) -> tuple[dict[str, Any], FeedState | StateFormatError]:
    try:
        state = load(folder)
    except StateFormatError as error:  # of one feed: the others are told all the same
        return {"folder": str(folder), "error": str(error)}, error
    return plain(state), state


def _is_bad(state: FeedState | StateFormatError) -> bool:
    if isinstance(state, StateFormatError):
        return True
    return state.verdict == "stuck" or state.phase == "failed"


def _say(folder: Path, state: FeedState | StateFormatError, *, is_first: bool) -> None:
    from rich.text import Text  # noqa: PLC0415 - --help does not need it

    from penstock.cli import terminal  # noqa: PLC0415

    output = terminal.output()
    if not is_first:
        output.print()
    if isinstance(state, StateFormatError):
        output.print(Text(str(state), "red"), soft_wrap=True)
        return
    style = {"healthy": "green", "waiting": "yellow", "stuck": "bold red", "down": "bold red"}
    output.print(
        Text.assemble((state.verdict, style[state.verdict]), f"  {folder}"), soft_wrap=True
    )
    for sentence in state.explanation:
        output.print(Text(f"  {sentence}"), soft_wrap=True)
    for number, advice in enumerate(state.advice):
        lead = "What you could do: " if number == 0 else " " * len("What you could do: ")
        output.print(Text.assemble("  ", (lead, "bold"), advice), soft_wrap=True)
