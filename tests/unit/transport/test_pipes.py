"""Pipes over real sockets: every byte arrives in order, in both directions at once, and nobody
waits for a peer that is gone."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pytest

from penstock.transport.carriers.pipes import (
    PIECES_MAX,
    PeerSilentError,
    Pipe,
    PlainPipe,
    TlsPipe,
)
from penstock.transport.certificates import member_name
from penstock.transport.security import ClusterSecurity, client_context, server_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.transport.stages import Piece

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""
SILENT_SECONDS = 0.05
Ends: TypeAlias = "tuple[Pipe, Pipe]"


def connected(small: bool) -> tuple[socket.socket, socket.socket]:
    """Two ends over loopback. With small buffers nearly every write is a partial one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.socket()
        if small:
            for each in (server, client):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        return client, accepted


def plain_ends(small: bool) -> Ends:
    client, server = connected(small)
    return PlainPipe(client), PlainPipe(server)


SECURITY = ClusterSecurity.create("pipes")
CLIENT, SERVER = SECURITY.member_security(1), SECURITY.member_security(2)


def tls_ends(small: bool) -> Ends:
    client, server = connected(small)
    assert CLIENT.credentials is not None
    assert SERVER.credentials is not None
    with ThreadPoolExecutor(1) as pool:
        context = server_context(SERVER.credentials)
        serving = pool.submit(context.wrap_socket, server, server_side=True)
        secure = client_context(CLIENT.credentials).wrap_socket(
            client, server_hostname=member_name(2)
        )
        return TlsPipe(secure), TlsPipe(serving.result(WAIT_SECONDS_MAX))


@pytest.fixture(params=[plain_ends, tls_ends], ids=["plain", "tls"])
def make_ends(request: pytest.FixtureRequest) -> Iterator[Callable[[bool], Ends]]:
    made: list[Pipe] = []

    def make(small: bool) -> Ends:
        ends: Ends = request.param(small)
        for end in ends:
            end.limit(WAIT_SECONDS_MAX)
        made.extend(ends)
        return ends

    yield make
    for pipe in made:
        pipe.cut()
        pipe.close()


@contextlib.contextmanager
def cut_by_a_failure(ends: Ends) -> Iterator[None]:
    """So that threads which wait for each other do not outlast the test."""
    try:
        yield
    except BaseException:
        for end in ends:
            end.cut()
        raise


def read_all(pipe: Pipe, step_bytes: int = 65_536) -> bytes:
    data = bytearray()
    buffer = memoryview(bytearray(step_bytes))
    while count := pipe.receive_into(buffer):
        data += buffer[:count]
    return bytes(data)


def joined(pieces: Sequence[Piece]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else piece.to_pybytes() for piece in pieces)


def pieces_of(seed: int, sizes: Sequence[int]) -> list[Piece]:
    """Bytes by chance, as bytes and as buffers in turn."""
    chance = random.Random(seed)
    return [
        pa.py_buffer(chance.randbytes(size)) if number % 2 else chance.randbytes(size)
        for number, size in enumerate(sizes)
    ]


