"""Leadership on an object store: a lease, which is an object that its holder writes again while it lives.

    driver-lease.json     who holds it, how often it was renewed, how long it lasts, whether it was given back

Every write is a compare and set on the version that was read (`conditional_objects`), so of two who would take it one
does. The holder renews it three times within its length. Whoever else wants it watches the object: if it changes, its
holder lives; if it stays one and the same version for the whole length, the holder is dead, paused or cut off, and it
is taken. The length is measured by the watcher's own monotonic clock, from when it has *read* that version. So clocks
of two machines are never compared, and what a clock does on the holder's side makes it lose the lease at worst.

`LeaseKeeper` renews it, on a thread or by calls.

To lose the lease is no danger: who holds it is looked up in the store whenever it matters (`check`), and a checkpoint
becomes complete by a compare and set of its own, which fails behind the back of another leader (`object_pointers`). A
holder that could not renew for long, and whose lease nobody took, goes on.

| what happens to a leader | when another can lead |
|---|---|
| it ends, and gives the lease back | at once |
| it is killed, paused, or cut off from the store | one length after the other has begun to watch |
| it lives | never; the other is told who leads within a third of the length, or waits as a stand-by |

`driver-lease.json` is a checksummed JSON file (see `checksummed_json`) with the fields of `LeaseRecord`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final, Protocol

from attrs import asdict, evolve, field, frozen

from snapshots.errors import cut
from snapshots.loggers import logger_of
from statebackend.checkpoint.errors import (
    CheckpointError,
    InvariantViolationError,
    JobDirectoryError,
    JobDirectoryLockedError,
    LeadershipLostError,
)
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, parse_checksummed_json
from statebackend.checkpoint.fs.conditional_objects import ConditionalObjects
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.retries import monotonic_ms
from statebackend.checkpoint.ha.leadership import LossListener
from statebackend.checkpoint.invariants import check_integer, require

__all__ = ["LEASE_FILE_NAME", "DriverLease", "LeaseKeeper", "LeaseRecord", "ObjectStoreLease"]

LEASE_FILE_NAME: Final = "driver-lease.json"

DEFAULT_LEASE_MS: Final = 30_000

_FORMAT_VERSION: Final = 1
_MIN_LEASE_MS: Final = 100
_MAX_LEASE_MS: Final = 24 * 3600 * 1000
_RENEWALS_PER_LEASE: Final = 3
_LOOKS_PER_LEASE: Final = 10
_MAX_INTEGER: Final = (1 << 63) - 1
_NO_VERSION: Final = '"00000000000000000000000000000000"'

_logger = logger_of(__name__)


@frozen(kw_only=True)
class LeaseRecord:
    """What the object says. `token` is drawn by each holder, and `renewal` counts, so no two contents are alike."""

    token: str
    renewal: int
    lease_ms: int
    is_released: bool
    holder: str

    def __attrs_post_init__(self) -> None:
        require(isinstance(self.token, str) and 0 < len(self.token) <= 64, "token must be a short text")
        check_integer("renewal", self.renewal, 0, _MAX_INTEGER)
        check_integer("lease_ms", self.lease_ms, _MIN_LEASE_MS, _MAX_LEASE_MS)
        require(type(self.is_released) is bool, "is_released must be a bool")
        require(isinstance(self.holder, str) and len(self.holder) <= 1000, "holder must be a text")

    def to_bytes(self) -> bytes:
        """The content of the object."""
        return checksummed_json(asdict(self), _FORMAT_VERSION)

    @classmethod
    def from_bytes(cls, content: bytes, place: str) -> LeaseRecord:
        """Raises `CorruptJobIdentityError` with the place for what no driver has written."""
        fields = parse_checksummed_json(content, place, _FORMAT_VERSION)
        try:
            return cls(**fields)
        except (InvariantViolationError, TypeError) as error:
            raise JobDirectoryError(
                f"{place} is not valid: {error}. Make sure that no driver runs, then delete it"
            ) from error


class LeaseKeeper(Protocol):
    """Has a lease renewed from its construction on, for as long as the driver lives and holds it."""

    def stop(self) -> None:
        """Renew it no more, and wait for a renewal that is under way; again is fine."""


class ThreadKeeper:
    """Calls ``keep`` every ``interval_s`` seconds by a thread of its own, until that says that there is nothing to."""

    def __init__(self, keep: Callable[[], bool], interval_s: float) -> None:
        self._keep = keep
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See `LeaseKeeper`."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s) and self._keep():
            pass


@frozen(kw_only=True)
class ObjectStoreLease:
    """Leadership by a lease in the job directory, on a store with conditional writes; a `LeadershipProvider`.

    ``lease_ms`` is its length: what a driver that was killed keeps the next one waiting. ``is_stand_by`` says that a
    driver waits for as long as another leads, instead of rejecting to start. ``monotonic_ms`` is a clock, ``sleep``
    waits for so many seconds, and ``keeper`` is given what renews the lease and every how many seconds.
    """

    lease_ms: int = field(default=DEFAULT_LEASE_MS)
    is_stand_by: bool = False
    monotonic_ms: Callable[[], int] = monotonic_ms
    sleep: Callable[[float], object] = time.sleep
    keeper: Callable[[Callable[[], bool], float], LeaseKeeper] = ThreadKeeper

    def __attrs_post_init__(self) -> None:
        check_integer("lease_ms", self.lease_ms, _MIN_LEASE_MS, _MAX_LEASE_MS)

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> DriverLease:
        """Take the lease. Raises `JobDirectoryError` for a store that has, or heeds, no conditions; see `taken`."""
        objects = file_system.conditional
        if objects is None:
            raise JobDirectoryError(
                f"{file_system.uri} has no conditional writes, by which a lease is held: use a lock file, or ZooKeeper"
            )
        place = file_system.location(LEASE_FILE_NAME)
        lease = self.taken(objects, place)
        try:
            lease.check_conditions()
        except BaseException:
            lease.close()
            raise
        return lease

    def taken(self, objects: ConditionalObjects, place: str) -> DriverLease:
        """Take the lease among these objects. Raises `JobDirectoryLockedError` naming who holds it, `StorageError`."""
        own = LeaseRecord(
            token=uuid.uuid4().hex, renewal=0, lease_ms=self.lease_ms, is_released=False, holder=_this_driver()
        )
        watched: str | None = None
        since_ms = 0
        while True:
            found = objects.read(LEASE_FILE_NAME)
            record = None if found is None else LeaseRecord.from_bytes(found.content, place)
            now_ms = self.monotonic_ms()
            version = None if found is None else found.version
            if record is None or record.is_released or (version == watched and now_ms - since_ms >= record.lease_ms):
                taken = objects.write(LEASE_FILE_NAME, own.to_bytes(), version)
                if taken is not None:
                    return DriverLease(objects, place, own, taken, self.keeper)
                # Somebody was faster, or it was renewed just now.
                self.sleep(self.lease_ms / 1000 / _LOOKS_PER_LEASE)
                continue
            if watched is None:
                _logger.info("%s is held by %s; waiting for it to be renewed or to run out", place, record.holder)
            elif version != watched and not self.is_stand_by:
                raise JobDirectoryLockedError(
                    f"{place} is held by another driver, which lives: {record.holder}. Stop that driver, or use "
                    f"another job directory; a driver that is killed holds it for {record.lease_ms / 1000:g} s more"
                )
            if version != watched:
                watched, since_ms = version, now_ms
            self.sleep(record.lease_ms / 1000 / _LOOKS_PER_LEASE)


class DriverLease:
    """A lease that this driver holds, and that a keeper renews; a `Leadership`."""

    def __init__(
        self,
        objects: ConditionalObjects,
        place: str,
        record: LeaseRecord,
        version: str,
        keeper: Callable[[Callable[[], bool], float], LeaseKeeper],
    ) -> None:
        self._objects = objects
        self._place = place
        self._record = record
        self._version = version
        self._listeners: list[LossListener] = []
        self._loss: LeadershipLostError | None = None
        self._lock = threading.RLock()
        self._is_closing = False
        self._keeper = keeper(self._keep, record.lease_ms / 1000 / _RENEWALS_PER_LEASE)

    @property
    def token(self) -> str:
        """What the holder has drawn; unlike that of all others."""
        return self._record.token

    def check(self) -> None:
        """Read the object. Raises `LeadershipLostError` if another driver has it, or nobody; `StorageError`."""
        with self._lock:
            if self._loss is None and not self._is_closing:
                found = self._objects.read(LEASE_FILE_NAME)
                if found is not None and self._is_own(found.content):
                    return
                self._lose()
            raise self._loss or LeadershipLostError(
                f"this driver has given {self._place} back and completes no checkpoint any more; start the job again"
            )

    def check_conditions(self) -> None:
        """Write the lease under conditions that do not hold. Raises `JobDirectoryError` if the store writes it.

        There are stores that take a condition and do not look at it: whatever two drivers wrote there would count.
        """
        with self._lock:
            for version, name in ((None, "If-None-Match"), (_NO_VERSION, "If-Match")):
                self._record = evolve(self._record, renewal=self._record.renewal + 1)
                written = self._objects.write(LEASE_FILE_NAME, self._record.to_bytes(), version)
                if written is not None:
                    self._version = written
                    raise JobDirectoryError(
                        f"the store of {self._place} writes objects whatever the condition {name} says, so several "
                        f"drivers could lead the job there at once: use a store that heeds it, or ZooKeeper"
                    )

    def at_loss(self, listener: LossListener) -> None:
        """Have `listener` called when a renewal finds that another driver has the lease; at once if one has."""
        with self._lock:
            loss = self._loss
            if loss is None:
                self._listeners.append(listener)
        if loss is not None:
            listener(loss)

    def renew(self) -> bool:
        """Write the lease again; whether this driver still holds it. Raises `StorageError` if that is not known."""
        with self._lock:
            if self._loss is not None or self._is_closing:
                return False
            return self._write(evolve(self._record, renewal=self._record.renewal + 1))

    def close(self) -> None:
        """Give the lease back; again is fine. If that fails, it runs out."""
        self._is_closing = True
        self._keeper.stop()
        with self._lock, contextlib.suppress(CheckpointError):
            if self._loss is None and not self._record.is_released:
                self._write(evolve(self._record, renewal=self._record.renewal + 1, is_released=True))

    def _write(self, record: LeaseRecord) -> bool:
        # Of a write that failed nobody knows whether it took effect; so the next one has another content.
        self._record = record
        written = self._objects.write(LEASE_FILE_NAME, record.to_bytes(), self._version)
        if written is None:
            found = self._objects.read(LEASE_FILE_NAME)
            if found is not None and self._is_own(found.content):
                written = self._objects.write(LEASE_FILE_NAME, record.to_bytes(), found.version)
        if written is None:
            self._lose()
            return False
        self._version = written
        return True

    def _is_own(self, content: bytes) -> bool:
        with contextlib.suppress(CheckpointError):
            return LeaseRecord.from_bytes(content, self._place).token == self._record.token
        return False

    def _lose(self) -> None:
        self._loss = LeadershipLostError(
            f"another driver has taken {self._place} over from this one, which completes no checkpoint any more: it "
            f"was paused, or did not reach the store, for more than {self._record.lease_ms / 1000:g} s, or the lease "
            f"was deleted"
        )

    def _keep(self) -> bool:
        """Renew it, and call the listeners if it is lost. Returns whether to renew it again."""
        try:
            if self.renew():
                return True
        except Exception as error:
            # Whatever it is: who would stop renewing would be overtaken, and hear nothing of it.
            _logger.warning("%s could not be renewed, and will be tried again: %s", self._place, error)
            return True
        with self._lock:
            loss, listeners = self._loss, tuple(self._listeners)
        if loss is not None:
            for listener in listeners:
                listener(loss)
        return False


def _this_driver() -> str:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"process {os.getpid()} on host {cut(socket.gethostname(), 200)}, since {started}"
