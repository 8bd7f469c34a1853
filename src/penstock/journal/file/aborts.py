"""Who aborted which producer's transaction by hand: a sealed file for each, kept for good."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from penstock.disk import make_folder
from penstock.ids import Producer
from penstock.journal.file.durable import replace_file
from penstock.journal.writable import Abort
from penstock.sealed import DamagedFileError, sealed_line, unsealed_line

if TYPE_CHECKING:
    from pathlib import Path

ABORTS_FOLDER: Final = "aborts"

log = logging.getLogger(__name__)


def write_abort(root: Path, abort: Abort) -> None:
    folder = root / ABORTS_FOLDER
    make_folder(folder)
    data = asdict(abort) | {"producer": str(abort.producer)}
    replace_file(folder / str(abort.producer), sealed_line(data))


def find_abort(root: Path, producer: Producer) -> Abort | None:
    return _read(root / ABORTS_FOLDER / str(producer))


def list_aborts(root: Path) -> list[Abort]:
    """The newest first. One whose note is damaged is passed over, and logged."""
    found = []
    for path in (root / ABORTS_FOLDER).glob("[!.]*"):
        try:
            found.append(_read(path))
        except DamagedFileError as damage:
            log.warning("%s", damage)
    return sorted((one for one in found if one is not None), key=lambda one: -one.at)


def _read(path: Path) -> Abort | None:
    try:
        data = unsealed_line(str(path), path.read_bytes())
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
