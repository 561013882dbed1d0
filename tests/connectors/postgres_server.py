"""A PostgreSQL server for a test run: in a private directory, as an unprivileged user, on a free port of this host."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
from attrs import frozen

from tests.zookeeper_server import reserved_port

START_S = 300.0
PASSWORD = "a password of tests"


@frozen
class PostgresServer:
    """A running server. Its superuser is ``admin``, and connections need the password."""

    port: int
    process: subprocess.Popen[bytes]

    def conninfo(self, database: str = "postgres", user: str = "admin", password: str = PASSWORD) -> str:
        return f"host=127.0.0.1 port={self.port} dbname={database} user={user} password='{password}'"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def new_database(self) -> str:
        name = f"test_{uuid.uuid4().hex[:12]}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name


def binaries() -> Path | None:
    """The directory of the newest installed server, in Debian's directories or on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: int(one.parts[4]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else None if on_path is None else Path(on_path).resolve().parent


@contextlib.contextmanager
def running_server() -> Iterator[PostgresServer]:
    directory = binaries()
    assert directory is not None, "no PostgreSQL server: apt-get install postgresql"
    # PostgreSQL does not start as root.
    user = pwd.getpwnam("nobody").pw_name if os.geteuid() == 0 else None
    place = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
    password_file = place / "password"
    password_file.write_text(PASSWORD)
    if user is not None:
        for path in (place, password_file):
            shutil.chown(path, user)
    data, port = place / "data", reserved_port()
    initialize: list[str | Path] = [
        "-D",
        data,
        "-U",
        "admin",
        "--pwfile",
        password_file,
        "-A",
        "scram-sha-256",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    subprocess.run(
        [directory / "initdb", *initialize, "--no-sync"], user=user, check=True, stdout=subprocess.DEVNULL, cwd=place
    )
    options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
    arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [directory / "postgres", "-D", data, *arguments], user=user, stdout=log, stderr=log, cwd=place
        )
    server = PostgresServer(port, process)
    try:
        _wait_for(server, place / "log")
        yield server
    finally:
        # This ends the sessions, too.
        process.send_signal(signal.SIGINT)
        process.wait()
        shutil.rmtree(place)


def _wait_for(server: PostgresServer, log: Path) -> None:
    ends_s = time.monotonic() + START_S
    while not _answers(server):
        assert server.process.poll() is None, log.read_text()
        assert time.monotonic() < ends_s, log.read_text()
        time.sleep(0.05)


def _answers(server: PostgresServer) -> bool:
    try:
        server.connect().close()
    except psycopg.OperationalError:
        return False
    return True
