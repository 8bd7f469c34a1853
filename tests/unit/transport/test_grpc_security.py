"""The same credentials over gRPC: a real server, with right and wrong clients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography import x509

from penstock.transport import grpc_security
from penstock.transport.certificates import Authority
from penstock.transport.grpc_security import (
    grpc_channel_credentials,
    grpc_channel_options,
    grpc_peer_member,
    grpc_server_credentials,
)
from penstock.transport.tls import Credentials, PeerRefusedError
from tests.unit.transport.made_certificates import files_in, make_issuer, pem_of, put, put_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.transport.certificates import Material

AUTHORITY = Authority.create("orders")
STRANGER = Authority.create("orders")
WAIT_SECONDS = 120
"""Only a test that fails waits this long."""


@dataclass
class Server:
    """Answers every call with the member that the caller proved to be."""

    port: int = 0
    callers: list[int] = field(default_factory=list)

    def answer(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        member = grpc_peer_member(context.auth_context())
        self.callers.append(member)
        return b"%d" % member


@contextmanager
def serving(credentials: Credentials) -> Iterator[Server]:
    answers = Server()
    methods = {"who": grpc.unary_unary_rpc_method_handler(answers.answer)}
    handler = grpc.method_handlers_generic_handler("test", methods)
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    answers.port = server.add_secure_port("127.0.0.1:0", grpc_server_credentials(credentials))
    server.start()
    try:
        yield answers
    finally:
        server.stop(None).wait()


@contextmanager
def channel_to(
    server: Server, credentials: grpc.ChannelCredentials, member: int = 1
) -> Iterator[grpc.Channel]:
    options = [*grpc_channel_options(member), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options=options) as channel:
        yield channel


def call(channel: grpc.Channel) -> int:
    method = channel.unary_unary("/test/who", bytes, bytes)
    return int(method(b"", timeout=WAIT_SECONDS))


def ask(server: Server, credentials: grpc.ChannelCredentials, member: int = 1) -> int:
    with channel_to(server, credentials, member) as channel:
        return call(channel)


def refused(server: Server, credentials: grpc.ChannelCredentials, member: int = 1) -> bool:
    """Whether a call failed before it came to the server's code."""
    before = list(server.callers)
    with pytest.raises(grpc.RpcError) as caught:
        ask(server, credentials, member)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return server.callers == before


def credentials_of(member: int, authority: Authority = AUTHORITY) -> Credentials:
    return Credentials(authority.issue(member), member)


def test_a_member_calls_and_is_known() -> None:
    with serving(credentials_of(1)) as server:
        assert ask(server, grpc_channel_credentials(credentials_of(2))) == 2
        assert ask(server, grpc_channel_credentials(credentials_of(3))) == 3


def test_strangers_are_refused() -> None:
    with serving(credentials_of(1)) as server:
        other = STRANGER.issue(2)
        trusting = grpc.ssl_channel_credentials(AUTHORITY.certificate, other.key, other.certificate)
        assert refused(server, trusting), "a certificate of another authority"
        assert refused(server, grpc.ssl_channel_credentials(AUTHORITY.certificate)), "none"
        assert refused(server, grpc_channel_credentials(credentials_of(2, STRANGER)))
        assert ask(server, grpc_channel_credentials(credentials_of(2))) == 2


def test_a_server_that_is_another_member_is_refused() -> None:
    with serving(credentials_of(5)) as server:
        assert refused(server, grpc_channel_credentials(credentials_of(2)), member=1)
        assert ask(server, grpc_channel_credentials(credentials_of(2)), member=5) == 2


def test_trust_in_an_intermediate_authority_is_enough() -> None:
    middle = make_issuer("middle", make_issuer())
    with serving(Credentials(middle.material(1), 1)) as server:
        assert ask(server, grpc_channel_credentials(Credentials(middle.material(2), 2))) == 2


def test_new_files_are_used_for_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Material] = []
    configuration = grpc_security._configuration

    def spy(material: Material) -> grpc.ServerCertificateConfiguration:
        made.append(material)
        return configuration(material)

    monkeypatch.setattr(grpc_security, "_configuration", spy)
    old, new = make_issuer("old"), make_issuer("new")
    files, first, moved = files_in(tmp_path), old.material(1), new.material(1)
    put_all(files, first)
    old_client = grpc_channel_credentials(Credentials(old.material(2), 2))
    new_client = grpc_channel_credentials(Credentials(new.material(3), 3))
    with serving(Credentials(files, 1)) as server, channel_to(server, old_client) as still_open:
        assert call(still_open) == 2
        assert refused(server, new_client)
        put(files.certificate, moved.certificate)  # half of the way: the old set goes on
        assert ask(server, old_client) == 2
        put_all(files, moved)
        assert ask(server, new_client) == 3
        assert refused(server, old_client)
        assert call(still_open) == 2
    assert made == [first, moved], "each was made once, whatever the number of connections"


def test_a_channel_uses_the_files_of_when_it_is_opened(tmp_path: Path) -> None:
    old, new = make_issuer("old"), make_issuer("new")
    files = files_in(tmp_path)
    put_all(files, old.material(2))
    client = Credentials(files, 2)
    with serving(Credentials(new.material(1), 1)) as server:
        assert refused(server, grpc_channel_credentials(client))
        put_all(files, new.material(2))
        assert ask(server, grpc_channel_credentials(client)) == 2


@pytest.mark.parametrize(
    "context",
    [{}, {"x509_pem_cert": []}, {"x509_subject_alternative_name": [b"member-3.penstock"]}],
)
def test_no_certificate_proves_no_member(context: dict[str, list[bytes]]) -> None:
    with pytest.raises(PeerRefusedError, match="it showed no certificate"):
        grpc_peer_member(context)


def test_a_name_that_is_no_dns_name_proves_no_member() -> None:
    link = x509.UniformResourceIdentifier("member-3.penstock")
    context = {
        "x509_pem_cert": [pem_of(make_issuer().leaf([link]))],
        "x509_subject_alternative_name": [b"member-3.penstock"],
    }
    with pytest.raises(PeerRefusedError, match="its certificate names no member"):
        grpc_peer_member(context)
