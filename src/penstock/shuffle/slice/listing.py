"""Which journals there are, looked up again and again: what is new is told, and what is gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.shuffle.session.state import ListingAdded, ListingDone, ListingRemoved
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.journal.store import ReadableStore
    from penstock.shuffle.control import FromMember
    from penstock.shuffle.plan import BindingPlan
    from penstock.shuffle.session.state import SliceKey

LISTING_SECONDS: Final = 1.0


class Lister:
    """Lists the bindings that are this Slice's to list. A journal that vanished and is there again
    is told again, and so is another one in its place."""

    def __init__(
        self,
        store: ReadableStore,
        bindings: Sequence[BindingPlan],
        key: SliceKey,
        *,
        tell: Callable[[FromMember], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._key = key
        self._bindings = bindings
        self._tell = tell
        self._known: dict[int, dict[str, str]] = {binding.place: {} for binding in bindings}
        """By binding, the identities of the journals that were told."""
        self._closing = threading.Event()
        self._thread = supervised(
            "slice {}.{} lists".format(*key), self._run, fail=fail, until=self._closing.is_set
        )

    def start(self) -> None:
        if self._bindings:
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        for binding in self._bindings:
            self._list(binding)
            self._tell(ListingDone(*self._key, binding.place))
        while not self._closing.wait(LISTING_SECONDS):
            for binding in self._bindings:
                self._list(binding)

    def _list(self, binding: BindingPlan) -> None:
        listed = self._store.journals(binding.collection, binding.selector)
        found = {journal.name: journal.identity for journal in listed}
        known, self._known[binding.place] = self._known[binding.place], found
        for journal in sorted(known.keys() - found.keys()):
            self._tell(ListingRemoved(*self._key, binding.place, journal))
        for journal, identity in sorted(found.items() - known.items()):
            self._tell(ListingAdded(*self._key, binding.place, journal, identity))
