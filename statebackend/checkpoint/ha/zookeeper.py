"""High availability of a job through ZooKeeper: leadership and checkpoint pointers there, files in the file system.

    <root>/<job>/job                        the job that owns these nodes
    <root>/<job>/leaders/<uuid>__lock__<n>  one for each driver that leads or stands by; the lowest <n> leads
    <root>/<job>/driver-files               the directory of the leader's driver files
    <root>/<job>/last-id                    the greatest checkpoint id so far
    <root>/<job>/checkpoints/<id>           a pointer to the metadata file of a completed checkpoint
    <root>/<job>/set-aside/<id>-<n>         the pointer of a checkpoint that a rollback set aside

All nodes except `leaders` hold checksummed JSON; `docs/formats-checkpoint.md` has the grammar.

Leadership is kazoo's `Lock`: each driver creates an ephemeral node, the lowest one leads, and each other driver watches
the node before its own. The servers remove the node when the session ends. *Fencing*: the first operation of each
transaction checks that the node of this driver exists, so a driver without leadership changes nothing, even with a late
request. A lost session is final: the driver does not lead again.

A request without an answer is repeated while the session may be alive. A transaction without an answer may have been
carried out, so `commit` reads whether it was. Pointers name files that only one attempt has written, so a repetition is
recognised. A withdrawal deletes the pointer before the files; a crash leaves files that the next recovery removes.

`take_over` runs when a driver becomes leader:

1. It checks that `job` and `job.json` belong to one job. On first use it imports the checkpoints of the directory.
2. It copies the driver files of the previous leader to its own directory (`driver_files`).
3. One transaction records that directory. After that, later writes of the previous leader to its files are never read.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from attrs import asdict, evolve, field, frozen

from snapshots.errors import cut
from snapshots.loggers import logger_of
from statebackend.checkpoint.errors import (
    CheckpointError,
    CorruptJobIdentityError,
    CorruptMetadataError,
    InvariantViolationError,
    JobDirectoryLockedError,
    JobDirectoryMismatchError,
    LeadershipLostError,
    StorageError,
    UncertainCheckpointError,
)
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, parse_checksummed_json
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.retries import monotonic_s
from statebackend.checkpoint.ha.leadership import LossListener
from statebackend.checkpoint.ha.services import DirectoryServices, JobRecords
from statebackend.checkpoint.invariants import check_identifier, checksum_of_bytes
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.checkpoint.store.checkpoint_directories import (
    CheckpointPointer,
    DirectoryPointers,
    FoundCheckpoints,
    RetainedCheckpoint,
    checkpoint_directory,
    delete_pointed_metadata,
    metadata_path,
    read_metadata,
    read_pointed_metadata,
    unnamed_directories,
    write_pointed_metadata,
)
from statebackend.checkpoint.store.driver_files import (
    DRIVERS_DIRECTORY,
    copy_driver_files,
    delete_driver_files,
    driver_files_of,
    driver_root,
)
from statebackend.checkpoint.store.driver_lock import DriverLockFile
from statebackend.checkpoint.store.job_directory import JobDirectory, JobIdentity
from statebackend.checkpoint.store.job_files import read_roll_back, read_stored_in, write_stored_in

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest

__all__ = ["UnknownOutcomeError", "ZooKeeperHighAvailability", "ZooKeeperLeadership", "ZooKeeperPointers"]

T = TypeVar("T")

_POLL_S = 0.05
_LOOK_S = 0.5
"""Seconds between two checks of the clock while waiting for an answer."""


class UnknownOutcomeError(StorageError):
    """It is unknown whether a transaction was carried out, because no server answers."""


@frozen
class Rejected:
    """A rejected transaction: the index of the first operation that failed, and its error. Nothing was changed."""

    index: int
    error: Exception


@frozen
class ZooKeeperSettings:
    """The servers (`host:port`, separated by commas) and the timeouts in seconds.

    `client_options` go to `kazoo.client.KazooClient`: authentication, TLS, a default ACL. `monotonic_s` is the clock
    that decides whether a session without a connection may still be alive.
    """

    hosts: str
    session_timeout_s: float = 10.0
    connection_timeout_s: float = 15.0
    client_options: Mapping[str, Any] = field(factory=dict)
    monotonic_s: Callable[[], float] = monotonic_s

    def __attrs_post_init__(self) -> None:
        if not self.hosts:
            raise InvariantViolationError("hosts is empty; give the servers, such as 'zoo1:2181,zoo2:2181'")
        for name in ("session_timeout_s", "connection_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < threading.TIMEOUT_MAX:
                raise InvariantViolationError(f"{name} is {value!r}; it takes seconds, more than 0")


class ZooKeeperSession:
    """A session through kazoo, connected from construction until `close`. Several threads may use it.

    `at_end` is called when the servers have ended the session, by a thread that must not block; kazoo then starts a new
    session. Raises `StorageError` if no server answers in time.
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
        """The addresses of the servers."""
        return self._settings.hosts

    def get(self, path: str) -> bytes | None:
        """The content of a node; None if it does not exist. Raises `StorageError` if no server answers in time."""
        found = self._asked(f"read {path}", lambda: self.client.get_async(path), missing=None)
        return None if found is None else found[0]

    def children(self, path: str) -> list[str]:
        """The names of the children of a node, sorted; empty if the node does not exist. Raises as `get`."""
        found: list[str] = self._asked(f"list {path}", lambda: self.client.get_children_async(path), missing=[])
        return sorted(found)

    def exists(self, path: str) -> bool:
        """Whether a node exists. Raises as `get`."""
        return self._asked(f"look for {path}", lambda: self.client.exists_async(path), missing=None) is not None

    def sync(self, path: str) -> None:
        """Make all changes below a node until now visible to this session. Raises as `get`."""
        self._asked(f"look at {path}", lambda: self.client.sync_async(path), missing=None)

    def make(self, path: str) -> None:
        """Create a node and its parents without content unless they exist. Raises as `get`."""
        ancestor = ""
        for name in path.strip("/").split("/"):
            ancestor = f"{ancestor}/{name}"
            if not self.exists(ancestor):
                with contextlib.suppress(self._errors.NodeExistsError):
                    self._asked(f"create {ancestor}", partial(self.client.create_async, ancestor), missing=None)

    def commit(self, what: str, build: Callable[[TransactionRequest], object]) -> Rejected | None:
        """Carry out a transaction once. Returns None on success, otherwise the operation that was rejected.

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
                return Rejected(index, result)
        return None

    def is_connection_error(self, error: Exception) -> bool:
        """Whether an error of kazoo only concerns the connection."""
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
        """Wait for a connection until `deadline_s` of the clock. Returns whether it is connected."""
        while not self.client.connected:
            if self.is_past(deadline_s) or self._is_closed:
                return False
            time.sleep(_POLL_S)
        return True

    def deadline_s(self) -> float:
        """The time of the clock at which the session ends if its connection breaks now."""
        return self._settings.monotonic_s() + self._settings.session_timeout_s

    def is_past(self, deadline_s: float) -> bool:
        """Whether the clock has reached `deadline_s`."""
        return self._settings.monotonic_s() >= deadline_s

    def close(self) -> None:
        """End the session and with it its ephemeral nodes. May be called again."""
        self._is_closed = True
        # If stopping fails, the servers end the session when it times out.
        with contextlib.suppress(Exception):
            self.client.stop()
        with contextlib.suppress(Exception):
            self.client.close()

    def _asked(self, what: str, ask: Callable[[], Any], missing: T) -> Any | T:
        """Send a repeatable request and return the answer; `missing` if the node does not exist."""
        deadline_s = self.deadline_s()
        while True:
            try:
                return self._awaited(ask(), deadline_s)
            except self._errors.NoNodeError:
                return missing
            except self._errors.NodeExistsError:
                raise
            except (self._errors.KazooException, self.client.handler.timeout_exception) as raised:
                error = raised
            if not self.is_connection_error(error) or not self._may_ask_again(deadline_s):
                raise StorageError(
                    f"cannot {what} in ZooKeeper at {self.hosts}: {_named(error)}. Check that the servers run and "
                    f"have a quorum, and that this program may read and write there"
                ) from error

    def _awaited(self, answer: Any, deadline_s: float) -> Any:
        while True:
            left_s = max(deadline_s - self._settings.monotonic_s(), _POLL_S)
            try:
                return answer.get(timeout=min(left_s, _LOOK_S))
            except self.client.handler.timeout_exception:
                if self.is_past(deadline_s):
                    raise

    def _may_ask_again(self, deadline_s: float) -> bool:
        if self.client.connected:
            # The client may notice the lost connection later than its caller.
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
        # Reconnect as soon as a server is back: requests wait no longer than the session timeout.
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


_FORMAT_VERSION: Final = 1
_ID: Final = re.compile("([0-9]{12,19})")
_SET_ASIDE: Final = re.compile("([0-9]{12,19})-([1-9][0-9]*)")


def checked_root(root: str) -> str:
    """Check the path of the parent node of all jobs. Raises `InvariantViolationError`."""
    segments = root.split("/")[1:]
    if not root.startswith("/") or any(part in ("", ".", "..", "zookeeper") or "\0" in part for part in segments):
        raise InvariantViolationError(
            f"root is {root!r}; pass the path of a node that only Statebackend uses, such as '/statebackend'"
        )
    return root


class JobNodes:
    """The paths of a job's nodes. In its name, all but letters, digits, `_`, `-` and `~` become `%XX`."""

    def __init__(self, root: str, job_name: str) -> None:
        self.job_name = job_name
        self.directory = f"{root}/{quote(job_name, safe='').replace('.', '%2E')}"
        self.job = f"{self.directory}/job"
        self.leaders = f"{self.directory}/leaders"
        self.driver_files = f"{self.directory}/driver-files"
        self.last_id = f"{self.directory}/last-id"
        self.checkpoints = f"{self.directory}/checkpoints"
        self.set_aside = f"{self.directory}/set-aside"

    def checkpoint(self, checkpoint_id: int) -> str:
        """The pointer of a checkpoint."""
        return f"{self.checkpoints}/{checkpoint_id:012d}"


