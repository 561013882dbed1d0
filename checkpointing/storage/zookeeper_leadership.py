"""The leadership of a job in ZooKeeper: a node that exists as long as the session of its driver does.

Every driver of the job makes a node of its own below `leaders`, whose names the servers number; the lowest leads, and
each of the others watches the one before it (the recipe of ZooKeeper's documentation, carried out by kazoo's `Lock`).
The servers remove the node when they have not heard of the driver for the session timeout. The name of a node is never
given again, so *the node exists* says *this driver leads*, at the place and in the order in which the servers do
everything.

1. `commit` carries out a transaction whose first operation asks for the node. What it does is done by the leader, or
   not at all, however long the request was on its way: fencing where it counts.
2. A request without an answer is asked again while the session may be alive. What it has done is read and not guessed.
3. The end of the session is final, though the client begins another one: a driver that led does not lead again.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from checkpointing.errors import JobDirectoryLockedError, LeadershipLostError, StorageError
from checkpointing.storage.leadership import LossListener
from checkpointing.storage.zookeeper_nodes import JobNodes
from checkpointing.storage.zookeeper_session import UnknownOutcomeError, ZooKeeperSession, ZooKeeperSettings
from snapshots.loggers import logger_of
from snapshots.value_text import cut

if TYPE_CHECKING:
    from kazoo.client import TransactionRequest

__all__ = ["ZooKeeperLeadership"]

_TURN_S = 30.0
"""A stand-by whose watch was lost in some way looks again after so long."""

_ONE_LOOK_S = 0.01
_CONTENDER = re.compile("[0-9a-f]{32}__lock__[0-9]{10}")

_logger = logger_of(__name__)


class ZooKeeperLeadership:
    """Held from construction, which waits for it, until `close` or the end of the session; a `Leadership`.

    `stand_by_timeout_s` is how long to wait for another driver to end, None for as long as it takes. Raises
    `JobDirectoryLockedError` naming the leader, or `StorageError`.
    """

    def __init__(self, settings: ZooKeeperSettings, nodes: JobNodes, stand_by_timeout_s: float | None) -> None:
        self.nodes = nodes
        self._listeners: list[LossListener] = []
        self._is_closed = False
        self._lost: LeadershipLostError | None = None
        self._guard = threading.Lock()
        self.session = ZooKeeperSession(settings, self._session_ended)
        try:
            # Whatever ended before does not count: there was no leadership that it could have ended.
            self._node = self._led(stand_by_timeout_s)
            self._lost = None
            if not self.session.exists(self._node):
                raise self._loss(f"its node {self._node} has gone")
        except BaseException:
            self.close()
            raise

    @property
    def node(self) -> str:
        """The node that exists as long as this driver leads."""
        return self._node

    def check(self) -> None:
        """See `Leadership`; goes to the servers."""
        self._check_known()
        try:
            self.session.sync(self._node)
            exists = self.session.exists(self._node)
        except StorageError as error:
            raise self._loss(f"that cannot be found out ({error})") from error
        if not exists:
            raise self._loss(f"its node {self._node} has gone")

    def commit(
        self, what: str, build: Callable[[TransactionRequest], object], is_done: Callable[[], bool]
    ) -> Exception | None:
        """Carry out a transaction if this driver leads; None if it is carried out, else what stands in the way of it.

        `is_done` reads whether it was carried out, of which nothing else may be the cause. Raises
        `LeadershipLostError`, behind which it may have been carried out if an answer was lost, and
        `UnknownOutcomeError` if nothing can be found out as long as the session may be alive.
        """
        self._check_known()

        def guarded(transaction: TransactionRequest) -> None:
            transaction.check(self._node, -1)
            build(transaction)

        deadline_s = self.session.deadline_s()
        is_uncertain = False
        while True:
            try:
                refused = self.session.commit(what, guarded)
            except UnknownOutcomeError:
                is_uncertain = True
                if self.session.is_past(deadline_s) or not self.session.wait_for_connection(deadline_s):
                    raise
                continue
            if refused is None or (is_uncertain and self._was_done(is_done)):
                return None
            if refused.index == 0:
                raise self._loss(f"its node {self._node} has gone")
            return refused.error

    def at_loss(self, listener: LossListener) -> None:
        """See `Leadership`; called by a thread of its own."""
        with self._guard:
            self._listeners.append(listener)
            lost = self._lost
        if lost is not None:
            self._tell(listener, lost)

    def close(self) -> None:
        """End the session, and so let the next driver lead; again is fine."""
        self._is_closed = True
        self.session.close()

    def _led(self, stand_by_timeout_s: float | None) -> str:
        deadline_s = None if stand_by_timeout_s is None else time.monotonic() + stand_by_timeout_s
        self.session.make(self.nodes.leaders)
        lock = self.session.client.Lock(self.nodes.leaders, _identity())
        known = ""
        while True:
            left = _TURN_S if deadline_s is None else min(_TURN_S, deadline_s - time.monotonic())
            if self._acquired(lock.acquire, max(left, _ONE_LOOK_S) if known else _ONE_LOOK_S):
                return f"{self.nodes.leaders}/{lock.node}"
            is_over = deadline_s is not None and time.monotonic() >= deadline_s
            try:
                leader = self._leader() or "a driver that has just ended"
            except StorageError:
                # Who stands by has nothing to lose, and waits for the servers as well.
                if is_over:
                    raise
                continue
            if is_over:
                raise JobDirectoryLockedError(
                    f"job {self.nodes.job_name!r} is led by another driver: {leader}. Stop that driver, or stand by "
                    f"for longer with stand_by_timeout_s"
                )
            if leader != known:
                known = leader
                _logger.warning("standing by for job %r, which is led by %s", self.nodes.job_name, leader)

    def _acquired(self, acquire: Callable[..., bool], timeout_s: float) -> bool:
        from kazoo.exceptions import KazooException, LockTimeout

        try:
            return acquire(timeout=timeout_s)
        except LockTimeout:
            return False
        except KazooException as error:
            if not self.session.may_pass(error):
                raise StorageError(
                    f"cannot stand by for job {self.nodes.job_name!r} below {self.nodes.leaders}: {error!r}"
                ) from error
            self.session.wait_for_connection(self.session.deadline_s())
            return False

    def _leader(self) -> str | None:
        names = [name for name in self.session.children(self.nodes.leaders) if _CONTENDER.fullmatch(name)]
        for name in sorted(names, key=lambda name: name[-10:])[:1]:
            data = self.session.get(f"{self.nodes.leaders}/{name}")
            return None if data is None else cut(data.decode("utf-8", "replace"), 200)
        return None

    def _was_done(self, is_done: Callable[[], bool]) -> bool:
        self.session.sync(self.nodes.directory)
        return is_done()

    def _check_known(self) -> None:
        if self._is_closed:
            raise self._loss("it has given it up")
        if self._lost is not None:
            raise self._lost

    def _loss(self, because: str) -> LeadershipLostError:
        return LeadershipLostError(
            f"this driver does not lead job {self.nodes.job_name!r} any more: {because}. It completes no checkpoint, "
            f"and another driver may be going on; nothing that was complete is lost. Start it again, and it stands by"
        )

    def _session_ended(self) -> None:
        with self._guard:
            if self._is_closed or self._lost is not None:
                return
            self._lost = self._loss("ZooKeeper has ended its session, since it was not heard of for too long")
            listeners = list(self._listeners)
        for listener in listeners:
            self._tell(listener, self._lost)

    @staticmethod
    def _tell(listener: LossListener, lost: LeadershipLostError) -> None:
        threading.Thread(target=listener, args=(lost,), name="leadership lost", daemon=True).start()


def _identity() -> str:
    host = "an unknown host"
    with contextlib.suppress(OSError):
        host = socket.gethostname()
    return f"process {os.getpid()} on host {host}, since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}"
