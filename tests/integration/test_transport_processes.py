"""The transport between processes that are killed and stopped: nothing comes twice or out of order,
what dies is noticed, and the next send finds who took its place.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.directory.keyvalue import MemoryKeyValue
from penstock.errors import PeerUnavailableError
from penstock.transport import Close, Receiver, Sender, Timing, VnodeData
from penstock.transport.discovery import ADDRESS_KEY, Address, publish
from penstock.transport.security import ClusterSecurity
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, eventually, take

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.transport.security import Security

pytestmark = pytest.mark.slow

SENDING, RECEIVING = 1, 2
KILLS = 3
PATIENT = Timing(connect_seconds_max=20, heartbeat_seconds=5, silence_seconds_max=60)
"""An end that is noticed under these was noticed by itself, and not by its silence."""
HASTY = Timing(connect_seconds_max=20, heartbeat_seconds=0.2, silence_seconds_max=1)

RECEIVER = """
import pickle, sys
from penstock.directory.keyvalue import MemoryKeyValue
from penstock.transport import Receiver, VnodeData

carrier, log = sys.argv[1], open(sys.argv[2], "a", buffering=1)
security, timing = pickle.load(sys.stdin.buffer)
receiver = Receiver(security, MemoryKeyValue(2), carrier=carrier, timing=timing,
                    inbound_bytes_max=4 * 65536, streams_max=4)
print(receiver.address, flush=True)
while True:
    received = receiver.receive()
    if isinstance(received.frame, VnodeData):
        what = received.frame.batch.column(0)[0].as_py()
    else:
        what = f"close-{received.frame.fault}"
    log.write(f"{received.connection} {what}\\n")
"""

SENDER = """
import pickle, sys
import pyarrow as pa
from penstock.directory.keyvalue import MemoryKeyValue
from penstock.transport import Sender, VnodeData
from penstock.transport.discovery import Address, publish

security, timing = pickle.load(sys.stdin.buffer)
keyvalue = MemoryKeyValue(1)
publish(keyvalue.view(2), Address.parse(sys.argv[1]))
sender = Sender(security, keyvalue, timing=timing)
number = 0
while True:
    batch = pa.record_batch([pa.array([number]), pa.array([b"x" * 500])], names=["number", "pad"])
    sender.send(2, VnodeData("orders", 0, batch))
    number += 1
"""


@dataclass
class Child:
    """A receiver in a process of its own. It writes down everything that it takes."""

    process: subprocess.Popen[bytes]
    address: Address
    log: Path

    def taken(self) -> list[tuple[int, str]]:
        """Connection and number of each frame, as far as lines are whole."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(int(connection), what) for connection, what in whole]


class Household:
    """Starts processes, and ends them with the test."""

    def __init__(self, carrier: str, folder: Path) -> None:
        self.carrier = carrier
        self.keyvalue = MemoryKeyValue(SENDING)
        self._cluster = ClusterSecurity.create("processes")
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def security(self, member: int) -> Security:
        return self._cluster.member_security(member)

    def start(
        self, program: str, member: int, timing: Timing, *arguments: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((self.security(member), timing)))
        process.stdin.close()
        return process

    def receivers(self, count: int, timing: Timing = PATIENT) -> list[Child]:
        """They start together, since that takes a while. None of them is published yet."""
        logs = [self._folder / f"receiver-{place}" for place in range(count)]
        started = [self.start(RECEIVER, RECEIVING, timing, self.carrier, str(log)) for log in logs]
        return [
            Child(process, Background(partial(_address, process)).result(), log)
            for process, log in zip(started, logs, strict=True)
        ]

    def publish(self, child: Child) -> None:
        publish(self.keyvalue.view(RECEIVING), child.address)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(WAIT_SECONDS_MAX)
            if process.stdout is not None:
                process.stdout.close()


def _address(process: subprocess.Popen[bytes]) -> Address:
    assert process.stdout is not None
    return Address.parse(process.stdout.readline().decode().strip())


@pytest.fixture(params=["tcp", "grpc"])
def household(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Household]:
    made = Household(request.param, tmp_path)
    yield made
    made.close()


def batch(number: int) -> VnodeData:
    pad = pa.array([bytes(500)], pa.binary())
    return VnodeData(
        "orders", 0, pa.RecordBatch.from_arrays([pa.array([number]), pad], ["number", "pad"])
    )


