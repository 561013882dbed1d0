"""ZooKeeper's servers in memory, and a client in place of kazoo's.

All servers act as one: every request is carried out at once, completely, and in one order. Each request is a step at
which a fault may happen:

| fault                    | what the client sees                                                            |
|--------------------------|---------------------------------------------------------------------------------|
| a storage error          | the connection breaks before the request is carried out                         |
| an error after the step  | it breaks afterwards: the answer is lost                                         |
| servers without quorum   | it breaks, and no server answers for longer than the session timeout             |
| another driver           | this one was paused for longer than its session: its nodes are gone              |
| a rival                  | nothing: its session stays alive while the other driver waits to lead, in vain   |

When a driver waits to lead, all other sessions end except those in `heard_of`. A client whose session has ended learns
it at its next request or some requests later, and then has a new session.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from unittest import mock

from attrs import define, field, frozen
from kazoo.exceptions import (
    ConnectionLoss,
    LockTimeout,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)

from verification.simulation.host.disk import Process, SimulatedDisk
from verification.simulation.host.faults import FaultKind, FaultPlace

__all__ = ["SimulatedZooKeeper"]

_SILENT_S: Final = 30.0
_MOST_UNAWARE_REQUESTS: Final = 6
_MOST_TURNS: Final = 12
"""A driver that waits to lead in vain is ended after this many attempts."""


@define
class _Node:
    """``owner`` is the session of an ephemeral node."""

    data: bytes
    owner: int | None = None


@define(eq=False)
class SimulatedZooKeeper:
    """The servers. ``now_s`` is the monotonic time while they are used."""

    disk: SimulatedDisk
    nodes: dict[str, _Node] = field(factory=dict)
    now_s: float = 0.0
    silent_until_s: float = 0.0
    sessions: dict[int, Process] = field(factory=dict)
    """The live sessions, with their processes."""
    heard_of: Process | None = None
    """The process whose session stays alive while another driver waits to lead."""
    _last_session: int = 0
    _last_number: int = 0

    @contextlib.contextmanager
    def asked_by(self, process: Process) -> Iterator[None]:
        """Within the block, clients that the product creates belong to this process, and wait without delay."""

        def sleep(seconds: float) -> None:
            self.now_s += seconds

        def monotonic() -> float:
            return self.now_s

        client = partial(SimulatedKazooClient, self, process)
        with (
            mock.patch("kazoo.client.KazooClient", client),
            mock.patch.object(time, "monotonic", monotonic),
            mock.patch.object(time, "sleep", sleep),
        ):
            yield

    def new_session(self, process: Process) -> int:
        """Return a new session."""
        self._last_session += 1
        self.sessions[self._last_session] = process
        return self._last_session

    def end_sessions_but(self, session: int) -> None:
        """End all sessions except these."""
        heard = None if self.heard_of is None or self.heard_of.is_dead else self.heard_of
        self.sessions = {one: whose for one, whose in self.sessions.items() if one == session or whose is heard}
        self.nodes = {path: one for path, one in self.nodes.items() if one.owner is None or one.owner in self.sessions}

    def next_number(self) -> int:
        """Return the next sequence number of a node."""
        self._last_number += 1
        return self._last_number

    def children(self, path: str) -> list[str]:
        """Return the names of the children of a node."""
        return [one[len(path) + 1 :] for one in self.nodes if one.rpartition("/")[0] == path]


class _TimeOut(Exception):
    """No answer arrived in time."""


@frozen
class _Handler:
    timeout_exception: type[Exception] = _TimeOut


@frozen
class _Answer:
    """An answer that is available, or an error in its place."""

    value: Any = None
    error: Exception | None = None

    def get(self, timeout: float | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class SimulatedKazooClient:
    """The part of a `KazooClient` that the product uses, for one process."""

    handler = _Handler()

    def __init__(self, servers: SimulatedZooKeeper, process: Process, **options: Any) -> None:
        self.servers = servers
        self._process = process
        self._listeners: list[Callable[[str], object]] = []
        self.session = servers.new_session(process)
        self._unaware = 0

    @property
    def connected(self) -> bool:
        self._process.check()
        return self.servers.now_s >= self.servers.silent_until_s

    def add_listener(self, listener: Callable[[str], object]) -> None:
        self._listeners.append(listener)

    def start(self, timeout: float) -> None:
        self._process.check()

    def stop(self) -> None:
        self._process.check()
        self.servers.sessions.pop(self.session, None)
        self.servers.nodes = {path: one for path, one in self.servers.nodes.items() if one.owner != self.session}

    def close(self) -> None:
        """Do nothing: the session has ended already."""

    def get_async(self, path: str) -> _Answer:
        return self._asked("get", path, lambda: (self.existing_node(path).data, None))

    def get_children_async(self, path: str) -> _Answer:
        def children() -> list[str]:
            self.existing_node(path)
            return self.servers.children(path)

        return self._asked("list", path, children)

    def exists_async(self, path: str) -> _Answer:
        return self._asked("look up", path, lambda: self.servers.nodes.get(path))

    def sync_async(self, path: str) -> _Answer:
        return self._asked("sync", path, lambda: path)

    def create_async(self, path: str) -> _Answer:
        return self._asked("create", path, lambda: self.create(path, b""))

    def transaction(self) -> _Transaction:
        return _Transaction(self)

    def Lock(self, path: str, identity: str) -> _Lock:  # noqa: N802
        return _Lock(self, path, identity)

    def create(self, path: str, data: bytes, owner: int | None = None) -> str:
        """Create a node, without a step of its own."""
        if path in self.servers.nodes:
            raise NodeExistsError(path)
        parent = path.rpartition("/")[0]
        if parent and parent not in self.servers.nodes:
            raise NoNodeError(path)
        self.servers.nodes[path] = _Node(data, owner)
        return path

    def commit(self, operations: list[Callable[[], object]], path: str) -> _Answer:
        """Carries out all operations or none."""

        def carry_out() -> list[Any]:
            before = {known: _Node(one.data, one.owner) for known, one in self.servers.nodes.items()}
            results: list[Any] = []
            try:
                results.extend(operation() for operation in operations)
            except (NoNodeError, NodeExistsError) as error:
                self.servers.nodes = before
                remaining = len(operations) - len(results) - 1
                return [RolledBackError()] * len(results) + [error] + [RuntimeInconsistency()] * remaining
            return results

        return self._asked("commit", path, carry_out)

    def existing_node(self, path: str) -> _Node:
        """Return the node. A missing one raises `NoNodeError`, which aborts the transaction."""
        try:
            return self.servers.nodes[path]
        except KeyError:
            raise NoNodeError(path) from None

    def _asked(self, deed: str, path: str, carry_out: Callable[[], Any]) -> _Answer:
        servers, kind = self.servers, path.split("/")[3:4] or ["job"]
        if not self.connected:
            return _Answer(error=ConnectionLoss())
        try:
            among = FaultPlace.COMPLETION if deed == "commit" else None
            late_fault = servers.disk.strike(self._process, f"{deed} zookeeper {kind[0]}", among)
        except OSError:
            return _Answer(error=ConnectionLoss())
        if self._learns_of_its_end():
            return _Answer(error=SessionExpiredError())
        is_silenced = late_fault is not None and late_fault.kind is FaultKind.NO_QUORUM
        if is_silenced:
            servers.silent_until_s = servers.now_s + _SILENT_S
            if servers.disk.chance.random() < 0.5:
                return _Answer(error=ConnectionLoss())
        try:
            answer = _Answer(carry_out())
        except (NoNodeError, NodeExistsError) as error:
            answer = _Answer(error=error)
        return answer if late_fault is None else _Answer(error=ConnectionLoss())

    def renew(self) -> None:
        """Start another session if the own one has ended. The client learns this some requests later."""
        if self.session not in self.servers.sessions:
            self.session = self.servers.new_session(self._process)
            self._unaware = 1 + self.servers.disk.chance.randrange(_MOST_UNAWARE_REQUESTS)

    def abandon(self) -> None:
        """End the process, which has waited long enough."""
        self._process.die()
        self._process.check()

    def _learns_of_its_end(self) -> bool:
        self.renew()
        if self._unaware == 0:
            return False
        self._unaware -= 1
        if self._unaware > 0:
            return False
        for listener in self._listeners:
            listener("LOST")
        return True


@define(eq=False)
class _Transaction:
    client: SimulatedKazooClient
    _operations: list[Callable[[], object]] = field(factory=list)
    _path: str = ""

    def check(self, path: str, version: int) -> None:
        self._operations.append(lambda: self.client.existing_node(path))

    def create(self, path: str, data: bytes) -> None:
        self._path = path
        self._operations.append(lambda: self.client.create(path, data))

    def set_data(self, path: str, data: bytes) -> None:
        self._path = self._path or path

        def set_data() -> None:
            self.client.existing_node(path).data = data

        self._operations.append(set_data)

    def delete(self, path: str) -> None:
        self._path = path

        def delete() -> None:
            self.client.existing_node(path)
            del self.client.servers.nodes[path]

        self._operations.append(delete)

    def commit_async(self) -> _Answer:
        return self.client.commit(self._operations, self._path)


@define(eq=False)
class _Lock:
    """Waits, without delay, for all other sessions to end. The wait is in vain if one of them stays alive."""

    client: SimulatedKazooClient
    path: str
    identity: str
    node: str = ""
    _turns: int = 0

    def acquire(self, timeout: float) -> bool:
        servers = self.client.servers
        self.client.renew()
        if f"{self.path}/{self.node}" not in servers.nodes:
            self.node = f"{uuid.uuid4().hex}__lock__{servers.next_number():010d}"
            self.client.create(f"{self.path}/{self.node}", self.identity.encode(), self.client.session)
        names = sorted(servers.children(self.path), key=lambda name: name[-10:])
        if names[0] == self.node:
            return True
        servers.end_sessions_but(self.client.session)
        self._turns += 1
        if self._turns > _MOST_TURNS:
            self.client.abandon()
        raise LockTimeout
