"""Files that change under a running member: new ones come into use, bad ones do no harm."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigurationError
from penstock.transport import tls
from penstock.transport.certificates import check_material
from penstock.transport.tls import (
    FILE_BYTES_MAX,
    Credentials,
    TlsFiles,
    client_context,
    server_context,
)
from tests.unit.transport.made_certificates import (
    DAY,
    NOW,
    files_in,
    make_issuer,
    put,
    put_all,
    serial_of,
)
from tests.unit.transport.made_connections import Pair, shake, talk

if TYPE_CHECKING:
    from penstock.transport.certificates import Material

ROOT = make_issuer()
STRANGER = make_issuer()
"""With the same name."""


def written(folder: Path, material: Material, age_days: int = 1) -> TlsFiles:
    """Files that were put there some time ago."""
    files = files_in(folder)
    put_all(files, material)
    for path in (files.certificate, files.key, files.authority):
        os.utime(path, (NOW.timestamp() - age_days * 86_400,) * 2)
    return files


def test_an_open_connection_goes_on_when_files_are_replaced(tmp_path: Path) -> None:
    first, second = ROOT.material(1), ROOT.material(1)
    files = written(tmp_path, first)
    server = Credentials(files, 1)
    client = client_context(Credentials(ROOT.material(2), 2))
    with shake(server_context(server), client) as old:
        talk(old)
        put_all(files, second)
        with shake(server_context(server), client) as new:
            talk(new)
            talk(old)
            assert [shown_to(pair) for pair in (old, new)] == [
                serial_of(first.certificate),
                serial_of(second.certificate),
            ]


def shown_to(pair: Pair) -> int:
    certificate = pair.ends[0].getpeercert(binary_form=True)
    assert certificate is not None
    return serial_of(certificate)


def test_clients_follow_their_files_too(tmp_path: Path) -> None:
    second = ROOT.material(2)
    files = written(tmp_path, ROOT.material(2))
    server, client = Credentials(ROOT.material(1), 1), Credentials(files, 2)
    before = client_context(client)
    put_all(files, second)
    assert client_context(client) is not before
    with shake(server_context(server), client_context(client)) as pair:
        talk(pair)
        shown = pair.ends[1].getpeercert(binary_form=True)
        assert shown is not None
        assert serial_of(shown) == serial_of(second.certificate)


@pytest.mark.parametrize("first_replaced", ["certificate", "key", "authority"])
def test_files_replaced_one_by_one_are_used_when_all_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first_replaced: str
) -> None:
    """To another authority, so that no two of old and new fit together."""
    old, new = ROOT.material(1), make_issuer("next").material(1)
    files = written(tmp_path, old)
    credentials = Credentials(files, 1)
    credentials.load()
    order = sorted(("certificate", "key", "authority"), key=lambda part: part != first_replaced)
    for count, part in enumerate(order, 1):
        put(getattr(files, part), getattr(new, part))
        for _ in range(3):
            assert credentials.load() == (new if count == 3 else old)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert {record.name for record in caplog.records} == {"penstock.transport"}
    assert "member 1 goes on with the certificate it has" in caplog.text
    assert str(tmp_path) in caplog.text
    with shake(server_context(credentials), client_context(credentials)) as pair:
        talk(pair)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda files: put(files.certificate, b"-----BEGIN CERTIFICATE-----\nMII"),
        lambda files: put(files.certificate, b""),
        lambda files: files.key.unlink(),
        lambda files: put(files.authority, STRANGER.pem),
        lambda files: put_all(files, ROOT.material(9)),
        lambda files: put_all(files, ROOT.material(1, begin=NOW - 2 * DAY, end=NOW - DAY)),
    ],
    ids=["half-written", "empty", "deleted", "other authority", "other member", "expired"],
)
def test_a_bad_reload_keeps_what_was_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any
) -> None:
    good = ROOT.material(1)
    files = written(tmp_path, good)
    credentials = Credentials(files, 1)
    context = server_context(credentials)
    spoil(files)
    for _ in range(3):
        assert server_context(credentials) is context
    assert len(caplog.records) == 1
    with shake(server_context(credentials), client_context(credentials)) as pair:
        talk(pair)
    put(files.key, b"worse")
    for _ in range(3):
        assert server_context(credentials) is context
    assert len(caplog.records) == 2
    better = ROOT.material(1)
    put_all(files, better)
    assert credentials.load() == better
    assert len(caplog.records) == 2


def test_a_certificate_can_become_valid_with_time_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ROOT.material(1), ROOT.material(1, begin=NOW - DAY / 2)
    files = written(tmp_path, old)
    credentials = Credentials(files, 1)
    credentials.load()
    written(tmp_path, new, age_days=2)
    with monkeypatch.context() as clock:
        early = NOW - DAY * 3 / 4
        clock.setattr(tls, "check_material", functools.partial(check_material, now=early))
        assert credentials.load() == old
        assert "is not valid before" in caplog.text
    assert credentials.load() == new


@pytest.mark.parametrize(
    ("change", "named", "problem"),
    [
        (lambda files: files.certificate.unlink(), "certificate.pem", "No such file or directory"),
        (lambda files: put(files.key, b"?"), "key.pem", "is no readable private key"),
        (lambda files: put(files.key, ROOT.material(1).key), "key.pem", "is not the key of"),
        (
            lambda files: put(files.authority, b"#" * (FILE_BYTES_MAX + 1)),
            "authority.pem",
            "has more",
        ),
        (lambda files: put_all(files, ROOT.material(2)), "certificate.pem", "is of member 2"),
    ],
)
def test_a_bad_first_load_raises_until_it_is_mended(
    tmp_path: Path, change: Any, named: str, problem: str
) -> None:
    good = ROOT.material(1)
    files = written(tmp_path, good)
    change(files)
    credentials = Credentials(files, 1)
    for use in (credentials.load, lambda: server_context(credentials)):
        with pytest.raises(ConfigurationError, match=problem) as caught:
            use()
        assert str(caught.value).startswith(str(tmp_path / named))
    put_all(files, good)
    assert credentials.load() == good


def test_files_are_read_only_when_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = written(tmp_path, ROOT.material(1))
    credentials = Credentials(files, 1)
    material, context = credentials.load(), server_context(credentials)
    reads: list[TlsFiles] = []
    read = TlsFiles.read

    def spy(self: TlsFiles) -> Material:
        reads.append(self)
        return read(self)

    monkeypatch.setattr(TlsFiles, "read", spy)
    for _ in range(3):
        assert credentials.load() is material
    assert not reads
    os.utime(files.key, (1, 1))
    assert server_context(credentials) is context, "touched, and the same"
    assert len(reads) == 1
    credentials.load()
    assert len(reads) == 1


def test_two_changes_within_one_tick_of_the_clock_are_seen(tmp_path: Path) -> None:
    """The second change keeps the file's time, size and inode."""
    first, second = ROOT.material(1), ROOT.material(1)
    files = files_in(tmp_path)
    put_all(files, first)
    for path in (files.certificate, files.key, files.authority):
        path.write_bytes(path.read_bytes() + b"\n" * (4096 - path.stat().st_size))
    credentials = Credentials(files, 1)
    credentials.load()
    stamps = files.stamps()
    for path, data in ((files.certificate, second.certificate), (files.key, second.key)):
        times = path.stat()
        path.write_bytes(data + b"\n" * (4096 - len(data)))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files.stamps() == stamps
    assert serial_of(credentials.load().certificate) == serial_of(second.certificate)


