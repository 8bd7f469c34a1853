"""`penstock web`: the page."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import click

from penstock.cli.interrupts import interrupts
from penstock.cli.options import examples, is_kafka, json_option, store_option

TOKEN_CHARACTERS_MIN: Final = 16


@click.command(
    epilog=examples(
        "penstock web --store file:///data/journals      every feed of the store",
        "penstock web /data/shuffle                      one that penstock shuffle --folder runs",
        "penstock web --port 9000 --metrics-open",
        "penstock web --host 0.0.0.0 --certificate tls.pem --key tls.key",
    )
)
@click.argument("folders", nargs=-1, type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Others only with TLS.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="0: any that is free.  [default: 8642, or any if that is in use]",
)
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="For TLS: PEM, with what is between it and the authority.",
)
@click.option("--key", type=click.Path(dir_okay=False, path_type=Path), help="Of the certificate.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Has the token, so that it stays the same.  [default: a new one each time]",
)
@click.option("--metrics-open", is_flag=True, help="/metrics needs no token.")
@json_option
@store_option
def web(
    *,
    folders: tuple[Path, ...],
    host: str,
    port: int | None,
    certificate: Path | None,
    key: Path | None,
    token_file: Path | None,
    metrics_open: bool,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Serve a page that shows what feeds do and what they wait for, until Ctrl-C.

    FOLDERS are those of feeds, or folders with such in them; or name a --store, whose feeds are
    found. The printed address has a token in it: whoever has it can see the page, and abort open
    transactions. The page changes nothing else. /metrics is for Prometheus, with the same token.
    """
    places = list(folders)
    if store_url and not places:
        places.append(_folder_of(store_url))
    if not places:
        raise click.UsageError("which feeds? Name their folders, or a store with --store")
    from penstock.telemetry import Tracing
    from penstock.web.feeds import Feeds
    from penstock.web.server import WebServer

    feeds = Feeds(places)
    feeds.check()
    stopping = threading.Event()
    with (
        WebServer(
            feeds,
            host=host,
            port=port,
            certificate=certificate,
            key=key,
            metrics_open=metrics_open,
            token=_token(token_file),
        ) as server,
        contextlib.closing(Tracing(feeds.folders)),
        interrupts(stopping.set),
    ):
        if as_json:
            told = {"address": server.address, "base": server.base, "token": server.token}
            click.echo(json.dumps(told))
        else:
            click.echo(f"the page is at {server.address}\nCtrl-C ends it")
        stopping.wait()


def _folder_of(url: str) -> Path:
    if is_kafka(url):
        from penstock.spark.streaming.folders import feeds_folder

        folder = feeds_folder(url)
        if not folder.is_dir():
            raise click.UsageError(
                f"no query of this user keeps a feed of {url} in {folder}; name the folder that "
                "`penstock shuffle --folder`, or the option `folder` of the read, has"
            )
        return folder
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        raise click.UsageError(f"{url} is not a folder; name the folders of its feeds instead")
    return Path(unquote(parts.path)).expanduser()


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    token = path.read_text().strip()
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable():
        raise click.UsageError(
            f"{path} must have a token of at least {TOKEN_CHARACTERS_MIN} plain characters in it"
        )
    return token