def _id_in(name: str, pattern: re.Pattern[str]) -> int | None:
    """The checkpoint id in the name of a pointer; None for other names."""
    matched = pattern.fullmatch(name)
    return None if matched is None else int(matched.group(1))


@frozen
class JobNode:
    """The job of these nodes: `job_id` as in `job.json`, and `job_directory` for messages."""

    job_id: str
    job_directory: str

    def __attrs_post_init__(self) -> None:
        check_identifier("job_id", self.job_id)

    def encode(self) -> bytes:
        """The content of the node."""
        return checksummed_json(asdict(self), _FORMAT_VERSION)

    @classmethod
    def decode(cls, data: bytes, where: str) -> JobNode:
        """Parse the content of the node. Raises `CorruptJobIdentityError`."""
        content = parse_checksummed_json(data, where, _FORMAT_VERSION)
        try:
            return cls(**content)
        except (InvariantViolationError, TypeError) as error:
            raise CorruptJobIdentityError(f"{where} is not valid: {error}") from error


def encode_pointer(pointer: CheckpointPointer) -> bytes:
    """The content of the node of a checkpoint."""
    return checksummed_json(asdict(pointer), _FORMAT_VERSION)


def decode_pointer(data: bytes, checkpoint_id: int, where: str) -> CheckpointPointer:
    """Parse the content of a checkpoint's node. Raises `CorruptMetadataError`."""
    try:
        content = parse_checksummed_json(data, where, _FORMAT_VERSION)
        pointer = CheckpointPointer(content.pop("checkpoint_id"), FileHandle(**content.pop("metadata_file")))
        if content or pointer.checkpoint_id != checkpoint_id:
            raise InvariantViolationError("it belongs to another checkpoint, or has more fields than it should")
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        raise CorruptMetadataError(f"{where} is not a pointer to a checkpoint: {error}") from error
    return pointer


