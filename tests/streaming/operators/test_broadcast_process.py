"""Functions over a keyed stream and a broadcast one: which side may access which state."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    BroadcastProcessFunction,
    BroadcastStateDescriptor,
    JobDefinitionError,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    OutputTag,
    RuntimeContext,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.state.errors import StateRegistrationError
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.streaming.broadcast_functions import BroadcastProcessDefinition
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.runtime.state_registration import registered_states
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import OperatorTestHarness

BACKENDS = pytest.mark.parametrize(
    "state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"]
)

RULES = BroadcastStateDescriptor("rules", str, int)
OWN = BroadcastStateDescriptor("own", str, list[int])
OTHER = BroadcastStateDescriptor("other", str, int)
COUNT = ValueStateDescriptor("count", int)
SEEN = ListStateDescriptor("seen", str)
SIDE = OutputTag[Any]("side")


class Doing(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Each record is a function; calls it with this object and the context."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(COUNT)
        self.seen = context.get_list_state(SEEN)
        self.own = context.operator_state.get_broadcast_state(OWN)

    def process_element(self, value: Any, context: Any) -> Any:
        self.timers = context.timer_service
        return value(self, context)

    def process_broadcast_element(self, value: Any, context: Any) -> Any:
        return value(self, context)

    def on_timer(self, timestamp: int, context: Any) -> Any:
        context.output(SIDE, "timer")
        context.get_broadcast_state(RULES).clear()


class Emitting(Doing):
    """Emits in its timers."""

    def on_timer(self, timestamp: int, context: Any) -> Any:
        context.output(SIDE, "timer")


def opened(
    directory: Path, function: Any, state_backend: Any = None, descriptors: Any = (RULES,), side: Any = ()
) -> OperatorTestHarness:
    definition = BroadcastProcessDefinition(function, descriptors)
    operator = operator_factory(definition)(definition, "operator")
    backend = HeapStateBackend() if state_backend is None else state_backend
    return OperatorTestHarness(BackendHarness(str(directory)), backend, operator, side_outputs=side)


def written(*calls: Callable[[Any], object]) -> Callable[[Any, Any], None]:
    def do(function: Any, context: Any) -> None:
        for call in calls:
            call(context.get_broadcast_state(RULES))

    return do


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.put("r", 1),
        lambda state: state.put_all({"r": 1}),
        lambda state: state.remove("r"),
        lambda state: state.clear(),
    ],
)
def test_only_the_broadcast_side_may_change_broadcast_state(write: Callable[[Any], object], tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())
    run.broadcast((written(lambda state: state.put("r", 7), write, lambda state: state.put("s", 5)), None))
    reported = "operator 'operator', key 'k', record .*: broadcast state 'rules' can be changed only"
    with pytest.raises(UserFunctionError, match=reported):
        run.records(("k", written(write), None))
    run.records(("k", lambda function, context: [context.get_broadcast_state(RULES).get("s")], None))
    assert run.rows() == [5]


def test_a_stored_handle_does_not_circumvent_this(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())

    def keep(function: Any, context: Any) -> None:
        function.kept = context.get_broadcast_state(RULES)
        function.kept.put("r", 1)
        function.own.put("r", [1])

    run.broadcast((keep, None))
    for call in (lambda function, context: function.kept.put("r", 2), lambda function, context: function.own.clear()):
        with pytest.raises(UserFunctionError, match="can be changed only in process_broadcast_element"):
            run.records(("k", call, None))
    run.records(("k", lambda function, context: [function.kept.get("r"), function.own.get("r")], None))
    assert run.rows() == [1, [1]]


def test_a_view_reads_current_state(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())

    def seen(function: Any, context: Any) -> list[Any]:
        view = context.get_broadcast_state(RULES)
        has = view.contains("a"), view.contains("b")
        return [(dict(view.items()), list(view.keys()), list(view.values()), has, view.is_empty())]

    run.records(("k", seen, None))
    run.broadcast((written(lambda state: state.put_all({"b": 1, "a": None})), None))
    run.records(("k", seen, None))
    assert run.rows() == [
        ({}, [], [], (False, False), True),
        ({"b": 1, "a": None}, ["b", "a"], [1, None], (True, True), False),
    ]


def test_a_modified_read_value_is_not_the_state(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())
    run.broadcast((lambda function, context: context.get_broadcast_state(OWN).put("r", [1]), None))
    run.records(("k", lambda function, context: context.get_broadcast_state(OWN).get("r").append(2), None))
    run.records(("k", lambda function, context: [context.get_broadcast_state(OWN).get("r")], None))
    assert run.rows() == [[1]]


@BACKENDS
@pytest.mark.parametrize(
    "touch",
    [
        lambda function, context: [function.count.value()],
        lambda function, context: function.count.update(1),
        lambda function, context: function.seen.add("x"),
        lambda function, context: function.timers.register_event_time_timer(1),
        lambda function, context: function.timers.delete_processing_time_timer(1),
    ],
)
def test_keyed_state_and_timers_are_unavailable_without_a_key(touch: Any, state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, Doing(), state_backend)
    run.records(("k", lambda function, context: function.count.update(5), None))
    with pytest.raises(
        UserFunctionError, match=r"operator 'operator', broadcast record .*without a current key"
    ) as error:
        run.broadcast((touch, None))
    assert "timer" in str(error.value) or "use context.apply_to_keyed_state(...)" in str(error.value)
    run.records(("k", lambda function, context: [function.count.value()], None))
    assert run.rows() == [5]


@pytest.mark.parametrize("name", ["current_key", "timer_service"])
def test_the_context_of_a_broadcast_record_has_no_key(name: str, tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())
    with pytest.raises(UserFunctionError, match=f"context of process_broadcast_element has no '{name}': the record"):
        run.broadcast((lambda function, context: getattr(context, name), None))


@BACKENDS
def test_the_state_of_each_key_is_visited_with_the_key_current(state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, Doing(), state_backend)
    for key, count in (("a", 1), ("b", 2), ("c", None)):
        run.records((key, lambda function, context, count=count: function.count.update(count) if count else None, None))

    def visit(function: Any, context: Any) -> list[Any]:
        visited = []

        def apply(key: str, state: Any) -> str:
            visited.append((key, state.value()))
            function.seen.add(key)
            if key == "a":
                state.clear()
            else:
                state.update(20)
            return "ignored"

        context.apply_to_keyed_state(COUNT, apply)
        return sorted(visited)

    run.broadcast((visit, 3), (visit, 4))
    for key in "abc":
        run.records((key, lambda function, context: [(function.count.value(), function.seen.get())], None))
    assert run.rows() == [("a", 1), ("b", 2), ("b", 20), (None, ["a"]), (20, ["b", "b"]), (None, [])]


def test_a_generator_as_visitor_is_rejected_because_it_would_not_run(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())
    run.records(("a", lambda function, context: function.count.update(1), None))

    def visit(function: Any, context: Any) -> None:
        def apply(key: str, state: Any) -> Any:
            yield key, state.value()

        context.apply_to_keyed_state(COUNT, apply)

    with pytest.raises(UserFunctionError, match=r"key 'a', broadcast record .*: .*apply_to_keyed_state .*it yields"):
        run.broadcast((visit, 3))


def test_an_exception_during_a_visit_names_the_key_and_the_broadcast_record(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())
    run.records(("a", lambda function, context: function.count.update(1), None))

    def visit(function: Any, context: Any) -> None:
        context.apply_to_keyed_state(COUNT, lambda key, state: 1 / 0)

    reported = "key 'a', broadcast record .*: the function of apply_to_keyed_state raised ZeroDivisionError"
    with pytest.raises(UserFunctionError, match=reported):
        run.broadcast((visit, None))


def test_an_unregistered_broadcast_state_is_rejected(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())

    def ask(function: Any, context: Any) -> None:
        context.get_broadcast_state(OTHER)

    reported = "the broadcast states of the operator are 'rules', 'own': pass it to broadcast"
    with pytest.raises(UserFunctionError, match=reported):
        run.broadcast((ask, None))
    with pytest.raises(UserFunctionError, match=reported):
        run.records(("k", ask, None))


@pytest.mark.parametrize(
    ("result", "reported"),
    [
        ("record", "process_broadcast_element returned 'record', which is one record"),
        (5, "process_broadcast_element returned 5, which is not an iterable"),
        (ArithmeticError("boom"), "process_broadcast_element raised ArithmeticError: boom"),
    ],
)
def test_output_of_a_broadcast_record_is_checked(result: Any, reported: str, tmp_path: Path) -> None:
    def give(function: Any, context: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(UserFunctionError, match=f"operator 'operator', broadcast record .*: .*{reported}"):
        opened(tmp_path, Doing()).broadcast((give, None))


def test_rows_of_both_sides_are_in_order_with_the_times_of_their_records(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing(), side=[SIDE])

    def give(function: Any, context: Any) -> Iterable[Any]:
        yield "first"
        context.output(SIDE, "side")
        yield "second"

    run.broadcast((give, 5), (give, None))
    run.records(("k", give, 7))
    emitted = [(one.row, one.timestamp_ms) for one in run.emitted]
    assert emitted == [(row, time) for time in (5, None, 7) for row in ("first", "side", "second")]


def test_a_timer_reads_broadcast_state_and_cannot_change_it(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing(), side=[SIDE])
    run.broadcast((written(lambda state: state.put("r", 1)), None))
    run.records(("k", lambda function, context: context.timer_service.register_event_time_timer(5), None))
    with pytest.raises(UserFunctionError, match="key 'k', timer of event time at 5: broadcast state 'rules' can be"):
        run.watermark(5)
    assert [(one.tag, one.row, one.timestamp_ms) for one in run.emitted] == [(SIDE, "timer", 5)]


class WithoutKeys(BroadcastProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.own = context.operator_state.get_broadcast_state(OWN)

    def process_element(self, value: Any, context: Any) -> Any:
        return value(self, context)

    def process_broadcast_element(self, value: Any, context: Any) -> Any:
        return value(self, context)


def test_a_function_without_keys_reads_broadcast_state_and_times(tmp_path: Path) -> None:
    run = opened(tmp_path, WithoutKeys())
    run.context.timers = type("Timers", (), {"current_watermark": lambda self: 0})()
    time: Any = lambda function, context: [(context.timestamp, context.current_watermark())]  # noqa: E731
    rule: Any = lambda function, context: [context.get_broadcast_state(RULES).get("r")]  # noqa: E731
    run.broadcast((written(lambda state: state.put("r", 1)), None))
    run.broadcast((time, 1), (rule, 2), input_index=0)
    run.operator.on_watermark(7)
    run.broadcast((time, 8))
    run.broadcast((time, None), input_index=0)
    assert run.rows() == [(1, MIN_TIMESTAMP), 1, (8, 7), (None, 7)]
    reported = (
        "operator 'operator', record .*: broadcast state 'rules' can be changed only in process_broadcast_element"
    )
    with pytest.raises(UserFunctionError, match=reported):
        run.broadcast((written(lambda state: state.clear()), None), input_index=0)
    with pytest.raises(UserFunctionError, match="the context of process_element has no 'current_key': the record has"):
        run.broadcast((lambda function, context: context.current_key, None), input_index=0)


def test_a_function_without_keys_cannot_register_keyed_state(tmp_path: Path) -> None:
    class Keyed(WithoutKeys):
        def open(self, context: RuntimeContext) -> None:
            context.get_state(COUNT)

    with pytest.raises(StateRegistrationError, match=r"a BroadcastProcessFunction has no keyed state, here 'count'"):
        opened(tmp_path, Keyed())


def test_the_driver_learns_the_states_and_timers() -> None:
    definition = pickle.loads(pickle.dumps(BroadcastProcessDefinition(Doing(), (RULES,))))
    registered = registered_states(definition, "operator", 2, (None, None))
    assert [one.name for one in registered.operator] == ["rules", "own"]
    assert [one.name for one in registered.keyed] == ["count", "seen"]
    assert list(registered.timers) == ["user-timers"]
    assert definition.user_functions == (definition.function,)
    without_keys = registered_states(BroadcastProcessDefinition(WithoutKeys(), (RULES,)), "operator", 2, (None, None))
    assert [one.name for one in without_keys.operator] == ["rules", "own"]


@pytest.mark.parametrize(
    ("function", "descriptors", "reported"),
    [
        (Doing, (), "not the class Doing; make an instance"),
        ("doing", (), "not 'doing'"),
        (Doing(), ("rules",), "broadcast\\(\\) takes a BroadcastStateDescriptor for each state, not 'rules'"),
    ],
)
def test_other_functions_and_states_are_rejected(function: Any, descriptors: Any, reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=reported):
        BroadcastProcessDefinition(function, descriptors)


def test_two_states_of_one_name_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(StateRegistrationError, match="rules"):
        opened(tmp_path, Doing(), descriptors=(RULES, BroadcastStateDescriptor("rules", int, int)))


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.put("r", 2),
        lambda state: state.put_all({"r": 2}),
        lambda state: state.remove("r"),
        lambda state: state.clear(),
    ],
)
def test_stored_handles_and_views_change_nothing_where_changes_are_forbidden(
    write: Callable[[Any], object], tmp_path: Path
) -> None:
    run = opened(tmp_path, Doing())

    def keep(function: Any, context: Any) -> None:
        function.handle = context.get_broadcast_state(RULES)
        function.handle.put("r", 1)

    def keep_view(function: Any, context: Any) -> None:
        function.view = context.get_broadcast_state(RULES)

    run.broadcast((keep, None))
    run.records(("k", keep_view, None))
    with pytest.raises(UserFunctionError, match="can be changed only in process_broadcast_element"):
        run.records(("k", lambda function, context: write(function.handle), None))
    # A view that was obtained for reading stays read-only, even where writes are allowed.
    with pytest.raises(UserFunctionError, match="can be changed only in process_broadcast_element"):
        run.broadcast((lambda function, context: write(function.view), None))
    run.records(("k", lambda function, context: [dict(function.view.items())], None))
    assert run.rows() == [{"r": 1}]


def test_another_descriptor_of_a_broadcast_state_name_is_rejected(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing())
    other = BroadcastStateDescriptor("rules", str, str)
    for send in (run.broadcast, lambda record: run.records(("k", *record))):
        with pytest.raises(UserFunctionError, match=r"get_broadcast_state was given .*'rules'"):
            send((lambda function, context: context.get_broadcast_state(other), None))


@pytest.mark.parametrize("function", [Doing(), WithoutKeys()], ids=["keyed", "without keys"])
def test_both_sides_get_the_started_epoch(function: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, function)
    run.context.timers = type("Timers", (), {"current_watermark": lambda self: 0})()
    run.operator.prepare_snapshot()
    run.operator.begin_epoch(2)
    tell: Any = lambda function, context: [context.epoch_id]  # noqa: E731
    run.broadcast((tell, None))
    if isinstance(function, WithoutKeys):
        run.broadcast((tell, None), input_index=0)
    else:
        run.records(("k", tell, None))
    assert run.rows() == [2, 2]


def test_timer_output_precedes_output_of_later_broadcast_records(tmp_path: Path) -> None:
    for name, follow in (
        ("broadcast", lambda run: run.broadcast((lambda function, context: context.output(SIDE, "rule"), None))),
        ("snapshot", lambda run: run.operator.prepare_snapshot()),
    ):
        run = opened(tmp_path / name, Emitting(), side=[SIDE])
        run.operator.on_event_time_timer(5, "k", 0, None)
        follow(run)
        assert [one.row for one in run.emitted][:1] == ["timer"]
