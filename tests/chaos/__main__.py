"""`python -m tests.chaos --seconds 600 --seed 7`: tells what it does, and whether all was well.

A small file system for the feeds is mounted where that is allowed, in a space of this run's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.embedded import FEEDS, EmbeddedChaos
from tests.chaos.processes import new_mark
from tests.chaos.reporting import report, run
from tests.chaos.schedule import DECK, Fault, make_schedule

APART = "PENSTOCK_CHAOS_APART"
"""Set in a process that has mounts of its own."""
DISK = "size=128m"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long things go wrong")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule")
    parser.add_argument("--local", action="store_true", help="no cluster: all in local[2]")
    names = [fault.value for fault in dict.fromkeys(DECK)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these faults")
    options = parser.parse_args()
    if APART not in os.environ and _can_mount():
        os.environ[APART] = "1"
        command = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--mount", *command])

    faults = {Fault(name) for name in options.only}
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    (folder / FEEDS).mkdir()
    (folder / "tmp").mkdir()
    if APART in os.environ:
        mount = ["mount", "-t", "tmpfs", "-o", DISK, "none", str(folder / FEEDS)]
        subprocess.run(mount, check=True)
    else:
        faults -= {Fault.DISK}
    if options.local:
        faults -= {Fault.WORKER, Fault.MEMBER}
    schedule = make_schedule(options.seed, options.seconds, faults)
    report(f"seed {options.seed}, {options.seconds:g} s, in {folder}", *map(str, schedule), "")

    mark = new_mark()
    chaos = EmbeddedChaos(folder, mark, options.seed, with_cluster=not options.local)
    run(chaos, schedule, options.seconds, folder)
    report("every document once in the table, every total right, nothing left behind")
    _remove(folder)
    return 0


def _can_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _remove(folder: Path) -> None:
    if APART in os.environ:
        subprocess.run(["umount", str(folder / FEEDS)], check=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
