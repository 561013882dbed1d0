"""What a backend is restored from: the handles' meta data, checked before any file is read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from attrs import frozen

from snapshots.compatibility import CompatibilityKind
from statebackend.api.errors import StateMigrationException, StateRestoreError
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, RestoredHandle
from statebackend.keyed.state_meta import KeyedStateMeta, decode_meta, merge_metas
from statebackend.keyed.state_verdicts import RESTORED_AS_IT_WAS, incompatibility_message, judge_key_serializer
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class RestoredStates:
    """All states that a backend is to continue with: ``meta`` is of all handles together, ``handles`` has that of each.

    ``key_serializer`` is the given one, or its reconfigured form.
    """

    key_serializer: TypeSerializer[Any]
    meta: KeyedStateMeta | None = None
    handles: tuple[tuple[RestoredHandle, KeyedStateMeta], ...] = ()


def read_restored_states(parameters: KeyedStateBackendParameters, readable_formats: Collection[str]) -> RestoredStates:
    """What the handles say; without any, a fresh start.

    Raises `StateRestoreError` for a handle whose files are in a format that is not among the given ones, for meta data
    that is malformed, and for a state with different schemas in different handles; `StateMigrationException` if the
    keys were written by another serializer, or would have to be migrated: key groups and stored addresses depend on
    their bytes.
    """
    for restored in parameters.restore:
        if restored.handle.backend not in readable_formats:
            raise StateRestoreError(
                f"the state of operator {parameters.operator_uid!r} was written by the backend "
                f"{restored.handle.backend!r}, whose own format is not among those that can be read here "
                f"({', '.join(sorted(readable_formats))}); take a savepoint, which every backend reads"
            )
    metas = [decode_meta(restored.handle.meta, len(restored.handle.files)) for restored in parameters.restore]
    merged = merge_metas(metas)
    if merged is None:
        return RestoredStates(parameters.key_serializer)
    verdict = judge_key_serializer(merged.key_snapshot, parameters.key_serializer, parameters.rules)
    if verdict.kind is CompatibilityKind.INCOMPATIBLE:
        message = incompatibility_message(parameters.operator_uid, [verdict], RESTORED_AS_IT_WAS)
        raise StateMigrationException(message)
    handles = tuple(zip(parameters.restore, metas, strict=True))
    return RestoredStates(verdict.serializers["key"], merged, handles)
