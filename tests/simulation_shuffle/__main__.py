"""Runs seeds, or tells the story of one: `python -m tests.simulation_shuffle --seed 7 --trace`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.simulation.seeds import fresh_seed
from tests.simulation_shuffle import kafka_run
from tests.simulation_shuffle.run import run
from tests.simulation_shuffle.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation_shuffle", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="run this many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="begin at a seed nobody has tried")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="tell the story of --seed")
    parser.add_argument("--shrink", action="store_true", help="tell the smallest story that fails")
    parser.add_argument("--kafka", action="store_true", help="over a Kafka")
    options = parser.parse_args()
    play = kafka_run.run if options.kafka else run
    first = fresh_seed() if options.fresh else options.first
    seeds = range(first, first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    counts: Counter[str] = Counter()
    failed = 0
    for seed in seeds:
        result = play(seed, tracing=options.trace)
        counts += result.counts
        _print(*result.trace)
        if result.violation is not None:
            failed += 1
            _print(f"seed {seed}: {result.violation}")
            if options.shrink:
                script, runs = shrink(result, play=play)
                _print(f"{len(result.script)} choices, {len(script)} of them needed ({runs} runs):")
                _print(*play(script=script, tracing=True).trace, repr(script))
    _print(*(f"{count:8}  {what}" for what, count in sorted(counts.items())))
    _print(f"{len(seeds)} seeds from {seeds.start} on, {failed} failed")
    return 1 if failed else 0


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
