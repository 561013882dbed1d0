"""The store of completed checkpoints of a job, over pointers in any place, and the reference counts of shared files.

A store knows the checkpoints, their order and the files they need. It alone deletes files and assigns checkpoint ids.
A *pointer* records that a checkpoint is complete and where its metadata is: in the directory of the job
(`checkpoint_directories`), in ZooKeeper or in an object. `statebackend.testing.stores` is the contract suite.

Invariants of every store:
1. No file is deleted that a retained or pinned checkpoint, or a protected owner, refers to.
2. An older checkpoint replaces the newest one only on request.
3. Once `add` returns, the checkpoint survives a crash. A failure to delete older ones does not make `add` fail.
4. Checkpoint ids strictly increase; checkpoints set aside do not count. `next_checkpoint_id` never returns an id twice.
   A caller that assigns ids itself, as the epochs of a job do, may reuse the id of a checkpoint set aside.
5. A driver that lost the leadership completes no checkpoint.

Invariants of every implementation of `CheckpointPointers`:
1. A checkpoint is complete as soon as its pointer exists, in one step.
2. Only the leader can publish, withdraw and set aside.
3. Files of a pointer exist before it and are deleted after it.
4. A driver that does not lead changes no file of another driver's pointer: file names are unique to each attempt.
5. An error of `publish` means that the checkpoint is not complete, except `UncertainCheckpointError` and
   `LeadershipLostError`: after those it may be, and this driver must not delete its files.

Incremental checkpoints share files. A file is deleted with the last checkpoint that refers to it, and never if it
belongs to somebody else, such as a savepoint that the job started from (Flink's no-claim mode).
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from snapshots.loggers import logger_of
from statebackend.checkpoint.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptFileError,
    CorruptMetadataError,
    IllegalTransitionError,
    InvariantViolationError,
    LeadershipLostError,
    MissingFileError,
    UncertainCheckpointError,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership
from statebackend.checkpoint.invariants import MAX_ID, check_integer, checked_relative_path, require
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle, SubtaskState
from statebackend.checkpoint.store.checkpoint_directories import (
    SHARED_DIRECTORY,
    DirectoryPointers,
    FoundCheckpoints,
    RetainedCheckpoint,
    not_found,
)

__all__ = [
    "CheckpointPointers",
    "CompletedCheckpointStore",
    "DirectoryCheckpointStore",
    "PinnedCheckpoints",
    "SharedStateRegistry",
]


class CheckpointPointers(Protocol):
    """The pointers of one job. All methods raise `StorageError` if the result is unknown."""

    @property
    def place(self) -> str:
        """Where the pointers are, for messages."""

    def find(self) -> FoundCheckpoints:
        """Read all pointers. Changes nothing."""

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata of a checkpoint, and complete it. Its data files exist.

        The id is greater than all ids of `find`. Returns the handle of the metadata file. See invariant 5.
        """

    def withdraw(self, checkpoint_id: int) -> None:
        """Remove the pointer of a checkpoint, durably; then delete its metadata.

        The caller deletes its data files afterwards. After an error the pointer may exist or not; call it again.
        """

    def set_aside(self, checkpoint_id: int) -> None:
        """Remove the pointer of a checkpoint in one step, durably, but keep its metadata and files."""

    def set_aside_places(self) -> tuple[str, ...]:
        """The places of the checkpoints that were set aside, which users may remove."""

    def files_set_aside(self) -> frozenset[str]:
        """The data files of checkpoints that were set aside. They must not be deleted."""


