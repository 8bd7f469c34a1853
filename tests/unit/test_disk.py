"""Folders are synced so that a failed sync is not believed the next time."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from penstock.disk import DiskDamagedError, make_folder, sync_folder

if TYPE_CHECKING:
    from pathlib import Path


class Kernel:
    """Writes a folder's names when it is synced and has changed since; a sync that fails drops what
    it should have written, as Linux may. `durable` is what a power cut would leave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = False
        self.durable: dict[int, list[str]] = {}
        self._clean_since: dict[int, int] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        is_changed = self._clean_since.get(found.st_ino) != found.st_mtime_ns
        self._clean_since[found.st_ino] = found.st_mtime_ns
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        if is_changed:
            self.durable[found.st_ino] = os.listdir(descriptor)


def test_a_name_whose_sync_failed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch)
    inode = tmp_path.stat().st_ino
    sync_folder(tmp_path)
    (tmp_path / "segment").touch()
    kernel.fails = True
    for _ in range(3):
        with pytest.raises(DiskDamagedError):
            sync_folder(tmp_path)
    assert kernel.durable[inode] == []
    kernel.fails = False
    sync_folder(tmp_path)
    assert kernel.durable[inode] == ["segment"], "it succeeds, and means it"
    before = tmp_path.stat().st_mtime_ns
    sync_folder(tmp_path)
    assert tmp_path.stat().st_mtime_ns == before, "a folder that can be trusted is not changed"


def test_a_folder_whose_making_was_not_synced_is_made_durable_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch)
    kernel.fails = True
    with pytest.raises(DiskDamagedError):
        make_folder(tmp_path / "journal")
    kernel.fails = False
    make_folder(tmp_path / "journal")
    assert kernel.durable[tmp_path.stat().st_ino] == ["journal"]
