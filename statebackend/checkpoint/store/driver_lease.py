"""Leadership on an object store: a lease, which is an object that its holder rewrites periodically.

    driver-lease.json     holder, number of renewals, duration, and whether it was released

Every write is a compare-and-set on the version that was read (`conditional_objects`), so only one of two drivers
acquires the lease. The holder renews it three times per duration. A driver that waits for the lease watches the object.
If the object changes, the holder is alive. If it keeps the same version for the whole duration, the holder is dead,
paused or disconnected, and the waiting driver acquires the lease. The duration is measured by the waiting driver's
monotonic clock, from the time when it read the version. So clocks of two machines are never compared. A wrong clock of
the holder can only make it lose the lease.

`LeaseKeeper` renews the lease, on a thread or by calls.

Losing the lease is safe. `check` reads the holder from the store whenever it matters, and a checkpoint completes by its
own compare-and-set, which fails if another driver has become the leader (`object_pointers`). A holder that could not
renew in time keeps the lease if no other driver has acquired it.

| The leader | Another driver can lead |
|---|---|
| ends, and releases the lease | immediately |
| is killed, paused, or disconnected from the store | one duration after it started to watch |
| is alive | never; its error names the leader after a third of the duration, or it waits as a standby |

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
    """The content of the object. `token` is random per holder and `renewal` counts, so all contents differ."""

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
        """Decode the object. Raises `CorruptJobIdentityError` with the place if it is not valid."""
        fields = parse_checksummed_json(content, place, _FORMAT_VERSION)
        try:
            return cls(**fields)
        except (InvariantViolationError, TypeError) as error:
            raise JobDirectoryError(
                f"{place} is not valid: {error}. Make sure that no driver runs, then delete it"
            ) from error


class LeaseKeeper(Protocol):
    """Renews a lease from its construction until `stop`, or until the lease is lost."""

    def stop(self) -> None:
        """Stop renewing, and wait for a running renewal. May be called again."""


class ThreadKeeper:
    """Calls ``keep`` every ``interval_s`` seconds on a thread, until it returns False."""

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

    Attributes:
        lease_ms: Duration of the lease. After a leader was killed, the next one waits for this time.
        is_stand_by: Whether a driver waits while another one leads, instead of raising an error.
        monotonic_ms: A monotonic clock.
        sleep: Waits for a number of seconds.
        keeper: Creates the `LeaseKeeper` from the function that renews the lease and the interval in seconds.
    """

    lease_ms: int = field(default=DEFAULT_LEASE_MS)
    is_stand_by: bool = False
    monotonic_ms: Callable[[], int] = monotonic_ms
    sleep: Callable[[float], object] = time.sleep
    keeper: Callable[[Callable[[], bool], float], LeaseKeeper] = ThreadKeeper

    def __attrs_post_init__(self) -> None:
        check_integer("lease_ms", self.lease_ms, _MIN_LEASE_MS, _MAX_LEASE_MS)

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> DriverLease:
        """Acquire the lease. Raises as `taken`, and `JobDirectoryError` if the store checks no conditions."""
        objects = file_system.conditional
        if objects is None:
            raise JobDirectoryError(
                f"{file_system.uri} has no conditional writes, which a lease needs: use a lock file, or ZooKeeper"
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
        """Acquire the lease. Raises `JobDirectoryLockedError` with the holder, or `StorageError`."""
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
                # Another driver was faster, or the holder has just renewed it.
                self.sleep(self.lease_ms / 1000 / _LOOKS_PER_LEASE)
                continue
            if watched is None:
                _logger.info("%s is held by %s; waiting until it is renewed or expires", place, record.holder)
            elif version != watched and not self.is_stand_by:
                raise JobDirectoryLockedError(
                    f"{place} is held by another driver, which is alive: {record.holder}. Stop that driver, or use "
                    f"another job directory; after a kill the lease expires in {record.lease_ms / 1000:g} s"
                )
            if version != watched:
                watched, since_ms = version, now_ms
            self.sleep(record.lease_ms / 1000 / _LOOKS_PER_LEASE)


class DriverLease:
    """A lease that this driver holds and a keeper renews; a `Leadership`."""

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
        """The random token of the holder; unique."""
        return self._record.token

    def check(self) -> None:
        """Read the object. Raises `LeadershipLostError` if this driver does not hold the lease; `StorageError`."""
        with self._lock:
            if self._loss is None and not self._is_closing:
                found = self._objects.read(LEASE_FILE_NAME)
                if found is not None and self._is_own(found.content):
                    return
                self._lose()
            raise self._loss or LeadershipLostError(
                f"this driver has released {self._place} and completes no more checkpoints; start the job again"
            )

    def check_conditions(self) -> None:
        """Write the lease with conditions that are false. Raises `JobDirectoryError` if the store writes it.

        Some stores accept a condition and ignore it, so two drivers could lead at once.
        """
        with self._lock:
            for version, name in ((None, "If-None-Match"), (_NO_VERSION, "If-Match")):
                self._record = evolve(self._record, renewal=self._record.renewal + 1)
                written = self._objects.write(LEASE_FILE_NAME, self._record.to_bytes(), version)
                if written is not None:
                    self._version = written
                    raise JobDirectoryError(
                        f"the store of {self._place} ignores the condition {name}, so several drivers could lead the "
                        f"job at once: use a store that checks it, or ZooKeeper"
                    )

    def at_loss(self, listener: LossListener) -> None:
        """Call `listener` when a renewal finds that another driver holds the lease; immediately if that is known."""
        with self._lock:
            loss = self._loss
            if loss is None:
                self._listeners.append(listener)
        if loss is not None:
            listener(loss)

    def renew(self) -> bool:
        """Renew the lease. Returns whether this driver still holds it. Raises `StorageError` if that is unknown."""
        with self._lock:
            if self._loss is not None or self._is_closing:
                return False
            return self._write(evolve(self._record, renewal=self._record.renewal + 1))

    def close(self) -> None:
        """Release the lease. May be called again. If the release fails, the lease expires."""
        self._is_closing = True
        self._keeper.stop()
        with self._lock, contextlib.suppress(CheckpointError):
            if self._loss is None and not self._record.is_released:
                self._write(evolve(self._record, renewal=self._record.renewal + 1, is_released=True))

    def _write(self, record: LeaseRecord) -> bool:
        # A failed write may have taken effect, so the next one has another content.
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
            f"another driver has acquired {self._place}, so this driver completes no more checkpoints: it was paused, "
            f"or could not reach the store, for more than {self._record.lease_ms / 1000:g} s, or the lease was deleted"
        )

    def _keep(self) -> bool:
        """Renew the lease; call the listeners if it is lost. Returns whether to continue renewing."""
        try:
            if self.renew():
                return True
        except Exception as error:
            # Any error: a driver that stopped renewing would lose the lease without noticing.
            _logger.warning("%s could not be renewed; retrying: %s", self._place, error)
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
