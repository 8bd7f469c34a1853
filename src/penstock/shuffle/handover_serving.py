"""Vnodes that change hands between machines: the rows come over Arrow Flight, as a reader's do.

Every member that has queues of the last epoch on its machine serves them, its own and those of
members that left, before it takes anything itself: so nobody waits for anybody in a ring. Where it
serves them stands in its slot of the key-value store.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import flight

from penstock.errors import LocalProtocolError, PeerUnavailableError
from penstock.shuffle.flights import TokenServer, connect
from penstock.shuffle.handover import source_of
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.serving import SCHEMA, decode_found, encode_found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.directory.keyvalue import KeyValue
    from penstock.frontier import Frontier
    from penstock.shuffle.handover import Handover, Left
    from penstock.shuffle.queue.reader import QueueBatch
    from penstock.transport.security import Security

KEY: Final = "shuffle:handover"
FIND_SECONDS_MAX: Final = 100.0
"""Until members know of each other: a moment, once the slowest of the processes is there."""


class HandoverServer(TokenServer):
    """Gives what is needed of the queues on this machine, from its making to `close`."""

    def __init__(
        self, left: Left, handover: Handover, security: Security, host: str, token: str
    ) -> None:
        super().__init__(security, host, token)
        self._left = left
        self._handover = handover

    def announce(self, keyvalue: KeyValue) -> None:
        found = {"location": self.location, "queues": sorted(self._handover.queues)}
        keyvalue.write(KEY, json.dumps(found))

    def do_get(self, _: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        asked: dict[str, Any] = json.loads(self.admitted(ticket.ticket))
        return flight.GeneratorStream(SCHEMA, self._rows(asked["giver"], asked["vnodes"]))

    def close(self) -> None:
        self.shutdown()

    def _rows(self, giver: int, vnodes: list[int]) -> Iterator[pa.RecordBatch]:
        source = source_of(self._left, self._handover, giver)
        consumed = self._left.record().consumed.frontier
        for _, found in source.alive(consumed, vnodes):
            yield encode_found(found)


class FarQueues:
    """The queues on other machines, for who takes vnodes over from them."""

    def __init__(self, keyvalue: KeyValue, security: Security, token: str) -> None:
        self._keyvalue = keyvalue
        self._security = security
        self._token = token

    def source(self, giver: int) -> FarSource:
        location, server = self._find(giver)
        if self._security.credentials is None:
            raise LocalProtocolError("queues are read with TLS only, and it is off")
        client = connect(location, server, self._security.credentials.load())
        return FarSource(client, self._token, giver)

    def _find(self, giver: int) -> tuple[str, int]:
        deadline = time.monotonic() + FIND_SECONDS_MAX
        with self._keyvalue.watch(KEY) as watch:
            while True:
                for member, said in sorted(self._keyvalue.scan(KEY).items()):
                    found: dict[str, Any] = json.loads(said)
                    if giver in found["queues"]:
                        return found["location"], member
                if not watch.wait(max(0.0, deadline - time.monotonic())):
                    self._keyvalue.check()
                    raise PeerUnavailableError(
                        f"nobody serves the queue of member {giver} within {FIND_SECONDS_MAX:g} s"
                    )


class FarSource:
    """What a `Source` does, for a queue on another machine."""

    def __init__(self, client: flight.FlightClient, token: str, giver: int) -> None:
        self._client = client
        self._token = token
        self._giver = giver

    def alive(
        self,
        consumed: Frontier,  # noqa: ARG002 - who serves it knows
        vnodes: Iterable[int],
    ) -> Iterator[tuple[int, QueueBatch]]:
        asked = json.dumps({"giver": self._giver, "vnodes": list(vnodes)})
        ticket = flight.Ticket(self._token.encode() + b"\n" + asked.encode())
        index, lsn = 0, 0
        try:
            for chunk in self._client.do_get(ticket):
                if chunk.data is None:
                    continue
                for found in decode_found(chunk.data):
                    index += found.lsn != lsn
                    lsn = found.lsn
                    yield index, found
        except (flight.FlightUnavailableError, flight.FlightTimedOutError) as error:
            raise PeerUnavailableError(
                f"who serves the queue of member {self._giver} is gone: {error}"
            ) from error
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            # As whatever it arrives: the queue cannot be had, and is built anew.
            raise QueueLostError(f"member-{self._giver}", 0, str(error)) from error
        finally:
            self._client.close()
