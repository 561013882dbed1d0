"""The processing time of an epoch: one for all its tasks, and the same when the epoch is replayed.

State with a time-to-live sees no other clock. An epoch that is replayed after a crash must not find entries expired
that were there the first time, or it would emit other rows under the same id. So the time is that of Spark's own batch,
which Spark writes into its log of offsets before the batch runs and reads back when it replays it, and which
``current_timestamp()`` shows in the rows:

    offsets/<batch>:   v1
                       {"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{...}}
                       <one line for each source>

Spark renames the file into place but does not sync it; this is made good before the first task runs.

Of an epoch without records Spark knows nothing: its time is what the clock says, and is in a file of our own before its
tasks run (`checkpointing.storage.time_epoch_file`). `time_epoch_left_open` is what a start finds of it.
"""

from __future__ import annotations

import json
import os

from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.local_storage import sync_directory
from checkpointing.storage.time_epoch_file import OpenTimeEpoch, read_time_epoch
from streamjobs.errors import SourceProgressMismatchError
from streamjobs.runtime.processing_time import not_before
from streamjobs.user_errors import cited

__all__ = [
    "is_output_pending",
    "make_offsets_durable",
    "newest_digest",
    "processing_time_of_epoch_ms",
    "time_epoch_left_open",
]


def processing_time_of_epoch_ms(offsets: bytes, previous_ms: int | None) -> int:
    """The time of the epoch with these offsets, in ms since the Unix epoch.

    ``previous_ms`` is the time of the checkpoint or savepoint that it continues from. Raises
    `SourceProgressMismatchError` if Spark has noted no time.
    """
    lines = offsets.decode("utf-8", "replace").split("\n")
    try:
        batch_ms = json.loads(lines[1])["batchTimestampMs"]
    except (IndexError, ValueError, KeyError, TypeError):
        batch_ms = None
    if not isinstance(batch_ms, int) or isinstance(batch_ms, bool):
        raise SourceProgressMismatchError(
            f"Spark's offsets of this epoch tell no time of the batch: {cited(offsets, 200)}. Bring the file back from "
            f"a backup, or start from a savepoint in a new job directory"
        )
    return not_before(batch_ms, previous_ms)


def make_offsets_durable(spark_checkpoint_directory: str, epoch_id: int) -> None:
    """Brings `offsets/<epoch_id>` to the disk: its time and its offsets must outlive what the epoch does."""
    directory = os.path.join(spark_checkpoint_directory, "offsets")
    descriptor = os.open(os.path.join(directory, str(epoch_id)), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(directory)


def newest_digest(store: CompletedCheckpointStore) -> str | None:
    """The digest of the newest checkpoint, by which the next one names its parent; None if there is none."""
    newest = store.latest()
    return None if newest is None else store.digest(newest.checkpoint_id)


def time_epoch_left_open(file_system: CheckpointFileSystem, store: CompletedCheckpointStore) -> OpenTimeEpoch | None:
    """The epoch without records that is to be processed again before any other; None if none was interrupted."""
    opened = read_time_epoch(file_system)
    return opened if opened is not None and opened.follows(newest_digest(store)) else None


def is_output_pending(file_system: CheckpointFileSystem, newest: CheckpointMetadata) -> bool:
    """Whether the newest checkpoint is of an epoch without records whose output may not be committed."""
    opened = read_time_epoch(file_system)
    return opened is not None and opened.is_epoch_of(newest)
