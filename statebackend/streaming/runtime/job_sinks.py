"""The sinks of a job as one: each step of the two phases calls all sinks, in the order of the program.

A checkpoint stores what the sinks staged, and the identity of each sink, by uid. So the completion of the checkpoint
decides for all of them. A crash between the commits of two sinks is recovered as one before any commit: `commit_again`
calls all.

    sink_committables   {"sink": ...}                    the single sink of a job without a uid
                        {"sink": ..., "late": ...}       and another, of uid "late"
    sink_identities     {"sink": <identity>, "late": <identity>}
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError, format_instance
from statebackend.streaming.runtime.settings import is_instance_of
from statebackend.streaming.sink import Sink, sink_identity, sink_place
from statebackend.streaming.stream_graph import JobGraph

__all__ = ["JobSinks", "no_sink"]


class JobSinks:
    """The sinks of a job by uid. Raises `JobDefinitionError` if two of them write to the same place."""

    def __init__(self, sinks: Mapping[str, Any]) -> None:
        self.by_uid: dict[str, Any] = dict(sinks)
        """The sinks, in the order of the program."""
        _check_identities(self.by_uid)

    @classmethod
    def of(cls, graph: JobGraph, advice: str) -> JobSinks:
        """Return the sinks of a graph. Raises `JobDefinitionError` with the advice for an object that is no sink."""
        for node in graph.sinks:
            if not is_instance_of(node.sink, Sink):
                raise no_sink(node.sink, advice)
        return cls({node.uid: node.sink for node in graph.sinks})

    @property
    def identities(self) -> Mapping[str, str]:
        """The identities that a checkpoint stores beside the committables."""
        return {uid: sink_identity(sink) for uid, sink in self.by_uid.items()}

    def stage(self, stage: Callable[[str, Sink], bytes]) -> dict[str, bytes]:
        """Stage one sink after the other with ``stage(uid, sink)``. Returns the committables by uid."""
        return {uid: stage(uid, sink) for uid, sink in self.by_uid.items()}

    def commit(self, epoch_id: int, committables: Mapping[str, bytes]) -> None:
        """Make visible what all sinks staged for an epoch whose checkpoint is complete."""
        for uid in self.by_uid:
            if uid in committables:
                self.commit_committable(uid, epoch_id, committables[uid])

    def check_commits(self, metadata: CheckpointMetadata) -> None:
        """Raise `JobRestoreError` if a checkpoint contains uncommitted rows of another sink."""
        for _ in self._to_commit(metadata):
            pass

    def commit_again(self, metadata: CheckpointMetadata) -> None:
        """Commit the epoch of a checkpoint again: the driver may have died before or during the commit.

        Raises as `check_commits`, before anything is committed.
        """
        for uid, committable in list(self._to_commit(metadata)):
            self.commit_committable(uid, metadata.checkpoint_id, committable)

    def commit_committable(self, uid: str, epoch_id: int, committable: bytes) -> None:
        """Make visible what one sink has staged; a runtime with its own format of committables overrides it."""
        self.by_uid[uid].commit(epoch_id, committable)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Let all sinks discard an attempt, even if one of them raises."""
        with contextlib.ExitStack() as stack:
            for sink in self.by_uid.values():
                stack.callback(sink.abort, epoch_id, attempt_id)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Let all sinks remove what attempts at later epochs have left."""
        for sink in self.by_uid.values():
            sink.recover(last_completed_epoch_id, job_id)

    def _to_commit(self, metadata: CheckpointMetadata) -> Iterator[tuple[str, bytes]]:
        for uid, committable in metadata.sink_committables.items():
            sink = self.by_uid.get(uid)
            staged_by = metadata.sink_identities.get(uid)
            if sink is not None and staged_by in (None, sink_identity(sink)):
                yield uid, committable
            elif committable:
                now = "none" if sink is None else sink_identity(sink)
                raise JobRestoreError(
                    f"epoch {metadata.checkpoint_id} is complete, but its output is not committed yet, and was staged "
                    f"by another sink: {staged_by or repr(uid)}, not {now}. Start the job once more with the former "
                    f"sink, which commits it, and change the sink after that"
                )


def no_sink(given: object, advice: str) -> JobDefinitionError:
    """Return the error for an object that is no sink. ``advice`` says what to use."""
    return JobDefinitionError(f"sink_to was given {format_instance(given)}, which is no sink: {advice}")


def _check_identities(sinks: Mapping[str, Any]) -> None:
    known: dict[str, str] = {}
    for uid, sink in sinks.items():
        identity = sink_place(sink)
        if identity is None:
            continue
        if identity in known:
            raise JobDefinitionError(
                f"the sinks {known[identity]!r} and {uid!r} write to the same place, {identity}: each would find "
                f"epochs there that it has not written; give them different ones, or unite their streams with union()"
            )
        known[identity] = uid
