"""The store over plain files: collections, journals and producers under one folder."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from penstock.disk import make_folder, sync_folder
from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.journal.collection import Collection, check_collection_name
from penstock.journal.errors import UnknownCollectionError
from penstock.journal.file.aborts import find_abort, list_aborts, write_abort
from penstock.journal.file.durable import locked, replace_file
from penstock.journal.file.forks import let_go_at_fork
from penstock.journal.file.journal import JournalFile, probe_head
from penstock.journal.file.ledger import LEDGER_FOLDERS, FileLedger, list_ledgers
from penstock.journal.file.repair import is_journal
from penstock.journal.file.segment import BatchBuilder
from penstock.journal.names import EVERYTHING, Selector, parse_journal_name
from penstock.journal.opened import OpenStore
from penstock.journal.store import (
    Abort,
    Appended,
    Journal,
    JournalBatch,
    Probe,
    ProducerLedger,
    Range,
    States,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.journal.frames import Payload

FORMAT_VERSION: Final = 1
DURABILITIES: Final = ("synced", "buffered")
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
JOURNALS_OPEN_MAX: Final = 200
"""Each open journal holds three file descriptors; systems allow 1,024 or so by default."""
_COMPONENT_BYTES_MAX: Final = 255
"""The longest name that common filesystems take."""


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
        self._in_use: dict[str, int] = {}
        self._lock = threading.RLock()
        self._collections: dict[str, tuple[tuple[int, int, int], Collection]] = {}
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
            replace_file(marker, json.dumps(made).encode())
        found = _parse_json(marker.name, marker.read_bytes())
        if found.get("format") != FORMAT_VERSION:
            raise ConfigurationError(
                f"{self.url} has store format {found.get('format')}, and this Penstock reads "
                f"{FORMAT_VERSION}"
            )
        kept = found.get("durability")
        if kept not in DURABILITIES:
            raise CorruptStorageError(f"{marker.name} says durability {kept!r}; restore it")
        if durability not in (None, kept):
            raise ConfigurationError(
                f"{self.url} was made with durability {kept!r}, for all who open it; open it "
                f"without saying {durability!r}, or make another store"
            )
        for part in ("collections", "journals", *LEDGER_FOLDERS):
            (self._root / part).mkdir(exist_ok=True)
        sync_folder(self._root)  # also if they were there: whoever made them may have died first
        return str(kept)

    def let_go_after_fork(self) -> None:
        inherited = list(self._open.values())
        self._open, self._in_use, self._lock = OrderedDict(), {}, threading.RLock()
        for journal in inherited:
            journal.close()

    def close(self) -> None:
        with self._lock:
            for journal in self._open.values():
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
            replace_file(path, json.dumps(collection.to_json(), indent=2).encode())
        return self._load(collection.name)

    def evolve(self, name: str, schema: pa.Schema | str) -> Collection:
        with self._catalog_lock():
            evolved = self._load(name).evolve(schema)
            path = self._collection_path(name)
            replace_file(path, json.dumps(evolved.to_json(), indent=2).encode())
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
            text = path.read_bytes()
        except FileNotFoundError:
            raise UnknownCollectionError(name, tuple(self.collections())) from None
        loaded = parse_collection(path.name, text)
        self._collections[name] = (stamp, loaded)
        return loaded

    @contextlib.contextmanager
    def _catalog_lock(self) -> Iterator[None]:
        """Held while collections or journals are created, against all processes."""
        with _file_locked(self._root / "collections" / ".lock"):
            yield

    # Journals

    def journals(self, collection: str, selector: Selector = EVERYTHING) -> list[Journal]:
        self._load(collection)
        found = []
        with os.scandir(self._root / "journals" / collection) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                name = f"{collection}/{entry.name.replace('+', '/')}"
                _, labels = parse_journal_name(name)
                if selector.accepts(labels):
                    found.append(Journal(name, collection, labels))
        return sorted(
            (journal for journal in found if is_journal(self._folder(journal.name))),
            key=lambda journal: journal.name,
        )

    def probe(self, journal: str) -> Probe:
        if journal not in self._open:
            # Ten thousand journals are probed without opening each for good.
            probe = probe_head(journal, self._folder(journal))
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
        self, journal: str, begin: int, end: int | None = None, columns: Sequence[str] | None = None
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

    def drop_before(self, journal: str, offset: int) -> int:
        with self._journal(journal) as file:
            return file.drop_before(offset)

    def suspend(self, journal: str) -> None:
        with self._journal(journal) as file:
            file.suspend(functools.partial(self._load, parse_journal_name(journal)[0]))

    def _folder(self, journal: str) -> Path:
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
            self._give_back(name)

    def _borrow(self, name: str, create: Callable[[], Collection] | None) -> JournalFile:
        with self._lock:
            journal = self._open.get(name)
            if journal is not None and not self._in_use.get(name) and journal.is_gone:
                self._open.pop(name).close()
                journal = None
            if journal is None:
                folder = self._folder(name)
                if create is not None and not is_journal(folder):
                    self._create_journal(name, folder, create)
                journal = JournalFile(name, folder, self._segment_bytes_max, to_disk=self._to_disk)
                self._open[name] = journal
            self._open.move_to_end(name)
            self._in_use[name] = self._in_use.get(name, 0) + 1
            return journal

    def _create_journal(self, name: str, folder: Path, load: Callable[[], Collection]) -> None:
        with self._catalog_lock():
            if not is_journal(folder):
                JournalFile.create(name, folder, load())

    def _give_back(self, name: str) -> None:
        """Closes the least recently used journals above the limit."""
        with self._lock:
            if name not in self._in_use:
                return  # borrowed before a fork, and given back in the child
            self._in_use[name] -= 1
            idle = [name for name in self._open if not self._in_use.get(name)]
            for victim in idle[: max(len(self._open) - JOURNALS_OPEN_MAX, 0)]:
                self._open.pop(victim).close()
                self._in_use.pop(victim, None)

    # Producers

    def open_ledger(self, name: str | None) -> FileLedger:
        return FileLedger.register(self._root, name)

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        with _file_locked(self._root / "producers" / ".lock"):
            yield

    def ledgers(self) -> list[ProducerLedger]:
        return list(list_ledgers(self._root))

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
        now_s = time.time()
        for ledger in list_ledgers(self._root):
            if ledger.is_dead():
                ledger.retire()
            ledger.forget_if_old(now_s)


@contextlib.contextmanager
def _file_locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with locked(descriptor):
            yield
    finally:
        os.close(descriptor)


def parse_collection(name: str, text: bytes) -> Collection:
    """What a collection's file says. The name is for the error."""
    try:
        return Collection.from_json(_parse_json(name, text))
    except (ConfigurationError, KeyError, TypeError) as error:
        raise CorruptStorageError(
            f"{name} does not describe a collection ({error}); restore it"
        ) from None


def _parse_json(name: str, text: bytes) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CorruptStorageError(f"{name} is not readable JSON ({error}); restore it") from None
    if not isinstance(data, dict):
        raise CorruptStorageError(f"{name} does not hold a JSON object; restore it")
    return data
