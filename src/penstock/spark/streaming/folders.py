"""Where a feed's queues and epochs are: a folder for each query."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.errors import ConfigurationError, PenstockError
from penstock.journal import first_of_joined, folder_of_store
from penstock.sealed import is_sealed, sealed_json, unsealed_json
from penstock.shuffle.beginning import settled_address
from penstock.spark.plan import opened
from penstock.spark.streaming import steps
from penstock.spark.streaming.steps import Step
from penstock.storage import Storage

if TYPE_CHECKING:
    from penstock.journal.store import ReadableStore
    from penstock.spark.streaming.options import StreamOptions

FEEDS: Final = "feeds"
"""In the folder of a store that has one."""
NOTE_NAME: Final = "feed.json"
_FORMAT: Final = 1
_OLD_MEMBERS: Final = ("format", "bindings")
_WAY_OUT: Final = (
    "restore it from a copy, or begin with a new checkpoint: all documents are read again then"
)


def feed_folder(options: StreamOptions, name: str) -> Path:
    if options.folder:
        return Path(options.folder).absolute() / name
    return feeds_folder(options.store) / name


def feeds_folder(store: str) -> Path:
    """Where feeds are unless they are told otherwise: in the store itself, if it has a folder, else
    in one of the user's own, by the brokers' names. Of several stores the first counts."""
    store = first_of_joined(store)
    folder = folder_of_store(store)
    if folder is None:
        # What stands behind the # of an address may be secret.
        brokers = urlsplit(store)
        folder = _state_folder() / brokers.scheme / brokers.netloc.replace(":", "_")
    return folder / FEEDS


def _state_folder() -> Path:
    """Where programs of a user keep what outlives them."""
    found = os.environ.get("XDG_STATE_HOME", "")
    return (Path(found) if found else Path.home() / ".local" / "state") / "penstock"


def settle_folder(folder: Path, options: StreamOptions, *, is_new: bool) -> None:
    """Notes in a new folder whose it is. One that is there already must be of the same feed."""
    of = _described(options)
    if is_new:
        Storage.open(folder).create(NOTE_NAME, sealed_json({"format": _FORMAT, **of}))
        steps.reached(Step.NOTED)
        return
    path = folder / NOTE_NAME
    try:
        found = read_note(path)
    except FileNotFoundError:
        raise ConfigurationError(
            f"Spark's checkpoint goes on in {folder}, which is not there: it was removed, or the "
            "option 'folder' or 'store' was another one when the query began. Bring it back, or "
            "begin with a new checkpoint: all documents are read again then"
        ) from None
    for setting, value in of.items():
        if found.get(setting) != value:
            raise ConfigurationError(
                f"this query began with other {setting}: {json.dumps(found.get(setting))}, and now "
                f"they are {json.dumps(value)}. Set them back, or begin with a new checkpoint"
            )
    if not is_sealed(path.read_bytes()):
        with contextlib.suppress(PenstockError):
            Storage.open(folder).replace(NOTE_NAME, sealed_json(found))


def settled_store(options: StreamOptions, folder: Path, *, is_new: bool) -> ReadableStore:
    """The store, with where reading begins."""
    store = opened(options.store)
    return opened(settled_address(options.feed, store, folder, is_new=is_new))


def read_note(path: Path) -> dict[str, Any]:
    """What a feed's folder says of whose it is."""
    return unsealed_json(str(path), path.read_bytes(), _OLD_MEMBERS, _WAY_OUT)


def _described(options: StreamOptions) -> dict[str, Any]:
    return {"bindings": list(options.noted)}
