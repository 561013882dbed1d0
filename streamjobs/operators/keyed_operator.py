"""One subtask of a keyed operator in one epoch: the user's function, its state, and the loop over the records.

The loop is the hot path of every job. It sets two attributes and calls the function; everything else (sorting out keys,
converting rows, snapshots) happens per batch or per epoch.

An epoch allocates many small objects that live to its end, and Python's cyclic garbage collector, which is driven by
allocations, would walk all of them over and over: a third of the loop's time, measured. So an epoch runs inside
`paused_garbage_collection`, and the youngest generation is collected once per batch, which frees the cycles that a
function leaves behind while their number is bounded by a batch.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, Final

from checkpointing.errors import CheckpointError
from snapshots.compatibility import CompatibilityKind
from snapshots.errors import StateFormatError
from statebackend.api.descriptors import StateDescriptor
from statebackend.api.errors import StateBackendError, StateRegistrationError
from statebackend.api.states import State
from statebackend.keyed.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.keyed.schema_resolution import judge_state
from statebackend.keyed.state_meta import StateMeta
from statebackend.operator_state import OperatorStateDescriptor
from streamjobs.api.functions import KeyedProcessFunction, ProcessContext, RuntimeContext
from streamjobs.errors import NullKeyError, StreamJobError, UserFunctionError
from streamjobs.runtime.subtask_state import SubtaskState
from streamjobs.runtime.user_errors import one_line, shown, told

_KEY_CHARACTERS: Final = 80
_RECORD_CHARACTERS: Final = 200


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Keeps the cyclic garbage collector from starting by itself; it is as it was afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class SubtaskContext(RuntimeContext):
    """The runtime context of a subtask that has state.

    ``planned`` and ``planned_operator_state`` are what `open()` registered on the driver. All subtasks must take over
    the same restored states in the same epoch, or those of one state would be left under two schemas, which no other
    parallelism could restore. So a restored state is taken over under another schema only if it is planned, and what is
    planned must be registered in `open()` of every subtask. (A restored state whose schema stays may be registered at
    any time. A new one may not: the next start would find stored state that nobody registers, and refuse it.)
    """

    def __init__(
        self,
        state: SubtaskState,
        operator_uid: str,
        subtask_index: int,
        parallelism: int,
        epoch_id: int,
        *,
        is_restored: bool,
        planned: Collection[str],
        planned_operator_state: Collection[str],
    ) -> None:
        self.state = state
        self._planned = frozenset(planned)
        self._planned_operator_state = frozenset(planned_operator_state)
        self._registered: set[str] = set()
        self._is_restored = is_restored
        self._operator_uid = operator_uid
        self._subtask_index = subtask_index
        self._parallelism = parallelism
        self._epoch_id = epoch_id

    @property
    def operator_uid(self) -> str:
        return self._operator_uid

    @property
    def subtask_index(self) -> int:
        return self._subtask_index

    @property
    def parallelism(self) -> int:
        return self._parallelism

    @property
    def epoch_id(self) -> int:
        return self._epoch_id

    @property
    def is_restored(self) -> bool:
        return self._is_restored

    def register(self, descriptor: StateDescriptor) -> State:
        name = descriptor.name
        if name not in self._planned and name not in self._registered:
            self._check_is_stored_alike(descriptor)
        state = self.state.keyed.get_state(descriptor)
        self._registered.add(name)
        return state

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        name = descriptor.name
        if name not in self._planned_operator_state and name not in self.state.operator_state_names:
            raise self._not_registered_on_the_driver("operator state", name)
        return self.state.register_operator_state(descriptor)

    def check_planned_are_registered(self) -> None:
        """Raises `StateRegistrationError` if `open()` left out a restored state that it registered on the driver."""
        missing = self._planned - self._registered if self._is_restored else ()
        left_out = [state.name for state in self.state.keyed.current_meta().states if state.name in missing]
        if left_out:
            raise StateRegistrationError(
                f"operator {self._operator_uid!r}: open() registered {', '.join(map(repr, left_out))} on the driver, "
                f"and does not in subtask {self._subtask_index}; register the same states in every subtask"
            )

    def _not_registered_on_the_driver(self, what: str, name: str) -> StateRegistrationError:
        return StateRegistrationError(
            f"operator {self._operator_uid!r}: {what} {name!r} is new, and open() does not register it on the driver, "
            f"so that the next start would refuse what is in it; register it in open(), in every subtask and whatever "
            f"is_restored says"
        )

    def _check_is_stored_alike(self, descriptor: StateDescriptor) -> None:
        stored = self.state.keyed.current_meta().state(descriptor.name)
        if stored is None:
            raise self._not_registered_on_the_driver("state", descriptor.name)
        verdict = judge_state(stored, descriptor, VOID_NAMESPACE_SERIALIZER)
        if verdict.kind is CompatibilityKind.INCOMPATIBLE:
            # The backend refuses it, and says why.
            return
        snapshots = {role: serializer.snapshot_configuration() for role, serializer in verdict.serializers.items()}
        namespace_snapshot = snapshots.pop("namespace", stored.namespace_snapshot)
        if not StateMeta(stored.name, stored.kind, namespace_snapshot, snapshots).has_schema_of(stored):
            raise StateRegistrationError(
                f"operator {self._operator_uid!r}: the schema of state {descriptor.name!r} has changed, and its open() "
                f"does not register it on the driver; register it in open(), so that all subtasks migrate it together"
            )


class KeyedProcessOperator:
    """Runs a function over batches of records; `open` first, `close` last."""

    def __init__(self, function: KeyedProcessFunction[Any, Any, Any], context: SubtaskContext) -> None:
        self._function = function
        self._backend = context.state.keyed
        self._runtime_context = context
        self._context: ProcessContext[Any] = ProcessContext(context.epoch_id)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """`open`, and `close` behind the block, also after a failure, which stays the one that is told."""
        try:
            self.open()
            yield
        except Exception as error:
            try:
                self.close()
            except Exception as closing:
                raise _both(error, closing) from error
            raise
        except BaseException:
            # The task is given up: nobody asks why.
            with contextlib.suppress(Exception):
                self.close()
            raise
        self.close()

    def open(self) -> None:
        """Lets the function register its state, which is when restored state is migrated.

        Raises `UserFunctionError` for what the function raises; errors of state and of its files stay what they are.
        """
        self._call("open", lambda: self._function.open(self._runtime_context))
        self._runtime_context.check_planned_are_registered()

    def process(self, rows: Sequence[Any], keys: Sequence[Any], key_groups: Sequence[int]) -> list[Any]:
        """Processes records with their keys and key groups; returns what was emitted, in order.

        Raises `UserFunctionError`, naming key and record, for whatever the function raises.
        """
        emitted: list[Any] = []
        emit = emitted.extend
        process_element = self._function.process_element
        context = self._context
        row: Any = None
        try:
            # Made for the states that open() has registered.
            set_key = self._backend.key_setter()
            for row, key, key_group in zip(rows, keys, key_groups, strict=True):
                context.current_key = key
                set_key(key, key_group)
                result = process_element(row, context)
                if result is not None:
                    if result.__class__ is not GeneratorType:
                        _check_result(result)
                    emit(result)
        except Exception as error:
            raise self._failure(error, row) from error
        gc.collect(0)
        return emitted

    def close(self) -> None:
        """Lets the function close what it opened; `UserFunctionError` if that fails."""
        self._call("close", self._function.close)

    def _call(self, method: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (StreamJobError, StateBackendError, StateFormatError, CheckpointError):
            raise
        except Exception as error:
            uid = self._runtime_context.operator_uid
            raise UserFunctionError(f"operator {uid!r}: {method} raised {told(error)}") from error

    def _failure(self, error: Exception, row: Any) -> Exception:
        uid = self._runtime_context.operator_uid
        if isinstance(error, StreamJobError):
            return error
        key = shown(self._context.current_key, _KEY_CHARACTERS)
        where = f"operator {uid!r}, key {key}, record {shown(row, _RECORD_CHARACTERS)}"
        if isinstance(error, (StateBackendError, StateFormatError)):
            return UserFunctionError(f"{where}: {one_line(str(error))}")
        return UserFunctionError(f"{where}: process_element raised {told(error)}")


def _both(error: Exception, closing: Exception) -> Exception:
    if not isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{error}; close() then failed too: {one_line(str(closing))}")


def _check_result(result: Any) -> None:
    """Refuses what is no iterable, and a record, whose parts would be emitted; a tuple of records is none."""
    if isinstance(result, (str, bytes, bytearray, Mapping)) or hasattr(result, "_fields") or hasattr(result, "asDict"):
        raise TypeError(
            f"process_element returned {shown(result, _KEY_CHARACTERS)}, which is one record and not an iterable of "
            f"records; yield it, or return a list of records"
        )
    if not isinstance(result, Iterable):
        raise TypeError(
            f"process_element returned {shown(result, _KEY_CHARACTERS)}, which is not an iterable of records; "
            f"yield the records, or return a list of them"
        )


def check_keys(operator_uid: str, keys: Sequence[Any], is_composite: bool) -> None:
    """Raises `NullKeyError` if a key, or a part of a composite key, is None."""
    has_null = any(None in key for key in keys) if is_composite else None in keys
    if has_null:
        raise NullKeyError(
            f"operator {operator_uid!r}: a record has a null key; "
            f"filter such records out, or give them a key, before key_by"
        )
