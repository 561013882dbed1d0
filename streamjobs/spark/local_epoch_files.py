"""The epochs of a `ParquetSink` on a disk: a rename makes one visible.

    <path>/epoch=000000000007/part-*.parquet     a committed epoch, as Spark wrote it
    <path>/epoch=000000000007/_committable       which attempt this was: what `commit` was given
    <path>/_set_aside/epoch=000000000007-1/      an epoch that was visible before the job went back to an older one
    <path>/_staging/000000000007-<job>.<run>/    an epoch on its way; Spark skips names with a leading underscore

Staging and committed epochs lie on one disk, and commit is one rename, so readers see an epoch whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame

from checkpointing.errors import StorageError
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.local_storage import sync_directory
from streamjobs.api.sink import SinkError
from streamjobs.spark.epoch_names import (
    COMMITTABLE,
    EPOCH_COLUMN,
    SET_ASIDE,
    STAGED,
    STAGING,
    attempt_of,
    check_attempt,
    epoch_name,
    visible_already,
)

__all__ = ["LocalEpochFiles"]


class LocalEpochFiles:
    """Those below a directory of a disk that the driver and all workers share."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._root = Path(os.path.abspath(path))
        self._files = CheckpointFileSystem.from_uri(self._root)
        self._options = dict(options)

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._root)

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Writes the epoch to the attempt's own directory. Refuses an epoch that is visible already: `SinkError`."""
        target = self._committed(epoch_id)
        if target.exists():
            raise visible_already(str(target), epoch_id)
        staging = self._staging(epoch_id, attempt_id)
        # Not Path.as_uri(): Hadoop takes its percent signs literally.
        frame.write.mode("overwrite").options(**self._options).parquet(f"file://{staging}")
        committable = json.dumps({"version": 1, "epoch": epoch_id, "attempt": attempt_id}).encode()
        (staging / COMMITTABLE).write_bytes(committable)
        _sync_tree(staging)
        # Until its own name is on the disk too, a power loss could take the rows of a completed epoch.
        for directory in (staging.parent, self._root, self._root.parent):
            sync_directory(str(directory))
        return committable

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Renames the staged epoch to its place; does nothing if it is there. `SinkError` if rows would be lost."""
        staging = self._staging(epoch_id, attempt_of(committable, epoch_id))
        target = self._committed(epoch_id)
        if target.exists():
            marker = target / COMMITTABLE
            if not marker.is_file() or marker.read_bytes() != committable:
                raise SinkError(
                    f"{target} was not written by the attempt that completed epoch {epoch_id}. The rows of that "
                    f"attempt are in {staging}, if it exists; put them in place of the others, or use another path"
                )
            return
        if not staging.is_dir():
            raise SinkError(
                f"the rows of epoch {epoch_id} are gone: neither {staging} nor {target} exists, though the epoch's "
                f"checkpoint is complete. Bring the directory back, or go back to an earlier savepoint"
            )
        self._files.move_directory(self._relative(staging), target.name)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Removes what the attempt has staged."""
        self._remove(self._staging(epoch_id, attempt_id))

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Removes what the job has staged for later epochs, and what is left of its attempts at visible ones."""
        for name in self._files.list_directories(STAGING):
            matched = STAGED.fullmatch(name)
            if matched is None or not matched[2].startswith(f"{job_id}."):
                continue
            epoch_id = int(matched[1])
            is_later = last_completed_epoch_id is None or epoch_id > last_completed_epoch_id
            if is_later or self._committed(epoch_id).exists():
                self._remove(self._root / STAGING / name)

    def take_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Sets aside the visible epochs after that one. `SinkError` if one of them is not the job's."""
        prefix = f"{EPOCH_COLUMN}="
        found = {
            int(entry.name.removeprefix(prefix)): entry
            for entry in self._root.glob(f"{prefix}*")
            if entry.name.removeprefix(prefix).isdecimal()
        }
        later = [epoch_id for epoch_id in sorted(found, reverse=True) if epoch_id > last_epoch_id]
        for epoch_id in later:
            if not _attempt_at(found[epoch_id], epoch_id).startswith(f"{job_id}."):
                raise SinkError(
                    f"{found[epoch_id]} is later than epoch {last_epoch_id}, and this job did not write it, or a "
                    f"release did that left no sign of it. Move it away, or write to another path"
                )
        aside = self._root / SET_ASIDE
        for epoch_id in later:
            taken = self._files.list_directories(SET_ASIDE)
            names = (f"{found[epoch_id].name}-{number}" for number in range(1, len(taken) + 2))
            new_name = next(name for name in names if name not in taken)
            self._files.move_directory(found[epoch_id].name, f"{SET_ASIDE}/{new_name}")
        return [str(aside)] if later else []

    def _committed(self, epoch_id: int) -> Path:
        return self._root / epoch_name(epoch_id)

    def _relative(self, directory: Path) -> str:
        return directory.relative_to(self._root).as_posix()

    def _remove(self, directory: Path) -> None:
        """Removes a directory below the root, unless a link leads there; what cannot be removed stays."""
        with contextlib.suppress(StorageError):
            self._files.delete_directory(self._relative(directory))

    def _staging(self, epoch_id: int, attempt_id: str) -> Path:
        check_attempt(attempt_id)
        return self._root / STAGING / f"{epoch_id:012d}-{attempt_id}"


def _attempt_at(directory: Path, epoch_id: int) -> str:
    """The attempt that wrote a visible epoch; empty if it does not say."""
    try:
        return attempt_of((directory / COMMITTABLE).read_bytes(), epoch_id)
    except (OSError, SinkError):
        return ""


def _sync_tree(directory: Path) -> None:
    """Brings a directory's files to the disk, as Spark does not: a completed epoch must survive a power loss."""
    for parent, _, names in os.walk(directory):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(parent)
