"""Journals: append-only lists of documents that many processes write in transactions.

Read in this order: collection.py (what is written), rows.py (users' rows made fit), frames.py
(their bytes), store.py (what can be read from a store), producing.py (what every kind of store has
for those who write) and writable.py (what those of ours stand on), file/ (the store on a disk),
producer.py and transaction.py (writing), recovery.py (after a crash), cut.py and documents.py
(reading once), views.py (what is shown of it), kafka/ (a store in the topics of a Kafka cluster).
"""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.journal.collection import Collection
from penstock.journal.file.store import SEGMENT_BYTES_MAX, FileStore
from penstock.journal.opened import OpenStore
from penstock.journal.producing import ProducingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.journal.kafka.store import KafkaStore
    from penstock.journal.store import ReadableStore

__all__ = [
    "open_kafka",
    "open_readable",
    "open_store",
    "Collection",
    "OpenStore",
    "ProducingStore",
]


def open_store(
    url: str | Path,
    *,
    durability: str | None = None,
    create: bool = True,
    segment_bytes_max: int = SEGMENT_BYTES_MAX,
) -> FileStore:
    """Opens a store to read and write it, by its address: `file:///data/journals` or a plain path.
    Makes it if it is missing.

    `durability` is chosen when the store is made. `"synced"`, the default: what an append returned
    for survives a power cut. `"buffered"`: it survives the death of the process only.
    """
    return FileStore(
        local_folder(url),
        durability=durability,
        segment_bytes_max=segment_bytes_max,
        create=create,
    )


def open_readable(url: str | Path) -> ReadableStore:
    """Opens a store that is there, to read it. Whoever only reads opens it by this: such a store
    may have no writing half."""
    kind = kind_of_store(url)
    if kind not in _READABLE:
        raise ConfigurationError(
            f"{str(url)!r}: stores of kind {kind!r} are not known; {', '.join(_READABLE)} is"
        )
    return _READABLE[kind](str(url))


def open_kafka(
    servers: str,
    *,
    options: Mapping[str, str] | None = None,
    formats: Mapping[str, Mapping[str, str]] | None = None,
) -> KafkaStore:
    """Opens a Kafka cluster to read it and to write to it: `broker:9092,other:9092`, with or
    without `kafka://`. Topics are collections.

    `options` are settings of the client by Kafka's own names. `formats` says by topic how values
    become columns, with the options of docs/formats.md; without, they stay as they are.
    """
    _kafka_at_hand()
    from penstock.journal.kafka.store import open_to_write  # noqa: PLC0415 - it is an extra

    return open_to_write(servers, options or {}, formats or {})


def folder_of_store(url: str | Path) -> Path | None:
    """The folder in which a store keeps what belongs to it, and its readers may keep theirs. None
    if it is no folder: then whoever reads it says where."""
    return local_folder(url) if kind_of_store(url) == "file" else None


def first_of_joined(url: str) -> str:
    """Of several stores as one, the address of the first; or that of the one there is."""
    if kind_of_store(url) != "joined":
        return url
    from penstock.journal.joined import JoinedAddress  # noqa: PLC0415 - seldom needed

    return JoinedAddress.parse(url).parts[0][0]


def kind_of_store(url: str | Path) -> str:
    """The scheme of a store's address; `file` for a plain path."""
    scheme, separator, _ = str(url).partition("://")
    return scheme if separator else "file"


def _open_kafka(url: str) -> ReadableStore:
    _kafka_at_hand()
    from penstock.journal.kafka.store import open_kafka  # noqa: PLC0415 - it is an extra

    return open_kafka(url)


def _kafka_at_hand() -> None:
    try:
        import penstock.journal.kafka.store  # noqa: PLC0415, F401
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"a store in Kafka needs the package {error.name!r}: pip install 'penstock[kafka]'"
        ) from error


def _open_joined(text: str) -> ReadableStore:
    from penstock.journal.joined import JoinedAddress, JoinedStore  # noqa: PLC0415 - seldom needed

    return JoinedStore(JoinedAddress.parse(text), open_readable)


_READABLE: Final[dict[str, Callable[[str], ReadableStore]]] = {
    "file": lambda url: FileStore(local_folder(url), create=False),
    "kafka": _open_kafka,
    "joined": _open_joined,
}
"""By scheme. `gazette` goes in here, importing its client when it is called."""


def local_folder(url: str | Path) -> Path:
    """The folder that a store's address names."""
    text = str(url)
    parsed = urllib.parse.urlsplit(text)
    if parsed.scheme == "file":
        if parsed.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{text!r} names the machine {parsed.netloc!r}; write three slashes: "
                f"file:///{parsed.netloc}{parsed.path}"
            )
        folder = Path(urllib.parse.unquote(parsed.path))
    elif parsed.scheme and "://" in text:
        opened = "; a Kafka cluster is opened by open_kafka" * (parsed.scheme == "kafka")
        raise ConfigurationError(
            f"{text!r}: stores of kind {parsed.scheme!r} are not known; file is{opened}"
        )
    else:
        folder = Path(text)
    return folder.absolute()
