"""Aborting a transaction from the page, and who did so before.

It is done in the store that the feed says it reads; nothing is asked of the feed itself, which
reads the rollback like any other row.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError, PenstockError
from penstock.ids import Producer
from penstock.journal import kind_of_store, open_store
from penstock.journal.recovery import OpenTransaction
from penstock.person import person

if TYPE_CHECKING:
    from penstock.journal import OpenStore
    from penstock.web.feeds import Look

ABORTS_MAX: Final = 20
"""Shown; the store keeps all of them."""
LOOK_SECONDS: Final = 2.0
"""How old a list of aborts may be that somebody else made longer."""
CONFIRMATION: Final = "abort"

_LOG: Final = logging.getLogger(__name__)


class Aborting:
    """Of all stores that feeds name. May be used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, OpenStore] = {}
        self._listed: dict[str, tuple[float, list[dict[str, Any]]]] = {}

    def abort(self, look: Look, asked: bytes, client: str) -> dict[str, Any]:
        """Does what a page asked for; a PenstockError says why not.

        With a store of its own, and no lock: it waits for as long as a producer takes that was
        stopped in the middle of its commit, and neither pages nor `close` may wait with it.
        """
        url = _store_of(look)
        if url is None:
            raise ConfigurationError(f"feed {look.name} does not say which store it reads")
        if kind_of_store(url) != "file":
            raise ConfigurationError(
                f"this page has no rights in {url}; in a terminal, with yours: penstock abort "
                f"PRODUCER --store {url}"
            )
        producer, seen = _asked(asked)
        by = f"{person()} (page, from {client})"
        with open_store(url, create=False) as store:
            done = store.abort(producer, by, seen)
        with self._lock:
            self._listed.pop(url, None)
        _LOG.warning("producer %s was aborted by %s: %s", producer, by, done.outcome)
        return asdict(done) | {"producer": str(done.producer)}

    def done(self, look: Look) -> list[dict[str, Any]]:
        """Those of the feed's store, the newest first."""
        url = _store_of(look)
        if url is None or kind_of_store(url) != "file":
            return []  # others keep no record of aborts
        with self._lock:
            at, listed = self._listed.get(url, (float("-inf"), []))
            if time.monotonic() - at >= LOOK_SECONDS:
                listed = self._list(url)
                self._listed[url] = (time.monotonic(), listed)
        return listed

    def close(self) -> None:
        with self._lock:
            for store in self._stores.values():
                store.close()
            self._stores.clear()

    def _open(self, url: str) -> OpenStore:
        if url not in self._stores:
            self._stores[url] = open_store(url, create=False)
        return self._stores[url]

    def _list(self, url: str) -> list[dict[str, Any]]:
        try:
            found = self._open(url).aborts()[:ABORTS_MAX]
        except (PenstockError, OSError) as error:
            _LOG.debug("%s: aborts cannot be listed: %s", url, error)
            return []  # the store is elsewhere; the page is about the feed
        return [asdict(one) | {"producer": str(one.producer)} for one in found]


def _store_of(look: Look) -> str | None:
    url = None if look.state is None else look.state.get("store")
    return url if isinstance(url, str) and url else None


def _asked(asked: bytes) -> tuple[Producer, OpenTransaction | None]:
    """The producer, and which of its transactions was seen: a program may leave that out."""
    seen = None
    try:
        found = json.loads(asked)
        producer, confirmed = found["producer"], found["confirm"]
        if "journals" in found:
            journals = tuple(str(journal) for journal in found["journals"])
            seen = OpenTransaction(journals, float(found["since"]))
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError("say which producer, and confirm it") from None
    if confirmed != CONFIRMATION:
        raise ConfigurationError(f"it was not confirmed: the word is {CONFIRMATION!r}")
    return Producer.from_hex(str(producer)), seen
