"""Which state a function registers, found by running its `open()` without any state behind it.

The driver does this before a job starts: with the descriptors in hand it asks the snapshots of a savepoint for their
verdict, and refuses an upgrade that cannot work before anything is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statebackend.descriptors import StateDescriptor, StateKind
from statebackend.errors import NoCurrentKeyError, StateRegistrationError
from statebackend.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.schema_resolution import SchemaReport, judge_key_serializer, judge_state
from statebackend.state_meta import KeyedStateMeta
from statebackend.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from streamjobs.errors import UserFunctionError
from streamjobs.functions import KeyedProcessFunction, RuntimeContext
from typeserializers.type_serializer import TypeSerializer


def _refuse(*_: Any, **__: Any) -> Any:
    raise NoCurrentKeyError("state cannot be read or written in open(): there is no current key yet")


class _UnusableValueState(ValueState[Any]):
    value = update = clear = _refuse


class _UnusableListState(ListState[Any]):
    get = add = add_all = update = clear = _refuse


class _UnusableMapState(MapState[Any, Any]):
    get = put = put_all = remove = contains = items = is_empty = clear = _refuse


class _UnusableReducingState(ReducingState[Any]):
    get = add = clear = _refuse


class _UnusableAggregatingState(AggregatingState[Any, Any]):
    get = add = clear = _refuse


_UNUSABLE: Mapping[StateKind, type[State]] = {
    StateKind.VALUE: _UnusableValueState,
    StateKind.LIST: _UnusableListState,
    StateKind.MAP: _UnusableMapState,
    StateKind.REDUCING: _UnusableReducingState,
    StateKind.AGGREGATING: _UnusableAggregatingState,
}


class RegistrationContext(RuntimeContext):
    """Remembers what is registered and hands out handles that refuse to be used."""

    def __init__(self, operator_uid: str, parallelism: int, epoch_id: int = -1) -> None:
        self._operator_uid = operator_uid
        self._parallelism = parallelism
        self._epoch_id = epoch_id
        self.descriptors: dict[str, StateDescriptor] = {}

    @property
    def operator_uid(self) -> str:
        return self._operator_uid

    @property
    def subtask_index(self) -> int:
        return 0

    @property
    def parallelism(self) -> int:
        return self._parallelism

    @property
    def epoch_id(self) -> int:
        return self._epoch_id

    def register(self, descriptor: StateDescriptor) -> State:
        known = self.descriptors.setdefault(descriptor.name, descriptor)
        if known != descriptor:
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self._operator_uid!r} is registered twice, "
                f"with different descriptors; give one of them another name"
            )
        return _UNUSABLE[descriptor.kind]()


def registered_descriptors(
    function: KeyedProcessFunction[Any, Any, Any], operator_uid: str, parallelism: int
) -> Sequence[StateDescriptor]:
    """The descriptors that ``function.open()`` registers; the function must be a copy of the user's."""
    context = RegistrationContext(operator_uid, parallelism)
    try:
        function.open(context)
        function.close()
    except (StateRegistrationError, NoCurrentKeyError):
        raise
    except Exception as error:
        raise UserFunctionError(
            f"open() of operator {operator_uid!r} failed on the driver, where it runs once to learn which state "
            f"it registers: {type(error).__name__}: {error}"
        ) from error
    return tuple(context.descriptors.values())


def schema_report(
    operator_uid: str,
    key_serializer: TypeSerializer[Any],
    descriptors: Sequence[StateDescriptor],
    restored: KeyedStateMeta,
) -> SchemaReport:
    """The verdict on everything that the operator registers, over what was stored."""
    verdicts = []
    for descriptor in descriptors:
        old = restored.state(descriptor.name)
        if old is not None:
            verdicts.append(judge_state(old, descriptor, VOID_NAMESPACE_SERIALIZER))
    registered = {descriptor.name for descriptor in descriptors}
    return SchemaReport(
        operator_uid,
        judge_key_serializer(restored.key_snapshot, key_serializer),
        tuple(verdicts),
        tuple(state.name for state in restored.states if state.name not in registered),
    )
