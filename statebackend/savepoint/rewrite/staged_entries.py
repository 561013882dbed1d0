"""Entries that many tasks sort independently and write to a shared store for one writer.

| Where | Call |
|---|---|
| task | `stage_entries(store, ...)` writes sorted files and returns a `StagedPart` |
| driver | `Plan().add_state(uid, descriptor, StagedEntries(store, parts))` merges them and finds repeated keys |
| driver | `discard_staged(store, parts)` after writing or a failure |

A `StagedPart` is small and picklable. Staged files are not part of any savepoint. A repeated task or a lost result only
leaves unused files; `discard_staged` deletes them. Tasks may receive any rows. All parts need the same schema and
number of key groups.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from attrs import frozen

from snapshots.errors import format_value
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import EntryError, PlanError
from statebackend.savepoint.rewrite.entry_codec import time_or_now
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.rewrite.planned_entries import PlannedEntries
from statebackend.savepoint.rewrite.sorted_rows import Run
from statebackend.savepoint.rewrite.state_tasks import Collected, CollectTask, ProgressLabel
from statebackend.savepoint.type_descriptions import describe_type
from statebackend.state.descriptors import as_serializer
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_columns import serializer_of_key
from statebackend.state.private_directory import PrivateDirectoryError, temporary_directory
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import KeyedStateMeta, StateMeta, decode_meta, encode_meta, merge_metas

__all__ = ["StagedEntries", "StagedPart", "discard_staged", "scratch_space", "stage_entries"]


@contextmanager
def scratch_space(directory: str | None) -> Iterator[str]:
    """Create a directory for the context, in ``directory`` or the system's temporary one. Raises `PlanError`."""
    with ExitStack() as made:
        try:
            path = made.enter_context(temporary_directory(directory))
        except (OSError, TypeError, ValueError, PrivateDirectoryError) as error:
            place = "the system's temporary directory" if directory is None else format_value(directory)
            raise PlanError(
                f"no scratch directory can be created in {place}: {error}. Pass scratch_directory=<a directory with "
                f"room for all rows>. Nothing was written"
            ) from error
        yield path


@frozen
class StagedPart:
    """The result of one task: sorted files with the key groups of their batches, and the serializers used."""

    files: tuple[tuple[FileHandle, tuple[tuple[int, int], ...]], ...]
    rows: int
    meta: bytes
    max_parallelism: int


@frozen
class StagedEntries:
    """Staged parts of one state, for `Plan.add_state` or `Plan.replace_state`."""

    store: CheckpointFileSystem
    parts: Sequence[StagedPart]

    def collected(self, schema: EntrySchema, max_parallelism: int, scratch_directory: str) -> list[Collected]:
        """Return the rows as runs in scratch space, in the order of the parts.

        Raises:
            EntryError: A part has another schema or number of key groups.
            CheckpointError: A file is missing or damaged.
        """
        merged = _meta(schema, schema.meta())
        collected = []
        for part in self.parts:
            staged = decode_meta(part.meta, 0)
            together = _merged(merged, staged)
            if part.max_parallelism != max_parallelism or together is None:
                raise EntryError(
                    f"state {schema.name!r}: entries were staged for max_parallelism {part.max_parallelism} and "
                    f"{_described(staged)}, but are to be written for {max_parallelism} and {_described(merged)}; "
                    f"stage and write them by the same descriptor and key"
                )
            merged, runs = together, []
            for file, key_groups in part.files:
                path = os.path.join(scratch_directory, f"run-{uuid.uuid4().hex}.arrow")
                self.store.download(file, path)
                runs.append(Run(path, key_groups, file.size_bytes))
            collected.append(Collected(tuple(runs), staged.states[0], part.rows))
        return collected


def stage_entries(
    store: CheckpointFileSystem,
    state: StateDescriptor | EntrySchema,
    key: Sequence[str],
    entries: Iterable[Any],
    *,
    max_parallelism: int,
    namespace: Any = None,
    last_access_ms: int | None = None,
    scratch_directory: str | None = None,
) -> StagedPart:
    """Sort entries and write them to the store under unique names. Memory is bounded as in `SavepointWriter`.

    Args:
        store: The shared directory.
        state: The descriptor, or the schema of stored state with its namespaces.
        key: The types of the key columns.
        entries: The entries, in any order.
        max_parallelism: The number of key groups.
        namespace: The type or serializer of the namespaces.
        last_access_ms: As in `Plan.add_state`.
        scratch_directory: The directory for sorting. Default: the system's temporary one.

    Raises:
        EntryError: An entry does not fit.
        KeyHashError: A key has another type.
        PlanError: There is no scratch space.
        StorageError: The store cannot be written.
    """
    namespaces = None if namespace is None else as_serializer(namespace)
    schema = EntrySchema.of(state, serializer_of_key(key), namespaces)
    with scratch_space(scratch_directory) as scratch:
        given, placement = PlannedEntries(entries, time_or_now(last_access_ms)), KeyPlacement(key, max_parallelism)
        collected = CollectTask(given, schema, placement, scratch, ProgressLabel("", schema.name, 0)).run()
        files = []
        for run in collected.runs:
            handle = store.upload(run.path, f"staged/{os.path.basename(run.path)}")
            files.append((handle, run.key_groups))
    meta = encode_meta(_meta(schema, collected.meta))
    return StagedPart(tuple(files), collected.rows, meta, max_parallelism)


def discard_staged(store: CheckpointFileSystem, parts: Iterable[StagedPart] | None = None) -> None:
    """Delete the staged files of these parts, or of all parts."""
    if parts is None:
        store.delete_directory("staged")
        return
    for part in parts:
        for file, _ in part.files:
            store.delete(file.path)


def _meta(schema: EntrySchema, state: StateMeta) -> KeyedStateMeta:
    return KeyedStateMeta(schema.key_serializer.snapshot_configuration(), 0, (state,))


def _merged(one: KeyedStateMeta, other: KeyedStateMeta) -> KeyedStateMeta | None:
    """Merge two snapshots, which may differ because serializers learn types while writing. None for different types."""
    try:
        merged = merge_metas((one, other))
    except StateRestoreError:
        return None
    return merged if merged is not None and len(merged.states) == 1 else None


def _described(meta: KeyedStateMeta) -> str:
    [state] = meta.states
    types = [f"{role} {describe_type(snapshot).name}" for role, snapshot in state.role_snapshots.items()]
    return (
        f"a {state.kind.name} state {state.name!r} (key {describe_type(meta.key_snapshot).name}, namespace "
        f"{describe_type(state.namespace_snapshot).name}, {', '.join(types)})"
    )
