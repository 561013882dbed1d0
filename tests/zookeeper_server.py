"""Real ZooKeeper servers, and a lossy network between them and the client.

The server is in the jars of PySpark (3.9), so it needs no more than Spark does. No test is skipped because the server
is missing, and the lock file sets its version. A package of the distribution would be older (3.8 in Debian), and it
would have to be installed.

Servers listen on free ports of this host only, store data in a temporary directory, and end with the process that
started them. Tests wait for them by requests, with a deadline that only a hanging server reaches.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kazoo.client import KazooClient

GIVE_UP_S = 600.0
ASKING_S = 10.0
ASKING_MS = 10_000
TICK_MS = 100
PORTS = range(15_000, 32_000)
"""These are below the ephemeral ports of the system."""
_JAVA_OPTIONS = (
    "-Xmx96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.apache.logging.log4j.level=INFO",
    "-Dzookeeper.fsync.warningthresholdms=100000",
)
_HAS_BEGUN = re.compile("PrepRequestProcessor .*started|(Leading|Following|LEADING|FOLLOWING)")
_LENGTH = struct.Struct(">i")
_NUMBER_BYTES = 4
_CONNECT = struct.Struct(">iqiqi16s?")
_CONNECTED = struct.Struct(">iii")
_CLOSE = struct.Struct(">ii")
_CLOSE_SESSION = -11
_DIGITS_OF_A_NUMBER = 10
_PYSPARK = importlib.util.find_spec("pyspark")
assert _PYSPARK is not None
assert _PYSPARK.origin is not None
_JARS = os.path.join(os.path.dirname(_PYSPARK.origin), "jars", "*")


_reserved: list[socket.socket] = []


def reserved_port() -> int:
    """A free port that no test of any other process gets while this process lives."""
    while True:
        port, reserving = secrets.choice(PORTS), socket.socket(socket.AF_UNIX)
        try:
            # Abstract socket names are unique on a machine, and are released when the process ends.
            reserving.bind(f"\0port {port} of a test".encode())
            with socket.socket() as listening:
                listening.bind(("127.0.0.1", port))
        except OSError:
            reserving.close()
            continue
        _reserved.append(reserving)
        return port


class ZooKeeperServer:
    """One server, or with ``peers`` one of an ensemble of ``(id, quorum port, election port)``."""

    def __init__(
        self, directory: Path, peers: list[tuple[int, int, int]] | None = None, own_id: int = 0, *, settings: str = ""
    ) -> None:
        self.port = reserved_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._is_single = peers is None
        self._begun_at = 0
        data = directory / "data"
        data.mkdir(parents=True)
        lines = [
            f"tickTime={TICK_MS}",
            f"dataDir={data}",
            "clientPortAddress=127.0.0.1",
            f"clientPort={self.port}",
            "admin.enableServer=false",
            f"minSessionTimeout={2 * TICK_MS}",
            "maxSessionTimeout=120000",
            settings,
        ]
        if peers is not None:
            (data / "myid").write_text(str(own_id))
            # A killed server is noticed at once. These limits give a slow server on a busy machine enough time.
            lines += ["initLimit=6000", "syncLimit=300", "localSessionsEnabled=false"]
            lines += [f"server.{number}=127.0.0.1:{quorum}:{election}" for number, quorum, election in peers]
        (directory / "zoo.cfg").write_text("\n".join(lines) + "\n")

    @property
    def hosts(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The end of the server's log."""
        return (self._directory / "log").read_text(errors="replace")[-4000:]

    def begin(self) -> None:
        """Start the process, and do not wait."""
        name = "ZooKeeperServerMain" if self._is_single else "quorum.QuorumPeerMain"
        java = shutil.which("java") or os.path.join(os.environ["JAVA_HOME"], "bin", "java")
        with (self._directory / "log").open("ab") as log:
            self._begun_at = log.tell()
            self._process = subprocess.Popen(
                [java, *_JAVA_OPTIONS]
                + ([] if self._is_single else ["-Dreadonlymode.enabled=true"])
                + ["-cp", _JARS, f"org.apache.zookeeper.server.{name}", str(self._directory / "zoo.cfg")],
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        """Start the process, and wait until it accepts sessions."""
        self.begin()
        self.wait_until_it_serves()

    def wait_until_it_serves(self) -> None:
        """Wait until the server logs its start, and then until it accepts a session.

        A session request before its start would make the server hang. It would look the session up in a database that
        does not exist yet.
        """
        deadline = time.monotonic() + GIVE_UP_S
        while not (self._has_begun() and self._begins_a_session()):
            time.sleep(0.02)
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server does not serve:\n{self.log}")

    def _has_begun(self) -> bool:
        with (self._directory / "log").open(errors="replace") as log:
            log.seek(self._begun_at)
            return _HAS_BEGUN.search(log.read()) is not None

    def _begins_a_session(self) -> bool:
        from kazoo.client import KazooClient

        client = KazooClient(self.hosts, timeout=GIVE_UP_S, connection_retry={"max_tries": -1, "max_delay": 0.1})
        try:
            client.start(timeout=ASKING_S)
        except client.handler.timeout_exception:
            return False
        client.stop()
        client.close()
        return True

    def end_session(self, client_id: tuple[int, bytes]) -> None:
        """End the session of a client, as the servers do after a timeout.

        The client may notice that another connection took the session, and take it back before the session ends.
        """
        while self._takes(client_id):
            # Send both requests at once, so that the client has little time in between.
            self._takes(client_id, then=_framed(_CLOSE.pack(1, _CLOSE_SESSION)))

    def _takes(self, client_id: tuple[int, bytes], then: bytes = b"") -> bool:
        """Connect to a session, and wait for the answer. Return whether the session existed."""
        session, password = client_id
        connect = _CONNECT.pack(0, 0, ASKING_MS, session, len(password), password, False)
        with socket.create_connection(("127.0.0.1", self.port), timeout=GIVE_UP_S) as server:
            server.sendall(_framed(connect) + then)
            with server.makefile("rb") as answers, contextlib.suppress(ConnectionError):
                answer = answers.read(_CONNECTED.size)
                if len(answer) < _CONNECTED.size:
                    # A server that looks for a leader closes the connection.
                    return True
                (_, _, agreed_ms) = _CONNECTED.unpack(answer)
                if then:
                    answers.read()
                return bool(agreed_ms > 0)
        return True

    def leading_node(self, leaders: str) -> str:
        """The node of the leading driver, below the node ``leaders``."""
        with self._client() as client:
            names = client.get_children(leaders)
        return f"{leaders}/{min(names, key=lambda name: name[-_DIGITS_OF_A_NUMBER:])}"

    def remove_node(self, node: str) -> None:
        """Remove a node, as the servers do when its session ends. The node may be gone already."""
        from kazoo.exceptions import NoNodeError

        with self._client() as client, contextlib.suppress(NoNodeError):
            client.delete(node)

    @contextlib.contextmanager
    def _client(self) -> Iterator[KazooClient]:
        from kazoo.client import KazooClient

        client = KazooClient(self.hosts, timeout=GIVE_UP_S)
        client.start(timeout=GIVE_UP_S)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Kill the process, like a power loss. Acknowledged data is on the disk."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=GIVE_UP_S)


@contextlib.contextmanager
def running_server(directory: Path) -> Iterator[ZooKeeperServer]:
    """A single server, stopped at the end of the context."""
    server = ZooKeeperServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_ensemble(directory: Path) -> Iterator[list[ZooKeeperServer]]:
    """Three servers with a quorum of two. If only one is left, it serves read-only clients."""
    peers = [(number, reserved_port(), reserved_port()) for number in (1, 2, 3)]
    servers = [ZooKeeperServer(directory / str(number), peers, number) for number, _, _ in peers]
    try:
        for server in servers:
            server.begin()
        for server in servers:
            server.wait_until_it_serves()
        yield servers
    finally:
        for server in servers:
            server.stop()


def _framed(request: bytes) -> bytes:
    return _LENGTH.pack(len(request)) + request


class _Frames:
    """Splits a stream into requests or answers. Each starts with its length and its number."""

    def __init__(self) -> None:
        self._pending = b""

    def take(self, data: bytes) -> list[bytes]:
        """The frames that this part completes."""
        self._pending += data
        whole = []
        while len(self._pending) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._pending)[0]
            if len(self._pending) < end:
                break
            whole.append(self._pending[_LENGTH.size : end])
            self._pending = self._pending[end:]
        return whole


