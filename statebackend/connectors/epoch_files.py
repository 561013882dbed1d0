"""The directories of a file sink: one per epoch, in the layout of Hive.

    <path>/epoch=000000000007/part-<32 hex>.parquet            a file of a committed epoch
    <path>/epoch=000000000007/day=2024-05-01/part-<32 hex>.csv     with the partition column ``day``
    <path>/epoch=000000000007/_committable                     the mark: its attempt and its files
    <path>/_staging/000000000007-<job>.<run>/part-<32 hex>.parquet     a staged file
    <path>/_staging/000000000007-<job>.<run>/epoch/            an epoch before its rename, on a disk
    <path>/_set_aside/epoch=000000000007-<job>.<run>/          an epoch that a rollback has hidden

Readers such as Spark skip names with a leading underscore. A committed epoch never changes. The committable of a
subtask, and the mark of an epoch, are JSON:

    {"format": 1, "epoch": 7, "attempt": "<job>.<run>", "files": [[<path in the epoch>, <bytes>, <checksum>], ...]}

**On a disk**, a rename commits an epoch, so readers see all of it or nothing. The driver moves the files that the
committables name to ``epoch``, adds the mark, and renames the directory. A late task can still write to the staging
directory, but not to the epoch.

**On an S3-compatible store** there is no rename, and listings may be stale. The driver copies the named files within
the store, writes the mark last, and deletes the staged files. Readers of a running job skip epochs without a mark.

**Compaction** replaces the files of many epochs by fewer files:

    <path>/_staging/compaction-000000000003-<32 hex>/          the new files, and replaced epochs on a disk
    <path>/_compactions/000000000003                           the plan of the third compaction
    <path>/epoch=00000000000000000007/                         the rows of several epochs; 7 is the newest

A later compaction may replace this directory too, together with newer epochs.

1. Write the new files. Nothing is visible.
2. Create the plan, unless the file exists. From now on every later compaction or rollback finishes this one first.
3. Hide the replaced epochs: rename them, or delete their marks in a store.
4. Show the new directory, with a mark that has the attempts of all its epochs.
5. Delete the replaced files, and mark the plan as done.

A reader that lists directories misses rows between steps 3 and 5, and sees none twice. `visible_files` follows the
plan, so it misses none. Two compactions cannot create one plan, and a rollback creates a plan that is done. So a
compaction fails if the epochs have changed since it read them. What it has staged is not used by any later plan: the
next compaction deletes it.

A crash repeats the commit with the same committables, which does the rest. Two drivers may commit an epoch at the same
time: only one attempt at an epoch is ever in a checkpoint, so both do the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from attrs import frozen

from snapshots.errors import format_value
from snapshots.format_versions import newer_version, pre_release
from statebackend.checkpoint.errors import CheckpointError, MissingFileError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.local_storage import TEMPORARY_PREFIX, sync_directory
from statebackend.checkpoint.invariants import checked_relative_path, checksum_of_chunks, chunks_of
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.connectors.sink_errors import reported
from statebackend.state.private_directory import temporary_directory
from statebackend.streaming.sink import SinkEpoch, SinkError

__all__ = ["EPOCH_COLUMN", "EpochFiles", "EpochMark", "parse_mark", "staging_of"]

EPOCH_COLUMN: Final = "epoch"

_STAGING: Final = "_staging"
_SET_ASIDE: Final = "_set_aside"
_MARK: Final = "_committable"
_COMPACTIONS: Final = "_compactions"
_FORMAT: Final = 1
_EPOCH_NAME: Final = re.compile(rf"{EPOCH_COLUMN}=(\d+)")
_COMPACTED_NAME: Final = re.compile(rf"{EPOCH_COLUMN}=\d{{20}}")
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COMPACTION: Final = re.compile(r"compaction-(\d{12,})-[0-9a-f]{32}")
_STAGED: Final = re.compile(rf"(\d{{12,19}})-({_ATTEMPT.pattern})")
"""The staging directory of an attempt: its epoch, and the attempt."""

_IN_EPOCH: Final = re.compile(r"([^/]+=[^/]+/)*[^/_][^/]*")
"""The path of a file in an epoch: its partition directories and its name."""

_MOST_MISSING: Final = 16
"""The number of missing ids in a row after which no further epoch is expected."""


@frozen
class EpochMark:
    """The content of a mark or a committable."""

    epoch_id: int
    attempt: str
    files: Sequence[FileHandle]
    epochs: Sequence[Sequence[Any]] = ()
    """The ranges of epochs of a compacted directory: first epoch, last epoch, attempt."""

    @property
    def directory(self) -> str:
        """The visible directory."""
        return compacted_name(self.epoch_id) if self.epochs else epoch_name(self.epoch_id)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        """Return the mark as JSON."""
        files = [[one.path, one.size_bytes, one.checksum] for one in self.files]
        fields = {"format": _FORMAT, "epoch": self.epoch_id, "attempt": self.attempt, "files": files}
        return json.dumps({**fields, "epochs": self.epochs} if self.epochs else fields).encode()


@frozen
class _Plan:
    """A compaction that has started. ``staging`` is empty for one that is done."""

    number: int
    staging: str
    compacted: EpochMark | None
    sources: Sequence[EpochMark]


class EpochFiles:
    """The epochs below the root of a file system: a local disk, or a store with atomic puts."""

    def __init__(self, file_system: CheckpointFileSystem) -> None:
        self._fs = file_system
        self._root = file_system.local_path()
        """The directory on the disk; None in a store."""

    @contextlib.contextmanager
    def writing(self, staging: str) -> Iterator[str]:
        """Yield a local directory for files that `add` stages: the staging directory itself, if it is on a disk."""
        place = self._fs.local_path(staging)
        if place is None:
            with temporary_directory() as directory:
                yield directory
        else:
            self._make_directory(place)
            yield place

    def add(self, local_path: str, staging: str, path: str) -> FileHandle:
        """Stage a file of the directory of `writing`, durably. ``path`` is its path in the epoch."""
        name = path.rpartition("/")[2]
        if self._root is None:
            staged = self._fs.upload(local_path, f"{staging}/{name}")
            return FileHandle(path, staged.size_bytes, staged.checksum)
        with open(local_path, "rb") as file:
            size_bytes, checksum = checksum_of_chunks(chunks_of(file))
            os.fsync(file.fileno())
        directory = os.path.dirname(local_path)
        os.replace(local_path, os.path.join(directory, name))
        sync_directory(directory)
        return FileHandle(path, size_bytes, checksum)

    def commit(self, epoch_id: int, committables: Sequence[bytes]) -> None:
        """Make the staged files visible, unless the epoch is. Raises `SinkError` if rows would be lost."""
        mark = _merged(committables, epoch_id)
        staging = _staging(epoch_id, mark.attempt)
        with self._reported(f"epoch {epoch_id} cannot be committed"):
            if not self._has(mark):
                try:
                    self._show(mark, staging, epoch_name(epoch_id))
                except (CheckpointError, OSError, SinkError):
                    # Another driver may have committed the epoch meanwhile.
                    if not self._has(mark):
                        raise
        # What cannot be deleted now is deleted by the next start of the job.
        with contextlib.suppress(CheckpointError):
            # A listing of the store may not contain them.
            for file in mark.files:
                self._fs.delete(f"{staging}/{_name(file)}")
            self._fs.delete_directory(staging)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Remove the listed files of the attempt; the next start of the job removes the rest."""
        with contextlib.suppress(CheckpointError):
            self._fs.delete_directory(_staging(epoch_id, attempt_id))

    def recover(self, last_epoch_id: int | None, job_id: str) -> None:
        """Remove what the job has staged for later epochs and for visible ones.

        Raises `SinkError` if a later epoch is visible.
        """
        last_id = -1 if last_epoch_id is None else last_epoch_id
        with self._reported("the epochs of earlier runs cannot be read"):
            later = self._visible_after(last_id)
            if later:
                first = min(later)
                names = [epoch_name(first), compacted_name(first)]
                name = names[names[1] in self._fs.list_directories()]
                raise SinkError(
                    f"{self._fs.location(name)} exists, but this job has not completed epoch {first}: "
                    f"another job wrote it, or this job before it was rolled back to an older state or started its "
                    f"sources over (restore_source_progress=False). Write to another path, or remove the epochs from "
                    f"{first} on"
                )
            for name, epoch_id, attempt in self._staged():
                is_own = attempt.startswith(f"{job_id}.")
                if is_own and (epoch_id > last_id or self._fs.exists(f"{epoch_name(epoch_id)}/{_MARK}")):
                    # What cannot be removed is never visible.
                    with contextlib.suppress(CheckpointError):
                        self._fs.delete_directory(f"{_STAGING}/{name}")

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Set aside the visible epochs after that one, the newest first. Raises `SinkError` if they are not the job's.

        In a store it copies the files, then deletes them, and the mark last.
        """
        with self._reported(f"the epochs after {last_epoch_id} cannot be set aside"):
            plan = self._finish()
            for compacted in self._compacted(last_epoch_id + 1):
                raise SinkError(
                    f"{self._fs.location(compacted_name(compacted.epoch_id))} has the rows of epochs "
                    f"{compacted.epochs[0][0]} to {compacted.epoch_id}, which were compacted: they cannot be hidden "
                    f"apart. Roll back to a later checkpoint, or start from a savepoint in a new job directory with "
                    f"another path"
                )
            later = sorted(self._visible_after(last_epoch_id), reverse=True)
            marks = {epoch_id: self._mark(epoch_id) for epoch_id in later}
            for epoch_id, mark in marks.items():
                if not self._is_own(epoch_id, mark, job_id):
                    raise SinkError(
                        f"{self._fs.location(epoch_name(epoch_id))} is later than epoch {last_epoch_id}, and this job "
                        f"did not write it. Move it away, or write to another path"
                    )
            if later:
                # A compaction that has read these epochs must not use them.
                self._claim(_Plan(plan + 1, "", None, ()))
            for epoch_id, mark in marks.items():
                self._set_aside(epoch_id, mark)
        return [self._fs.location(_SET_ASIDE)] if later else []

    def _reported(self, what: str) -> AbstractContextManager[None]:
        return reported(f"{self._fs.location('')}: {what}", "Start the job again, which repeats it")

    def _has(self, mark: EpochMark) -> bool:
        """Whether the epoch is visible. Raises `SinkError` if another attempt wrote it."""
        found = self._mark(mark.epoch_id)
        target = epoch_name(mark.epoch_id)
        attempt = self._compacted_attempt(mark.epoch_id) if found is None else found.attempt
        if found == mark or (found is None and attempt == mark.attempt):
            return True
        # In a store an epoch is without its mark until all of its files are copied.
        if attempt is not None or (self._root is not None and target in self._fs.list_directories()):
            raise SinkError(
                f"{self._fs.location(target)} was not written by the attempt that completed epoch {mark.epoch_id}. The "
                f"rows of that attempt are in {self._fs.location(_staging(mark.epoch_id, mark.attempt))}, if it "
                f"exists. Replace the others with them, or use another path"
            )
        return False

    def _show(self, mark: EpochMark, staging: str, target: str) -> None:
        """Make staged files visible, with their mark."""
        if self._root is None:
            self._copy_in(mark, staging, target)
        else:
            self._move_in(mark, staging, target)

    def _move_in(self, mark: EpochMark, staging: str, target: str) -> None:
        """Show files on a disk."""
        gathered = f"{staging}/epoch"
        for file in mark.files:
            source, place = f"{staging}/{_name(file)}", f"{gathered}/{file.path}"
            self._make_directory(self._local(place.rpartition("/")[0]))
            # An interrupted commit may have moved it.
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._local(source), self._local(place))
        try:
            self._fs.verify_present([_in(gathered, file) for file in mark.files])
        except CheckpointError as error:
            raise self._missing_rows(mark.epoch_id, f"a file of {staging}") from error
        temporary = self._local(f"{gathered}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        with open(temporary, "wb") as written:
            written.write(mark.encode())
            written.flush()
            os.fsync(written.fileno())
        os.replace(temporary, self._local(f"{gathered}/{_MARK}"))
        for path in {f"{gathered}/{file.path}".rpartition("/")[0] for file in mark.files} | {gathered}:
            sync_directory(self._local(path))
        self._fs.move_directory(gathered, target)

    def _local(self, path: str) -> str:
        """Return the path on the disk. Raises `StorageError` if it contains a link below the root."""
        local_path = self._fs.local_path(path)
        assert local_path is not None
        return local_path

    def _make_directory(self, path: str) -> None:
        """Create a directory on the disk, durably, with the permissions of the process: readers may be other users."""
        if not os.path.isdir(path):
            parent = os.path.dirname(path)
            self._make_directory(parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            sync_directory(parent)

    def _copy_in(self, mark: EpochMark, staging: str, target: str) -> None:
        """Show files in a store."""
        known = {f"{target}/{file.path}" for file in mark.files}
        unknown = [path for path in self._files_in(target) if path not in known]
        if unknown:
            raise SinkError(
                f"{self._fs.location(unknown[0])} is not one of the files of epoch {mark.epoch_id}, whose checkpoint "
                f"is complete: another job writes here. Move its files away and start the job again, or use another "
                f"path"
            )
        for file in mark.files:
            self._copy(file, f"{staging}/{_name(file)}", target, mark.epoch_id)
        self._fs.write_file(f"{target}/{_MARK}", mark.encode())

    def _set_aside(self, epoch_id: int, mark: EpochMark | None) -> None:
        target = epoch_name(epoch_id)
        if self._root is not None:
            taken = self._fs.list_directories(_SET_ASIDE)
            names = (f"{target}-{number}" for number in range(1, len(taken) + 2))
            self._fs.move_directory(target, f"{_SET_ASIDE}/{next(name for name in names if name not in taken)}")
        elif mark is None:
            for path in self._files_in(target):
                self._fs.delete(path)
        else:
            aside = f"{_SET_ASIDE}/{target}-{mark.attempt}"
            for file in mark.files:
                self._copy(file, f"{target}/{file.path}", aside, epoch_id)
            self._fs.write_file(f"{aside}/{_MARK}", mark.encode())
            for file in mark.files:
                self._fs.delete(f"{target}/{file.path}")
            self._fs.delete(f"{target}/{_MARK}", durable=True)

    def _visible_after(self, last_epoch_id: int) -> set[int]:
        """Return the visible epochs after that one, listed or not listed yet."""
        matches = map(_EPOCH_NAME.fullmatch, self._fs.list_directories())
        listed = {int(match[1]) for match in matches if match is not None}
        found = {epoch_id for epoch_id in listed if epoch_id > last_epoch_id}
        if self._root is not None:
            return found
        # pyarrow leaves an empty object for a directory without files.
        found = {epoch_id for epoch_id in found if self._files_in(epoch_name(epoch_id))}
        epoch_id, missing = last_epoch_id, 0
        while missing < _MOST_MISSING:
            epoch_id += 1
            is_there = self._fs.exists(f"{epoch_name(epoch_id)}/{_MARK}")
            found.update([epoch_id] if is_there else ())
            missing = 0 if is_there else missing + 1
        return found

    def _mark(self, epoch_id: int, directory: str | None = None) -> EpochMark | None:
        """Return the mark of a visible epoch; None without a valid one.

        Raises `SinkError` for one of another version, because its rows are not damaged.
        """
        path = f"{directory or epoch_name(epoch_id)}/{_MARK}"
        try:
            return parse_mark(self._fs.read_file(path), epoch_id, self._fs.location(path))
        except _OtherVersionError:
            raise
        except (MissingFileError, SinkError):
            return None

    def _listed(self) -> Iterator[tuple[str, EpochMark]]:
        """Yield the listed directories with a mark."""
        for name in self._fs.list_directories():
            match = _EPOCH_NAME.fullmatch(name)
            mark = None if match is None else self._mark(int(match[1]), name)
            if mark is not None:
                yield name, mark

    def _compacted(self, first_epoch_id: int) -> Iterator[EpochMark]:
        """Yield the marks of compacted directories that end with this epoch or a later one."""
        names = sorted(filter(_COMPACTED_NAME.fullmatch, self._fs.list_directories()))
        ids = (int(name.partition("=")[2]) for name in names)
        marks = (self._mark(one, compacted_name(one)) for one in ids if one >= first_epoch_id)
        return (mark for mark in marks if mark is not None and mark.epochs)

    def _compacted_attempt(self, epoch_id: int) -> str | None:
        """Return the attempt of an epoch whose rows are in a compacted directory, or that is being replaced."""
        plan = self._plan()
        if plan is None:
            # Nothing was ever compacted, so no commit needs to list all epochs.
            return None
        marks = [*([] if plan.compacted is None else [plan.compacted]), *self._compacted(epoch_id)]
        ranges = (one for compacted in marks for one in compacted.epochs)
        return next((attempt for first, last, attempt in ranges if first <= epoch_id <= last), None)

    def visible_files(self) -> list[str]:
        """Return the paths of files that have the rows of all committed epochs once, below the root."""
        with self._reported("its files cannot be listed"):
            while True:
                plan, found = self._plan(), list[str]()
                pending = set() if plan is None else {one.directory for one in plan.sources}
                if plan is not None and plan.compacted is not None:
                    pending.add(plan.compacted.directory)
                for name, mark in self._listed():
                    if name in pending:
                        continue
                    found += [f"{name}/{file.path}" for file in mark.files]
                moved = plan is not None and plan.compacted is not None and not self._add_compacted(plan, found)
                if not moved and self._plan() == plan:
                    return sorted(found)

    def _add_compacted(self, plan: _Plan, found: list[str]) -> bool:
        """Add the files of a compaction, wherever they are. Returns False if they are moved at this time."""
        assert plan.compacted is not None
        target = plan.compacted.directory
        for file in plan.compacted.files:
            places = (f"{plan.staging}/{_name(file)}", f"{plan.staging}/epoch/{file.path}", f"{target}/{file.path}")
            place = next(filter(self._fs.exists, places), None)
            if place is None:
                return False
            found.append(place)
        return True

    def compactable(self, keep: int) -> tuple[int, list[EpochMark], list[EpochMark]]:
        """Finish an interrupted compaction. Return the number of the next one, and what it may replace, ascending.

        These are all epochs with a mark but the ``keep`` newest ones, and all compacted directories.
        """
        with self._reported("it cannot be compacted"):
            number = self._finish() + 1
            marks = sorted((mark for _, mark in self._listed()), key=lambda mark: mark.epoch_id)
            epochs = [mark for mark in marks if not mark.epochs]
            return number, epochs[: max(0, len(epochs) - keep)], [mark for mark in marks if mark.epochs]

    @contextlib.contextmanager
    def staging_of_compaction(self, number: int) -> Iterator[str]:
        """Yield a new staging directory; delete it after an error, unless the plan uses it.

        Also delete those of earlier numbers, whose plans are done.
        """
        for name in self._fs.list_directories(_STAGING):
            match = _COMPACTION.fullmatch(name)
            if match is not None and int(match[1]) < number:
                self._fs.delete_directory(f"{_STAGING}/{name}")
        staging = f"{_STAGING}/compaction-{number:012d}-{uuid.uuid4().hex}"
        try:
            yield staging
        except Exception:
            with contextlib.suppress(CheckpointError, SinkError):
                plan = self._plan()
                if plan is None or plan.staging != staging:
                    self._fs.delete_directory(staging)
            raise

    def open_verified(self, mark: EpochMark, file: FileHandle) -> Any:
        """Open a file of a visible epoch after a comparison with its checksum."""
        with reported(
            f"epoch {mark.epoch_id} cannot be compacted", "Restore the file from a backup, or move its epoch away"
        ):
            self._fs.verify_content(_in(mark.directory, file))
        return self.open_input(mark, file)

    def open_input(self, mark: EpochMark, file: FileHandle) -> Any:
        """Open a file of a visible epoch."""
        return self._fs.open_input(f"{mark.directory}/{file.path}")

    def replace(self, number: int, staging: str, files: Sequence[FileHandle], sources: Sequence[EpochMark]) -> None:
        """Replace directories by staged files that have their rows. The last one is of a single epoch.

        Raises `SinkError` if another compaction or a rollback has changed the epochs since `compactable`.
        """
        epochs: list[list[Any]] = []
        for one in sources:
            for first, last, attempt in one.epochs or [(one.epoch_id, one.epoch_id, one.attempt)]:
                if epochs and epochs[-1][2] == attempt:
                    epochs[-1][1] = last
                else:
                    epochs.append([first, last, attempt])
        newest = sources[-1]
        compacted = EpochMark(newest.epoch_id, newest.attempt, sorted(files, key=lambda file: file.path), epochs)
        with self._reported("it cannot be compacted"):
            self._claim(_Plan(number, staging, compacted, sources))
            self._finish()

    def _claim(self, plan: _Plan) -> None:
        # The data differs between attempts to create the file.
        if not self._fs.create_file(f"{_COMPACTIONS}/{plan.number:012d}", _encoded(plan, uuid.uuid4().hex)):
            raise SinkError(
                f"{self._fs.location('')}: another compaction or a rollback runs at the same time. Repeat it"
            )

    def _plan(self) -> _Plan | None:
        numbers = [name.rpartition("/")[2] for name in self._fs.list_files(_COMPACTIONS)]
        newest = max(filter(str.isdecimal, numbers), default=None)
        return None if newest is None else _decoded(int(newest), self._fs.read_file(f"{_COMPACTIONS}/{newest}"))

    def _finish(self) -> int:
        """Finish the newest compaction, if it is not done. Returns its number, 0 without one."""
        plan = self._plan()
        if plan is None or plan.compacted is None:
            return 0 if plan is None else plan.number
        target = plan.compacted.directory
        if self._mark(plan.compacted.epoch_id, target) is None:
            try:
                for one in plan.sources:
                    self._hide(one, plan.staging)
                self._show(plan.compacted, plan.staging, target)
            except (CheckpointError, OSError, SinkError):
                # Another process may have finished it meanwhile.
                if self._mark(plan.compacted.epoch_id, target) is None:
                    raise
        if self._root is None:
            for one in plan.sources:
                for file in one.files:
                    self._fs.delete(f"{one.directory}/{file.path}")
            for file in plan.compacted.files:
                self._fs.delete(f"{plan.staging}/{_name(file)}")
        self._fs.delete_directory(plan.staging)
        self._fs.write_file(
            f"{_COMPACTIONS}/{plan.number:012d}", _encoded(_Plan(plan.number, "", None, ()), uuid.uuid4().hex)
        )
        return plan.number

    def _hide(self, source: EpochMark, staging: str) -> None:
        """Hide an epoch whose rows are in the files of a compaction."""
        name = source.directory
        if self._root is not None:
            if self._mark(source.epoch_id, name) is not None:
                self._fs.move_directory(name, f"{staging}/replaced/{name}")
            return
        # A commit that is repeated must not find the staged files.
        for file in source.files:
            self._fs.delete(f"{_staging(source.epoch_id, source.attempt)}/{_name(file)}")
        self._fs.delete(f"{name}/{_MARK}")

    def _is_own(self, epoch_id: int, mark: EpochMark | None, job_id: str) -> bool:
        """Whether the job has written the epoch, or the part of it that a crash has left in a store."""
        if mark is not None:
            return mark.attempt.startswith(f"{job_id}.")
        if self._root is not None:
            return False
        # Staged files are deleted after the mark is written, so the files of a part are still staged.
        names = {path.rpartition("/")[2] for path in self._files_in(epoch_name(epoch_id))}
        own = [name for name, one, attempt in self._staged() if one == epoch_id and attempt.startswith(f"{job_id}.")]
        return any(all(self._fs.exists(f"{_STAGING}/{directory}/{name}") for name in names) for directory in own)

    def _staged(self) -> Iterator[tuple[str, int, str]]:
        """Yield the listed staging directories, with their epochs and attempts."""
        for name in self._fs.list_directories(_STAGING):
            match = _STAGED.fullmatch(name)
            if match is not None:
                yield name, int(match[1]), match[2]

    def _files_in(self, directory: str) -> list[str]:
        return [path for path in self._fs.list_files(directory) if self._fs.exists(path)]

    def _copy(self, file: FileHandle, source: str, target: str, epoch_id: int) -> None:
        """Copy a file unless it exists."""
        try:
            self._fs.verify_present([_in(target, file)])
        except CheckpointError:
            try:
                self._fs.verify_present([FileHandle(source, file.size_bytes, file.checksum)])
            except CheckpointError as error:
                raise self._missing_rows(epoch_id, source) from error
            self._fs.copy_file(source, f"{target}/{file.path}")

    def _missing_rows(self, epoch_id: int, place: str) -> SinkError:
        return SinkError(
            f"rows of epoch {epoch_id} are gone: {self._fs.location(place)} is missing or damaged, but the checkpoint "
            f"of the epoch is complete. Restore it from a backup, or start from an earlier savepoint"
        )


def epoch_name(epoch_id: int) -> str:
    """Return the directory of a visible epoch."""
    return f"{EPOCH_COLUMN}={epoch_id:012d}"


def compacted_name(last_epoch_id: int) -> str:
    """Return the directory of compacted epochs. More zeros distinguish it from that of the epoch."""
    return f"{EPOCH_COLUMN}={last_epoch_id:020d}"


def staging_of(epoch: SinkEpoch) -> str:
    """Return the staging directory of an attempt at an epoch."""
    return _staging(epoch.epoch_id, epoch.attempt_id)


def _encoded(plan: _Plan, nonce: str) -> bytes:
    marks = [] if plan.compacted is None else [plan.compacted, *plan.sources]
    return json.dumps(
        {
            "format": _FORMAT,
            "staging": plan.staging,
            "marks": [json.loads(one.encode()) for one in marks],
            "nonce": nonce,
        }
    ).encode()


def _decoded(number: int, data: bytes) -> _Plan:
    """Return a plan. Raises `SinkError` if it is damaged, or of a later version."""
    try:
        fields = json.loads(data)
        version = fields["format"]
        if type(version) is int and version > _FORMAT:
            raise SinkError(newer_version(f"the plan of compaction {number}", version, _FORMAT))
        if version != _FORMAT:
            raise ValueError(version)
        marks = [parse_mark(json.dumps(one).encode(), one["epoch"]) for one in fields["marks"]]
        staging = checked_relative_path(fields["staging"]) if marks else ""
    except (ValueError, KeyError, TypeError, RecursionError, CheckpointError) as error:
        raise SinkError(f"the plan of compaction {number} is damaged: {format_value(data, 100)}") from error
    return _Plan(number, staging, marks[0] if marks else None, marks[1:])


def _staging(epoch_id: int, attempt_id: str) -> str:
    if not _ATTEMPT.fullmatch(attempt_id):
        raise SinkError(f"{attempt_id!r} cannot be part of a directory's name")
    return f"{_STAGING}/{epoch_id:012d}-{attempt_id}"


def _name(file: FileHandle) -> str:
    """Return the name of a file in the staging directory."""
    return file.path.rpartition("/")[2]


def _in(directory: str, file: FileHandle) -> FileHandle:
    return FileHandle(f"{directory}/{file.path}", file.size_bytes, file.checksum)


def _merged(committables: Sequence[bytes], epoch_id: int) -> EpochMark:
    """Return the mark of an epoch with these committables. Raises `SinkError` if they are not of one attempt."""
    first, *others = [parse_mark(one, epoch_id) for one in committables]
    if not others:
        return first
    if {one.attempt for one in others} != {first.attempt}:
        raise SinkError(f"epoch {epoch_id}: its committables are not of one attempt")
    files = [file for one in (first, *others) for file in one.files]
    return EpochMark(epoch_id, first.attempt, sorted(files, key=lambda file: file.path))


class _OtherVersionError(SinkError):
    """A mark or committable has a later version, or that of a pre-release."""


def parse_mark(data: bytes, epoch_id: int, where: str = "") -> EpochMark:
    """Return the content of a committable. Raises `SinkError` for that of another epoch, sink or version.

    ``where`` is the place of a mark.
    """
    where = where or f"the committable of epoch {epoch_id}"
    try:
        value = json.loads(data)
        if "version" in value:
            raise _OtherVersionError(pre_release(where, "Write to another path."))
        version = value["format"]
        if type(version) is int and version > _FORMAT:
            raise _OtherVersionError(newer_version(where, version, _FORMAT))
        epoch, attempt = value["epoch"], value["attempt"]
        files = [FileHandle(*file) for file in value["files"]]
        epochs = tuple([int(first), int(last), str(of)] for first, last, of in value.get("epochs", ()))
    except (ValueError, KeyError, TypeError, RecursionError, CheckpointError) as error:
        raise SinkError(f"epoch {epoch_id}: {format_value(data, 100)} is not a committable of a file sink") from error
    if version != _FORMAT or epoch != epoch_id or not isinstance(attempt, str):
        raise SinkError(f"epoch {epoch_id}: {format_value(data, 100)} is a committable of another epoch or version")
    _staging(epoch_id, attempt)
    if not all(_IN_EPOCH.fullmatch(file.path) for file in files):
        raise SinkError(f"epoch {epoch_id}: its committable has files in other directories")
    return EpochMark(epoch_id, attempt, files, epochs)
