"""Several stores as one, for a feed that reads from several. Each collection is in one of them.

Journals have the names that their stores give them, but for the collection's, which is the one that
it has here: so no two of different stores have the same. Which documents there are, what is
committed, and what belongs together says the store of each.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.frontier import Frontier
from penstock.journal.cut import check_there, cut_at
from penstock.journal.errors import UnknownCollectionError, UnknownJournalError
from penstock.journal.names import EVERYTHING, Selector
from penstock.journal.store import Journal, Probe, Range, ReadableStore, States
from penstock.journal.transaction_log import Decided, Look, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.journal.collection import Collection
    from penstock.journal.cut import AsOf, JournalCut
    from penstock.journal.store import JournalBatch, Silence
    from penstock.journal.transaction_log import LogEntry
    from penstock.sequence import ProducerState

SCHEME: Final = "joined"


@dataclass(frozen=True, slots=True)
class JoinedAddress:
    """The addresses of stores, each with its collections: what they are called here, and there."""

    parts: tuple[tuple[str, Mapping[str, str]], ...] = field(repr=False)

    @property
    def text(self) -> str:
        """All of it, behind a #: it may hold secrets, as those of the stores may."""
        document = json.dumps([[address, dict(names)] for address, names in self.parts]).encode()
        return f"{SCHEME}://#{base64.urlsafe_b64encode(document).decode()}"

    @classmethod
    def parse(cls, text: str) -> JoinedAddress:
        try:
            found = json.loads(base64.urlsafe_b64decode(text.partition("#")[2]))
            return cls(tuple((str(address), dict(names)) for address, names in found))
        except (ValueError, TypeError):
            raise ConfigurationError(
                f"a {SCHEME}:// address is made by Penstock for a feed of several stores, and this "
                "is none"
            ) from None


class _Part:
    """A store, and how its collections are called here."""

    def __init__(self, store: ReadableStore, names: Mapping[str, str]) -> None:
        self.store = store
        self.there: Final = dict(names)
        self._here: Final = {there: here for here, there in names.items()}

    def named_there(self, journal: str) -> str:
        collection, rest = _taken_apart(journal)
        return self.there[collection] + rest

    def named_here(self, journal: str) -> str | None:
        """None: of a collection that nobody reads here."""
        collection, rest = _taken_apart(journal)
        here = self._here.get(collection)
        return None if here is None else here + rest

    def shown(self, batch: JournalBatch, journal: str) -> JournalBatch:
        hints = {
            row: tuple(filter(None, map(self.named_here, names)))
            for row, names in batch.hints.items()
        }
        return replace(batch, journal=journal, hints=hints)


def _taken_apart(journal: str) -> tuple[str, str]:
    collection, separator, rest = journal.partition("/")
    return collection, separator + rest


class _LogHere(TransactionLog):
    """A store's transaction log, with journals as they are called here. Those of other collections
    are nobody's: another store's may have their names."""

    def __init__(self, there: TransactionLog, part: _Part) -> None:
        self._there = there
        self._part = part

    def read(self) -> Sequence[LogEntry]:
        return self._here(self._there.read())

    def look(self, journals: Sequence[str]) -> Look:
        found = self._there.look([self._part.named_there(name) for name in journals])
        ends = {
            (self._part.named_here(name) or name, identity): end
            for (name, identity), end in found.ends.items()
        }
        before, around, later = map(self._here, (found.before, found.around, found.later))
        return Look(before, ends, around, later)

    def close(self) -> None:
        self._there.close()

    def _here(self, entries: Sequence[LogEntry]) -> tuple[LogEntry, ...]:
        return tuple(
            replace(one, journals=tuple(filter(None, map(self._part.named_here, one.journals))))
            if isinstance(one, Decided)
            else one
            for one in entries
        )


