"""All sinks of a job: each step of the two-phase commit calls all sinks, in the order of the program.

A checkpoint stores the committables and the identity of each sink, by uid. So when the checkpoint is complete, the
output of all sinks will be committed. After a crash during the commits, `commit_again` calls all sinks again.

    sink_committables   {"sink": ...}                    the single sink of a job without a uid
                        {"sink": ..., "late": ...}       and a second sink with the uid "late"
    sink_identities     {"sink": <identity>, "late": <identity>}

The committables of a sink are one value, which contains all epochs that are staged and not committed:

    committables := "SBSE" u32(version 1) u32(count) epoch*
    epoch        := u64(epoch id) text(run id) u32(count) bytes*      of the subtasks, in order
    bytes, text  := u32(length) byte[length]

Example, epoch 7 of the run "r" with the committable "ok":

    53425345 00000001 00000001 0000000000000007 00000001 72 00000001 00000002 6f6b
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from snapshots.errors import format_value
from snapshots.format_versions import newer_version, pre_release
from snapshots.loggers import logger_of
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointMetadata, SavepointIdentity
from statebackend.checkpoint.store.job_files import Rollback, end_roll_back, read_roll_back, write_roll_back
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError, describe_exception, format_instance
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

__all__ = ["JobSinks", "SinkAdapter", "StagedEpoch", "decode_committables", "encode_committables", "no_sink"]

_MAGIC: Final = b"SBSE"
_VERSION: Final = 1
_COUNT: Final = struct.Struct(">I")
_EPOCH: Final = struct.Struct(">Q")
_log = logger_of(__name__)


@frozen
class StagedEpoch:
    """The committables of one epoch, by subtask."""

    epoch_id: int
    run_id: str
    committables: Sequence[bytes]


def encode_committables(staged: Iterable[StagedEpoch]) -> bytes:
    """Encode the epochs of a sink, ascending."""
    epochs = sorted(staged, key=lambda one: one.epoch_id)
    parts = [_MAGIC, _COUNT.pack(_VERSION), _COUNT.pack(len(epochs))]
    for one in epochs:
        parts += [_EPOCH.pack(one.epoch_id), _sized(one.run_id.encode()), _COUNT.pack(len(one.committables))]
        parts += map(_sized, one.committables)
    return b"".join(parts)


def decode_committables(data: bytes) -> list[StagedEpoch]:
    """Decode the epochs of a sink. Raises `SinkError` for damaged bytes and for other versions."""
    if not data.startswith(_MAGIC):
        where = f"the staged epochs of a sink begin with {format_value(data[:4], 20)}: their checkpoint is damaged, or"
        raise SinkError(pre_release(where, "Use a checkpoint or savepoint of a released version."))
    reader = _Reader(data, len(_MAGIC))
    version = reader.number(_COUNT)
    if version > _VERSION:
        raise SinkError(newer_version("the staged epochs of a sink", version, _VERSION))
    if version != _VERSION:
        raise SinkError(f"the committables of a sink are damaged: they have no version {version}")
    staged = [
        StagedEpoch(
            reader.number(_EPOCH),
            reader.sized().decode("utf-8", "replace"),
            [reader.sized() for _ in range(reader.number(_COUNT))],
        )
        for _ in range(reader.number(_COUNT))
    ]
    reader.end()
    return staged


def _sized(data: bytes) -> bytes:
    return _COUNT.pack(len(data)) + data


class _Reader:
    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place

    def number(self, form: struct.Struct) -> int:
        value: int = form.unpack(self._take(form.size))[0]
        return value

    def sized(self) -> bytes:
        return self._take(self.number(_COUNT))

    def end(self) -> None:
        if self._place != len(self._data):
            raise SinkError(f"the committables of a sink are damaged: they end at byte {self._place}")

    def _take(self, size: int) -> bytes:
        start, self._place = self._place, self._place + size
        if self._place > len(self._data):
            raise SinkError(f"the committables of a sink are damaged: {size} bytes are missing at byte {start}")
        return self._data[start : self._place]


class SinkAdapter(Sink):
    """Adapts a sink class that is written for one runtime only. Subclasses implement staging.

    The class has these methods, which the driver calls: ``commit(epoch_id, committable)``,
    ``abort(epoch_id, attempt_id)``, ``recover(last_completed_epoch_id, job_id)`` and optionally
    ``roll_back(last_epoch_id, job_id)``. Optional attribute:

    - ``identity``: a text that names the target. If it is a class attribute, it names the kind of sink, and a job may
      have several. Without it, checkpoints store the module and name of the class.
    """

    def __init__(self, sink: Any) -> None:
        self.adapted = sink

    @property
    def identity(self) -> str:
        identity = getattr(self.adapted, "identity", None)
        kind = type(self.adapted)
        return identity if isinstance(identity, str) else f"{kind.__module__}.{kind.__qualname__}"

    @property
    def can_roll_back(self) -> bool:
        """Whether the class supports rollback."""
        return callable(getattr(self.adapted, "roll_back", None))

    @property
    def place(self) -> str | None:
        """The identity, if it names a target and not a kind of sink."""
        is_of_class = isinstance(getattr(type(self.adapted), "identity", None), str)
        return self.identity if isinstance(getattr(self.adapted, "identity", None), str) and not is_of_class else None

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: Any) -> bytes:
        raise SinkError(f"{self.identity} stages no Arrow batches; it is written for the other runtime")

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        for committable in committables:
            self.adapted.commit(epoch.epoch_id, committable)

    def abort(self, epoch: SinkEpoch) -> None:
        self.adapted.abort(epoch.epoch_id, epoch.attempt_id)

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        self.adapted.recover(last_epoch_id, lineage.job_id)

    def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
        found: Sequence[str] = self.adapted.roll_back(last_epoch_id, lineage.job_id)
        return found


class JobSinks:
    """The sinks of a job by uid. Raises `JobDefinitionError` if two of them write to the same place."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self.by_uid: dict[str, Sink] = dict(sinks)
        """The sinks, in the order of the program."""
        _check_identities(self.by_uid)

    @property
    def rollback_sinks(self) -> Mapping[str, Sink]:
        """The sinks to ask at a rollback, first those that cannot: they raise before another one has hidden its output.

        An adapted sink without the method keeps its output.
        """
        asked = (
            (uid, one) for uid, one in self.by_uid.items() if not isinstance(one, SinkAdapter) or one.can_roll_back
        )
        return dict(sorted(asked, key=lambda one: type(one[1]).roll_back is not Sink.roll_back))

    @property
    def identities(self) -> Mapping[str, str]:
        """The identities of the sinks by uid, as stored in checkpoints."""
        return {uid: sink.identity for uid, sink in self.by_uid.items()}

    def commit(self, metadata: CheckpointMetadata) -> None:
        """Commit the staged output of all sinks up to a complete checkpoint."""
        for uid, sink in self.by_uid.items():
            self._commit(sink, uid, metadata)

    def check_commits(self, metadata: CheckpointMetadata) -> None:
        """Raise `JobRestoreError` if a checkpoint contains uncommitted rows of another sink."""
        for _ in self._to_commit(metadata):
            pass

    def commit_again(self, metadata: CheckpointMetadata) -> None:
        """Commit the epochs of a checkpoint again, because the driver may have crashed before or during the commit.

        Raises as `check_commits`, before anything is committed.
        """
        for uid in list(self._to_commit(metadata)):
            self._commit(self.by_uid[uid], uid, metadata)

    def abort(self, job_id: str, run_id: str, epoch_id: int) -> None:
        """Let all sinks discard an attempt, even if one of them raises."""
        with contextlib.ExitStack() as stack:
            for uid, sink in self.by_uid.items():
                stack.callback(sink.abort, SinkEpoch(SinkLineage(uid, job_id), epoch_id, run_id))

    def close(self) -> None:
        """Let all sinks close their connections. Errors are logged: the output is committed, or in a checkpoint."""
        for uid, sink in self.by_uid.items():
            _close(uid, sink)

    def recover(self, last_epoch_id: int | None, job_id: str, parent: SavepointIdentity | None = None) -> None:
        """Let all sinks remove uncommitted output of later epochs."""
        for uid, sink in self.by_uid.items():
            sink.recover(SinkLineage(uid, job_id, parent), last_epoch_id)

    def roll_back(
        self, driver_files: CheckpointFileSystem, planned: Rollback, job_id: str
    ) -> Mapping[str, Sequence[str]]:
        """Let the sinks hide the output of later epochs; return where each has put it.

        From now on only the same rollback can be started.

        Raises:
            SinkError: A sink failed. If another one has hidden output by then, the rollback must be started again.
        """
        is_first_attempt = read_roll_back(driver_files) is None
        write_roll_back(driver_files, planned)
        hidden: dict[str, Sequence[str]] = {}
        try:
            for uid, sink in self.rollback_sinks.items():
                # A custom sink may return nothing.
                hidden[uid] = tuple(sink.roll_back(SinkLineage(uid, job_id), planned.checkpoint_id) or ())
        except SinkError:
            if is_first_attempt and not hidden:
                # Nothing has changed.
                end_roll_back(driver_files)
            raise
        return hidden

    def staged(self, metadata: CheckpointMetadata, uid: str) -> list[StagedEpoch]:
        """Return the epochs in a checkpoint that one sink must commit."""
        committable = metadata.sink_committables.get(uid)
        return [] if committable is None else decode_committables(committable)

    def _commit(self, sink: Sink, uid: str, metadata: CheckpointMetadata) -> None:
        lineage = SinkLineage(uid, metadata.job_id, metadata.restored_from)
        for one in self.staged(metadata, uid):
            if one.committables:
                sink.commit(SinkEpoch(lineage, one.epoch_id, one.run_id), one.committables)

    def _to_commit(self, metadata: CheckpointMetadata) -> Iterator[str]:
        for uid in metadata.sink_committables:
            sink = self.by_uid.get(uid)
            staged_by = metadata.sink_identities.get(uid)
            if sink is not None and staged_by in (None, sink.identity):
                yield uid
            elif any(any(one.committables) for one in self.staged(metadata, uid)):
                now = "none" if sink is None else sink.identity
                raise JobRestoreError(
                    f"epoch {metadata.checkpoint_id} is complete, but its output may not be committed yet. It was "
                    f"staged by another sink: {staged_by or repr(uid)}, not {now}. Start the job once more with the "
                    f"former sink, which commits it, and change the sink after that"
                )


def _close(uid: str, sink: Sink) -> None:
    try:
        sink.close()
    except Exception as error:
        _log.warning("sink %r: close() raised %s", uid, describe_exception(error))


def no_sink(given: object, advice: str) -> JobDefinitionError:
    """Return the error for an object that is not a sink. ``advice`` explains what to pass instead."""
    return JobDefinitionError(f"sink_to was given {format_instance(given)}, which is not a sink: {advice}")


def _check_identities(sinks: Mapping[str, Sink]) -> None:
    known: dict[str, str] = {}
    for uid, sink in sinks.items():
        identity = sink.place if isinstance(sink, SinkAdapter) else sink.identity
        if identity is None:
            continue
        if identity in known:
            raise JobDefinitionError(
                f"the sinks {known[identity]!r} and {uid!r} write to the same place, {identity}: each would find "
                f"epochs there that it has not written; give them different ones, or unite their streams with union()"
            )
        known[identity] = uid