@pytest.mark.parametrize("seed", range(2))
def test_receivers_killed_in_the_middle_of_a_transfer(household: Household, seed: int) -> None:
    choose = random.Random(seed)
    lives = household.receivers(KILLS + 1)
    assert len({life.address for life in lives}) == KILLS + 1
    sent: list[int] = []
    number = 0
    with Sender(household.security(SENDING), household.keyvalue, timing=PATIENT) as sender:
        for life in lives[:-1]:
            household.publish(life)
            enough = choose.randint(1, 400)  # frames, after which it is killed
            while True:
                number += 1
                try:
                    sender.send(RECEIVING, batch(number), WAIT_SECONDS_MAX)
                except PeerUnavailableError:
                    break  # it was killed: this one was not sent
                sent.append(number)
                if life.process.poll() is None and len(life.taken()) >= enough:
                    life.process.kill()
        household.publish(lives[-1])
        first_of_last = number + 1
        for number in range(first_of_last, first_of_last + 300):
            sender.send(RECEIVING, batch(number), WAIT_SECONDS_MAX)
            sent.append(number)
        assert len(sender.losses()) == KILLS
    eventually(
        lambda: (1, "close-False") in lives[-1].taken(), "that the last receiver took everything"
    )
    delivered: list[int] = []
    for life in lives:
        taken = [(at, int(what)) for at, what in life.taken() if not what.startswith("close")]
        assert {at for at, _ in taken} == {1}  # each life saw one connection
        found = [what for _, what in taken]
        # In order, without a gap, and from the first that was sent to this life.
        begin = sent.index(found[0])
        assert found == sent[begin : begin + len(found)]
        assert not delivered or found[0] > delivered[-1]
        delivered += found
    assert len(set(delivered)) == len(delivered)
    assert delivered[-300:] == sent[-300:]


def test_a_receiver_that_is_stopped_is_left_and_found_again(household: Household) -> None:
    (child,) = household.receivers(1, HASTY)
    household.publish(child)
    with Sender(household.security(SENDING), household.keyvalue, timing=HASTY) as sender:
        sender.send(RECEIVING, batch(1))
        eventually(child.taken, "that the first frame arrives")
        os.kill(child.process.pid, signal.SIGSTOP)
        with pytest.raises(PeerUnavailableError, match=f"member {RECEIVING}"):
            Background(lambda: _send_on(sender), "sending to a stopped process").result()
        assert len(sender.losses()) == 1
        os.kill(child.process.pid, signal.SIGCONT)
        eventually(lambda: _reached(sender, 100_000), "that the process is reached again")
    eventually(
        lambda: [what for _, what in child.taken()][-2:] == ["100000", "close-False"],
        "that it goes on as before",
    )
    by_connection: dict[int, list[str]] = {}
    for connection, what in child.taken():
        by_connection.setdefault(connection, []).append(what)
    first, *others = (numbers for _, numbers in sorted(by_connection.items()))
    assert first[-1] == "close-True"
    assert first[:-1] == [str(number) for number in range(1, len(first))]
    assert others[-1][0] == "100000"


def _send_on(sender: Sender) -> None:
    for number in range(2, 100_000):
        sender.send(RECEIVING, batch(number), WAIT_SECONDS_MAX)


def _reached(sender: Sender, number: int) -> bool:
    try:
        sender.send(RECEIVING, batch(number), WAIT_SECONDS_MAX)
    except PeerUnavailableError:
        return False
    return True


def test_a_sender_that_is_killed_is_noticed_at_once(household: Household) -> None:
    keyvalue = MemoryKeyValue(RECEIVING)
    with Receiver(
        household.security(RECEIVING), keyvalue, carrier=household.carrier, timing=PATIENT
    ) as receiver:
        address = keyvalue.read(RECEIVING, ADDRESS_KEY)
        assert address is not None
        for life in range(2):
            sender = household.start(SENDER, SENDING, PATIENT, address)
            numbers: list[object] = []
            connections = set()
            last = None
            while not isinstance(last, Close):
                (received,) = take(receiver)
                last = received.frame
                connections.add(received.connection)
                if isinstance(last, VnodeData):
                    numbers.append(last.batch.column(0)[0].as_py())
                if len(numbers) == 50 + 100 * life:
                    sender.kill()
            assert last.fault
            assert last.reason
            assert numbers == list(range(len(numbers)))
            assert connections == {life + 1}