class JoinedStore(ReadableStore):
    def __init__(self, address: JoinedAddress, open_store: Callable[[str], ReadableStore]) -> None:
        self._address = address
        self._parts: list[_Part] = []
        try:
            for text, names in address.parts:
                self._parts.append(_Part(open_store(text), names))
        except BaseException:
            self.close()
            raise
        self._of = {name: part for part in self._parts for name in part.there}
        self.url = ",".join(part.store.url for part in self._parts)

    @property
    def address(self) -> str:
        return self._address.text

    @property
    def stores(self) -> tuple[ReadableStore, ...]:
        return tuple(part.store for part in self._parts)

    def close(self) -> None:
        for part in self._parts:
            part.store.close()

    def holding(self, name: str) -> ReadableStore:
        return self._part(name).store

    def _part(self, journal: str) -> _Part:
        found = self._of.get(_taken_apart(journal)[0])
        if found is None:
            raise UnknownJournalError(journal)
        return found

    def _by_part(self, journals: Iterable[str]) -> dict[_Part, list[str]]:
        found: defaultdict[_Part, list[str]] = defaultdict(list)
        for name in journals:
            found[self._part(name)].append(name)
        return dict(found)

    # Collections

    def collection(self, name: str) -> Collection:
        part = self._of.get(name)
        if part is None:
            raise UnknownCollectionError(name, tuple(self.collections()))
        return replace(part.store.collection(part.there[name]), name=name)

    def collections(self) -> list[str]:
        return sorted(self._of)

    # Journals

    def journals(self, collection: str, selector: Selector = EVERYTHING) -> list[Journal]:
        part = self._of.get(collection)
        if part is None:
            raise UnknownCollectionError(collection, tuple(self.collections()))
        return [
            replace(one, name=collection + _taken_apart(one.name)[1], collection=collection)
            for one in part.store.journals(part.there[collection], selector)
        ]

    def probes(self, journals: Iterable[str]) -> dict[str, Probe]:
        found: dict[str, Probe] = {}
        for part, names in self._by_part(journals).items():
            there = {part.named_there(name): name for name in names}
            found |= {there[name]: probe for name, probe in part.store.probes(there).items()}
        return found

    def read(
        self,
        journal: str,
        begin: int,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        fetch_bytes: int | None = None,
    ) -> Iterator[JournalBatch]:
        part = self._part(journal)
        there = part.named_there(journal)
        for batch in part.store.read(there, begin, end, columns, fetch_bytes=fetch_bytes):
            yield part.shown(batch, journal)

    def wait(self, journal: str, beyond: int, timeout_s: float) -> int:
        part = self._part(journal)
        return part.store.wait(part.named_there(journal), beyond, timeout_s)

    def ranges(self, journal: str, begin: int, end: int) -> list[Range]:
        part = self._part(journal)
        found = part.store.ranges(part.named_there(journal), begin, end)
        return [replace(one, journal=journal) for one in found]

    def states(self, journal: str, at: int) -> tuple[int, States]:
        part = self._part(journal)
        return part.store.states(part.named_there(journal), at)

    def departures(
        self, journal: str, at: int
    ) -> Iterator[tuple[int, Mapping[int, ProducerState]]]:
        part = self._part(journal)
        yield from part.store.departures(part.named_there(journal), at)

    # Transactions

    def cut(
        self,
        journals: Sequence[str] | Callable[[], Sequence[str]],
        as_of: AsOf = None,
        binding: int = 0,
    ) -> list[JournalCut]:
        """Transactions are whole in each of the stores. There are none across them."""
        if isinstance(as_of, Frontier):  # it has journals by their names here
            return cut_at(self, journals, as_of, binding)
        if not callable(journals):
            check_there(journals, self.probes(journals))
        listed = journals if callable(journals) else lambda: journals
        found = [
            replace(cut, journal=part.named_here(cut.journal) or cut.journal)
            for part in self._by_part(listed())
            for cut in part.store.cut(partial(self._there, part, listed), as_of, binding)
        ]
        return sorted(found, key=lambda cut: cut.journal)

    def _there(self, part: _Part, listed: Callable[[], Sequence[str]]) -> list[str]:
        """The journals of a store among those that are listed, by their names there."""
        return [part.named_there(name) for name in self._by_part(listed()).get(part, ())]

    def transaction_log(self, begins: Mapping[int, int] | None = None) -> TransactionLog | None:
        """That of the Kafka cluster among them: `sources.py` lets in one."""
        for part in self._parts:
            if part.store.by_offset:
                found = part.store.transaction_log(begins)
                return None if found is None else _LogHere(found, part)
        return None

    def open_transactions(self) -> Mapping[str, int]:
        return {
            here: count
            for part in self._parts
            for journal, count in part.store.open_transactions().items()
            if (here := part.named_here(journal)) is not None
        }

    def silence(self) -> Silence | None:
        found = (store.silence() for store in self.stores)
        return next((one for one in found if one is not None), None)

    def recover_if_possible(self) -> None:
        for store in self.stores:
            store.recover_if_possible()
