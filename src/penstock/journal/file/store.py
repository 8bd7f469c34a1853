"""The store over plain files: collections, journals and producers under one folder."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from penstock.checksum import checksum
from penstock.disk import explained, make_folder, read_file, sync_folder
from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.journal.collection import Collection, check_collection_name
from penstock.journal.errors import UnknownCollectionError, UnknownJournalError
from penstock.journal.file.aborts import find_abort, list_aborts, write_abort
from penstock.journal.file.durable import locked, replace_file
from penstock.journal.file.forks import let_go_at_fork
from penstock.journal.file.journal import JournalFile, find_identity, probe_head
from penstock.journal.file.ledger import (
    LEDGER_FOLDERS,
    FileLedger,
    ledgers_in,
    list_ledgers,
    registered_producers,
)
from penstock.journal.file.repair import is_journal
from penstock.journal.file.segment import BatchBuilder
from penstock.journal.names import EVERYTHING, Selector, parse_journal_name
from penstock.journal.opened import OpenStore
from penstock.journal.store import Journal, JournalBatch, Probe, Range, States
from penstock.locks import LockHeldError, locking_within
from penstock.sealed import DamagedFileError, is_sealed, sealed_json, unsealed_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.ids import Producer
    from penstock.journal.frames import Payload
    from penstock.journal.writable import Abort, Appended, ProducerLedger
    from penstock.sequence import ProducerState

FORMAT_VERSION: Final = 1
DURABILITIES: Final = ("synced", "buffered")
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
JOURNALS_OPEN_MAX: Final = 200
"""Each open journal holds three file descriptors; systems allow 1,024 or so by default."""
_COMPONENT_BYTES_MAX: Final = 255
"""The longest name that common filesystems take."""
NAMING_LOCKS: Final = 64
"""Who is paused while it takes a name over holds up those of one in so many other names."""

_OLD_MARKER: Final = ("format", "durability")
_OLD_COLLECTION: Final = (
    "name", "schemas", "key", "partition_by", "retention_seconds", "retention_bytes",
)  # fmt: skip
_MARKER_WAY_OUT: Final = (
    'restore it from a copy, or write {"format": 1, "durability": "synced"} into it, or "buffered" '
    "if the store was made so"
)
_COLLECTION_WAY_OUT: Final = (
    "other collections are not concerned. Restore it from a copy; `penstock inspect` of the "
    "collection's newest segment shows it as it was when that segment was begun"
)


class FileStore(OpenStore):
    """Many processes may have the same folder open; each with a FileStore of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        durability: str | None = None,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        create: bool = True,
    ) -> None:
        if durability not in (None, *DURABILITIES):
            raise ConfigurationError(
                f"durability is 'synced' (safe against power cuts) or 'buffered' (safe against "
                f"killed processes only), not {durability!r}"
            )
        self.url = folder.as_uri()
        self._root = folder
        self._segment_bytes_max = segment_bytes_max
        self._open: OrderedDict[str, JournalFile] = OrderedDict()
        self._in_use: dict[JournalFile, int] = {}
        self._lock = threading.RLock()
        self._collections: dict[str, tuple[tuple[int, int, int], Collection]] = {}
        self._own: WeakValueDictionary[Producer, FileLedger] = WeakValueDictionary()
        """Those of this process: it knows that they are alive."""
        self._settled: set[Producer] = set()
        """Retired producers that were found settled."""
        self._to_disk = self._prepare(create, durability) == "synced"
        let_go_at_fork(self)

    def _prepare(self, create: bool, durability: str | None) -> str:
        """Makes the store if it is missing; gives its durability, which all who open it share:
        the `synced` of one must not rest on what another only buffered."""
        marker = self._root / "penstock.json"
        if not marker.exists():
            if not create:
                raise ConfigurationError(
                    f"there is no Penstock store at {self.url}; make one with "
                    "`penstock journals create`, or correct the path"
                )
            make_folder(self._root)
            # The marker comes first, so that others who make the same store are known from it.
            strange = any(path for path in self._root.iterdir() if marker.name not in path.name)
            if strange and not marker.exists():
                raise ConfigurationError(
                    f"{self.url} is not a Penstock store, and not empty; choose another folder"
                )
            made = {"format": FORMAT_VERSION, "durability": durability or "synced"}
            replace_file(marker, sealed_json(made))
        data = read_file(marker)
        found = parse_marker(str(marker), data)
        if found.get("format") != FORMAT_VERSION:
            raise ConfigurationError(
                f"{self.url} has store format {found.get('format')}, and this Penstock reads "
                f"{FORMAT_VERSION}"
            )
        kept = found.get("durability")
        if kept not in DURABILITIES:
            raise CorruptStorageError(f"{marker} says durability {kept!r}; restore it")
        _reseal(marker, data, found)
        if durability not in (None, kept):
            raise ConfigurationError(
                f"{self.url} was made with durability {kept!r}, for all who open it; open it "
                f"without saying {durability!r}, or make another store"
            )
        for part in ("collections", "journals", *LEDGER_FOLDERS):
            with explained("make the folder", self._root / part):
                (self._root / part).mkdir(exist_ok=True)
        sync_folder(self._root)  # also if they were there: whoever made them may have died first
        return str(kept)

    @property
    def root(self) -> Path:
        return self._root

    @property
    def durability(self) -> str:
        return "synced" if self._to_disk else "buffered"

    def let_go_after_fork(self) -> None:
        inherited = list(self._open.values())
        self._open, self._in_use, self._lock = OrderedDict(), {}, threading.RLock()
        for journal in inherited:
            journal.close()

    def close(self) -> None:
        with self._lock:
            for journal in self._open.values():
                if journal not in self._in_use:  # else who has borrowed it closes it
                    journal.close()
            self._open.clear()

    # Collections

    def create(self, collection: Collection) -> Collection:
        with self._catalog_lock():
            path = self._collection_path(collection.name)
            if path.exists():
                known = self._load(collection.name)
                if known.to_json() != collection.to_json():
                    raise ConfigurationError(
                        f"collection {collection.name!r} exists already and is different; "
                        "to add columns, evolve it"
                    )
                return known
            collection.check_new()
            make_folder(self._root / "journals" / collection.name)
            replace_file(path, sealed_json(collection.to_json()))
        return self._load(collection.name)

    def evolve(self, name: str, schema: pa.Schema | str) -> Collection:
        with self._catalog_lock():
            evolved = self._load(name).evolve(schema)
            replace_file(self._collection_path(name), sealed_json(evolved.to_json()))
        return self._load(name)

    def collection(self, name: str) -> Collection:
        return self._load(name)

    def collections(self) -> list[str]:
        return sorted(path.stem for path in (self._root / "collections").glob("[!.]*.json"))

    def _collection_path(self, name: str) -> Path:
        return self._root / "collections" / f"{name}.json"

    def _load(self, name: str) -> Collection:
        check_collection_name(name)
        path = self._collection_path(name)
        try:
            # The file is always replaced whole: a changed one has another inode, or another time.
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if name in self._collections and self._collections[name][0] == stamp:
                return self._collections[name][1]
            text = read_file(path)
        except FileNotFoundError:
            raise UnknownCollectionError(name, tuple(self.collections())) from None
        loaded = parse_collection(str(path), text)
        self._collections[name] = (stamp, loaded)
        if not is_sealed(text):
            self._reseal_collection(path)
        return loaded

    def _reseal_collection(self, path: Path) -> None:
        """Rewrites a file of a release before seals; later, if somebody changes collections at the
        moment, and never, if this process may only read."""
        with contextlib.suppress(OSError, LockHeldError), locking_within(0), self._catalog_lock():
            text = path.read_bytes()
            _reseal(path, text, parse_collection(str(path), text).to_json())

    @contextlib.contextmanager
    def _catalog_lock(self) -> Iterator[None]:
        """Held while collections or journals are created, against all processes."""
        with _file_locked(self._root / "collections" / ".lock"):
            yield

    # Journals

    def journals(self, collection: str, selector: Selector = EVERYTHING) -> list[Journal]:
        # Listing needs no schema: a collection whose file is damaged is still listed.
        check_collection_name(collection)
        if not self._collection_path(collection).exists():
            raise UnknownCollectionError(collection, tuple(self.collections()))
        found: list[tuple[str, dict[str, str]]] = []
        with os.scandir(self._root / "journals" / collection) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                name = f"{collection}/{entry.name.replace('+', '/')}"
                _, labels = parse_journal_name(name)
                if selector.accepts(labels):
                    found.append((name, labels))
        identities = (
            (name, find_identity(name, self.folder_of(name))) for name, _ in sorted(found)
        )
        labels_of = dict(found)
        return [
            Journal(name, collection, labels_of[name], identity)
            for name, identity in identities
            if identity is not None
        ]

    def probes(self, journals: Iterable[str]) -> dict[str, Probe]:
        found: dict[str, Probe] = {}
        for journal in journals:
            with contextlib.suppress(UnknownJournalError):
                found[journal] = self.probe(journal)
        return found

    def probe(self, journal: str) -> Probe:
        """A few microseconds, no lock."""
        if journal not in self._open:
            # Ten thousand journals are probed without opening each for good.
            probe = probe_head(journal, self.folder_of(journal), to_disk=self._to_disk)
            if probe is not None:
                return probe
        with self._journal(journal) as file:
            return file.probe()

    def append(
        self, journal: str, payloads: Sequence[Payload], ledger: ProducerLedger | None
    ) -> Appended:
        load = functools.partial(self._load, parse_journal_name(journal)[0])
        with self._journal(journal, create=load) as file:
            return file.append(
                payloads, ledger.check_open if ledger is not None else lambda: None, load
            )

    def sync(self, journal: str, through: int) -> None:
        with self._journal(journal) as file:
            file.sync(through)

    def read(
        self,
        journal: str,
        begin: int,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        fetch_bytes: int | None = None,  # noqa: ARG002 - a frame at a time
    ) -> Iterator[JournalBatch]:
        # The schema is loaded after the head is fixed: whatever is below the head is in it.
        with self._journal(journal) as file:
            head = file.probe().write_head
            collection = self._load(parse_journal_name(journal)[0])
            builder = BatchBuilder(journal, collection, columns)
            yield from file.read(begin, head if end is None else min(end, head), builder)

    def wait(self, journal: str, beyond: int, timeout_s: float) -> int:
        with self._journal(journal) as file:
            return file.wait(beyond, timeout_s)

    def ranges(self, journal: str, begin: int, end: int) -> list[Range]:
        with self._journal(journal) as file:
            return file.ranges(begin, end)

    def states(self, journal: str, at: int) -> tuple[int, States]:
        with self._journal(journal) as file:
            return file.states(at)

    def departures(
        self, journal: str, at: int
    ) -> Iterator[tuple[int, Mapping[int, ProducerState]]]:
        with self._journal(journal) as file:
            yield from file.departures(at)

    def drop_before(self, journal: str, offset: int) -> int:
        with self._journal(journal) as file:
            return file.drop_before(offset)

    def suspend(self, journal: str) -> None:
        with self._journal(journal) as file:
            file.suspend(functools.partial(self._load, parse_journal_name(journal)[0]))

    def journal_folders(self) -> dict[str, Path]:
        """Where the files of each journal are, also of collections that cannot be read."""
        return {
            f"{folder.parent.name}/{folder.name.replace('+', '/')}": folder
            for folder in sorted((self._root / "journals").glob("[!.]*/[!.]*"))
            if is_journal(folder)
        }

    def folder_of(self, journal: str) -> Path:
        collection, _, rest = journal.partition("/")
        if len(rest.encode()) > _COMPONENT_BYTES_MAX:
            raise ConfigurationError(
                f"journal name {journal[:60]!r}... is too long for this store: its partition "
                f"values take {len(rest.encode())} bytes of {_COMPONENT_BYTES_MAX}"
            )
        return self._root / "journals" / collection / rest.replace("/", "+")

    @contextlib.contextmanager
    def _journal(
        self, name: str, create: Callable[[], Collection] | None = None
    ) -> Iterator[JournalFile]:
        """The open journal, opened if need be, and not closed while it is borrowed."""
        journal = self._borrow(name, create)
        try:
            yield journal
        finally:
            self._give_back(journal)

    def _borrow(self, name: str, create: Callable[[], Collection] | None) -> JournalFile:
        journal = self._lent(name)
        if journal is not None:
            return journal
        # Without the lock: to open one may mean to wait for another process, and who needs other
        # journals of this store does not.
        folder = self.folder_of(name)
        if create is not None and not is_journal(folder):
            self._create_journal(name, folder, create)
        opened = JournalFile(
            name,
            folder,
            self._segment_bytes_max,
            to_disk=self._to_disk,
            registered=functools.partial(registered_producers, self._root),
        )
        return self._lent(name, opened) or opened

    def _lent(self, name: str, opened: JournalFile | None = None) -> JournalFile | None:
        """The open journal, if there is one; else the one that was just opened."""
        with self._lock:
            journal = self._open.get(name)
            if journal is not None and journal.is_gone:
                del self._open[name]
                if not self._in_use.get(journal):  # else who has borrowed it closes it
                    journal.close()
                journal = None
            if journal is None:
                if opened is None:
                    return None
                self._open[name] = journal = opened
            elif opened is not None:
                opened.close()  # another thread was faster
            self._open.move_to_end(name)
            self._in_use[journal] = self._in_use.get(journal, 0) + 1
            return journal

    def _create_journal(self, name: str, folder: Path, load: Callable[[], Collection]) -> None:
        with self._catalog_lock():
            if not is_journal(folder):
                JournalFile.create(name, folder, load())

    def _give_back(self, journal: JournalFile) -> None:
        """Closes the least recently used journals above the limit."""
        with self._lock:
            if journal not in self._in_use:
                return  # borrowed before a fork, and given back in the child
            self._in_use[journal] -= 1
            if not self._in_use[journal]:
                del self._in_use[journal]
                if self._open.get(journal.name) is not journal:
                    journal.close()  # another one has its name now, or the store is closed
            idle = [name for name, one in self._open.items() if one not in self._in_use]
            for victim in idle[: max(len(self._open) - JOURNALS_OPEN_MAX, 0)]:
                self._open.pop(victim).close()

    def _close_doubted(self) -> None:
        """Journals whose sync failed are opened anew, and so read back from the disk."""
        with self._lock:
            idle = [one for one in self._open.values() if one not in self._in_use]
            for journal in [one for one in idle if one.is_doubted]:
                self._open.pop(journal.name).close()

    # Producers

    def open_ledger(self, name: str | None) -> FileLedger:
        ledger = FileLedger.register(self._root, name)
        self._own[ledger.producer] = ledger
        return ledger

    @contextlib.contextmanager
    def naming(self, name: str) -> Iterator[None]:
        number = checksum(name.encode()) % NAMING_LOCKS
        with _file_locked(self._root / "producers" / f".lock-{number:02x}"):
            yield

    def ledgers(self) -> list[ProducerLedger]:
        return list(list_ledgers(self._root))

    def unsettled(self) -> list[ProducerLedger]:
        # What is settled stays so: each is looked at once.
        retired = {one: FileLedger(self._root, one) for one in ledgers_in(self._root, "retired")}
        self._settled &= retired.keys()
        self._settled |= {
            producer
            for producer, ledger in retired.items()
            if producer not in self._settled and ledger.is_settled()
        }
        return [retired[producer] for producer in sorted(retired.keys() - self._settled)]

    def note_abort(self, abort: Abort) -> Abort:
        with contextlib.suppress(CorruptStorageError):  # then this one takes its place
            known = find_abort(self._root, abort.producer)
            if known is not None and known.outcome is not None:
                return known
        write_abort(self._root, abort)
        return abort

    def aborts(self) -> list[Abort]:
        return list_aborts(self._root)

    def retire_dead(self) -> None:
        self._close_doubted()
        now_s = time.time()
        for producer in ledgers_in(self._root, "producers"):
            own = self._own.get(producer)
            if own is not None and own.is_open_here:
                continue
            ledger = FileLedger(self._root, producer)
            if ledger.is_dead():
                ledger.retire()
        for producer in ledgers_in(self._root, "retired"):
            FileLedger(self._root, producer).forget_if_old(now_s)


@contextlib.contextmanager
def _file_locked(path: Path) -> Iterator[None]:
    with explained("open", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with locked(descriptor):
            yield
    finally:
        os.close(descriptor)


def _reseal(path: Path, data: bytes, found: dict[str, Any]) -> None:
    """A file of a release before seals is rewritten, unless this process may only read."""
    if not is_sealed(data):
        with contextlib.suppress(OSError):
            replace_file(path, sealed_json(found))


def parse_marker(name: str, data: bytes) -> dict[str, Any]:
    """What `penstock.json` says. The name is for the error."""
    return unsealed_json(name, data, _OLD_MARKER, _MARKER_WAY_OUT)


def parse_collection(name: str, text: bytes) -> Collection:
    """What a collection's file says. The name is for the error."""
    try:
        return Collection.from_json(unsealed_json(name, text, _OLD_COLLECTION, _COLLECTION_WAY_OUT))
    except (ConfigurationError, KeyError, TypeError) as error:
        raise DamagedFileError(
            name, f"it does not describe a collection ({error})", _COLLECTION_WAY_OUT
        ) from None