def test_links_that_are_switched_count_as_a_change(tmp_path: Path) -> None:
    """As secrets are mounted into containers: a link to a folder, replaced at once."""
    old, new = ROOT.material(1), ROOT.material(1)
    for name, material in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        written(tmp_path / name, material)
    link = tmp_path / "current"
    link.symlink_to("old")
    credentials = Credentials(files_in(link), 1)
    assert credentials.load() == old
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").replace(link)
    assert credentials.load() == new


def test_threads_always_get_a_whole_set(tmp_path: Path) -> None:
    materials = [ROOT.material(1) for _ in range(8)]
    files = written(tmp_path, materials[0])
    credentials = Credentials(files, 1)
    stop = threading.Event()

    def use() -> set[Material]:
        seen = set()
        while not stop.is_set():
            contexts = credentials.contexts()
            seen.add(contexts.material)
        return seen

    with ThreadPoolExecutor(4) as threads:
        users = [threads.submit(use) for _ in range(4)]
        for material in materials:
            put_all(files, material)
            credentials.load()
        stop.set()
    for user in users:
        assert user.result() <= set(materials)
    assert credentials.load() == materials[-1]


def test_paths_may_name_the_member() -> None:
    files = TlsFiles(Path("tls/{member}/c.pem"), Path("tls/key-{member}.pem"), Path("tls/ca.pem"))
    assert files.of_member(12) == TlsFiles(
        Path("tls/12/c.pem"), Path("tls/key-12.pem"), Path("tls/ca.pem")
    )


def test_credentials_of_files_pickle_without_what_is_in_them(tmp_path: Path) -> None:
    files = written(tmp_path, ROOT.material(1))
    credentials = Credentials(files, 1)
    credentials.load()
    shipped = pickle.dumps(credentials)
    assert files.key.read_bytes().splitlines()[1] not in shipped, "the files stay where they are"
    assert pickle.loads(shipped).load() == credentials.load()


def test_logging_is_quiet_when_all_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    files = written(tmp_path, ROOT.material(1))
    credentials = Credentials(files, 1)
    credentials.load()
    put_all(files, ROOT.material(1))
    credentials.load()
    assert not caplog.records
