"""What it costs to be watched: the shuffle of `bench shuffle` with a page open and metrics scraped
every second, beside the same with nobody looking.

The page's server is a process of its own, as `penstock web` runs it; another process has a stream
of events open, as a page does, and scrapes. Feeds write their state in both cases: that they do is
part of the shuffle. Both kinds of runs take turns, over the same backlog.

`observe.clock`: documents per second. `observe.processor`: documents per second of processor time;
of the watched runs, that of the server counts, too. Where others work on the machine, this is the
one to look at. The goal is a ratio of 0.98.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.report import Line
from bench.shuffle import Backlog
from bench.shuffle_peers import Took, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event

SCRAPE_SECONDS: Final = 1.0
ANSWER_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sizes:
    documents: int = 5_000_000
    """Some ten seconds of work: a run should be looked at several times."""
    rounds: int = 5


def run(sizes: Sizes | None = None) -> Iterator[Line]:
    sizes = sizes or Sizes()
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd())
        folder = Path(stack.enter_context(made))
        backlog = Backlog(stack, folder, "observed", sizes.documents)
        backlog.run()  # the first one pays for what the others find in memory
        rounds = []
        for number in range(sizes.rounds):
            # Whoever comes second has it easier, or harder: they change places.
            if number % 2:
                alone = backlog.run()
                rounds.append((_watched(folder, backlog), alone))
            else:
                watched = _watched(folder, backlog)
                rounds.append((watched, backlog.run()))
    for kind, name in (("seconds", "observe.clock"), ("processor_seconds", "observe.processor")):
        yield Line.of_rounds(
            name,
            [sizes.documents / getattr(watched, kind) for watched, _ in rounds],
            [sizes.documents / getattr(alone, kind) for _, alone in rounds],
            "documents/s",
        )


def _watched(folder: Path, backlog: Backlog) -> Took:
    with _server(folder) as (process, base, token), _page(base, token):
        server = Watch([process])
        took = backlog.run()
        return Took(took.seconds, took.processor_seconds + server.took().processor_seconds)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[tuple[int, str, str]]:
    command = [str(Path(sys.executable).with_name("penstock")), "web", str(folder)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        if process.stdout is None:
            raise RuntimeError("its output is not read")
        told = json.loads(process.stdout.readline())
        yield process.pid, told["base"], told["token"]
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _page(base: str, token: str) -> Iterator[None]:
    """Somebody who looks, and must have seen something."""
    context = multiprocessing.get_context("spawn")
    stopping, failed = context.Event(), context.Event()
    process = context.Process(target=_look, args=(base, token, stopping, failed), daemon=True)
    process.start()
    try:
        yield
    finally:
        stopping.set()
        process.join(ANSWER_SECONDS_MAX)
    if failed.is_set() or process.exitcode:
        raise RuntimeError("the page did not get what it should have")


def _look(base: str, token: str, stopping: Event, failed: Event) -> None:
    def asked(path: str) -> urllib.request.Request:
        return urllib.request.Request(base + path, headers={"Authorization": f"Bearer {token}"})

    scraped = shown = 0
    next_scrape = time.monotonic()
    try:
        with urllib.request.urlopen(asked("/events"), timeout=ANSWER_SECONDS_MAX) as stream:
            while not stopping.is_set():
                if stream.readline().startswith(b"data: "):
                    shown += 1
                if time.monotonic() >= next_scrape:
                    next_scrape += SCRAPE_SECONDS
                    with urllib.request.urlopen(asked("/metrics"), timeout=5) as answer:
                        scraped += b"penstock_queue_rows_total" in answer.read()
    except OSError:
        failed.set()
    if not scraped or not shown:
        failed.set()
