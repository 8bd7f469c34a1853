"""Which journals there are, looked up again and again: those that are new are told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.shuffle.session.state import ListingAdded, ListingDone
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.journal.store import JournalStore
    from penstock.shuffle.control import FromMember
    from penstock.shuffle.plan import BindingPlan
    from penstock.shuffle.session.state import SliceKey

LISTING_SECONDS: Final = 1.0


class Lister:
    """Lists the bindings that are this Slice's to list. A journal that vanished and is there again
    is told again."""

    def __init__(
        self,
        store: JournalStore,
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
        self._known: dict[int, set[str]] = {binding.place: set() for binding in bindings}
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
        found = {
            journal.name for journal in self._store.journals(binding.collection, binding.selector)
        }
        known, self._known[binding.place] = self._known[binding.place], found
        for journal in sorted(found - known):
            self._tell(ListingAdded(*self._key, binding.place, journal))
