"""Completed checkpoints noted in one object of a store with conditional writes: a `CheckpointPointers`.

    checkpoints/chk-<id>-<32 hex>/_metadata    written first, under a name that nobody gives again
    completed-checkpoints.json                 all pointers; once it names a checkpoint, that is complete
    shared/...                                 data files, referred to by path from metadata

* **Nothing depends on a listing.** The one object is read by its key, and so is every file that it names. Listings may
  lag behind; they are asked for what can be cleared away, and what they lack is cleared away another time.
* **A change is a compare and set** on the version of the object that this driver wrote last. A leader begins with such
  a write (`take_over`), so that the version of the one before it is no more: whoever led before can change nothing from
  then on, whatever it believes, and finds out when it tries. Of two who complete a checkpoint, one does.
* **A lost answer** leaves it open whether a change took effect. Contents are all different, so whoever finds his own
  has written it. Where that cannot be found out, the checkpoint is uncertain: nothing of it is deleted, and the next
  `find` knows.
* Withdrawing goes from the pointer to the files: a crash leaves files without a pointer, no pointer without files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from attrs import evolve

from checkpointing.errors import (
    CheckpointError,
    CorruptFileError,
    CorruptMetadataError,
    JobDirectoryMismatchError,
    LeadershipLostError,
    MissingFileError,
    StorageError,
    UncertainCheckpointError,
)
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.completed_record import COMPLETED_FILE_NAME, CompletedRecord
from checkpointing.storage.conditional_objects import ConditionalObjects
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.found_checkpoints import FoundCheckpoints, RetainedCheckpoint
from checkpointing.storage.metadata_file import read_metadata
from checkpointing.storage.pointed_metadata import (
    CheckpointPointer,
    delete_pointed_metadata,
    read_pointed_metadata,
    unnamed_directories,
    write_pointed_metadata,
)

__all__ = ["ObjectPointers"]

T = TypeVar("T")

_TRIES: Final = 10

_Change = Callable[[CompletedRecord], CompletedRecord]


class ObjectPointers:
    """Those of the job `job_id` whose directory is the root of `file_system`.

    They can be looked at, and changed behind `take_over`. Safe to use by one thread at a time.
    """

    def __init__(self, file_system: CheckpointFileSystem, objects: ConditionalObjects, job_id: str) -> None:
        self._fs = file_system
        self._objects = objects
        self._record = CompletedRecord(job_id=job_id)
        self._version: str | None = None
        self._leader: str | None = None
        self._attempts = 0

    @property
    def place(self) -> str:
        """The object."""
        return self._fs.location(COMPLETED_FILE_NAME)

    @property
    def driver_files(self) -> str:
        """Where the driver files are of who wrote the object last; after `find` or `take_over`."""
        return self._record.driver_files

    def check_there(self) -> None:
        """Look at the object. Raises `JobDirectoryMismatchError` if there is none, of a job that must have one."""
        self._look()
        if self._version is None:
            raise JobDirectoryMismatchError(
                f"{self.place} does not exist, which says what the job has completed. Bring it back from a backup, or "
                f"begin a new job directory from a savepoint"
            )

    def take_over(self, leader: str, begin: _Change) -> None:
        """Become who may change it: `leader` is a new token, and `begin` makes the record to begin with.

        `begin` may be called several times. Raises `JobDirectoryMismatchError` if the object is another job's.
        """
        for _ in range(_TRIES):
            self._look()
            # What a former driver that is still alive writes at this moment is seen in the next round.
            record = evolve(begin(self._record), leader=leader, revision=self._record.revision + 1)
            if self._write(record):
                self._leader = leader
                return
        raise StorageError(f"{self.place} is written by another driver again and again; stop it, and start again")

    def find(self) -> FoundCheckpoints:
        """Read the object and what it names, all by their keys; changes nothing.

        A leader may drop checkpoints while another driver looks, which looks again then; one that led until then is
        told by that that it does not any more.
        """
        for _ in range(_TRIES):
            record = self._look()
            if self._leader is not None:
                self._check_leading()
            found = self._found(record)
            if not found.unreadable or self._look().revision == record.revision:
                break
        return found

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata under a name of its own, then let the object name it."""
        self._check_leading()
        pointer = write_pointed_metadata(self._fs, metadata)
        try:
            self._change(lambda record: _with(record, pointer))
        except LeadershipLostError:
            raise
        except StorageError as error:
            raise UncertainCheckpointError(
                f"whether checkpoint {pointer.checkpoint_id} is complete is not known, and is found at the next start; "
                f"nothing is lost. {error}"
            ) from error
        return pointer.metadata_file

    def withdraw(self, checkpoint_id: int) -> None:
        """Take the checkpoint out of the object, then delete its metadata file."""
        pointer = self._record.by_id.get(checkpoint_id)
        self._change(lambda record: _without(record, checkpoint_id))
        if pointer is not None:
            delete_pointed_metadata(self._fs, pointer)

    def set_aside(self, checkpoint_id: int) -> None:
        """Note it among those that were given up; its files stay where they are."""
        pointer = self._record.by_id[checkpoint_id]

        def change(record: CompletedRecord) -> CompletedRecord:
            others = tuple(one for one in record.set_aside if one != pointer)
            return evolve(_without(record, checkpoint_id), set_aside=(*others, pointer))

        self._change(change)

    def set_aside_places(self) -> tuple[str, ...]:
        """The directories of those that were given up and are there."""
        there = (one for one in self._record.set_aside if self._fs.exists(one.metadata_file.path))
        return tuple(self._fs.location(one.directory) for one in there)

    def files_set_aside(self) -> frozenset[str]:
        """Those that their metadata files name. Who has removed such a file has given the others free."""
        paths: set[str] = set()
        for pointer in self._record.set_aside:
            # What cannot be read, for which it was given up, does not tell its files.
            with contextlib.suppress(MissingFileError, CorruptFileError):
                paths.update(file.path for file in read_metadata(self._fs, pointer.directory).files)
        return frozenset(paths)

    def _change(self, change: _Change) -> None:
        """Writes the record anew. Raises `LeadershipLostError` if another driver has, `StorageError` if in doubt."""
        for _ in range(_TRIES):
            self._check_leading()
            changed = change(self._record)
            if changed == self._record:
                return
            # After a write of unknown outcome the next one has another content even so.
            self._attempts += 1
            if self._write(evolve(changed, revision=changed.revision + self._attempts)):
                self._attempts = 0
                return
            self._look()
        raise StorageError(f"{self.place} could not be written: its versions change, and nobody else writes it")

    def _write(self, record: CompletedRecord) -> bool:
        written = self._objects.write(COMPLETED_FILE_NAME, record.to_bytes(), self._version)
        if written is None:
            return False
        self._record, self._version = record, written
        return True

    def _look(self) -> CompletedRecord:
        found = self._objects.read(COMPLETED_FILE_NAME)
        if found is None:
            record, version = CompletedRecord(job_id=self._record.job_id), None
        else:
            record, version = CompletedRecord.from_bytes(found.content, self.place), found.version
        if record.job_id != self._record.job_id:
            raise JobDirectoryMismatchError(
                f"{self.place} is that of job {record.job_id}, and {self._fs.location('job.json')} that of job "
                f"{self._record.job_id}: the directory mixes two jobs. Bring back the original files from a backup"
            )
        self._record, self._version = record, version
        return record

    def _check_leading(self) -> None:
        if self._leader is None:
            raise LeadershipLostError(f"nobody leads the job of {self.place} here: it is only looked at")
        if self._record.leader != self._leader:
            raise LeadershipLostError(
                f"another driver has taken {self.place} over, and this one completes no checkpoint any more: it was "
                f"paused or cut off for too long. Stop it; the other one goes on"
            )

    def _found(self, record: CompletedRecord) -> FoundCheckpoints:
        retained: dict[int, RetainedCheckpoint] = {}
        unreadable: dict[int, CorruptMetadataError] = {}
        for pointer in record.completed:
            found = read_pointed_metadata(self._fs, pointer, self.place)
            if isinstance(found, RetainedCheckpoint):
                retained[pointer.checkpoint_id] = found
            else:
                unreadable[pointer.checkpoint_id] = found
        greatest = record.greatest_id if record.greatest_id >= 0 else None
        unfinished: list[str] = []
        # A listing that fails leaves what could be cleared away to another time.
        with contextlib.suppress(CheckpointError):
            unfinished += (name for name, _ in unnamed_directories(self._fs, (*record.completed, *record.set_aside)))
        return FoundCheckpoints(self._fs, self.place, retained, unreadable, unfinished, greatest)


def _with(record: CompletedRecord, pointer: CheckpointPointer) -> CompletedRecord:
    if pointer in record.completed:
        return record
    greatest_id = max(record.greatest_id, pointer.checkpoint_id)
    return evolve(record, completed=(*record.completed, pointer), greatest_id=greatest_id)


def _without(record: CompletedRecord, checkpoint_id: int) -> CompletedRecord:
    return evolve(record, completed=tuple(one for one in record.completed if one.checkpoint_id != checkpoint_id))
