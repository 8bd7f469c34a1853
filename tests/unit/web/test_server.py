"""The server over real sockets: who is let in, what comes back, and what is said when it cannot."""

from __future__ import annotations

import datetime
import json
import os
import socket
import ssl
import time
import urllib.request
import warnings
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import ConfigurationError
from penstock.web.errors import WebAddressError, WebTlsError
from penstock.web.feeds import Feeds
from penstock.web.server import WebServer
from tests.unit.web.conftest import Asker
from tests.unit.web.example_state import example_spark, example_state, hold_lock, put

if TYPE_CHECKING:
    from pathlib import Path

WAIT_SECONDS_MAX = 120.0


@pytest.mark.parametrize(
    "path", ["/", "/state", "/metrics", "/events", "/feeds", "/assets/page.js"]
)
def test_nothing_is_given_without_the_token(ask: Asker, path: str) -> None:
    answer = ask(path, token=None)
    assert answer.status == 403
    assert "Open the address that `penstock` printed" in answer.text
    assert ask(path, token="wrong").status == 403
    assert ask(path, token=None, Cookie=f"penstock-{ask.server.port}=wrong").status == 403
    assert ask(path + "?token=%C3%A9", token=None).status == 403


def test_the_address_leads_to_a_cookie_and_the_page(ask: Asker) -> None:
    first = ask(f"/?token={ask.server.token}", token=None)
    assert (first.status, first.headers["Location"]) == (303, "/")
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    page = ask("/", token=None, Cookie=cookie.partition(";")[0])
    assert page.status == 200
    assert "<title>Penstock</title>" in page.text
    assert ask.server.token not in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "header", ['prefs={{"theme":"dark"}}; {ours}', 'a b; ="; {ours}; x', "{ours};é=1", " {ours}"]
)
def test_cookies_of_other_programs_are_passed_over(ask: Asker, header: str) -> None:
    """Those of a machine are sent to all its ports."""
    ours = f"penstock-{ask.server.port}={ask.server.token}"
    assert ask("/state", token=None, Cookie=header.format(ours=ours)).status == 200
    other = f"x-penstock-{ask.server.port}={ask.server.token}"
    assert ask("/state", token=None, Cookie=header.format(ours=other)).status == 403


def test_of_too_many_feeds_those_that_run_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.web.feeds.FEEDS_MAX", 3)
    for name in ("a", "b", "c", "d", "z"):
        put(tmp_path / name, example_state(feed=name))
    lock = hold_lock(tmp_path / "z")
    with WebServer(Feeds([tmp_path]), port=0) as server:
        told = Asker(server)("/feeds").json
        assert [one["feed"] for one in told["feeds"]] == ["a", "b", "z"]
        assert told["left_out"] == 2
        assert Asker(server)("/state").json["left_out"] == 2
    os.close(lock)


def test_the_page_asks_nobody_else(ask: Asker) -> None:
    """Every asset it names is here, and no other address is in it."""
    page = ask("/").text
    names = [
        part.partition('"')[0] for part in page.replace('href="/', 'src="/').split('src="/')[1:]
    ]
    assert len(names) >= 5
    for name in names:
        assert ask(f"/{name}").status == 200, name
    assert "http://" not in page
    assert "https://" not in page


def test_another_name_for_this_machine_is_refused(ask: Asker) -> None:
    assert ask("/state", Host=f"evil.example:{ask.server.port}").status == 421
    assert ask("/state", Host=f"localhost:{ask.server.port}").status == 200


def test_what_is_not_there_is_said(ask: Asker) -> None:
    assert ask("/nothing").status == 404
    assert ask("/assets/../server.py").status == 404
    answer = ask("/state?feed=payments")
    assert answer.status == 404
    assert "There is no feed 'payments'" in answer.text


def test_the_state_is_passed_on_as_it_is(ask: Asker, feed: Path) -> None:
    put(feed, example_spark(), "spark.json")
    told = ask("/state").json
    assert told["state"] == json.loads((feed / "state.json").read_text())
    assert told["batches"] == example_spark()["batches"]
    assert (told["feed"], told["alive"], told["problem"]) == ("orders", True, None)
    assert [one["feed"] for one in ask("/feeds").json["feeds"]] == ["orders"]


def test_a_feed_whose_process_is_gone_is_down(tmp_path: Path) -> None:
    put(tmp_path / "orders", example_state())
    (tmp_path / "orders" / "lock").touch()
    with WebServer(Feeds([tmp_path]), port=0) as server:
        told = Asker(server)("/state").json
    assert told["alive"] is False
    assert told["state"]["verdict"] == "down"
    assert "is gone" in told["state"]["explanation"][0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 1, "feed": "ord', "is not readable JSON"),
        ('{"format": 7}', "has format 7, and this release knows 1"),
        ("[]", "does not hold a JSON object"),
        ("", "is not readable JSON"),
    ],
    ids=["torn", "foreign", "no state", "empty"],
)
def test_a_state_that_cannot_be_read_is_told(ask: Asker, feed: Path, text: str, words: str) -> None:
    (feed / "state.json").write_text(text)
    told = ask("/state").json
    assert told["state"] is None
    assert words in told["problem"]
    assert ask("/metrics").text.splitlines()[2:] == ['penstock_feed_up{feed="orders"} 1']


