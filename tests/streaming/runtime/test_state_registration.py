"""State registrations that the driver learns, and their compatibility with the state of several subtasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from snapshots.compatibility import CompatibilityKind
from statebackend import (
    BroadcastStateDescriptor,
    CountTrigger,
    GlobalWindows,
    KeyedProcessFunction,
    ListStateDescriptor,
    NoCurrentKeyError,
    PriorityQueueDescriptor,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
    StateDescriptor,
    StateRegistrationError,
    TumblingEventTimeWindows,
    UserFunctionError,
    ValueStateDescriptor,
    WindowedStream,
)
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_handles import OperatorStateMeta, StatePart, envelopes_of
from statebackend.state.state_kind import StateKind
from statebackend.state.state_meta import STATE_KINDS, KeyedStateMeta, meta_of_descriptor
from statebackend.streaming.compatibility_check import schema_report
from statebackend.streaming.runtime.state_registration import RegisteredStates, RegistrationContext, registered_states
from statebackend.streaming.time.internal_timer_service import timer_queue_descriptors
from statebackend.testing.backends.evolving_records import IMMUTABLE_SUM, SUM, ImmutableSum
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness
from typeserializers import AttrsSerializer, LongSerializer, StringSerializer


@attrs.frozen
class Old:
    count: int


@attrs.frozen
class New:
    count: int
    label: str = ""


OLD = ValueStateDescriptor("record", AttrsSerializer(Old, name="Record"))
NEW = ValueStateDescriptor("record", AttrsSerializer(New, name="Record"))
OLD_LIST = SplitListStateDescriptor("record", AttrsSerializer(Old, name="Record"))
OF_EACH_KIND: dict[StateKind, StateDescriptor] = {
    descriptor.kind: descriptor for descriptor in (VALUE, LIST, MAP, SUM, IMMUTABLE_SUM)
}
NEW_LIST = SplitListStateDescriptor("record", AttrsSerializer(New, name="Record"))


def meta(*descriptors: StateDescriptor) -> KeyedStateMeta:
    states = tuple(meta_of_descriptor(descriptor, VOID_NAMESPACE_SERIALIZER) for descriptor in descriptors)
    return KeyedStateMeta(LongSerializer().snapshot_configuration(), 0, states)


class Function(KeyedProcessFunction[int, Any, Any]):
    """Registers keyed and operator state, and uses it as allowed."""

    def open(self, context: RuntimeContext) -> None:
        assert (context.subtask_index, context.parallelism, context.is_restored) == (0, 4, False)
        self.record = context.get_state(OLD)
        self.records = context.operator_state.get_list_state(OLD_LIST)
        self.limits = context.operator_state.get_broadcast_state(BroadcastStateDescriptor("limits", str, int))
        self.limits.put("a", 1)
        assert self.records.get() == []
        assert context.operator_state.get_list_state(OLD_LIST) is self.records

    def process_element(self, value: Any, context: ProcessContext[int]) -> None:
        """Does nothing."""


def test_keyed_and_operator_state_are_learned_from_open() -> None:
    states = registered_states(Function(), "operator", 4)
    assert states.keyed == (OLD,)
    assert list(states.planned) == ["record"]
    assert [descriptor.name for descriptor in states.operator] == ["record", "limits"]


def test_misuse_of_operator_state_in_open_is_an_error_of_the_function() -> None:
    class Misfit(Function):
        def open(self, context: RuntimeContext) -> None:
            context.operator_state.get_list_state(OLD_LIST).add("no record")  # type: ignore[arg-type]

    class Early(Function):
        def open(self, context: RuntimeContext) -> None:
            context.get_state(OLD).value()

    with pytest.raises(UserFunctionError, match="operator 'operator' failed on the driver"):
        registered_states(Misfit(), "operator", 4)
    with pytest.raises(NoCurrentKeyError, match="there is no current key yet"):
        registered_states(Early(), "operator", 4)


@pytest.mark.parametrize("kind", STATE_KINDS.values(), ids=str)
def test_no_method_of_any_handle_can_be_used_on_the_driver(kind: StateKind) -> None:
    handle = RegistrationContext("operator", 4).register(OF_EACH_KIND[kind])
    assert isinstance(handle, kind.handle_class)
    for method, parameters in {**kind.reads, **kind.writes}.items():
        with pytest.raises(NoCurrentKeyError, match="there is no current key yet"):
            getattr(handle, method)(*([{}] * len(parameters.split(", ") if parameters else ())))


def test_a_function_is_closed_on_the_driver_after_open() -> None:
    calls: list[str] = []

    class Noting(Function):
        def open(self, context: RuntimeContext) -> None:
            calls.append("open")

        def close(self) -> None:
            calls.append("close")

    assert registered_states(Noting(), "operator", 4) == RegisteredStates((), ())
    assert calls == ["open", "close"]


@pytest.mark.parametrize(
    ("descriptor", "match"),
    [
        (PriorityQueueDescriptor("timers", LongSerializer()), "^state 'timers' of operator 'operator' is a .*cannot"),
        (ListStateDescriptor("record", int), "^state 'record' of operator 'operator' is registered twice"),
        (
            ListStateDescriptor("_timer_state/x", int),
            "^state '_timer_state/x' of operator 'operator' .*reserved for timers",
        ),
    ],
)
def test_an_invalid_registration_is_reported_once_with_the_operator(descriptor: Any, match: str) -> None:
    class Misfit(Function):
        def open(self, context: RuntimeContext) -> None:
            context.get_state(OLD)
            context.get_state(OLD)
            context.register(descriptor)

    with pytest.raises(StateRegistrationError, match=match):
        registered_states(Misfit(), "operator", 4)


def test_a_rejection_without_operator_gets_its_name() -> None:
    class Misfit(Function):
        def open(self, context: RuntimeContext) -> None:
            raise StateRegistrationError("not so")

    with pytest.raises(StateRegistrationError, match=r"^operator 'operator' \(Misfit\): not so$"):
        registered_states(Misfit(), "operator", 4)


def _windows(assigner: Any, accumulator_type: Any) -> RegisteredStates:
    stream = WindowedStream.of(lambda definition, **_: definition, assigner).trigger(CountTrigger.of(2))
    definition: Any = stream.aggregate(ImmutableSum(), accumulator_type=accumulator_type)
    return registered_states(definition, "windows", 4)


def test_windows_and_their_timers_are_checked_with_their_namespaces(tmp_path: Path) -> None:
    tumbling = TumblingEventTimeWindows.of(10)
    registered = _windows(tumbling, int)
    assert [state.name for state in registered.keyed] == ["window-contents", "trigger.count"]
    assert list(registered.timers) == ["window-timers"]
    backend = BackendHarness(str(tmp_path)).open(HeapStateBackend())
    for state in registered.keyed:
        backend.get_or_create_keyed_state(registered.namespaces[state.name], state)
    for queue in timer_queue_descriptors("window-timers", LongSerializer(), registered.timers["window-timers"]):
        backend.get_priority_queue(queue)
    stored = [backend.current_meta()]

    def kinds(registered: RegisteredStates, key_serializer: Any = None) -> list[CompatibilityKind]:
        report = schema_report("windows", key_serializer or LongSerializer(), registered, stored, ())
        assert report.unregistered == ()
        return [compatibility.kind for compatibility in report.compatibilities]

    assert kinds(registered) == [CompatibilityKind.AS_IS] * 4
    assert kinds(_windows(GlobalWindows.create(), int)) == [CompatibilityKind.INCOMPATIBLE] * 4
    assert kinds(registered, StringSerializer())[2:] == [CompatibilityKind.INCOMPATIBLE] * 2


def test_the_compatibility_is_the_worst_over_the_subtasks() -> None:
    parts = tuple(StatePart(envelopes_of(descriptor.serializers)) for descriptor in (NEW_LIST, OLD_LIST))
    operator_state = [OperatorStateMeta("record", OLD_LIST.mode, parts)]
    registered = RegisteredStates((NEW,), (NEW_LIST,))
    migrated = schema_report("operator", LongSerializer(), registered, [meta(NEW), meta(OLD), meta()], operator_state)
    assert [compatibility.kind for compatibility in migrated.compatibilities] == [CompatibilityKind.AFTER_MIGRATION]
    assert [compatibility.kind for compatibility in migrated.operator_state_compatibilities] == [
        CompatibilityKind.AFTER_MIGRATION
    ]
    assert migrated.is_compatible
    assert "  operator state 'record': compatible after migration" in str(migrated).splitlines()

    other_kind = meta(ListStateDescriptor("record", int), ListStateDescriptor("other", int))
    stored = [meta(NEW), other_kind]
    rejected = schema_report("operator", LongSerializer(), RegisteredStates((NEW,)), stored, operator_state)
    assert not rejected.is_compatible
    assert (rejected.unregistered, rejected.unregistered_operator_state) == (("other",), ("record",))
    assert str(rejected).splitlines() == [
        "operator 'operator': incompatible",
        "  state 'record': incompatible",
        *(f"    {issue}" for issue in rejected.compatibilities[0].issues),
        "  state 'other': not registered, kept as it is",
        "  operator state 'record': not registered, kept as it is",
    ]