class LossyNetwork:
    """A port that forwards to a server. It can cut connections, or lose the answer to a request."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_cut = False
        self._lost_after: bytes | None = None
        self.lost_answers = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, name="a lossy network", daemon=True).start()

    @property
    def hosts(self) -> str:
        """The address of the server through this network."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close all connections, and every new one until `mend`."""
        self._is_cut = True
        for pair in list(self._pairs):
            self._end(pair)

    def mend(self) -> None:
        """Allow connections again."""
        self._is_cut = False

    def lose_answer_to(self, content: bytes, *, then_cut: bool = False) -> None:
        """Forward the next request with this content, and close its connection instead of answering."""
        self._then_cut = then_cut
        self._lost_after = content

    def close(self) -> None:
        """Close the port and all connections."""
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self._is_cut:
                    client.close()
                    continue
                try:
                    pair = client, socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._pairs.append(pair)
                threading.Thread(target=self._pass, args=(pair,), name="a connection", daemon=True).start()

    def _pass(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        requests, answers = _Frames(), _Frames()
        lost: bytes | None = None
        with contextlib.suppress(OSError, ValueError):
            while True:
                readable, _, _ = select.select([client, server], [], [])
                for one in readable:
                    data = one.recv(65536)
                    if not data:
                        return self._end(pair)
                    if one is client:
                        for request in requests.take(data):
                            if self._lost_after is not None and self._lost_after in request:
                                lost, self._lost_after = request[:_NUMBER_BYTES], None
                        server.sendall(data)
                    elif lost in [answer[:_NUMBER_BYTES] for answer in answers.take(data)]:
                        # The server has processed this request, because it has answered it.
                        self.lost_answers += 1
                        self._is_cut = self._is_cut or self._then_cut
                        return self._end(pair)
                    else:
                        client.sendall(data)
        return self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        if pair in self._pairs:
            self._pairs.remove(pair)
