"""All that is durable about one checkpoint or savepoint, as an object: state by operator, and the sections beside it.

A checkpoint's id only says in which order checkpoints were taken. What its records came from is in
`source_positions`: an epoch without records has the positions of the checkpoint before. A job that went back to an
older checkpoint counts on from that one; what had these ids before is set aside, and no parent of what follows.

The invariants are checked here, so they hold before anything is written and after anything was read. `parent_digest` is
the checksum of the parent's whole `_metadata` file: history is a hash chain (TigerBeetle's superblock is the example).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from attrs import field, frozen

from checkpointing.handles.checksum import is_checksum
from checkpointing.handles.invariants import (
    MAX_ID,
    check_encodable,
    check_identifier,
    check_integer,
    check_optional_integer,
    require,
)
from checkpointing.handles.operator_states import OperatorState, check_operator_states, files_of_operators
from checkpointing.handles.relative_path import checked_relative_path
from checkpointing.handles.state_handles import MAX_MAX_PARALLELISM, FileHandle
from checkpointing.metadata.checkpoint_sections import (
    SavepointIdentity,
    SourcePositions,
    TimersDue,
    WatermarkState,
    check_distinct_operators,
)
from snapshots.value_text import shown

__all__ = ["SOURCE_PROGRESS_DIRECTORY", "CheckpointKind", "CheckpointMetadata"]

SOURCE_PROGRESS_DIRECTORY = "source-progress"
"""Where the files of a savepoint's source progress lie in it."""


class CheckpointKind(enum.Enum):
    """Who owns it: the job deletes checkpoints it no longer needs, savepoints belong to the user."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"


def _shown_names(content: Mapping[str, object]) -> str:
    return repr(sorted(content))


@frozen(kw_only=True)
class CheckpointMetadata:
    """Everything about one completed checkpoint or savepoint. Raises `InvariantViolationError`.

    `processing_time_ms` is what the clock said in the epoch, `watermarks` the valve behind it, `timers_due` the
    earliest timers of each operator that has any. `restored_from` is the savepoint that the job was begun from.

    `sink_committables` maps sinks to what they still have to commit, opaque here, and `sink_identities` says, for those
    of which it is known, which sink staged it. `source_progress_files` are the engine's source log in a savepoint,
    below `source-progress/`; a savepoint of format version 1 has it in `source_progress`, by relative file name,
    instead. `properties` are the caller's own.

    File paths are relative to the job directory for a checkpoint and to the savepoint's own directory for a savepoint.
    A parent is named by id and by the digest of its `_metadata` file, or not at all.
    """

    checkpoint_id: int
    kind: CheckpointKind
    job_id: str
    job_name: str
    timestamp_ms: int
    max_parallelism: int
    operators: tuple[OperatorState, ...]
    parent_checkpoint_id: int | None = None
    parent_digest: str | None = None
    processing_time_ms: int | None = None
    source_positions: SourcePositions | None = None
    watermarks: WatermarkState | None = None
    timers_due: tuple[TimersDue, ...] = ()
    restored_from: SavepointIdentity | None = None
    sink_committables: Mapping[str, bytes] = field(factory=dict, repr=_shown_names)
    sink_identities: Mapping[str, str] = field(factory=dict)
    properties: Mapping[str, str] = field(factory=dict)
    source_progress: Mapping[str, bytes] = field(factory=dict, repr=_shown_names)
    source_progress_files: tuple[FileHandle, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_integer("checkpoint_id", self.checkpoint_id, 0, MAX_ID)
        require(type(self.kind) is CheckpointKind, "kind must be a CheckpointKind")
        check_identifier("job_id", self.job_id)
        check_identifier("job_name", self.job_name)
        check_integer("timestamp_ms", self.timestamp_ms, 0, MAX_ID)
        check_integer("max_parallelism", self.max_parallelism, 1, MAX_MAX_PARALLELISM)
        self._check_parent()
        require(
            type(self.operators) is tuple and all(type(one) is OperatorState for one in self.operators),
            "operators must be a tuple of OperatorState objects",
        )
        check_operator_states(self.operators)
        self._check_sections()
        self._check_source_progress()
        self._check_sinks()
        for name, text in self.properties.items():
            check_identifier("a name in properties", name)
            require(type(text) is str, f"properties[{name!r}] must be a str")
            check_encodable(f"properties[{name!r}]", text)

    def _check_sections(self) -> None:
        check_optional_integer("processing_time_ms", self.processing_time_ms, 0, MAX_ID)
        for what, section, kind in (
            ("source_positions", self.source_positions, SourcePositions),
            ("watermarks", self.watermarks, WatermarkState),
            ("restored_from", self.restored_from, SavepointIdentity),
        ):
            require(section is None or type(section) is kind, f"{what} must be of type {kind.__name__}")
        require(
            type(self.timers_due) is tuple and all(type(one) is TimersDue for one in self.timers_due),
            "timers_due must be a tuple of TimersDue objects",
        )
        check_distinct_operators(self.timers_due)

    def _check_sinks(self) -> None:
        for name, content in self.sink_committables.items():
            check_identifier("a name in sink_committables", name)
            require(type(content) is bytes, f"sink_committables[{name!r}] must be bytes")
        for name, identity in self.sink_identities.items():
            require(name in self.sink_committables, f"sink_identities names {shown(name)}, which has nothing to commit")
            require(type(identity) is str, f"sink_identities[{name!r}] must be a str")
            check_encodable(f"sink_identities[{name!r}]", identity)

    def _check_source_progress(self) -> None:
        for path, content in self.source_progress.items():
            checked_relative_path(path)
            require(type(content) is bytes, f"source_progress[{path!r}] must be bytes")
        files = self.source_progress_files
        require(
            type(files) is tuple and all(type(file) is FileHandle for file in files),
            "source_progress_files must be a tuple of FileHandle objects",
        )
        if not files:
            return
        require(self.kind is CheckpointKind.SAVEPOINT, "only a savepoint has source_progress_files")
        require(not self.source_progress, "source progress is either in the metadata or in files")
        require(len({file.path for file in files}) == len(files), "source_progress_files must be distinct")
        for file in files:
            prefix, _, name = file.path.partition("/")
            require(
                prefix == SOURCE_PROGRESS_DIRECTORY and name != "",
                f"{file.path!r} is not a file of source progress: it must lie below {SOURCE_PROGRESS_DIRECTORY}/",
            )

    def _check_parent(self) -> None:
        if self.parent_checkpoint_id is None and self.parent_digest is None:
            return
        check_integer("parent_checkpoint_id", self.parent_checkpoint_id, 0, self.checkpoint_id)
        require(
            self.kind is CheckpointKind.SAVEPOINT or self.parent_checkpoint_id != self.checkpoint_id,
            f"checkpoint {self.checkpoint_id} cannot be its own parent",
        )
        require(
            is_checksum(self.parent_digest),
            f"parent_digest must be the checksum of the parent's metadata file, not {shown(self.parent_digest)}",
        )

    @property
    def source_offsets(self) -> bytes:
        """The engine's own record of the source positions; empty where there are none."""
        return b"" if self.source_positions is None else self.source_positions.offsets

    @property
    def files(self) -> tuple[FileHandle, ...]:
        """Every distinct file the checkpoint needs."""
        return (*files_of_operators(self.operators), *self.source_progress_files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all state: files and opaque metas."""
        return self.meta_bytes + sum(file.size_bytes for file in self.files)

    @property
    def meta_bytes(self) -> int:
        """Bytes of the opaque metas of all operators."""
        return sum(one.meta_bytes for one in self.operators)
