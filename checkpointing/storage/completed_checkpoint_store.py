"""The completed checkpoints of a job directory, and the files that they share.

    checkpoints/chk-000000000042/_metadata    one directory for each completed checkpoint
    shared/...                                data files, referred to by path from metadata
    set-aside/chk-000000000043-...            checkpoints given up by an explicit fallback; their files stay

`_metadata` appears atomically and is what makes a checkpoint complete: a directory without it belongs to
an unfinished attempt and is removed on recovery. Dropping a checkpoint goes the other way round, durably:
first its `_metadata`, then its data files, so no crash leaves a checkpoint that lacks files.

Invariants:
1. No file is deleted that a retained or pinned checkpoint, or a protected owner, refers to.
2. The newest checkpoint is never replaced by an older one without being asked: if it cannot be read,
   `recover` fails, names the file, and says how to fall back.
3. Once `add` returns, the checkpoint survives a crash. If deleting older ones fails, that is logged and
   repaired by the next `delete_orphans`; it does not make the new checkpoint fail.
4. Among retained checkpoints, `parent_digest` is the checksum of the parent's metadata file.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from attrs import frozen

from checkpointing.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptMetadataError,
    IllegalTransitionError,
    InvariantViolationError,
)
from checkpointing.handles.invariants import check_integer, require
from checkpointing.handles.state_handles import FileHandle, SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.metadata_file import METADATA_FILE_NAME, read_metadata_with_handle, write_metadata
from checkpointing.storage.shared_state_registry import SharedStateRegistry

__all__ = [
    "CHECKPOINTS_DIRECTORY",
    "PREVIOUS",
    "SET_ASIDE_DIRECTORY",
    "SHARED_DIRECTORY",
    "CompletedCheckpointStore",
    "checkpoint_directory",
]

CHECKPOINTS_DIRECTORY = "checkpoints"
SHARED_DIRECTORY = "shared"
SET_ASIDE_DIRECTORY = "set-aside"

PREVIOUS = "previous"
"""What to fall back to if not to a certain checkpoint."""

_DIRECTORY_NAME = re.compile(r"chk-([0-9]{12,19})")

_logger = logging.getLogger(__name__)


def checkpoint_directory(checkpoint_id: int) -> str:
    """Directory of a checkpoint, relative to the job directory."""
    return f"{CHECKPOINTS_DIRECTORY}/chk-{checkpoint_id:012d}"


@frozen
class _Retained:
    metadata: CheckpointMetadata
    metadata_file: FileHandle


class CompletedCheckpointStore:
    """The newest `max_retained` completed checkpoints under `fs`, the root of a job directory.

    Call `recover` once before anything else. May be used by several threads of the one driver that holds
    the job directory's lock.
    """

    def __init__(self, fs: CheckpointFileSystem, max_retained: int = 3) -> None:
        check_integer("max_retained", max_retained, 1, 1_000_000)
        self._fs = fs
        self._max_retained = max_retained
        self._retained: dict[int, _Retained] = {}
        self._unreadable: dict[int, CorruptMetadataError] = {}
        self._pins: dict[int, int] = {}
        self._registry = SharedStateRegistry()
        self._is_recovered = False
        self._lock = threading.RLock()

    @classmethod
    def peek(cls, fs: CheckpointFileSystem) -> CheckpointMetadata | None:
        """The newest completed checkpoint in a store, None if there is none; changes nothing there.

        Raises `CorruptMetadataError` if the newest cannot be read, as `recover` would.
        """
        store = cls(fs)
        retained, unreadable, _ = store._scan()
        store._check_newest(retained, unreadable)
        return retained[max(retained)].metadata if retained else None

    @classmethod
    def fall_back_target(cls, fs: CheckpointFileSystem, fall_back_to: int | str) -> CheckpointMetadata:
        """The checkpoint that `recover(fall_back_to=...)` would make the newest; changes nothing.

        "previous" is the newest that can be read, except for the newest of all. Raises
        `CheckpointNotFoundError`, naming those there are, or `CorruptMetadataError`.
        """
        store = cls(fs)
        retained, unreadable, _ = store._scan()
        if fall_back_to == PREVIOUS:
            newest = max({*retained, *unreadable}, default=-1)
            older = [checkpoint_id for checkpoint_id in retained if checkpoint_id < newest]
            if not older:
                raise CheckpointNotFoundError(
                    f"{fs.location(CHECKPOINTS_DIRECTORY)} holds no readable checkpoint before its newest; "
                    f"there are: {_listed(retained)}. Start from a savepoint in a new job directory."
                )
            return retained[max(older)].metadata
        check_integer("fall_back_to", fall_back_to, 0, (1 << 63) - 1)
        return store._target(int(fall_back_to), retained, unreadable).metadata

    @property
    def unreadable(self) -> Mapping[int, CorruptMetadataError]:
        """Older checkpoints that `recover` could not read; they stay until they would be dropped anyway."""
        return MappingProxyType(self._unreadable)

    def recover(self, *, fall_back_to: int | None = None) -> CheckpointMetadata | None:
        """Find the completed checkpoints, remove unfinished ones, return the newest (None if none).

        A damaged newest checkpoint raises `CorruptMetadataError`. With `fall_back_to=<id>` everything
        newer than that checkpoint is moved to `set-aside/` and it becomes the newest; if it cannot be read
        either, nothing is moved. May be called again; it then starts from what is on the storage.
        """
        with self._lock:
            retained, unreadable, unfinished = self._scan()
            if fall_back_to is not None:
                self._target(fall_back_to, retained, unreadable)
                for checkpoint_id in sorted({*retained, *unreadable}, reverse=True):
                    if checkpoint_id > fall_back_to:
                        self._set_aside(checkpoint_id)
                        retained.pop(checkpoint_id, None)
                        unreadable.pop(checkpoint_id, None)
            self._check_newest(retained, unreadable)
            for earlier in retained.values():
                self._check_parent(earlier.metadata, retained)
            for directory in unfinished:
                self._fs.delete_directory(directory)
            registry = SharedStateRegistry()
            for checkpoint_id, one in retained.items():
                registry.register(checkpoint_id, (file.path for file in one.metadata.files))
            registry.protect(self._registry.protected())
            registry.protect(self._files_set_aside())
            self._retained, self._unreadable, self._registry = retained, unreadable, registry
            self._is_recovered = True
            return self.latest()

    def add(self, metadata: CheckpointMetadata) -> FileHandle:
        """Store a completed checkpoint durably, then drop those beyond `max_retained`.

        Its data files must be in place already. Returns the handle of its metadata file; the checksum is
        the `parent_digest` of its children. On any error the store is as before. Raises
        `InvariantViolationError` (not a checkpoint, id not greater than the newest, wrong parent digest),
        `MissingFileError` or `CorruptFileError` (a data file is not there in its size), `StorageError`.
        """
        with self._lock:
            self._check_recovered("ADD")
            self._check_may_add(metadata)
            directory = checkpoint_directory(metadata.checkpoint_id)
            files = {file.path: file for file in metadata.files}
            self._fs.verify_present([files[path] for path in self._registry.unreferenced(files)])
            try:
                metadata_file = write_metadata(self._fs, directory, metadata)
            except BaseException:
                # A failure after the rename must not leave a checkpoint that its caller gives up.
                with contextlib.suppress(CheckpointError):
                    self._fs.delete(f"{directory}/{METADATA_FILE_NAME}", durable=True)
                    self._fs.delete_directory(directory)
                raise
            self._registry.register(metadata.checkpoint_id, files)
            self._retained[metadata.checkpoint_id] = _Retained(metadata, metadata_file)
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
        """One completed checkpoint; `CheckpointNotFoundError` names those there are."""
        return self._get(checkpoint_id).metadata

    def digest(self, checkpoint_id: int) -> str:
        """Checksum of a checkpoint's metadata file: the `parent_digest` of its children."""
        return self._get(checkpoint_id).metadata_file.checksum

    @contextlib.contextmanager
    def pin(self, checkpoint_id: int) -> Iterator[CheckpointMetadata]:
        """Keep a checkpoint and its files while the context is open, whatever completes meanwhile."""
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
        """Delete the files of given-up state that nobody else needs; return their paths.

        `in_use` are files of pending checkpoints (`CheckpointCoordinator.files_in_use()`). Failures to
        delete are logged, since the state is given up either way.
        """
        with self._lock:
            self._check_recovered("DISCARD")
            paths = {file.path for state in states for file in state.files}
            return self._delete_files(self._registry.unreferenced(paths.difference(in_use)))

    def delete_orphans(self, in_use: Collection[str] = ()) -> tuple[str, ...]:
        """Delete files under `shared/` that nobody refers to: remains of aborted attempts and crashes.

        Files of pending checkpoints must be in `in_use`, files being uploaded cannot be known, so call it
        while no task runs, such as right after `recover`. Deletes nothing while there are `unreadable`
        checkpoints, whose files cannot be told from orphans.
        """
        with self._lock:
            self._check_recovered("DELETE_ORPHANS")
            if self._unreadable:
                return ()
            found = self._fs.list_files(SHARED_DIRECTORY, include_temporary=True)
            keep = self._registry.referenced().union(in_use)
            return self._delete_files(path for path in found if path not in keep)

    def _scan(self) -> tuple[dict[int, _Retained], dict[int, CorruptMetadataError], list[str]]:
        retained: dict[int, _Retained] = {}
        unreadable: dict[int, CorruptMetadataError] = {}
        unfinished: list[str] = []
        for name in self._fs.list_directories(CHECKPOINTS_DIRECTORY):
            match = _DIRECTORY_NAME.fullmatch(name)
            if match is None:
                continue
            directory = f"{CHECKPOINTS_DIRECTORY}/{name}"
            checkpoint_id = int(match.group(1))
            if not self._fs.exists(f"{directory}/{METADATA_FILE_NAME}"):
                unfinished.append(directory)
                continue
            try:
                retained[checkpoint_id] = self._read(checkpoint_id, directory)
            except CorruptMetadataError as error:
                unreadable[checkpoint_id] = error
        return retained, unreadable, unfinished

    def _target(
        self, fall_back_to: int, retained: Mapping[int, _Retained], unreadable: Mapping[int, CorruptMetadataError]
    ) -> _Retained:
        if fall_back_to in unreadable:
            raise unreadable[fall_back_to]
        if fall_back_to not in retained:
            raise self._not_found(fall_back_to, retained)
        return retained[fall_back_to]

    def _files_set_aside(self) -> set[str]:
        """The files of checkpoints that were given up: whoever removes those gives the files free."""
        paths: set[str] = set()
        for name in self._fs.list_directories(SET_ASIDE_DIRECTORY):
            # What cannot be read, for which it was given up, does not tell its files.
            with contextlib.suppress(CheckpointError):
                metadata, _ = read_metadata_with_handle(self._fs, f"{SET_ASIDE_DIRECTORY}/{name}")
                paths.update(file.path for file in metadata.files)
        return paths

    def _read(self, checkpoint_id: int, directory: str) -> _Retained:
        metadata, metadata_file = read_metadata_with_handle(self._fs, directory)
        location = self._fs.location(f"{directory}/{METADATA_FILE_NAME}")
        if metadata.checkpoint_id != checkpoint_id or metadata.kind is not CheckpointKind.CHECKPOINT:
            raise CorruptMetadataError(
                f"{location} is out of place: it describes {metadata.kind.value} {metadata.checkpoint_id}, "
                f"its directory is for CHECKPOINT {checkpoint_id}. Move it back to where it belongs."
            )
        return _Retained(metadata, metadata_file)

    def _check_newest(self, retained: Mapping[int, _Retained], unreadable: Mapping[int, CorruptMetadataError]) -> None:
        if not unreadable or max(unreadable) < max(retained, default=-1):
            return
        newest = max(unreadable)
        way_out = (
            f"To give up checkpoint {newest} and continue from checkpoint {max(retained)}, start with "
            f"fall_back_to={max(retained)}; readable are {_listed(retained)}."
            if retained
            else "No other checkpoint is readable; start from a savepoint in a new job directory."
        )
        raise type(unreadable[newest])(
            f"the newest checkpoint, {newest}, cannot be read, and an older one is not taken silently. "
            f"{unreadable[newest]} {way_out}"
        ) from unreadable[newest]

    def _check_parent(self, metadata: CheckpointMetadata, retained: Mapping[int, _Retained]) -> None:
        parent = retained.get(-1 if metadata.parent_checkpoint_id is None else metadata.parent_checkpoint_id)
        if parent is None or parent.metadata_file.checksum == metadata.parent_digest:
            return
        raise CorruptMetadataError(
            f"{self._fs.location(checkpoint_directory(metadata.checkpoint_id))} continues from checkpoint "
            f"{metadata.parent_checkpoint_id} with digest {metadata.parent_digest}, but the checkpoint "
            f"{metadata.parent_checkpoint_id} found here has digest {parent.metadata_file.checksum}: the "
            "directory mixes two histories. Bring back the original directories from a backup, or start "
            f"with fall_back_to={metadata.parent_checkpoint_id}."
        )

    def _check_may_add(self, metadata: CheckpointMetadata) -> None:
        checkpoint_id = metadata.checkpoint_id
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

    def _delete_checkpoint(self, checkpoint_id: int) -> bool:
        directory = checkpoint_directory(checkpoint_id)
        try:
            self._fs.delete(f"{directory}/{METADATA_FILE_NAME}", durable=True)
            self._fs.delete_directory(directory)
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
            _logger.warning("file left behind, delete_orphans will retry: %s", error)
            return False
        return True

    def _set_aside(self, checkpoint_id: int) -> None:
        taken = set(self._fs.list_directories(SET_ASIDE_DIRECTORY))
        base = f"chk-{checkpoint_id:012d}"
        name = next(f"{base}-{number}" for number in range(1, len(taken) + 2) if f"{base}-{number}" not in taken)
        self._fs.move_directory(checkpoint_directory(checkpoint_id), f"{SET_ASIDE_DIRECTORY}/{name}")

    def _get(self, checkpoint_id: int) -> _Retained:
        with self._lock:
            self._check_recovered("GET")
            if checkpoint_id not in self._retained:
                raise self._not_found(checkpoint_id, self._retained)
            return self._retained[checkpoint_id]

    def _not_found(self, checkpoint_id: int, retained: Mapping[int, _Retained]) -> CheckpointNotFoundError:
        return CheckpointNotFoundError(
            f"{self._fs.location(CHECKPOINTS_DIRECTORY)} holds no checkpoint {checkpoint_id}; "
            f"there are: {_listed(retained)}"
        )

    def _check_recovered(self, event: str) -> None:
        if not self._is_recovered:
            raise IllegalTransitionError(event, "NOT_RECOVERED", "call recover() on the store first")


def _listed(checkpoint_ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(checkpoint_ids))) or "none"
