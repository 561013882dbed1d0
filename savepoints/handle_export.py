"""The canonical export of one subtask's state, opened in a directory of its own and written as Parquet.

A task is picklable and needs nothing of the job that wrote the state: where it runs is its caller's business. What
expires is left out by what the caller says of each state's time-to-live, for nobody registers the states here.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from attrs import evolve, frozen

from checkpointing.errors import SavepointError
from checkpointing.handles.relative_path import path_segment
from checkpointing.handles.state_handles import KeyedStateHandle, SubtaskState
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.clock import StoppedClock
from statebackend.api.descriptors import Descriptor
from statebackend.api.key_groups import KeyGroupRange
from statebackend.api.progress import Operation, Progress, ProgressListener, StateProgress, no_progress
from statebackend.api.time_to_live import StateTtlConfig
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, RestoredHandle
from statebackend.keyed.backend_registry import state_backend
from statebackend.keyed.canonical_export import export_canonical_handle
from statebackend.keyed.private_directory import temporary_directory
from statebackend.keyed.state_meta import CANONICAL_BACKEND, decode_meta
from statebackend.kinds.state_kind import StateDescriptor
from statebackend.operator_state import export_operator_state
from typeserializers.kernel.type_serializer import TypeSerializer

_BACKEND_OF_CANONICAL: Final = "rocksdb"


class ScratchSpace(Protocol):
    """Where tasks work on the local disk of the host they run on; travels to them by pickling."""

    def scratch(self) -> AbstractContextManager[str]:
        """A fresh private directory for as long as the context lasts."""


@frozen
class ExportedSubtask:
    """The canonical state of one subtask, and the rows of each state."""

    operator_uid: str
    subtask_index: int
    state: SubtaskState
    rows: Mapping[str, int]
    operator_state_rows: Mapping[str, int]


@frozen
class ExportTask:
    """One subtask's state to export; picklable.

    What has expired at ``now_ms`` is left out: ``ttl`` says, by state, how long entries live, since nobody registers
    the states here. The state is opened in ``scratch_space``, or in the system's temporary directory if there is none.
    """

    operator_uid: str
    subtask_index: int
    max_parallelism: int
    state: SubtaskState
    source: CheckpointFileSystem
    target: CheckpointFileSystem
    ttl: Mapping[str, StateTtlConfig]
    now_ms: int
    scratch_space: ScratchSpace | None = None
    registered: Sequence[tuple[Descriptor, TypeSerializer[Any]]] = ()
    """Descriptors, each with the serializer of its namespaces, that entries are migrated to before they are written."""

    def run(self, progress: ProgressListener = no_progress) -> ExportedSubtask:
        """Writes the files, and tells how far it is. Raises `SavepointError` for state that no savepoint can hold."""

        def tell(one: Progress) -> None:
            progress(evolve(one, subtask_index=self.subtask_index))

        state = self.state
        if state.has_records_on_their_way:
            raise SavepointError(
                f"subtask {self.subtask_index} of operator {self.operator_uid!r} has records on their way among its "
                f"state, which a savepoint cannot hold: take it of a checkpoint whose barriers were aligned"
            )
        directory, stem = f"operators/{path_segment(self.operator_uid)}", f"part-{self.subtask_index:05d}"
        keyed, rows = (None, {}) if state.keyed is None else self._export_keyed(state.keyed, directory, stem, tell)
        operator, operator_state_rows = export_operator_state(state.operator, self.source, self.target, directory, stem)
        for name, count in operator_state_rows.items():
            told = StateProgress(tell, Operation.SAVEPOINT, self.operator_uid, name)
            told.add(count)
            told.done()
        exported = SubtaskState(keyed, operator)
        return ExportedSubtask(self.operator_uid, self.subtask_index, exported, rows, operator_state_rows)

    def _export_keyed(
        self, handle: KeyedStateHandle, directory: str, stem: str, progress: ProgressListener
    ) -> tuple[KeyedStateHandle, Mapping[str, int]]:
        meta = decode_meta(handle.meta, len(handle.files))
        with self._scratch() as local_directory:
            parameters = KeyedStateBackendParameters(
                operator_uid=self.operator_uid,
                key_serializer=meta.key_snapshot.restore_serializer(),
                max_parallelism=self.max_parallelism,
                key_group_range=KeyGroupRange(handle.key_group_start, handle.key_group_end),
                file_system=self.target,
                file_prefix="unused",
                local_directory=os.path.join(local_directory, "state"),
                restore=(RestoredHandle(handle, self.source),),
                clock=StoppedClock(self.now_ms),
            )
            # Of what every backend reads, the one that needs no memory for all of it.
            name_of_backend = _BACKEND_OF_CANONICAL if handle.backend == CANONICAL_BACKEND else handle.backend
            with state_backend(name_of_backend).create_keyed_state_backend(parameters) as backend:
                for name, ttl in self.ttl.items():
                    backend.declare_ttl(name, ttl)
                for descriptor, namespaces in self.registered:
                    if isinstance(descriptor, StateDescriptor):
                        backend.get_or_create_keyed_state(namespaces, descriptor)
                return export_canonical_handle(
                    backend,
                    self.target,
                    directory,
                    stem,
                    uuid.uuid4().hex,
                    scratch_directory=local_directory,
                    progress=progress,
                )

    def _scratch(self) -> AbstractContextManager[str]:
        if self.scratch_space is not None:
            return self.scratch_space.scratch()
        return temporary_directory()
