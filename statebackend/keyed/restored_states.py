"""What a backend is restored from: the handles' meta data, checked before any file is read."""

from __future__ import annotations

from collections.abc import Collection

from statebackend.api.errors import StateRestoreError
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.state_meta import KeyedStateMeta, decode_meta, merge_metas


def read_restored_states(
    backend: KeyedStateBackend, readable_backends: Collection[str]
) -> tuple[KeyedStateMeta | None, list[KeyedStateMeta]]:
    """The states of all handles together (None for a fresh start), and those of each; takes the key serializer over.

    To be called first thing in a backend's `__init__`, behind that of `KeyedStateBackend`. Raises `StateRestoreError`
    for a handle of a backend whose files this one does not read, for meta data that is malformed, and for a state with
    different schemas in different handles; `StateMigrationException` if the keys cannot be taken over.
    """
    parameters = backend.parameters
    for restored in parameters.restore:
        if restored.handle.backend not in readable_backends:
            raise StateRestoreError(
                f"the state of operator {parameters.operator_uid!r} was written by the backend "
                f"{restored.handle.backend!r}, whose own format is not among those that can be read here "
                f"({', '.join(sorted(readable_backends))}); take a savepoint, which every backend reads"
            )
    metas = [decode_meta(restored.handle.meta, len(restored.handle.files)) for restored in parameters.restore]
    merged = merge_metas(metas)
    if merged is not None:
        backend.take_over_keys(merged.key_snapshot)
    return merged, metas
