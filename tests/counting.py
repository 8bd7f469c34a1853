"""A store that counts what is read of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class CountingStore:
    """The rows and bytes that Slices have read of each journal, and from which offset on."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.rows: Counter[str] = Counter()
        self.bytes_read = 0
        self.begins: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(
        self, journal: str, begin: int, end: int | None = None, **options: Any
    ) -> Iterator[Any]:
        if "columns" in options:  # of some columns: what a target asks for, and no Slice
            yield from self._store.read(journal, begin, end, **options)
            return
        for batch in self._store.read(journal, begin, end, **options):
            self.rows[journal] += batch.rows
            self.bytes_read += batch.documents.nbytes
            self.begins[journal] = min(int(batch.offsets[0]), self.begins.get(journal, 2**62))
            yield batch
