"""The page beside a command that runs feeds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.cli.options import Command


def web_option(command: Command) -> Command:
    """--no-web, or nothing."""
    return click.option(
        "--no-web",
        "without_web",
        is_flag=True,
        help="Do not serve the page that shows how it goes.",
    )(command)


@contextlib.contextmanager
def page(places: Sequence[Path], say: Callable[[str], object], *, without: bool) -> Iterator[None]:
    """Serves the feeds in these folders on this machine, and says where. Spans are made anyway."""
    # Imported here: a command's --help needs none of it.
    from penstock.telemetry import Tracing  # noqa: PLC0415
    from penstock.web.errors import WebAddressError  # noqa: PLC0415
    from penstock.web.feeds import Feeds  # noqa: PLC0415
    from penstock.web.server import WebServer  # noqa: PLC0415

    feeds = Feeds(places)
    with contextlib.ExitStack() as stack:
        tracing = Tracing(feeds.folders)
        stack.callback(tracing.close)
        if not without:
            try:
                server = stack.enter_context(WebServer(feeds))
            except WebAddressError as error:
                say(f"there is no page: {error}")  # what runs is more than what shows it
            else:
                say(f"the page is at {server.address}")
        yield
