"""The edge of the gossip: a thread that receives and ticks, and others for large messages.

Nothing that arrives ends the loop: what cannot be used is counted, complained of and dropped. If
the loop ends all the same, the node has ended: watches are closed, and every call says why.

One lock is around the exchange. Datagrams are sent under it, so that two writes go out in their
order; sending never waits. Watches are told outside of it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.directory.gossip.address import Address
from penstock.directory.gossip.complaints import Complaints
from penstock.directory.gossip.exchange import Exchange
from penstock.directory.gossip.messages import DATAGRAM_BYTES_MAX, decode, encode
from penstock.directory.gossip.sockets import (
    CONNECTIONS_MAX,
    Sockets,
    look_up,
    receive_message,
    send_message,
)
from penstock.directory.keyvalue import DirectoryEndedError, Watches
from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.directory.gossip.exchange import Effects, SendLarge
    from penstock.directory.gossip.membership import MembershipEvent, MemberState
    from penstock.directory.gossip.messages import ClusterKey, Message
    from penstock.directory.gossip.state import Mark
    from penstock.directory.gossip.timing import GossipTiming

DATAGRAMS_PER_TURN_MAX: Final = 256
"""Received before the clock is looked at again: more than there are in a second at 64 members."""
LARGE_SENDERS_MAX: Final = 4
"""Large messages on their way at once. A member that takes nothing in holds one of them up."""
CLOSE_SECONDS_MAX: Final = 0.5
"""To hear that somebody got the last write."""
LOOK_UP_SECONDS: Final = 30.0
"""How often names of seeds are looked up: what is behind them may move."""
LONELY_SECONDS: Final = 5.0
"""Without any answer, before there is a warning."""
PAUSE_SECONDS: Final = 0.05
"""When the system has no descriptor, memory or thread to spare: it would refuse again at once."""

_LOG: Final = logging.getLogger("penstock.directory")


class Node:
    """A member at its sockets. It performs what the exchange decides."""

    def __init__(
        self,
        member: int,
        key: ClusterKey,
        *,
        seeds: tuple[Address, ...],
        host: str,
        port: int,
        generation: int,
        timing: GossipTiming,
        may_rise: bool,
        membership_key: str,
    ) -> None:
        self.member: Final = member
        self.watches: Final = Watches()
        self._key = key
        self._timing = timing
        self._membership_key = membership_key
        self._sockets = Sockets(host, port)
        self.address: Final = self._sockets.address
        self._seeds = tuple(seed for seed in seeds if seed != self.address)
        self._started = time.monotonic()
        try:
            self._exchange = Exchange(
                member,
                generation,
                str(self.address),
                seeds=tuple(str(seed) for seed in self._seeds if seed.is_number),
                timing=timing,
                chance=random.Random(),  # noqa: S311 -- who is called next is no secret
                now=self._started,
                may_rise=may_rise,
            )
        except BaseException:
            self._sockets.close()
            raise
        self._lock = threading.Lock()
        self._acknowledged = threading.Condition(self._lock)
        self._closing = False
        self._ended = False
        self._failure: BaseException | None = None
        """What ended the loop, if nobody closed the node."""
        self._complaints = Complaints()
        self._events_told = 0
        self._fence_told = False
        self._lonely_told = False
        self._look_up_at = self._started
        self._addresses: dict[str, Address] = {}
        self._large: dict[str, tuple[Mark, ...]] = {}
        self._large_under_way: set[str] = set()
        self._connections = threading.Semaphore(CONNECTIONS_MAX)
        self._waker, self._woken = socket.socketpair()
        self._loop = supervised(
            f"gossip {member}", self._run, fail=self._fail, until=lambda: self._closing
        )

    def start(self) -> None:
        self._loop.start()

    @property
    def generation(self) -> int:
        with self._lock:
            return self._exchange.slots.own.generation

    @property
    def fenced(self) -> bool:
        with self._lock:
            return self._exchange.fenced_by is not None

    @property
    def messages_ignored(self) -> int:
        with self._lock:
            return self._complaints.count

    def write(self, key: str, value: str) -> None:
        with self._lock:
            self._check_alive()
            if self._closing or self._ended:
                raise LocalProtocolError(f"member {self.member} has left: its gossip is closed")
            effects = self._exchange.write(key, value)
            self._send(effects)
        self._tell(effects)

    def check(self) -> None:
        with self._lock:
            self._check_alive()
            if self._closing or self._ended:
                raise DirectoryEndedError(f"the gossip of member {self.member} was closed")

    def _check_alive(self) -> None:
        """Called under the lock. What was read of a node that is closed stays readable; a node that
        failed is not to be taken for one that hears nothing new."""
        if self._failure is not None:
            raise DirectoryEndedError(
                f"the gossip of member {self.member} ended: {type(self._failure).__name__}: "
                f"{self._failure}"
            ) from self._failure

    def read(self, member: int, key: str) -> str | None:
        with self._lock:
            self._check_alive()
            slot = self._exchange.slots.get(member)
            entry = slot.entries.get(key) if slot is not None else None
            return entry.value if entry is not None else None

    def scan(self, key: str) -> dict[int, str]:
        with self._lock:
            self._check_alive()
            return {
                slot.member: slot.entries[key].value
                for slot in self._exchange.slots
                if key in slot.entries
            }

    def members(self) -> dict[int, MemberState]:
        with self._lock:
            return self._exchange.members()

    def membership_events(self, since: int) -> list[MembershipEvent]:
        with self._lock:
            return self._exchange.membership.events(since)

    def close(self) -> None:
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if not self._ended:
                self._send_last_words()
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")
        if self._loop.ident is not None:
            self._loop.join()
        self._end()
        self._waker.close()
        self._woken.close()

    def _send_last_words(self) -> None:
        """Waits until somebody has the last write, because nobody else can pass it on later; then
        says farewell. Called under the lock, which is let go while waiting."""
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        while time.monotonic() < deadline:
            call = self._exchange.call_everybody()
            if self._ended or not any(send.addresses for send in call.sends):
                break
            self._send(call)
            if self._acknowledged.wait_for(self._is_settled, CLOSE_SECONDS_MAX / 10):
                break
        self._send(self._exchange.farewell())

    def _is_settled(self) -> bool:
        exchange = self._exchange
        return (
            exchange.acknowledged_version >= exchange.slots.own.version
            or exchange.fenced_by is not None
            or self._ended
        )

    # The loop

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for readable in (self._sockets.udp, self._sockets.listener, self._woken):
                selector.register(readable, selectors.EVENT_READ)
            tick_at = time.monotonic()
            while True:
                wait_seconds = max(tick_at - time.monotonic(), 0)
                ready = {each.fileobj for each, _ in selector.select(wait_seconds)}
                if self._woken in ready:
                    break
                # What came is heard before anybody is found silent.
                if self._sockets.udp in ready:
                    self._receive_datagrams()
                if self._sockets.listener in ready:
                    self._accept()
                now = time.monotonic()
                if now >= tick_at:
                    self._tick(now)
                    tick_at += self._timing.interval_seconds
                    if tick_at < now:  # held up: beats that were missed are not made up for
                        tick_at = now + self._timing.interval_seconds
        self._end()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._closing:
                return
            self._failure = error
        _LOG.error("the gossip of member %d ended: %s", self.member, error, exc_info=error)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._acknowledged.notify_all()
            self._sockets.close()
        self.watches.close()

    def _tick(self, now: float) -> None:
        with self._lock:
            effects = self._exchange.tick(now)
            self._send(effects)
            lonely = (
                not self._exchange.heard
                and not self._lonely_told
                and bool(self._seeds)
                and now - self._started > LONELY_SECONDS
            )
            self._lonely_told |= lonely
        self._tell(effects)
        if lonely:
            _LOG.warning(
                "member %d: none of its seeds answers (%s); are they started, and with the same "
                "cluster key? It keeps trying",
                self.member,
                ", ".join(map(str, self._seeds)),
            )
        if now >= self._look_up_at and not all(seed.is_number for seed in self._seeds):
            self._look_up_at = now + LOOK_UP_SECONDS
            self._begin("looks up", self._look_up)

    def _look_up(self) -> None:
        """Finds seeds that are given by name. It may take long: the heart beats meanwhile."""
        found = [seed if seed.is_number else look_up(seed, self.address) for seed in self._seeds]
        with self._lock:
            self._exchange.seeds = tuple(
                str(seed) for seed in found if seed is not None and seed != self.address
            )
            if None in found:
                self._look_up_at = time.monotonic() + LONELY_SECONDS

    def _begin(self, what: str, work: Callable[..., None], *arguments: object) -> bool:
        """A thread for one errand. False if the system has none to spare."""
        try:
            supervised(f"gossip {self.member} {what}", work, *arguments).start()
        except RuntimeError as error:
            _LOG.warning("member %d cannot start a thread: %s", self.member, error)
            return False
        return True

    def _receive_datagrams(self) -> None:
        for _ in range(DATAGRAMS_PER_TURN_MAX):
            try:
                received = self._sockets.receive()
            except OSError as error:
                _LOG.warning("member %d can receive nothing: %s", self.member, error)
                time.sleep(PAUSE_SECONDS)
                return
            if received is None:
                return
            data, source = received
            try:
                if len(data) > DATAGRAM_BYTES_MAX:
                    raise RemoteProtocolError(
                        f"a datagram has more than {DATAGRAM_BYTES_MAX} bytes"
                    )
                self._take(decode(data, self._key))
            except Exception as error:  # noqa: BLE001 - whatever came, the next one is heard
                self._complain(source, error)

    def _take(self, message: Message) -> None:
        with self._lock:
            effects = self._exchange.receive(message, time.monotonic())
            self._send(effects)
            if self._closing:
                self._acknowledged.notify_all()
        self._tell(effects)

    def _complain(self, source: Address, error: Exception) -> None:
        with self._lock:
            due = self._complaints.is_due(source.host, time.monotonic())
        if due:
            # An error of another kind is a defect of ours, which a message has shown.
            trace = None if isinstance(error, RemoteProtocolError) else error
            text = "member %d ignores a message from %s: %s"
            _LOG.warning(text, self.member, source, error, exc_info=trace)

    # Effects

    def _send(self, effects: Effects) -> None:
        """Called under the lock."""
        if self._ended:
            return
        for send in effects.sends:
            if send.addresses:
                data = encode(send.message, self._key)
                for address in send.addresses:
                    self._sockets.send(data, self._parsed(address))
        for large in effects.large:
            self._send_large(large)

    def _parsed(self, address: str) -> Address:
        parsed = self._addresses.get(address)
        if parsed is None:
            if len(self._addresses) > 4 * CONNECTIONS_MAX:
                self._addresses.clear()
            parsed = self._addresses[address] = Address.parse(address)
        return parsed

    def _tell(self, effects: Effects) -> None:
        """Not called under the lock: who is told may call."""
        for key in effects.changed:
            self.watches.tell(key)
        with self._lock:
            events = []
            if self._events_told != self._exchange.membership.last_number:
                events = self._exchange.membership.events(self._events_told)
                self._events_told = self._exchange.membership.last_number
            newly_fenced = self._exchange.fenced_by is not None and not self._fence_told
            self._fence_told |= newly_fenced
        for event in events:
            _LOG.info(
                "member %d: member %d %s (generation %d)",
                self.member,
                event.member,
                event.change.value,
                event.generation,
            )
        if events:
            self.watches.tell(self._membership_key)
        if newly_fenced:
            _LOG.error("member %d was started again elsewhere: this process is fenced", self.member)
            self.watches.tell_all()

    # Large messages

    def _send_large(self, large: SendLarge) -> None:
        """Called under the lock. Who waits already, or is being sent to, is not sent twice: it asks
        again if it still lacks something."""
        if large.address in self._large_under_way:
            return
        self._large[large.address] = large.listed
        if len(self._large_under_way) < LARGE_SENDERS_MAX:
            address, listed = self._next_large()
            if not self._begin("sends", self._send_all_large, address, listed):
                self._large_under_way.discard(address)

    def _next_large(self) -> tuple[str, tuple[Mark, ...]]:
        address = next(iter(self._large))
        self._large_under_way.add(address)
        return address, self._large.pop(address)

    def _send_all_large(self, address: str, listed: tuple[Mark, ...]) -> None:
        while True:
            try:
                send_message(partial(self._make_large, listed), Address.parse(address))
            except OSError as error:
                _LOG.debug("member %d: a large message to %s: %s", self.member, address, error)
            except Exception:  # noqa: BLE001 - the next address is sent to, and this one again
                _LOG.exception("member %d: a large message to %s", self.member, address)
            with self._lock:
                self._large_under_way.discard(address)
                if not self._large or self._ended:
                    return
                address, listed = self._next_large()

    def _make_large(self, listed: tuple[Mark, ...]) -> bytes | None:
        with self._lock:
            message = self._exchange.large_message(listed)
        return encode(message, self._key) if message is not None else None

    def _accept(self) -> None:
        for _ in range(CONNECTIONS_MAX):
            try:
                connection, (host, port, *_) = self._sockets.listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # ended while it waited
            except OSError as error:
                _LOG.warning("member %d can accept no connection: %s", self.member, error)
                time.sleep(PAUSE_SECONDS)
                return
            if not self._connections.acquire(blocking=False):
                connection.close()
                continue
            if not self._begin("hears", self._serve, connection, Address(host, port)):
                self._connections.release()
                connection.close()

    def _serve(self, connection: socket.socket, source: Address) -> None:
        try:
            with connection:
                message = decode(receive_message(connection, self._key), self._key)
            self._take(message)
        except OSError as error:
            _LOG.debug("member %d: a connection from %s: %s", self.member, source, error)
        except Exception as error:  # noqa: BLE001 - whatever came, others are heard
            self._complain(source, error)
        finally:
            self._connections.release()