def encode_text(value: Any) -> bytes:
    """Encode one value as the content of a node."""
    return checksummed_json({"value": value}, _FORMAT_VERSION)


def decode_text(data: bytes, where: str, kind: type) -> Any:
    """Parse the content of a node with one value of that type. Raises `CorruptJobIdentityError`."""
    content = parse_checksummed_json(data, where, _FORMAT_VERSION)
    if content.keys() != {"value"} or type(content["value"]) is not kind:
        raise CorruptJobIdentityError(f"{where} does not hold one value of type {kind.__name__}")
    return content["value"]


_TURN_S = 30.0
"""Seconds after which a standby checks again if it has lost its watch."""

_ONE_LOOK_S = 0.01
_CONTENDER = re.compile("[0-9a-f]{32}__lock__[0-9]{10}")

_logger = logger_of(__name__)


class ZooKeeperLeadership:
    """The `Leadership` through ZooKeeper. The constructor waits for it; it ends with `close` or with the session.

    `stand_by_timeout_s` limits the wait for another driver to end; None means no limit. Raises
    `JobDirectoryLockedError` with the leader, or `StorageError`.
    """

    def __init__(self, settings: ZooKeeperSettings, nodes: JobNodes, stand_by_timeout_s: float | None) -> None:
        self.nodes = nodes
        self._listeners: list[LossListener] = []
        self._is_closed = False
        self._lost: LeadershipLostError | None = None
        self._guard = threading.Lock()
        self.session = ZooKeeperSession(settings, self._session_ended)
        try:
            # A session that ended before this driver led does not count as a loss.
            self._node = self._led(stand_by_timeout_s)
            self._lost = None
            if not self.session.exists(self._node):
                raise self._loss(f"its node {self._node} was deleted")
        except BaseException:
            self.close()
            raise

    @property
    def node(self) -> str:
        """The node that exists as long as this driver leads."""
        return self._node

    def check(self) -> None:
        """See `Leadership`; sends requests to the servers."""
        self._check_known()
        try:
            self.session.sync(self._node)
            exists = self.session.exists(self._node)
        except StorageError as error:
            raise self._loss(f"its leadership cannot be verified ({error})") from error
        if not exists:
            raise self._loss(f"its node {self._node} was deleted")

    def commit(
        self, what: str, build: Callable[[TransactionRequest], object], is_done: Callable[[], bool]
    ) -> Exception | None:
        """Carry out a transaction if this driver leads. Returns None on success, otherwise the error that prevents it.

        `is_done` reads whether the transaction was carried out; nothing else may have the same effect.

        Raises:
            LeadershipLostError: This driver does not lead. If an answer was lost, the transaction may be carried out.
            UnknownOutcomeError: No server answered while the session may be alive.
        """
        self._check_known()

        def guarded(transaction: TransactionRequest) -> None:
            transaction.check(self._node, -1)
            build(transaction)

        deadline_s = self.session.deadline_s()
        is_uncertain = False
        while True:
            try:
                rejected = self.session.commit(what, guarded)
            except UnknownOutcomeError:
                is_uncertain = True
                if self.session.is_past(deadline_s) or not self.session.wait_for_connection(deadline_s):
                    raise
                continue
            if is_uncertain and rejected is not None:
                self.session.sync(self.nodes.directory)
            if rejected is None or (is_uncertain and is_done()):
                return None
            if rejected.index == 0:
                raise self._loss(f"its node {self._node} was deleted")
            return rejected.error

    def carry_out(self, what: str, build: Callable[[TransactionRequest], object], is_done: Callable[[], bool]) -> None:
        """As `commit`, but raise `StorageError` for a rejected transaction without effect."""
        obstacle = self.commit(what, build, is_done)
        if obstacle is not None and not is_done():
            raise StorageError(
                f"cannot {what} in ZooKeeper at {self.session.hosts}: {type(obstacle).__name__} {obstacle}. Start "
                f"again. If it happens again, another program changes the nodes of this job"
            ) from obstacle

    def at_loss(self, listener: LossListener) -> None:
        """See `Leadership`; the listener runs in its own thread."""
        with self._guard:
            self._listeners.append(listener)
            lost = self._lost
        if lost is not None:
            _notify(listener, lost)

    def close(self) -> None:
        """End the session, so that the next driver can lead. May be called again."""
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
                # A standby also waits for servers that do not answer.
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
            if not self.session.is_connection_error(error):
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

    def _check_known(self) -> None:
        if self._is_closed:
            raise self._loss("it has released the leadership")
        if self._lost is not None:
            raise self._lost

    def _loss(self, because: str) -> LeadershipLostError:
        return LeadershipLostError(
            f"this driver does not lead job {self.nodes.job_name!r} any more: {because}. It completes no checkpoint, "
            f"and another driver may continue the job. No completed checkpoint is lost. Start this driver again to "
            f"stand by"
        )

    def _session_ended(self) -> None:
        with self._guard:
            if self._is_closed or self._lost is not None:
                return
            self._lost = self._loss("ZooKeeper has ended its session, because it sent no heartbeat for too long")
            listeners = list(self._listeners)
        for listener in listeners:
            _notify(listener, self._lost)


