"""`python -m tests.chaos_kafka --seconds 600 --seed 7`: tells what it does, and whether all was
well."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.processes import new_mark
from tests.chaos.reporting import report, run
from tests.chaos.schedule import KAFKA_DECK, Fault, make_schedule
from tests.chaos_kafka.harness import KafkaChaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos_kafka", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long things go wrong")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule")
    parser.add_argument("--local", action="store_true", help="no cluster: all in local[2]")
    names = [fault.value for fault in dict.fromkeys(KAFKA_DECK)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these faults")
    options = parser.parse_args()
    faults = {Fault(name) for name in options.only}
    if options.local:
        faults -= {Fault.WORKER, Fault.MEMBER}
    folder = Path(tempfile.mkdtemp(prefix="chaos-kafka-"))
    (folder / "tmp").mkdir()
    schedule = make_schedule(options.seed, options.seconds, faults, KAFKA_DECK)
    report(f"seed {options.seed}, {options.seconds:g} s, in {folder}", *map(str, schedule), "")
    chaos = KafkaChaos(folder, new_mark(), options.seed, with_cluster=not options.local)
    run(chaos, schedule, options.seconds, folder)
    report("every committed row and total once, every transaction whole, nothing left behind")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
