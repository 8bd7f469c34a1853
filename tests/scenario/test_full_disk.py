"""A disk that is really full: appends are refused in plain words, nothing is lost or half written,
and once there is room everything goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.small_disk import needs_small_disk, run_on_small_disk

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
from collections import Counter
from pathlib import Path

from penstock.errors import CommitFailedError, PenstockError
from penstock.journal import Collection, open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents

folder = Path(sys.argv[1])
ballast = folder / "ballast"
ballast.write_bytes(bytes(300_000))
store = open_store(folder / "store")
for name in ("orders", "payments"):
    store.create(Collection.define(name, "id BIGINT NOT NULL, text STRING", "id"))


def seen():
    found = {}
    for name in ("orders", "payments"):
        (cut,) = take_cut(store, [f"{name}/000"])
        found[name] = Counter(
            id_
            for part in read_documents(store, cut)
            for id_ in part.documents.column("id").to_pylist()
        )
    return found


producer = store.producer()
producer.append("payments", {"id": -1, "text": ""})
kept = []
for number in range(1_000):
    try:
        producer.append("orders", {"id": number, "text": "x" * 20_000})
    except PenstockError as error:
        print(f"append: {error}")
        break
    kept.append(number)
assert 5 < len(kept) < 1_000, len(kept)
assert seen()["orders"] == Counter(kept), "what was acknowledged, and no more"

failed = None
try:
    with producer.transaction() as transaction:
        transaction.append("payments", {"id": 5_000, "text": "fits"})
        transaction.append("orders", {"id": 5_000, "text": "x" * 20_000})
except PenstockError as error:
    failed = error
    print(f"transaction: {error}")
assert failed is not None
assert seen()["orders"] == Counter(kept)
assert seen()["payments"] == Counter([-1])

ballast.unlink()
store.recover()
with store.producer() as another, another.transaction() as transaction:
    for name in ("orders", "payments"):
        transaction.append(name, {"id": 6_000, "text": "x" * 20_000})
found = seen()
assert found["orders"] == Counter([*kept, 6_000]), found["orders"]
assert found["payments"] == Counter([-1, 6_000]), found["payments"]
print("it goes on")
"""


@needs_small_disk
def test_a_full_file_system(tmp_path: Path) -> None:
    lines = run_on_small_disk(tmp_path, "900k", SCRIPT)
    assert "cannot append: No space left on device" in lines[0]
    assert "make room on the disk" in lines[0]
    assert lines[1].startswith("transaction: ")
    assert lines[2] == "it goes on"