def test_batches_that_cannot_be_read_do_not_hide_the_state(ask: Asker, feed: Path) -> None:
    (feed / "spark.json").write_text("{")
    told = ask("/state").json
    assert told["state"]["feed"] == "orders"
    assert "spark.json is damaged: it is not readable JSON" in told["problem"]


def test_no_feed_yet_is_told_and_one_that_starts_is_found(tmp_path: Path) -> None:
    with WebServer(Feeds([tmp_path]), port=0) as server:
        ask = Asker(server)
        assert ask("/state").json["feed"] is None
        assert ask("/metrics").text == ""
        put(tmp_path / "feeds" / "late", example_state(feed="late"))
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while ask("/state").json["feed"] != "late":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_worst_feed_that_runs_is_shown_unless_one_is_chosen(tmp_path: Path) -> None:
    locks = []
    for name, verdict in (("calm", "healthy"), ("bad", "stuck"), ("dead", "stuck")):
        put(tmp_path / name, example_state(feed=name, verdict=verdict))
        if name != "dead":
            locks.append(hold_lock(tmp_path / name))
    with WebServer(Feeds([tmp_path]), port=0) as server:
        ask = Asker(server)
        assert ask("/state").json["feed"] == "bad"
        assert ask("/state?feed=calm").json["state"]["feed"] == "calm"
    for lock in locks:
        os.close(lock)


def test_events_come_when_the_state_changes_and_end_with_the_server(
    server: WebServer, feed: Path
) -> None:
    request = urllib.request.Request(
        f"{server.base}/events", headers={"Authorization": f"Bearer {server.token}"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS_MAX) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        numbers: list[float] = []
        for number in (1, 2, 3):
            put(feed, example_state(started=float(number)))
            while not numbers or numbers[-1] != number:
                line = stream.readline()
                if line.startswith(b"data: "):
                    numbers.append(json.loads(line[6:])["state"]["started"])
        server.close()
        assert b"data: {" not in stream.read()[-100:]


def test_a_port_that_is_taken_is_named(server: WebServer, feed: Path) -> None:
    with pytest.raises(WebAddressError, match=f"port {server.port} of 127.0.0.1 is in use"):
        WebServer(Feeds([feed]), port=server.port)


def test_an_interface_that_is_not_there_is_named(feed: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with pytest.raises(WebAddressError, match=r"cannot listen at 203\.0\.113\.7"):
        WebServer(Feeds([feed]), host="203.0.113.7", port=0, certificate=certificate, key=key)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com"])
def test_other_interfaces_need_tls(feed: Path, host: str) -> None:
    with pytest.raises(WebTlsError, match="needs TLS there: give --certificate and --key"):
        WebServer(Feeds([feed]), host=host, port=0)


def test_a_certificate_that_cannot_be_used_is_named(feed: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with pytest.raises(WebTlsError, match="belong together"):
        WebServer(Feeds([feed]), port=0, certificate=certificate)
    key.write_text("no key")
    with pytest.raises(WebTlsError, match=r"tls\.key cannot be used for TLS"):
        WebServer(Feeds([feed]), port=0, certificate=certificate, key=key)
    with pytest.raises(WebTlsError, match="No such file"):
        WebServer(Feeds([feed]), port=0, certificate=certificate, key=tmp_path / "none.key")


def test_with_tls_it_listens_everywhere(feed: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with WebServer(
        Feeds([feed]), host="0.0.0.0", port=0, certificate=certificate, key=key
    ) as server:
        assert server.address.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate))
        url = f"https://localhost:{server.port}/?token={server.token}"
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirect()
        )
        with pytest.raises(urllib.request.HTTPError) as told:
            opener.open(url, timeout=WAIT_SECONDS_MAX)
        assert told.value.code == 303
        assert "; Secure" in told.value.headers["Set-Cookie"]
        # Who connects and says nothing holds nobody up.
        with socket.create_connection(("127.0.0.1", server.port)):
            request = urllib.request.Request(
                f"https://localhost:{server.port}/metrics",
                headers={"Authorization": f"Bearer {server.token}"},
            )
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                assert b"penstock_feed_up" in answer.read()


def test_a_connection_with_tls_is_closed_and_not_left_to_the_collector(
    feed: Path, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        WebServer(Feeds([feed]), port=0, certificate=certificate, key=key) as server,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always", ResourceWarning)
        with (
            socket.create_connection(("127.0.0.1", server.port), WAIT_SECONDS_MAX) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as asking,
        ):
            asking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while piece := asking.recv(65_536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 403")
    assert [str(one.message) for one in told if "SSLSocket" in str(one.message)] == []


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def test_metrics_can_be_opened_and_nothing_else_is(feed: Path) -> None:
    with WebServer(Feeds([feed]), port=0, metrics_open=True) as server:
        ask = Asker(server)
        assert ask("/metrics", token=None).status == 200
        assert ask("/state", token=None).status == 403


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no folder"):
        Feeds([tmp_path / "none"]).check()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = folder / "tls.pem", folder / "tls.key"
    certificate_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_path, key_path
