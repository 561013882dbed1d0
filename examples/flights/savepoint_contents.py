"""What a savepoint holds, as plain Python values, read without the job's classes and without a state backend.

A savepoint describes itself: each operator's handle carries the snapshots of the serializers that wrote its bytes, and
a snapshot restores a serializer that reads them. Records of classes that are not at hand come as stand-ins with the
same fields; here all records become dicts.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pyarrow.parquet

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.savepoint_directory import read_savepoint
from statebackend import ListStateDescriptor, ValueStateDescriptor
from statebackend.api.descriptors import USER_KEY_ROLE
from statebackend.keyed.state_meta import StateMeta, decode_meta


class Entry(NamedTuple):
    """One stored row of a state: a value, one entry of a map (which has a user key), or some elements of a list."""

    key: Any
    user_key: Any
    value: Any


def state_contents(savepoint: Path, operator_uid: str, state_name: str) -> Mapping[Any, Any]:
    """The state as key -> value, (key, user key) -> value, or key -> list of elements.

    Raises `ValueError` if a value or map entry is stored twice, `CheckpointError` for a savepoint that is damaged.
    """
    contents: dict[Any, Any] = {}
    file_system, metadata = read_savepoint(savepoint)
    for operator in metadata.operators:
        if operator.uid != operator_uid:
            continue
        for handle in operator.keyed_handles:
            meta = decode_meta(handle.meta, len(handle.files))
            state = meta.state(state_name)
            if state is None:
                continue
            key_serializer = meta.key_snapshot.restore_serializer()
            for entry in _entries(file_system, handle, key_serializer.from_bytes, state):
                _add(contents, state, entry)
    return contents


def _add(contents: dict[Any, Any], state: StateMeta, entry: Entry) -> None:
    if state.kind is ListStateDescriptor.kind:
        contents.setdefault(entry.key, []).extend(entry.value)
        return
    key = entry.key if state.kind is ValueStateDescriptor.kind else (entry.key, entry.user_key)
    if key in contents:
        raise ValueError(f"state {state.name!r} holds {key!r} twice")
    contents[key] = entry.value


def _entries(
    file_system: CheckpointFileSystem, handle: KeyedStateHandle, read_key: Any, state: StateMeta
) -> Iterator[Entry]:
    serializers = {role: snapshot.restore_serializer() for role, snapshot in state.role_snapshots.items()}
    read_value = state.kind.storage_serializer(serializers).from_bytes
    read_user_key = serializers[USER_KEY_ROLE].from_bytes if USER_KEY_ROLE in serializers else None
    for file in state.files:
        table = pyarrow.parquet.read_table(io.BytesIO(file_system.read_file(handle.files[file.index])))
        columns = (table[name].to_pylist() for name in ("key", "user_key", "value"))
        for key, user_key, value in zip(*columns, strict=True):
            yield Entry(
                read_key(key),
                read_user_key(user_key) if read_user_key is not None else None,
                _plain(read_value(value)),
            )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return attrs.asdict(value) if attrs.has(type(value)) else value