SIZES = [
    [0],
    [1],
    [0, 0, 5, 0],
    [16_383, 16_384, 16_385, 1, 2],
    [700_000, 1, 0, 300_000],
    [3] * (2 * PIECES_MAX + 1),
    [PIECES_MAX, 20_000] * (PIECES_MAX // 8),
    [100] * PIECES_MAX + [0] * PIECES_MAX + [100],
]


@pytest.mark.parametrize("small", [False, True], ids=["wide", "narrow"])
def test_all_pieces_arrive_in_order(make_ends: Callable[[bool], Ends], small: bool) -> None:
    near, far = ends = make_ends(small)
    sent = [pieces_of(seed, sizes) for seed, sizes in enumerate(SIZES)]
    with ThreadPoolExecutor(1) as pool, cut_by_a_failure(ends):
        reading = pool.submit(read_all, far)
        for pieces in sent:
            near.send(pieces)
        near.send([])
        near.finish()
        received = reading.result(WAIT_SECONDS_MAX)
    assert received == b"".join(map(joined, sent))


@pytest.mark.parametrize("small", [False, True], ids=["wide", "narrow"])
def test_both_directions_at_once(make_ends: Callable[[bool], Ends], small: bool) -> None:
    """Two threads at each end, all busy: nothing is mixed up, and nobody waits for another."""
    ends = make_ends(small)
    chance = random.Random(7)
    frames = [
        [pieces_of(number, [chance.randrange(60_000) for _ in range(4)]) for number in range(40)]
        for _ in ends
    ]

    def write(pipe: Pipe, sent: list[list[Piece]]) -> None:
        for pieces in sent:
            pipe.send(pieces)
        pipe.finish()

    with ThreadPoolExecutor(4) as pool, cut_by_a_failure(ends):
        reading = [pool.submit(read_all, end, 10_000) for end in ends]
        writing = [pool.submit(write, end, sent) for end, sent in zip(ends, frames, strict=True)]
        for future in writing:
            future.result(WAIT_SECONDS_MAX)
        received = [future.result(WAIT_SECONDS_MAX) for future in reading]
    assert received[0] == b"".join(map(joined, frames[1]))
    assert received[1] == b"".join(map(joined, frames[0]))


class Watched:
    """A TLS socket that notices two threads within it, and gives them time to meet."""

    def __init__(self, watched: ssl.SSLSocket) -> None:
        self._watched = watched
        self._entered = threading.Lock()
        self.calls = self.meetings = 0

    def fileno(self) -> int:
        return self._watched.fileno()

    def send(self, view: memoryview) -> int:
        return self._alone(self._watched.send, view[:2_000])

    def recv_into(self, view: memoryview) -> int:
        return self._alone(self._watched.recv_into, view[:2_000])

    def _alone(self, call: Callable[[memoryview], int], view: memoryview) -> int:
        if not self._entered.acquire(blocking=False):
            self.meetings += 1
            return call(view)
        try:
            self.calls += 1
            time.sleep(0.0005)
            return call(view)
        finally:
            self._entered.release()


def test_one_thread_at_a_time_is_within_tls() -> None:
    """OpenSSL does not notice when two are, but for what it then writes and reads."""
    near, far = tls_ends(False)
    assert isinstance(near, TlsPipe)
    watched = Watched(near._socket)
    near._socket = watched  # type: ignore[assignment]
    pieces = pieces_of(1, [50_000])
    with ThreadPoolExecutor(2) as pool, cut_by_a_failure((far, far)):
        for end in (near, far):
            end.limit(WAIT_SECONDS_MAX)
        far.send(pieces)
        far.finish()
        reading = pool.submit(read_all, near)
        pool.submit(near.send, pieces_of(2, [50_000])).result(WAIT_SECONDS_MAX)
        assert reading.result(WAIT_SECONDS_MAX) == joined(pieces)
    assert watched.calls > 40
    assert watched.meetings == 0
    for pipe in (far, TlsPipe(watched._watched)):
        pipe.close()


class Scripted:
    """A TLS socket that gives what it is told, and that nobody may ask for more."""

    def __init__(self, script: Sequence[bytes | OSError]) -> None:
        self._script = list(script)

    def recv_into(self, view: memoryview) -> int:
        step = self._script.pop(0)
        if isinstance(step, OSError):
            raise step
        view[: len(step)] = step
        return len(step)


def scripted(script: Sequence[bytes | OSError]) -> TlsPipe:
    near, far = tls_ends(False)
    assert isinstance(near, TlsPipe)
    for pipe in (near, far):
        pipe.close()
    near._socket = Scripted(script)  # type: ignore[assignment]
    return near


def test_records_that_came_together_are_read_together() -> None:
    pipe = scripted([b"ab", b"c", ssl.SSLWantReadError(), b"d", b"efgh"])
    view = memoryview(bytearray(8))
    assert pipe.receive_into(view) == 3
    assert pipe.receive_into(view[3:4]) == 1, "no more than there is room for"
    assert pipe.receive_into(view[4:]) == 4
    assert bytes(view) == b"abcdefgh"


@pytest.mark.parametrize("end", [b"", ConnectionResetError("cut")])
def test_what_came_before_the_end_is_read_first(end: bytes | OSError) -> None:
    pipe = scripted([b"ab", b"c", end])
    view = memoryview(bytearray(8))
    assert pipe.receive_into(view) == 3
    for _ in range(2):
        if isinstance(end, bytes):
            assert pipe.receive_into(view) == 0
        else:
            with pytest.raises(ConnectionResetError, match="cut"):
                pipe.receive_into(view)


def test_answers_come_while_nothing_is_sent(make_ends: Callable[[bool], Ends]) -> None:
    """A reader that waits keeps no lock from the writer beside it."""
    near, far = ends = make_ends(False)
    rounds = 200

    def answer() -> None:
        buffer = memoryview(bytearray(1))
        for _ in range(rounds):
            assert far.receive_into(buffer) == 1
            far.send([bytes(buffer)])

    heard: list[int] = []
    one_by_one = threading.Semaphore(0)

    def listen() -> None:
        buffer = memoryview(bytearray(1))
        for _ in range(rounds):
            near.receive_into(buffer)
            heard.append(buffer[0])
            one_by_one.release()

    with ThreadPoolExecutor(2) as pool, cut_by_a_failure(ends):
        futures: list[Future[None]] = [pool.submit(answer), pool.submit(listen)]
        for number in range(rounds):
            near.send([bytes([number])])
            assert one_by_one.acquire(timeout=WAIT_SECONDS_MAX)
        for future in futures:
            future.result(WAIT_SECONDS_MAX)
    assert heard == list(range(rounds))


def test_what_was_written_before_the_finish_arrives(make_ends: Callable[[bool], Ends]) -> None:
    near, far = make_ends(False)
    near.send([b"last words"])
    near.finish()
    assert read_all(far) == b"last words"
    far.send([b"understood"])
    far.finish()
    assert read_all(near) == b"understood", "the other direction is still open"
    near.finish()  # again, and after the end: no error


def test_a_silent_peer_is_gone(make_ends: Callable[[bool], Ends]) -> None:
    near, _ = make_ends(False)
    near.limit(SILENT_SECONDS)
    with pytest.raises(PeerSilentError, match=r"it says nothing for 0\.05 s"):
        near.receive_into(memoryview(bytearray(10)))
    assert isinstance(PeerSilentError("x"), OSError)


def test_a_peer_that_reads_nothing_is_gone(make_ends: Callable[[bool], Ends]) -> None:
    near, _ = make_ends(True)
    near.limit(SILENT_SECONDS)
    with pytest.raises(PeerSilentError, match=r"it accepts no bytes for 0\.05 s"):
        near.send([bytes(50_000_000)])


def test_a_slow_peer_is_not_gone(make_ends: Callable[[bool], Ends]) -> None:
    """Silence is counted from the last byte, not from the first."""
    near, far = ends = make_ends(True)
    near.limit(1.5)
    pieces = pieces_of(1, [10_000] * 200)
    with ThreadPoolExecutor(1) as pool, cut_by_a_failure(ends):
        sending = pool.submit(near.send, pieces)
        received = bytearray()
        buffer = memoryview(bytearray(20_000))
        pauses = 0
        while len(received) < 2_000_000:
            if pauses < 36:
                time.sleep(0.05)  # in all longer than the limit
                pauses += 1
            received += buffer[: far.receive_into(buffer)]
        sending.result(WAIT_SECONDS_MAX)
    assert received == joined(pieces)


def test_a_cut_wakes_both_threads(make_ends: Callable[[bool], Ends]) -> None:
    near, _ = ends = make_ends(True)

    def write() -> None:
        near.send([bytes(50_000_000)])

    def read() -> int:
        return near.receive_into(memoryview(bytearray(10)))

    with ThreadPoolExecutor(2) as pool, cut_by_a_failure(ends):
        writing, reading = pool.submit(write), pool.submit(read)
        time.sleep(0.05)  # most likely both wait by now; if not, it holds all the same
        near.cut()
        error = writing.exception(WAIT_SECONDS_MAX)
        assert isinstance(error, OSError)
        assert not isinstance(error, PeerSilentError)
        assert reading.exception(WAIT_SECONDS_MAX) or reading.result() == 0
    near.cut()  # again: no error


def test_the_other_end_hears_of_a_cut(make_ends: Callable[[bool], Ends]) -> None:
    near, far = make_ends(False)
    near.send([b"half a fra"])
    near.cut()
    try:
        assert read_all(far) in (b"half a fra", b"")
    except OSError as error:
        assert not isinstance(error, PeerSilentError)  # noqa: PT017
