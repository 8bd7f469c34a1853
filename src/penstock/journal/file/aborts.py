"""Who aborted which producer's transaction by hand: a sealed file for each, kept for good."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from penstock.disk import make_folder
from penstock.ids import Producer
from penstock.journal.file.durable import replace_file
from penstock.journal.file.sealed import sealed, unsealed
from penstock.journal.store import Abort

if TYPE_CHECKING:
    from pathlib import Path

ABORTS_FOLDER: Final = "aborts"


def write_abort(root: Path, abort: Abort) -> None:
    folder = root / ABORTS_FOLDER
    make_folder(folder)
    data = asdict(abort) | {"producer": str(abort.producer)}
    replace_file(folder / str(abort.producer), sealed(data))


def find_abort(root: Path, producer: Producer) -> Abort | None:
    return _read(root / ABORTS_FOLDER / str(producer))


def list_aborts(root: Path) -> list[Abort]:
    """The newest first."""
    found = (_read(path) for path in (root / ABORTS_FOLDER).glob("[!.]*"))
    return sorted((one for one in found if one is not None), key=lambda one: -one.at)


def _read(path: Path) -> Abort | None:
    try:
        data = unsealed(f"{path.parent.name}/{path.name}", path.read_bytes())
    except FileNotFoundError:
        return None
    return Abort(
        Producer.from_hex(data["producer"]),
        data["name"],
        data["at"],
        data["by"],
        tuple(data["journals"]),
        data["outcome"],
    )
