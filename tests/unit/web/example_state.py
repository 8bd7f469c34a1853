"""A feed's state as the watch writes it, for tests of the views alone. Run as a program, it plays a
feed in a folder, so that the page can be looked at without one."""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
REGIONS = ("eu", "us", "apac", "latam", "mea", "uk", "nordics", "dach")


def example_state(now: float = 1_800_000_000.0, members: int = 2, **changes: Any) -> dict[str, Any]:
    """A healthy feed with two lanes; what is given takes the place of its parts."""

    def wave(seconds: float, shift: float) -> float:
        return math.sin((now - seconds) / 23 + shift) + 0.3 * math.sin((now - seconds) / 5 + shift)

    rate = 42_000 + 6_000 * wave(0, 0)
    numbers = range(1, members + 1)
    state: dict[str, Any] = {
        "format": 1,
        "feed": "orders",
        "store": "file:///data/journals",
        "folder": "/data/journals/feeds/orders",
        "process": os.getpid(),
        "host": socket.gethostname(),
        "started": now - 4_000,
        "written": now,
        "phase": "running",
        "reason": None,
        "verdict": "healthy",
        "explanation": [
            f"All is well: {rate:,.0f} rows a second are read and 1,204 are still to be read.",
            "Epoch 812 was committed 0.4 s ago.",
        ],
        "advice": [],
        "waits": [
            {
                "kind": "read_delay",
                "who": "lane 1",
                "since": now - 2,
                "is_stall": False,
                "text": "Rows of payments are held back until they are 5 s old.",
                "advice": None,
                "facts": {"binding": 1, "delay_seconds": 5.0},
            },
            {
                "kind": "read_delay",
                "who": "lane 1",
                "since": now - 3,
                "is_stall": False,
                "text": "Rows of refunds are held back until they are 5 s old.",
                "advice": None,
                "facts": {"binding": 2, "delay_seconds": 5.0},
            },
        ],
        "restarts": {
            "count": 1,
            "events": [
                {
                    "at": now - 900,
                    "reason": "the process of member 2 was killed by SIGKILL",
                    "member": 2,
                    "recovered": now - 898.2,
                }
            ],
        },
        "bindings": [
            {"binding": 0, "collection": "orders", "priority": 1, "lane": 0, "cohort": 0,
             "delay_seconds": 0.0},
            {"binding": 1, "collection": "payments", "priority": 0, "lane": 1, "cohort": 1,
             "delay_seconds": 5.0},
        ],
        "members": [
            {
                "member": member,
                "process": 4_000 + member,
                "host": socket.gethostname(),
                "heard": now - 0.1,
                "vnodes": 256 // members,
                "slices": [
                    {
                        "lane": lane,
                        "reads": 4,
                        "rows_read": int(now - 1_799_990_000) * 1_000,
                        "rows_behind": 600 if lane else 2,
                        "buffered_bytes": 3_400_000,
                        "rows_per_second": rate / members * (0.8, 0.2)[lane],
                        "to": [
                            {
                                "member": to,
                                "rows_per_second": rate / members**2 * (0.8, 0.2)[lane],
                                "credit_free": 0.35 if (member, to, lane) == (2, 1, 0) else 0.92,
                            }
                            for to in numbers
                        ],
                    }
                    for lane in (0, 1)
                ],
                "queue": {
                    "rows": 1_000_000,
                    "waiting_rows": 312,
                    "lsn": 65_537,
                    "rows_per_second": rate / members,
                    "disk": {
                        "size_bytes": int((1.2 + 0.9 * member) * GIB),
                        "limit_bytes": 4 * GIB,
                        "is_pressed": False,
                        "overdrawn_bytes": 0,
                    },
                },
            }
            for member in numbers
        ],
        "journals": {
            "count": 38,
            "shown": [
                {
                    "journal": f"{'payments' if n % 2 else 'orders'}/region={region}",
                    "binding": n % 2,
                    "member": n % members + 1,
                    "lane": n % 2,
                    "offset": 10_000 * n,
                    "head": 10_000 * n + 900 - 100 * n,
                    "rows_behind": 900 - 100 * n,
                    "clock": now - 1,
                    "rows_per_second": 2_000.0 + 400 * n,
                }
                for n, region in enumerate(REGIONS)
            ],
        },
        "transactions": {
            "count": 2,
            "shown": [
                {
                    "producer": "01a2b3c4d5e6",
                    "since": now - 34,
                    "cohort": 0,
                    "touched": ["orders/region=eu", "payments/region=eu"],
                    "awaited": ["payments/region=eu"],
                    "hinted_by": "orders/region=eu",
                    "rows": 1_250,
                    "bytes": 480_000,
                    "holds_up": False,
                },
                {
                    "producer": "01a2b3c4d5e6",
                    "since": now - 33,
                    "cohort": 1,
                    "touched": ["refunds/region=eu"],
                    "awaited": [],
                    "hinted_by": None,
                    "rows": 10,
                    "bytes": 4_000,
                    "holds_up": False,
                },
            ],
        },
        "epochs": [
            {
                "number": 812 - back,
                "verdict": "abort" if back == 31 else "commit",
                "began": now - 1.02 * back - 0.5,
                "captured_seconds": 0.012 + 0.004 * abs(wave(back, 1)),
                "prepared_seconds": 0.035 + 0.012 * abs(wave(back, 2)),
                "total_seconds": 0.06 + 0.02 * abs(wave(back, 1.5)),
                "aligned": back % 17 != 3,
                "last_member": 1 + back % members,
                "waits_for": [],
                "rows": int(rate + 900 * wave(back, 3)),
                "reason": "member 2 did not prepare within 30 s" if back == 31 else None,
                "watermark": now - back - 1.3,
            }
            for back in range(79, -1, -1)
        ],
        "watermark": {"clock": now - 1.3, "held_by": {"journal": "orders/region=eu", "member": 1}},
        "consumer": {
            "kind": "spark",
            "consumed": 811,
            "newest": 812,
            "since": now - 0.4,
            "rows_per_second": 9_800.0,
        },
        "recovery": None,
        "vnodes": [vnode % members + 1 for vnode in range(256)],
        "history": {
            "seconds": [now - back for back in range(599, -1, -1)],
            "rows_per_second": [42_000 + 6_000 * wave(back, 0) for back in range(599, -1, -1)],
            "rows_behind": [int(1_800 + 900 * wave(back, 2)) for back in range(599, -1, -1)],
            "watermark_lag_seconds": [1.6 + 0.5 * wave(back, 1) for back in range(599, -1, -1)],
            "disk_bytes": [int((4 + wave(back, 4)) * GIB) for back in range(599, -1, -1)],
        },
    }  # fmt: skip
    return state | changes


def example_spark(now: float = 1_800_000_000.0) -> dict[str, Any]:
    return {
        "format": 1,
        "batches": [
            {
                "batch": 400 - back,
                "at": now - 1.1 * back,
                "rows": 42_000,
                "epoch": 812 - back,
                "milliseconds": {
                    "latestOffset": 40 + back % 7,
                    "queryPlanning": 25,
                    "walCommit": 18,
                    "addBatch": 420 + 60 * (back % 5),
                    "commitOffsets": 20,
                    "triggerExecution": 530 + 60 * (back % 5) + back % 7,
                },
            }
            for back in range(59, -1, -1)
        ],
    }


def put(folder: Path, state: dict[str, Any], name: str = "state.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}"
    temporary.write_text(json.dumps(state))
    temporary.rename(folder / name)


def hold_lock(folder: Path) -> int:
    """As a feed that runs does."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _play(folder: Path) -> None:
    hold_lock(folder)
    while True:
        put(folder, example_state(time.time()))
        put(folder, example_spark(time.time()), "spark.json")
        time.sleep(0.5)


if __name__ == "__main__":
    _play(Path(sys.argv[1]))