def _notify(listener: LossListener, lost: LeadershipLostError) -> None:
    threading.Thread(target=listener, args=(lost,), name="leadership lost", daemon=True).start()


def _identity() -> str:
    host = "an unknown host"
    with contextlib.suppress(OSError):
        host = socket.gethostname()
    return f"process {os.getpid()} on host {host}, since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}"


_LOOKS: Final = 10


class ZooKeeperPointers:
    """The checkpoint pointers of one job in ZooKeeper. Without `leadership` they are read-only."""

    def __init__(
        self,
        file_system: CheckpointFileSystem,
        nodes: JobNodes,
        session: ZooKeeperSession,
        leadership: ZooKeeperLeadership | None = None,
    ) -> None:
        self._fs = file_system
        self._nodes = nodes
        self._session = session
        self._leadership = leadership
        self._pointers: dict[int, bytes] = {}

    @property
    def place(self) -> str:
        """The node of the checkpoints, with its servers."""
        return self._where(self._nodes.checkpoints)

    def find(self) -> FoundCheckpoints:
        """See `CheckpointPointers`. Reads again if the leader dropped checkpoints meanwhile."""
        for _ in range(_LOOKS):
            pointers = self._read()
            found = self._found(pointers)
            if not found.unreadable or pointers == self._read():
                break
        self._pointers = pointers
        return found

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata under a unique name, then create the pointer and raise the greatest id in one step."""
        checkpoint_id = metadata.checkpoint_id
        leadership, node = self._leading(), self._nodes.checkpoint(metadata.checkpoint_id)
        pointer = write_pointed_metadata(self._fs, metadata)
        data = encode_pointer(pointer)
        last_id = max(checkpoint_id, self._last_id())

        def build(transaction: TransactionRequest) -> None:
            transaction.create(node, data)
            transaction.set_data(self._nodes.last_id, encode_text(last_id))

        try:
            obstacle = leadership.commit(
                f"complete checkpoint {checkpoint_id}", build, lambda: self._session.get(node) == data
            )
        except UnknownOutcomeError as error:
            raise UncertainCheckpointError(
                f"whether checkpoint {checkpoint_id} is complete is unknown; the next start finds out, and nothing "
                f"is lost. {error}"
            ) from error
        if obstacle is not None:
            # The transaction was rejected, so no pointer to this directory exists.
            with contextlib.suppress(CheckpointError):
                self._fs.delete_directory(pointer.directory)
            raise StorageError(
                f"checkpoint {checkpoint_id} cannot be completed: {self._where(node)} cannot be created "
                f"({type(obstacle).__name__}). Another program may have changed this node"
            ) from obstacle
        self._pointers[checkpoint_id] = data
        return pointer.metadata_file

    def withdraw(self, checkpoint_id: int) -> None:
        """Delete the pointer, then the metadata file with its directory. If that fails, call it again."""
        node = self._nodes.checkpoint(checkpoint_id)
        pointer = self._pointer(checkpoint_id)
        self._leading().carry_out(
            f"drop checkpoint {checkpoint_id}",
            lambda transaction: transaction.delete(node),
            lambda: not self._session.exists(node),
        )
        if pointer is not None:
            delete_pointed_metadata(self._fs, pointer)
        self._pointers.pop(checkpoint_id, None)

    def set_aside(self, checkpoint_id: int) -> None:
        """Move the pointer to `set-aside` in one transaction."""
        node, data = self._nodes.checkpoint(checkpoint_id), self._pointers[checkpoint_id]
        taken = self._session.children(self._nodes.set_aside)
        base = f"{checkpoint_id:012d}"
        name = next(f"{base}-{number}" for number in range(1, len(taken) + 2) if f"{base}-{number}" not in taken)

        def build(transaction: TransactionRequest) -> None:
            transaction.delete(node)
            transaction.create(f"{self._nodes.set_aside}/{name}", data)

        self._leading().carry_out(
            f"set checkpoint {checkpoint_id} aside", build, lambda: not self._session.exists(node)
        )
        del self._pointers[checkpoint_id]

    def set_aside_places(self) -> tuple[str, ...]:
        """The nodes, and the directories from the time before the job used ZooKeeper."""
        names = self._session.children(self._nodes.set_aside)
        nodes = (
            self._where(f"{self._nodes.set_aside}/{name}") for name in names if _id_in(name, _SET_ASIDE) is not None
        )
        return (*DirectoryPointers(self._fs).set_aside_places(), *nodes)

    def files_set_aside(self) -> frozenset[str]:
        """Data and metadata files of checkpoints that were set aside."""
        paths = set(DirectoryPointers(self._fs).files_set_aside())
        for pointer in self._set_aside():
            # Unreadable metadata, often the reason to set it aside, does not list its files.
            with contextlib.suppress(CheckpointError):
                metadata = read_metadata(self._fs, pointer.directory)
                paths.update(file.path for file in metadata.files)
        return frozenset(paths)

    def _read(self) -> dict[int, bytes]:
        self._session.sync(self._nodes.directory)
        pointers: dict[int, bytes] = {}
        for name in self._session.children(self._nodes.checkpoints):
            checkpoint_id = _id_in(name, _ID)
            data = None if checkpoint_id is None else self._session.get(f"{self._nodes.checkpoints}/{name}")
            if checkpoint_id is not None and data is not None:
                pointers[checkpoint_id] = data
        return pointers

    def _found(self, pointers: dict[int, bytes]) -> FoundCheckpoints:
        retained: dict[int, RetainedCheckpoint] = {}
        unreadable: dict[int, CorruptMetadataError] = {}
        for checkpoint_id, data in pointers.items():
            found = self._retained(checkpoint_id, data)
            if isinstance(found, RetainedCheckpoint):
                retained[checkpoint_id] = found
            else:
                unreadable[checkpoint_id] = found
        unfinished = list(self._unfinished(pointers))
        aside = (_id_in(name, _SET_ASIDE) for name in self._session.children(self._nodes.set_aside))
        known = [*pointers, *aside, *(found for _, found in unfinished), self._last_id()]
        ids = [one for one in known if one is not None and one >= 0]
        return FoundCheckpoints(
            self._fs, self.place, retained, unreadable, [name for name, _ in unfinished], max(ids, default=None)
        )

    def _retained(self, checkpoint_id: int, data: bytes) -> RetainedCheckpoint | CorruptMetadataError:
        """Read the checkpoint of a pointer, or return the error."""
        kept_at = self._where(self._nodes.checkpoint(checkpoint_id))
        try:
            pointer = decode_pointer(data, checkpoint_id, kept_at)
        except CorruptMetadataError as error:
            return error
        return read_pointed_metadata(self._fs, pointer, kept_at)

    def _unfinished(self, pointers: Mapping[int, bytes]) -> Iterator[tuple[str, int]]:
        """Directories, with their ids, that no pointer names, not even a pointer that was set aside.

        Yields nothing if a pointer is unreadable, because the directory that it names is unknown.
        """
        try:
            noted = [*self._set_aside(), *(decode_pointer(data, one, "") for one, data in pointers.items())]
        except CorruptMetadataError:
            return iter(())
        return unnamed_directories(self._fs, noted)

    def _set_aside(self) -> Iterator[CheckpointPointer]:
        for name in self._session.children(self._nodes.set_aside):
            node = f"{self._nodes.set_aside}/{name}"
            checkpoint_id = _id_in(name, _SET_ASIDE)
            data = None if checkpoint_id is None else self._session.get(node)
            if checkpoint_id is not None and data is not None:
                yield decode_pointer(data, checkpoint_id, self._where(node))

    def _last_id(self) -> int:
        """The greatest checkpoint id so far; -1 if there was none."""
        data = self._session.get(self._nodes.last_id)
        return -1 if data is None else int(decode_text(data, self._where(self._nodes.last_id), int))

    def _pointer(self, checkpoint_id: int) -> CheckpointPointer | None:
        """The pointer; None if it is unreadable. Its files are then removed like those of an unfinished attempt."""
        with contextlib.suppress(CorruptMetadataError):
            return decode_pointer(self._pointers[checkpoint_id], checkpoint_id, "")
        return None

    def _leading(self) -> ZooKeeperLeadership:
        if self._leadership is None:
            raise LeadershipLostError(f"job {self._nodes.job_name!r} is opened read-only here")
        return self._leadership

    def _where(self, node: str) -> str:
        return f"zookeeper:{node} ({self._session.hosts})"


_USUAL_ROOT: Final = "/statebackend"
_COUNTERPARTS: Final = "Restore the lost nodes from a backup, or start a new job directory from a savepoint"


@frozen
class ZooKeeperHighAvailability:
    """High availability through ZooKeeper; a `JobServices`. All drivers of a job need equal arguments.

    Args:
        hosts: The servers, `host:port`, separated by commas.
        root: A node only for this purpose. Each job has a node of its name below it.
        session_timeout_s: A driver loses the leadership if the servers do not hear from it for this many seconds. The
            servers limit this to 2 to 20 of their ticks.
        connection_timeout_s: How long to wait for a server at the start.
        stand_by_timeout_s: How long a driver waits for another one that leads; None: without limit.
        client_options: Arguments of `kazoo.client.KazooClient`: authentication (`auth_data`, `sasl_options`),
            `default_acl`, and TLS (`use_ssl`, `ca`, `certfile`, `keyfile`).
        driver_directory: The directory of the driver files, if it is not the job directory.
        monotonic_s: The clock that decides whether a driver without a connection may still lead.

    Raises:
        InvariantViolationError: An argument is invalid.
        StorageError: kazoo is not installed; raised when it is used.
    """

    hosts: str
    root: str = _USUAL_ROOT
    session_timeout_s: float = field(default=10.0, kw_only=True)
    connection_timeout_s: float = field(default=15.0, kw_only=True)
    stand_by_timeout_s: float | None = field(default=None, kw_only=True)
    client_options: Mapping[str, Any] = field(factory=dict, kw_only=True, repr=False)
    driver_directory: str | None = field(default=None, kw_only=True)
    monotonic_s: Callable[[], float] = field(default=monotonic_s, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        checked_root(self.root)
        self._settings()
        limit = self.stand_by_timeout_s
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 <= limit <= threading.TIMEOUT_MAX):
            raise InvariantViolationError(
                f"stand_by_timeout_s is {limit!r}; it takes seconds from 0 on, or None for no limit"
            )

    @classmethod
    def at(cls, place: str, *, stand_by_timeout_s: float | None = None) -> ZooKeeperHighAvailability:
        """Parse ``host:port,host:port/root``; the root is optional."""
        hosts, _, root = place.partition("/")
        return cls(hosts, f"/{root}" if root else _USUAL_ROOT, stand_by_timeout_s=stand_by_timeout_s)

    def with_driver_directory(self, driver_directory: str) -> ZooKeeperHighAvailability:
        """See `JobServices`."""
        return evolve(self, driver_directory=driver_directory)

    def stored_in(self, job_name: str) -> str | None:
        """The node of the job."""
        return f"zookeeper:{self._nodes(job_name).directory}"

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> ZooKeeperLeadership:
        """See `LeadershipProvider`. Raises `JobDirectoryMismatchError` if the node belongs to another job."""
        nodes = self._nodes(job_name)
        with self._session() as session:
            # A driver must not wait for the leader of another job.
            self._check_same_job(file_system, JobDirectory.inspect(file_system.uri), nodes, session)
        return ZooKeeperLeadership(self._settings(), nodes, self.stand_by_timeout_s)

    @contextlib.contextmanager
    def read_only(self, file_system: CheckpointFileSystem, identity: JobIdentity | None) -> Iterator[JobRecords]:
        """See `JobServices`. A directory that never used ZooKeeper is read without it."""
        if identity is None or read_stored_in(file_system) is None:
            with DirectoryServices(driver_directory=self.driver_directory).read_only(file_system, identity) as records:
                yield records
            return
        nodes = self._nodes(identity.job_name)
        with self._session() as session:
            session.sync(nodes.directory)
            self._check_same_job(file_system, identity, nodes, session)
            pointers = ZooKeeperPointers(file_system, nodes, session)
            root = driver_root(file_system, self.driver_directory, identity.job_id)
            yield JobRecords(file_system, pointers, driver_files_of(root, _directory(nodes, session)))

    def take_over(self, directory: JobDirectory) -> JobRecords:
        """Take over the records; see `JobServices` and the steps in the module docstring."""
        leadership, file_system = directory.leadership, directory.file_system
        if not isinstance(leadership, ZooKeeperLeadership):
            raise InvariantViolationError("the job directory was opened with another leadership")
        session, nodes = leadership.session, leadership.nodes
        session.sync(nodes.directory)
        self._check_same_job(file_system, directory.identity, nodes, session)
        if read_stored_in(file_system) is None:
            self._begin(directory, leadership)
        own = f"{DRIVERS_DIRECTORY}/{uuid.uuid4().hex}"
        root = driver_root(file_system, self.driver_directory, directory.identity.job_id)
        others = root.list_directories(DRIVERS_DIRECTORY)
        copy_driver_files(root, _directory(nodes, session), own)
        noted = encode_text(own)
        leadership.carry_out(
            "record the driver files",
            lambda transaction: transaction.set_data(nodes.driver_files, noted),
            lambda: session.get(nodes.driver_files) == noted,
        )
        delete_driver_files(root, others)
        pointers = ZooKeeperPointers(file_system, nodes, session, leadership)
        return JobRecords(file_system, pointers, driver_files_of(root, own))

    def _begin(self, directory: JobDirectory, leadership: ZooKeeperLeadership) -> None:
        """Import the checkpoints of a directory in one transaction. The lock keeps other drivers from leading it."""
        file_system, nodes, session = directory.file_system, leadership.nodes, leadership.session
        is_local = file_system.local_path() is not None
        lock = DriverLockFile().lead(file_system, directory.identity.job_name) if is_local else None
        try:
            if read_roll_back(file_system) is not None:
                raise JobDirectoryMismatchError(
                    f"a rollback to an older checkpoint has started in {file_system.uri} and is not finished; "
                    f"finish it without high availability first"
                )
            found = DirectoryPointers(file_system).find()
            pointers = {
                nodes.checkpoint(one): encode_pointer(CheckpointPointer(one, _metadata_file(file_system, one)))
                for one in sorted(found.ids)
            }
            greatest = -1 if found.greatest_id is None else found.greatest_id
            contents = {
                nodes.driver_files: encode_text(""),
                nodes.last_id: encode_text(greatest),
                # The last node: it marks the import as complete.
                nodes.job: JobNode(directory.identity.job_id, file_system.uri).encode(),
            }
            for parent in (nodes.checkpoints, nodes.set_aside):
                session.make(parent)
            # After a crash before `write_stored_in` the directory may have more checkpoints now.
            earlier = [f"{nodes.checkpoints}/{name}" for name in session.children(nodes.checkpoints)]
            there = {node for node in contents if session.exists(node)}

            def build(transaction: TransactionRequest) -> None:
                for node in earlier:
                    transaction.delete(node)
                for node, content in pointers.items():
                    transaction.create(node, content)
                for node, content in contents.items():
                    (transaction.set_data if node in there else transaction.create)(node, content)

            leadership.carry_out(
                f"import the checkpoints of {file_system.uri}",
                build,
                lambda: (
                    all(session.get(node) == content for node, content in {**pointers, **contents}.items())
                    and len(session.children(nodes.checkpoints)) == len(pointers)
                ),
            )
            write_stored_in(file_system, f"zookeeper:{nodes.directory}")
        finally:
            if lock is not None:
                lock.close()

    def _check_same_job(
        self,
        file_system: CheckpointFileSystem,
        identity: JobIdentity | None,
        nodes: JobNodes,
        session: ZooKeeperSession,
    ) -> None:
        where = f"zookeeper:{nodes.job} ({session.hosts})"
        data = session.get(nodes.job)
        if data is None:
            if read_stored_in(file_system) is not None:
                raise JobDirectoryMismatchError(
                    f"{where} does not exist, but the pointers to the checkpoints of {file_system.uri} should be "
                    f"there: this is another ZooKeeper, or it has lost its data. {_COUNTERPARTS}"
                )
            return
        noted = JobNode.decode(data, where)
        if identity is None or identity.job_id != noted.job_id:
            raise JobDirectoryMismatchError(
                f"{where} belongs to the job in {noted.job_directory}, not to the one in {file_system.uri}. Give this "
                f"job another name, or another root"
            )

    def _nodes(self, job_name: str) -> JobNodes:
        return JobNodes(self.root, job_name)

    def _settings(self) -> ZooKeeperSettings:
        return ZooKeeperSettings(
            self.hosts, self.session_timeout_s, self.connection_timeout_s, self.client_options, self.monotonic_s
        )

    def _session(self) -> contextlib.closing[ZooKeeperSession]:
        return contextlib.closing(ZooKeeperSession(self._settings()))


def _directory(nodes: JobNodes, session: ZooKeeperSession) -> str:
    """The directory of the driver files, relative to the job directory."""
    data = session.get(nodes.driver_files)
    return "" if data is None else str(decode_text(data, f"zookeeper:{nodes.driver_files}", str))


def _metadata_file(file_system: CheckpointFileSystem, checkpoint_id: int) -> FileHandle:
    path = metadata_path(checkpoint_directory(checkpoint_id))
    data = file_system.read_file(path)
    return FileHandle(path, len(data), checksum_of_bytes(data))