class SharedStateRegistry:
    """Reference counts of files, by checkpoint id."""

    def __init__(self) -> None:
        self._paths_by_checkpoint: dict[int, frozenset[str]] = {}
        self._counts: Counter[str] = Counter()
        self._protected: set[str] = set()

    def register(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Count the references of a checkpoint to `paths`. A registered id is rejected."""
        if checkpoint_id in self._paths_by_checkpoint:
            raise InvariantViolationError(f"checkpoint {checkpoint_id} is already registered")
        distinct = frozenset(paths)
        # Known paths were checked before; most files of an increment are known.
        for path in distinct.difference(self._counts):
            checked_relative_path(path)
        self._paths_by_checkpoint[checkpoint_id] = distinct
        self._counts.update(distinct)

    def unregister(self, checkpoint_id: int) -> frozenset[str]:
        """Drop a checkpoint; return the files without references, which may be deleted.

        Raises `CheckpointNotFoundError` for an id that is not registered.
        """
        if checkpoint_id not in self._paths_by_checkpoint:
            raise CheckpointNotFoundError(f"checkpoint {checkpoint_id} is not registered")
        released = set()
        for path in self._paths_by_checkpoint.pop(checkpoint_id):
            self._counts[path] -= 1
            if self._counts[path] == 0:
                del self._counts[path]
                if path not in self._protected:
                    released.add(path)
        return frozenset(released)

    def protect(self, paths: Iterable[str]) -> None:
        """Never release `paths`: they belong to another owner, such as a savepoint that the job did not claim."""
        self._protected.update([checked_relative_path(path) for path in paths])

    def unreferenced(self, paths: Iterable[str]) -> list[str]:
        """The `paths` that are neither protected nor referenced, in their order."""
        return [path for path in paths if path not in self._counts and path not in self._protected]

    def referenced(self) -> frozenset[str]:
        """All paths that must not be deleted."""
        return frozenset(self._counts) | self._protected

    def protected(self) -> frozenset[str]:
        """All paths given to `protect`."""
        return frozenset(self._protected)

    def checkpoints(self) -> frozenset[int]:
        """Ids of all registered checkpoints."""
        return frozenset(self._paths_by_checkpoint)


_logger = logger_of(__name__)


class CompletedCheckpointStore:
    """The newest `max_retained` completed checkpoints by `pointers`; their files are under `fs`, the job directory.

    Call `recover` once before anything else. Several threads of the leading driver may use it. Without `leadership` the
    caller guarantees that it is the only writer.
    """

    def __init__(
        self,
        fs: CheckpointFileSystem,
        pointers: CheckpointPointers,
        max_retained: int = 3,
        *,
        leadership: Leadership | None = None,
    ) -> None:
        check_integer("max_retained", max_retained, 1, 1_000_000)
        self._fs = fs
        self._pointers = pointers
        self._max_retained = max_retained
        self._leadership = leadership
        self._retained: dict[int, RetainedCheckpoint] = {}
        self._greatest_id = -1
        self._unreadable: dict[int, CorruptMetadataError] = {}
        self._pins: dict[int, int] = {}
        self._registry = SharedStateRegistry()
        self._is_recovered = False
        self._uncertain_id: int | None = None
        self._uncertain_files: frozenset[str] = frozenset()
        self._lock = threading.RLock()

    @property
    def unreadable(self) -> Mapping[int, CorruptMetadataError]:
        """Older checkpoints that `recover` could not read. They stay until newer ones replace them."""
        return MappingProxyType(self._unreadable)

    def recover(self, *, roll_back_to: int | None = None) -> CheckpointMetadata | None:
        """Find the completed checkpoints, remove unfinished ones, return the newest (None if none).

        With `roll_back_to=<id>` all newer checkpoints are set aside, the newest first, so that this one becomes the
        newest. If it cannot be read, nothing is moved. May be called again to read the storage again. Raises
        `CorruptMetadataError` if the newest checkpoint is damaged.
        """
        with self._lock:
            found = self._pointers.find()
            retained, unreadable = found.retained, found.unreadable
            if roll_back_to is not None:
                found.target(roll_back_to)
                for checkpoint_id in sorted({*retained, *unreadable}, reverse=True):
                    if checkpoint_id > roll_back_to:
                        self._pointers.set_aside(checkpoint_id)
                        retained.pop(checkpoint_id, None)
                        unreadable.pop(checkpoint_id, None)
            found.check_newest()
            found.check_parents()
            self._delete_unfinished(found)
            registry = SharedStateRegistry()
            for checkpoint_id, one in retained.items():
                registry.register(checkpoint_id, (file.path for file in one.metadata.files))
            registry.protect(self._registry.protected())
            registry.protect(self._pointers.files_set_aside())
            self._retained, self._unreadable, self._registry = retained, unreadable, registry
            if found.greatest_id is not None:
                self._greatest_id = max(self._greatest_id, found.greatest_id)
            self._is_recovered = True
            self._uncertain_id, self._uncertain_files = None, frozenset()
            return self.latest()

    def set_aside_places(self) -> tuple[str, ...]:
        """The places of the checkpoints that a rollback set aside."""
        return self._pointers.set_aside_places()

    def next_checkpoint_id(self) -> int:
        """Return a new checkpoint id, greater than all earlier ones.

        The next run may return ids again under which no checkpoint was stored.
        """
        with self._lock:
            self._check_recovered("NEXT_CHECKPOINT_ID")
            self._greatest_id += 1
            return self._greatest_id

    def add(self, metadata: CheckpointMetadata) -> FileHandle:
        """Store a completed checkpoint durably, then drop those beyond `max_retained`.

        Its data files must exist. Returns the handle of its metadata file; the checksum is the `parent_digest` of its
        children. After all errors but the last two the store is unchanged. After the last two the checkpoint may be
        complete or not, nothing more can be added, and none of its files is deleted.

        Raises:
            InvariantViolationError: Not a checkpoint, id not greater than the newest, or wrong parent digest.
            MissingFileError: A data file is missing.
            CorruptFileError: A data file has another size.
            StorageError: The store failed.
            UncertainCheckpointError: The store failed, and whether it has stored the checkpoint is unknown.
            LeadershipLostError: Another driver leads the job.
        """
        with self._lock:
            self._check_recovered("ADD")
            self._check_may_add(metadata)
            files = {file.path: file for file in metadata.files}
            try:
                self._check_present(files[path] for path in self._registry.unreferenced(files))
                metadata_file = self._pointers.publish(metadata)
            except BaseException as error:
                may_be = (UncertainCheckpointError, LeadershipLostError)
                if isinstance(error, may_be) or not isinstance(error, CheckpointError):
                    # An interrupt may also come after it became complete.
                    self._uncertain_id = metadata.checkpoint_id
                    self._uncertain_files = frozenset(files)
                raise
            self._greatest_id = max(self._greatest_id, metadata.checkpoint_id)
            self._registry.register(metadata.checkpoint_id, files)
            self._retained[metadata.checkpoint_id] = RetainedCheckpoint(metadata, metadata_file)
            self._drop_surplus()
            return metadata_file

    def latest(self) -> CheckpointMetadata | None:
        """The newest completed checkpoint."""
        with self._lock:
            self._check_recovered("LATEST")
            return self._retained[max(self._retained)].metadata if self._retained else None

    def all(self) -> tuple[CheckpointMetadata, ...]:
        """All completed checkpoints that are retained or pinned, oldest first."""
        with self._lock:
            self._check_recovered("ALL")
            return tuple(one.metadata for _, one in sorted(self._retained.items()))

    def get(self, checkpoint_id: int) -> CheckpointMetadata:
        """One completed checkpoint. Raises `CheckpointNotFoundError`, which lists the existing ids."""
        return self._get(checkpoint_id).metadata

    def digest(self, checkpoint_id: int) -> str:
        """Checksum of a checkpoint's metadata file: the `parent_digest` of its children."""
        return self._get(checkpoint_id).metadata_file.checksum

    @contextlib.contextmanager
    def pin(self, checkpoint_id: int) -> Iterator[CheckpointMetadata]:
        """Keep a checkpoint and its files while the context is open."""
        with self._lock:
            metadata = self.get(checkpoint_id)
            self._pins[checkpoint_id] = self._pins.get(checkpoint_id, 0) + 1
        try:
            yield metadata
        finally:
            with self._lock:
                self._pins[checkpoint_id] -= 1
                if self._pins[checkpoint_id] == 0:
                    del self._pins[checkpoint_id]
                self._drop_surplus()

    def protect(self, paths: Iterable[str]) -> None:
        """Never delete these files: they belong to a savepoint that the job did not claim."""
        with self._lock:
            self._registry.protect(paths)

    def discard(self, states: Iterable[SubtaskState], in_use: Collection[str] = ()) -> tuple[str, ...]:
        """Delete the unreferenced files of abandoned state; return their paths.

        `in_use` are files of pending checkpoints (`CheckpointCoordinator.files_in_use()`). Failures to delete are
        only logged.
        """
        with self._lock:
            self._check_recovered("DISCARD")
            paths = {file.path for state in states for file in state.files}
            return self._delete_files(self._registry.unreferenced(paths.difference(in_use, self._uncertain_files)))

    def delete_orphans(self, in_use: Collection[str] = ()) -> tuple[str, ...]:
        """Delete unreferenced files below `shared/`, which aborted attempts and crashes left.

        Files of pending checkpoints must be in `in_use`. Files that are being uploaded are unknown, so call it while
        no task runs, such as right after `recover`. Deletes nothing while there are `unreadable` checkpoints, because
        their files look like orphans. Raises `LeadershipLostError`.
        """
        with self._lock:
            self._check_recovered("DELETE_ORPHANS")
            if self._unreadable:
                return ()
            found = self._fs.list_files(SHARED_DIRECTORY, include_temporary=True)
            if found and self._leadership is not None:
                # The check is after the listing: files of a new leader are not listed while this driver leads.
                self._leadership.check()
            keep = self._registry.referenced().union(in_use, self._uncertain_files)
            return self._delete_files(path for path in found if path not in keep)

    def _check_may_add(self, metadata: CheckpointMetadata) -> None:
        checkpoint_id = metadata.checkpoint_id
        if self._uncertain_id is not None:
            raise IllegalTransitionError(
                "ADD", "UNCERTAIN", f"whether checkpoint {self._uncertain_id} is complete is unknown: call recover()"
            )
        require(
            metadata.kind is CheckpointKind.CHECKPOINT,
            f"{metadata.kind.value} {checkpoint_id} is not a checkpoint; savepoints are kept by their owner",
        )
        newest = max(self._retained, default=-1)
        require(
            checkpoint_id > newest,
            f"checkpoint {checkpoint_id} is not newer than the stored checkpoint {newest}",
        )
        parent = self._retained.get(-1 if metadata.parent_checkpoint_id is None else metadata.parent_checkpoint_id)
        if parent is not None and parent.metadata_file.checksum != metadata.parent_digest:
            raise InvariantViolationError(
                f"checkpoint {checkpoint_id} names the digest {metadata.parent_digest} for its parent "
                f"{metadata.parent_checkpoint_id}, which is {parent.metadata_file.checksum}"
            )

    def _check_present(self, files: Iterable[FileHandle]) -> None:
        try:
            self._fs.verify_present(list(files))
        except (MissingFileError, CorruptFileError):
            if self._leadership is not None:
                # The next leader may have removed the file, and then the storage is not damaged.
                self._leadership.check()
            raise

    def _drop_surplus(self) -> None:
        surplus = len(self._retained) - self._max_retained
        for checkpoint_id in sorted(self._retained)[: max(surplus, 0)]:
            if checkpoint_id not in self._pins:
                self._drop(checkpoint_id)
        if len(self._retained) >= self._max_retained:
            oldest = min(self._retained)
            for checkpoint_id in [known for known in self._unreadable if known < oldest]:
                if self._delete_checkpoint(checkpoint_id):
                    del self._unreadable[checkpoint_id]

    def _drop(self, checkpoint_id: int) -> None:
        if self._delete_checkpoint(checkpoint_id):
            del self._retained[checkpoint_id]
            self._delete_files(self._registry.unregister(checkpoint_id))

    def _delete_unfinished(self, found: FoundCheckpoints) -> None:
        if found.unfinished and self._leadership is not None:
            self._leadership.check()
        for directory in found.unfinished:
            self._fs.delete_directory(directory)

    def _delete_checkpoint(self, checkpoint_id: int) -> bool:
        try:
            self._pointers.withdraw(checkpoint_id)
        except CheckpointError as error:
            _logger.warning("checkpoint %d could not be dropped, it is kept: %s", checkpoint_id, error)
            return False
        return True

    def _delete_files(self, paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(path for path in sorted(paths) if self._delete_file(path))

    def _delete_file(self, path: str) -> bool:
        try:
            self._fs.delete(path)
        except CheckpointError as error:
            _logger.warning("file not deleted, delete_orphans will retry: %s", error)
            return False
        return True

    def _get(self, checkpoint_id: int) -> RetainedCheckpoint:
        with self._lock:
            self._check_recovered("GET")
            if checkpoint_id not in self._retained:
                raise not_found(self._pointers.place, checkpoint_id, self._retained)
            return self._retained[checkpoint_id]

    def _check_recovered(self, event: str) -> None:
        if not self._is_recovered:
            raise IllegalTransitionError(event, "NOT_RECOVERED", "call recover() on the store first")


class DirectoryCheckpointStore(CompletedCheckpointStore):
    """A `CompletedCheckpointStore` over the `DirectoryPointers` of the job directory at the root of `fs`."""

    def __init__(
        self, fs: CheckpointFileSystem, max_retained: int = 3, *, leadership: Leadership | None = None
    ) -> None:
        super().__init__(fs, DirectoryPointers(fs, leadership), max_retained, leadership=leadership)


_NEVER_NOTIFIED = -1


class PinnedCheckpoints:
    """Pins the complete checkpoints that snapshots may refer to, beyond the number to retain.

    A task of ``tasks`` builds each snapshot on files of the newest checkpoint that it knows to be complete:

        0 is complete, and tasks are notified     1 was frozen before, and has its own files
        2 is frozen                               it refers to files of 0
        1 is complete                             0 is beyond the number to retain, but 2 needs its files

    So each checkpoint notes, when it is triggered, the oldest checkpoint that a task builds upon. Invariant: every
    complete checkpoint from the oldest that a pending or future snapshot may refer to is pinned in the store.
    """

    def __init__(self, store: CompletedCheckpointStore, tasks: Iterable[Hashable]) -> None:
        self._store = store
        self._pins: dict[int, contextlib.ExitStack] = {}
        latest = store.latest()
        if latest is not None:
            self.completed(latest.checkpoint_id)
        self._notified = dict.fromkeys(tasks, _NEVER_NOTIFIED if latest is None else latest.checkpoint_id)
        self._oldest_usable: dict[int, int] = {}

    def triggered(self, checkpoint_id: int) -> None:
        """A checkpoint is triggered; no snapshot of it is taken yet."""
        self._oldest_usable[checkpoint_id] = self._oldest_notified

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is in the store."""
        if checkpoint_id not in self._pins:
            pin = self._pins[checkpoint_id] = contextlib.ExitStack()
            pin.enter_context(self._store.pin(checkpoint_id))

    def notified(self, task: Hashable, checkpoint_id: int) -> None:
        """A task knows that a checkpoint is complete."""
        if task in self._notified:
            self._notified[task] = max(self._notified[task], checkpoint_id)

    def release(self, pending: Collection[int]) -> None:
        """Unpin the checkpoints that neither a pending nor a future one can refer to."""
        self._oldest_usable = {known: least for known, least in self._oldest_usable.items() if known in pending}
        least = min((self._oldest_notified, *self._oldest_usable.values()))
        for known in [one for one in self._pins if one < least]:
            self._pins.pop(known).close()

    def close(self) -> None:
        """Unpin all, then raise the first error of the store, if any."""
        with contextlib.ExitStack() as closing:
            for pin in self._pins.values():
                closing.callback(pin.close)
            self._pins = {}

    @property
    def _oldest_notified(self) -> int:
        return min(self._notified.values(), default=MAX_ID)
