"""A program that a test kills: starts a shuffle with so many members, as long as it is let.

    python rescale_program.py STORE FOLDER MEMBERS PLAN

PLAN is a file with the step at which it is killed (`tests/crashing.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import penstock as ps
from penstock.shuffle import handover
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from tests.crashing import arm

FEED = Feed("sales", (Binding("orders"), Binding("payments"), Binding("audits", priority=1)))
"""Two lanes, and a cohort of two bindings."""


def main() -> None:
    url, folder, members, plan = sys.argv[1:]
    arm(plan, handover)
    with ps.open_store(url, create=False) as store:
        EmbeddedShuffle(FEED, store, Path(folder), members=int(members)).start().close()


if __name__ == "__main__":
    main()
