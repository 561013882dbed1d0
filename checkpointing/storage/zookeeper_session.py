"""A session with ZooKeeper, through `kazoo`: requests that wait for the connection to come back, for so long.

A connection that breaks says nothing about the session: that ends when the servers have not heard of the client for the
session timeout. So a request that got no answer is made again as long as the session may be alive. To read twice is
nothing. A transaction that got no answer may have been carried out: whoever makes one finds out (`commit`).

What is asked and cannot be sent waits in the client and may be sent later; so a caller that gives up closes the
session, or has made sure that what comes late is refused.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import field, frozen

from checkpointing.errors import InvariantViolationError, StorageError
from checkpointing.storage.steady_clock import steady_s

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest

__all__ = ["Refused", "UnknownOutcomeError", "ZooKeeperSession", "ZooKeeperSettings"]

T = TypeVar("T")

_POLL_S = 0.05
_LOOK_S = 0.5
"""Who waits for an answer looks at the clock so often."""


class UnknownOutcomeError(StorageError):
    """Whether a transaction was carried out is not known, and cannot be found out now."""


@frozen
class Refused:
    """A transaction that was refused whole: the place of the first operation that could not be, and why."""

    index: int
    error: Exception


@frozen
class ZooKeeperSettings:
    """Where the servers are, `host:port` with commas between, and how long to wait, in seconds.

    `client_options` go to `kazoo.client.KazooClient`: authentication, TLS, a default ACL. `monotonic_s` is the clock by
    which a session whose connection is broken may still be alive.
    """

    hosts: str
    session_timeout_s: float = 10.0
    connection_timeout_s: float = 15.0
    client_options: Mapping[str, Any] = field(factory=dict)
    monotonic_s: Callable[[], float] = steady_s

    def __attrs_post_init__(self) -> None:
        if not self.hosts:
            raise InvariantViolationError("hosts is empty; give the servers, such as 'zoo1:2181,zoo2:2181'")
        for name in ("session_timeout_s", "connection_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < threading.TIMEOUT_MAX:
                raise InvariantViolationError(f"{name} is {value!r}; it takes seconds, more than 0")


class ZooKeeperSession:
    """Connected from construction until `close`. May be used by several threads.

    `at_end` is called, by a thread that must not be held up, when the servers have ended the session; a new one is then
    begun by itself. Raises `StorageError` if no server answers in time.
    """

    def __init__(self, settings: ZooKeeperSettings, at_end: Callable[[], object] = lambda: None) -> None:
        self._settings = settings
        self._at_end = at_end
        self._is_closed = False
        self._errors = _errors()
        self.client = _client(settings)
        self.client.add_listener(self._state_changed)
        try:
            self.client.start(timeout=settings.connection_timeout_s)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise StorageError(
                    f"no server of ZooKeeper at {settings.hosts} has answered in {settings.connection_timeout_s:g} s "
                    f"({type(error).__name__}: {error}). Check that they run, have a quorum, and take another "
                    f"connection"
                ) from error
            raise

    @property
    def hosts(self) -> str:
        """Where the servers are."""
        return self._settings.hosts

    def get(self, path: str) -> bytes | None:
        """The content of a node, None if there is none. Raises `StorageError` if no server answers in time."""
        found = self._asked(f"read {path}", lambda: self.client.get_async(path), missing=None)
        return None if found is None else found[0]

    def children(self, path: str) -> list[str]:
        """The names of the children of a node, sorted; none if there is no node. Raises as `get`."""
        found: list[str] = self._asked(f"list {path}", lambda: self.client.get_children_async(path), missing=[])
        return sorted(found)

    def exists(self, path: str) -> bool:
        """Whether there is a node. Raises as `get`."""
        return self._asked(f"look for {path}", lambda: self.client.exists_async(path), missing=None) is not None

    def sync(self, path: str) -> None:
        """Let this session see all that was done below a node until now, by whichever server. Raises as `get`."""
        self._asked(f"look at {path}", lambda: self.client.sync_async(path), missing=None)

    def make(self, path: str) -> None:
        """Make a node and those above it, without content, unless they are there. Raises as `get`."""
        ancestor = ""
        for name in path.strip("/").split("/"):
            ancestor = f"{ancestor}/{name}"
            if not self.exists(ancestor):
                self._make_one(ancestor)

    def commit(self, what: str, build: Callable[[TransactionRequest], object]) -> Refused | None:
        """Carry out a transaction once; None if it was. What stands in the way is returned, and nothing was done.

        Raises `UnknownOutcomeError` if there was no answer.
        """
        transaction = self.client.transaction()
        build(transaction)
        try:
            results = self._awaited(transaction.commit_async(), self.deadline_s())
        except (self._errors.KazooException, self.client.handler.timeout_exception) as error:
            raise UnknownOutcomeError(
                f"ZooKeeper at {self.hosts} has not answered ({_named(error)}): {what}"
            ) from error
        consequences = (self._errors.RolledBackError, self._errors.RuntimeInconsistency)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, consequences):
                return Refused(index, result)
        return None

    def may_pass(self, error: Exception) -> bool:
        """Whether an error of kazoo has to do with the connection only."""
        errors = self._errors
        return isinstance(
            error,
            (
                errors.ConnectionLoss,
                errors.ConnectionClosedError,
                errors.OperationTimeoutError,
                errors.SessionExpiredError,
                errors.SessionMovedError,
                self.client.handler.timeout_exception,
            ),
        )

    def wait_for_connection(self, deadline_s: float) -> bool:
        """Wait until a server answers again, until so much of the clock; whether one does."""
        while not self.client.connected:
            if self.is_past(deadline_s) or self._is_closed:
                return False
            time.sleep(_POLL_S)
        return True

    def deadline_s(self) -> float:
        """When a session whose connection breaks now is over, by the clock."""
        return self._settings.monotonic_s() + self._settings.session_timeout_s

    def is_past(self, deadline_s: float) -> bool:
        """Whether the clock has come so far."""
        return self._settings.monotonic_s() >= deadline_s

    def close(self) -> None:
        """End the session, and with it what exists only as long as it does; again is fine."""
        self._is_closed = True
        # Whatever goes wrong with the farewell, the servers end the session for want of a sign of life.
        with contextlib.suppress(Exception):
            self.client.stop()
        with contextlib.suppress(Exception):
            self.client.close()

    def _asked(self, what: str, ask: Callable[[], Any], missing: T) -> Any | T:
        """The answer to a request that may be made twice; `missing` if there is no such node."""
        deadline_s = self.deadline_s()
        while True:
            answer, error = self._answer(ask, missing, deadline_s)
            if error is None:
                return answer
            if not self.may_pass(error) or not self._may_ask_again(deadline_s):
                raise StorageError(
                    f"cannot {what} in ZooKeeper at {self.hosts}: {_named(error)}. Check that the servers run and "
                    f"have a quorum, and that this program may read and write there"
                ) from error

    def _answer(self, ask: Callable[[], Any], missing: T, deadline_s: float) -> tuple[Any | T, Exception | None]:
        try:
            return self._awaited(ask(), deadline_s), None
        except self._errors.NoNodeError:
            return missing, None
        except self._errors.NodeExistsError:
            raise
        except (self._errors.KazooException, self.client.handler.timeout_exception) as error:
            return missing, error

    def _awaited(self, answer: Any, deadline_s: float) -> Any:
        while True:
            left_s = max(deadline_s - self._settings.monotonic_s(), _POLL_S)
            try:
                return answer.get(timeout=min(left_s, _LOOK_S))
            except self.client.handler.timeout_exception:
                if self.is_past(deadline_s):
                    raise

    def _make_one(self, path: str) -> None:
        with contextlib.suppress(self._errors.NodeExistsError):
            self._asked(f"make {path}", lambda: self.client.create_async(path), missing=None)

    def _may_ask_again(self, deadline_s: float) -> bool:
        if self.client.connected:
            # The client may notice a moment later than its caller.
            time.sleep(_POLL_S)
        return self.wait_for_connection(deadline_s) and not self.is_past(deadline_s)

    def _state_changed(self, state: str) -> None:
        if state == "LOST" and not self._is_closed:
            self._at_end()


def _client(settings: ZooKeeperSettings) -> KazooClient:
    try:
        from kazoo.client import KazooClient
    except ImportError as error:
        raise StorageError(
            "high availability through ZooKeeper needs the package kazoo: pip install 'statebackend[zookeeper]'"
        ) from error
    return KazooClient(
        hosts=settings.hosts,
        timeout=settings.session_timeout_s,
        # Back as soon as a server is: what waits for it waits for no longer than the session.
        connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": min(1.0, settings.session_timeout_s / 8)},
        **settings.client_options,
    )


def _errors() -> Any:
    try:
        import kazoo.exceptions
    except ImportError:
        _client(ZooKeeperSettings("-"))
        raise
    return kazoo.exceptions


def _named(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
