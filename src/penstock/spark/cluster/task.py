"""What a task of the barrier job does: it joins, is told which member it is, and is that one. When
a session ends in order, it is a member of the next: so the queue stays where it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark import BarrierTaskContext

from penstock.shuffle.crew import LOOPBACK
from penstock.shuffle.member_messages import Over, encode_message
from penstock.shuffle.process_member import run_member
from penstock.shuffle.serving import this_machine
from penstock.spark.cluster.joining import Joining, join
from penstock.spark.cluster.places import feed_folders, held_queues, local_directories

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.spark.cluster.joining import Ticket


def run_task(ticket: Ticket, _: Iterable[int]) -> Iterator[int]:
    context = BarrierTaskContext.get()
    place = context.partitionId()
    if ticket.folder:
        folders = [ticket.folder]
    else:
        directories = local_directories(os.environ, ticket.local_directories)
        folders = feed_folders(ticket.feed, directories)
    host = LOOPBACK if ticket.is_local else _host(context.getTaskInfos()[place].address)
    wire = join(
        ticket,
        Joining(
            host,
            this_machine(),
            os.getpid(),
            folders[place % len(folders)],
            held_queues(folders),
        ),
    )
    while (given := wire.recv()) is not None:
        run_member(given, wire)
        wire.send_bytes(encode_message(Over()))
    wire.close()
    return iter(())


def _host(address: str) -> str:
    """Of the executor, as Spark knows it: with a port, mostly."""
    host, colon, port = address.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else address
