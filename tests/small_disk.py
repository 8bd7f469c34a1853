"""A file system that is soon full, and seen by nobody else: for scripts that fill it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def _can_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_small_disk = pytest.mark.skipif(
    not _can_mount(), reason="may not mount a small file system here"
)


def run_on_small_disk(folder: Path, size: str, script: str) -> list[str]:
    """The lines that a Python script prints. The small file system is its argument."""
    program, mounted = folder / "script.py", folder / "small"
    program.write_text(script)
    mounted.mkdir()
    shell = (
        f"mount -t tmpfs -o size={size} none {mounted} && exec {sys.executable} {program} {mounted}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
