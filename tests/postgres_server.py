"""A real PostgreSQL server for tests: made once a run, when the first test asks for it.

    from tests.postgres_server import database

    __all__ = ["database"]  # a fixture, by its name

    def test_something(database: Database) -> None:
        PostgresRecords(database.conninfo)

Each test gets an empty database to itself. `database.server.kill()` ends the server by SIGKILL, and
`start()` brings it back: what it had made durable is there again.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
START_SECONDS_MAX = 60.0
"""Only a server that does not start takes this long."""
ADMINISTRATOR = "administrator"
GUARDED = "guarded"
"""A user who must give a password."""
GUARDED_PASSWORD = "correct-horse"

SETTINGS = {
    "listen_addresses": "",  # a socket in its own folder: no port to fight for
    "max_prepared_transactions": "64",
    "max_connections": "200",
    # A killed process leaves the page cache alone: what was written is there, synced or not.
    "fsync": "off",
    # What a session does not write by itself is lost when it is killed.
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
    "shared_buffers": "16MB",
    "jit": "off",
    "autovacuum": "off",
    "restart_after_crash": "off",
    "log_min_messages": "log",
}
_PARENT = ThreadPoolExecutor(1, thread_name_prefix="test: parent of servers")
"""A server that goes down with us goes down with the thread that started it: so with this one."""
ACCESS = f"""\
local all {GUARDED} scram-sha-256
local all all trust
host all all 127.0.0.1/32 trust
"""


class PostgresServer:
    """A server in a folder of its own. Any number of kills and starts."""

    def __init__(self, **settings: str) -> None:
        """`settings` go before those of all tests."""
        self._settings = {**SETTINGS, **settings}
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a socket's path is limited
        self.folder.chmod(0o755)
        self._programs = _programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self.spare: list[Database] = []
        """Empty ones, that tests have used before."""
        if os.getuid() == 0:  # the server refuses to run as root
            shutil.chown(self.folder, _account())
        try:
            self._initialise()
            self.start()
            with psycopg.connect(self.conninfo(), autocommit=True) as connection:
                connection.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{GUARDED_PASSWORD}'")
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def conninfo(self, name: str = "postgres", **options: str) -> str:
        given = {"host": str(self.folder), "dbname": name, "user": ADMINISTRATOR, **options}
        if "port" in self._settings:
            given = {"port": self._settings["port"], **given}
        return psycopg.conninfo.make_conninfo("", **given)

    def new_database(self) -> Database:
        name = f"test_{next(self._names)}"
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return Database(self, name, self.conninfo(name))

    def start(self, **settings: str) -> None:
        """Returns once it answers, and has recovered what it had before."""
        assert not self.is_running, "the server runs already"
        items = {**self._settings, **settings}.items()
        options = [part for item in items for part in ("-c", "=".join(item))]
        data, log = self.folder / "data", self.folder / "log"
        command = [
            *_as_account(with_us=True),
            str(self._programs / "postgres"),
            *("-D", str(data), "-k", str(self.folder), *options),
        ]
        self._process = _PARENT.submit(_launch, command, self.folder, log).result()
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.conninfo(), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if not self.is_running or time.monotonic() > deadline:
                    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                    raise RuntimeError(f"the server did not start: {error}\n{tail}") from error
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """Ends the server and all of its processes by SIGKILL, in the middle of what they do."""
        process = self._process
        assert process is not None
        assert process.poll() is None, "the server does not run"
        os.kill(process.pid, signal.SIGSTOP)  # it makes no new ones while they are listed,
        _wait(lambda: _state(process.pid) == "T", "the server to stop")
        children = _children(process.pid)
        for pid in [*children, process.pid]:  # and none of them finds out that it is an orphan
            _kill(pid)
        process.wait()
        _wait(lambda: not any(_state(pid) not in ("", "Z") for pid in children), "all to end")

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """Shuts the server down properly: it has nothing to recover when it starts again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(START_SECONDS_MAX)

    @contextmanager
    def set_otherwise(self, **settings: str) -> Iterator[None]:
        """Restarts the server with other settings, and without them when the block is over."""
        self.stop()
        self.start(**settings)
        yield
        self.stop()
        self.start()

    def close(self) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initialise(self) -> None:
        made = subprocess.run(
            [
                *_as_account(),
                self._programs / "initdb",
                *("-D", str(self.folder / "data"), "-U", ADMINISTRATOR, "--no-sync"),
                *("--auth=trust", "--encoding=UTF8", "--no-locale"),
            ],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stdout}{made.stderr}")
        (self.folder / "data" / "pg_hba.conf").write_text(ACCESS)


@dataclass(frozen=True, slots=True)
class Database:
    """A database that one test uses at a time."""

    server: PostgresServer
    name: str
    conninfo: str

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """For the test to look around: each statement is its own transaction."""
        return psycopg.connect(self.conninfo, autocommit=True)

    def empty(self) -> None:
        """As it was when it was new: that is ten times faster than another one."""
        with self.connect() as connection:
            others = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            _wait(lambda: not connection.execute(others).fetchall(), "the sessions to end")
            prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            for (gid,) in connection.execute(prepared).fetchall():
                connection.execute(f"ROLLBACK PREPARED '{gid}'")
            connection.execute("DROP SCHEMA IF EXISTS penstock CASCADE")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
            connection.execute(f"ALTER DATABASE {self.name} RESET ALL")


@functools.cache
def shared_server() -> PostgresServer:
    """The server of this test run. Whoever kills it starts it again."""
    server = PostgresServer()
    atexit.register(server.close)
    return server


@pytest.fixture
def database() -> Iterator[Database]:
    server = shared_server()
    if not server.is_running:  # a test that killed it has failed on its way
        server.start()
    taken = server.spare.pop() if server.spare else server.new_database()
    yield taken
    if not server.is_running:
        server.start()
    taken.empty()
    server.spare.append(taken)


@functools.cache
def _programs() -> Path:
    """Where initdb and postgres are; they are installed if that can be done."""
    found = subprocess.run(
        ["sh", ROOT / "scripts" / "postgres"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.fail(f"these tests need a PostgreSQL server\n{found.stderr}")
    return Path(found.stdout.strip())


def _account() -> str:
    """Who runs the server when we are root."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def _as_account(*, with_us: bool = False) -> list[str]:
    """`with_us`: the server goes down with the tests, also when they are killed."""
    prefix = ["setpriv"]
    if os.getuid() == 0:
        account = pwd.getpwnam(_account())
        prefix += [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    if with_us:
        prefix += ["--pdeathsig=QUIT"]
    return prefix if len(prefix) > 1 else []


def _launch(command: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == parent:
            found.append(int(status.parent.name))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _state(pid: int) -> str:
    """As the system abbreviates it: T is stopped, Z a zombie that nobody looks at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)
