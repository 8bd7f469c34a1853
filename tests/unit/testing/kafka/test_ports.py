"""A reserved port can be listened on again and again, and is given to nobody else."""

from __future__ import annotations

import socket

from penstock.testing.kafka.ports import ReservedPort


def test_a_port_serves_its_owner_any_number_of_times() -> None:
    port = ReservedPort()
    for _ in range(3):
        with socket.create_server(("127.0.0.1", port.number)) as listener:
            socket.create_connection(("127.0.0.1", port.number)).close()
            listener.accept()[0].close()
    port.release()


def test_no_two_reservations_are_the_same() -> None:
    ports = [ReservedPort() for _ in range(200)]
    assert len({port.number for port in ports}) == len(ports)
    for port in ports:
        port.release()
