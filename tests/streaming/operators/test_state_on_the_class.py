"""State descriptors in the body of a class: every kind of state and of function, in the harness and in local jobs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from statebackend import (
    AggregateFunction,
    AggregatingStateDescriptor,
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    BroadcastStateDescriptor,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    SplitListStateDescriptor,
    StateBackendError,
    StateMigrationException,
    StateRegistrationError,
    TumblingEventTimeWindows,
    UnionListStateDescriptor,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.savepoint import Savepoint
from statebackend.testing.jobs import HarnessJob, JobTestHarness

SCHEMA = "k string, v bigint"
BACKENDS = ("heap", "rocksdb")


@attrs.frozen
class Aircraft:
    flights: int = 0


class Total(AggregateFunction[int, int, str]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> str:
        return f"total {accumulator}"


class EveryKind(KeyedProcessFunction[str, Any, Any]):
    aircraft = ValueStateDescriptor("aircraft", Aircraft, default=Aircraft())
    last = ValueStateDescriptor("last", int)
    values = ListStateDescriptor("values", int)
    counts = MapStateDescriptor("counts", int, int)
    most = ReducingStateDescriptor("most", max, int)
    total = AggregatingStateDescriptor("total", Total(), int)
    handled = SplitListStateDescriptor("handled", int)
    shared = UnionListStateDescriptor("shared", int)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        v = value.v
        self.aircraft.update(Aircraft(self.aircraft.value().flights + 1))
        last = self.last.value()
        self.last.update(v)
        self.values.add(v)
        self.counts.put(v, (self.counts.get(v) or 0) + 1)
        self.most.add(v)
        self.total.add(v)
        self.handled.add(v)
        self.shared.add(v)
        yield (
            context.current_key,
            repr(
                (
                    self.aircraft.value().flights,
                    last,
                    self.values.get(),
                    dict(sorted(self.counts.items())),
                    self.most.get(),
                    self.total.get(),
                    self.handled.get(),
                    self.shared.get(),
                )
            ),
        )


def process(function: Any) -> Callable[[HarnessJob], None]:
    def build(job: HarnessJob) -> None:
        stream = job.source("in", SCHEMA).key_by("k").process(function, uid="op", schema="k string, seen string")
        job.output("out", stream)

    return build


def seen(harness: JobTestHarness) -> list[Any]:
    return [tuple(record) for record in harness.taken_records("out")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_kind_of_state_survives_records_and_restores(backend: str, tmp_path: Path) -> None:
    with JobTestHarness(process(EveryKind()), backend=backend) as harness:
        for key, value in (("a", 3), ("b", 7), ("a", 5)):
            harness.source("in").send((key, value))
        assert seen(harness) == [
            ("a", "(1, None, [3], {3: 1}, 3, 'total 3', [3], [3])"),
            ("b", "(1, None, [7], {7: 1}, 7, 'total 7', [3, 7], [3, 7])"),
            ("a", "(2, 3, [3, 5], {3: 1, 5: 1}, 5, 'total 8', [3, 7, 5], [3, 7, 5])"),
        ]
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(process(EveryKind()), backend=backend, from_snapshot=snapshot) as harness:
        harness.source("in").send(("a", 1))
        assert seen(harness) == [
            ("a", "(3, 5, [3, 5, 1], {1: 1, 3: 1, 5: 1}, 5, 'total 9', [3, 7, 5, 1], [3, 7, 5, 1])")
        ]


def test_state_is_stored_like_that_of_a_function_that_registers_it_in_open(tmp_path: Path) -> None:
    class InOpen(KeyedProcessFunction[str, Any, Any]):
        def open(self, context: Any) -> None:
            self.flown = context.get_state(ValueStateDescriptor("aircraft", Aircraft, default=Aircraft()))

        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            self.flown.update(Aircraft(self.flown.value().flights + 1))
            yield context.current_key, repr(self.flown.value().flights)

    class OnClass(InOpen):
        flown = ValueStateDescriptor("aircraft", Aircraft, default=Aircraft())

        def open(self, context: Any) -> None:
            pass

    with JobTestHarness(process(InOpen())) as harness:
        harness.source("in").send(("a", 1))
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(process(OnClass()), from_snapshot=snapshot) as harness:
        harness.source("in").send(("a", 1))
        assert seen(harness) == [("a", "2")]


class Base(KeyedProcessFunction[str, Any, Any]):
    first = ValueStateDescriptor("first", int, default=0)
    second: Any = ValueStateDescriptor("second", int, default=0)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.first.update(self.first.value() + value.v)
        yield context.current_key, repr((self.first.value(), self.second and self.second.get()))


class Derived(Base):
    second = ListStateDescriptor("second of derived", int)
    third = ValueStateDescriptor("third", int)


class Without(Base):
    second = None


def test_a_subclass_inherits_replaces_and_removes_states(tmp_path: Path) -> None:
    for function, result, names in (
        (Derived(), "(1, [])", {"first", "second of derived", "third"}),
        (Without(), "(1, None)", {"first"}),
    ):
        with JobTestHarness(process(function)) as harness:
            harness.source("in").send(("a", 1))
            assert seen(harness) == [("a", result)]
            snapshot = harness.snapshot(tmp_path / type(function).__name__)
        assert {state for _, state in Savepoint.open(snapshot).states} == names


class Counts(KeyedProcessFunction[str, Any, Any]):
    count = ValueStateDescriptor("count", int, default=0)

    def __init__(self, step: int) -> None:
        self.step = step

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + self.step)
        yield context.current_key, self.count.value()


def test_two_functions_of_one_class_have_separate_states() -> None:
    def build(job: HarnessJob) -> None:
        keyed = job.source("in", SCHEMA).key_by("k")
        for step in (1, 10):
            job.output(f"by {step}", keyed.process(Counts(step), uid=f"by {step}", schema=SCHEMA))

    with JobTestHarness(build, parallelism=2) as harness:
        for _ in range(2):
            harness.source("in").send(("a", 0))
        assert [tuple(row) for row in harness.taken_records("by 1")] == [("a", 1), ("a", 2)]
        assert [tuple(row) for row in harness.taken_records("by 10")] == [("a", 10), ("a", 20)]


SHARED = ValueStateDescriptor("shared", int, default=0)


class TwoNames(KeyedProcessFunction[str, Any, Any]):
    one = SHARED
    other = SHARED

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.one.update(self.other.value() + value.v)
        yield context.current_key, repr((self.one.value(), self.other.value()))


class TwoTypes(TwoNames):
    other: Any = ValueStateDescriptor("shared", str)


def test_one_descriptor_under_two_attributes_is_one_state() -> None:
    with JobTestHarness(process(TwoNames())) as harness:
        harness.source("in").send_all([("a", 1), ("a", 2)])
        assert seen(harness) == [("a", "(1, 1)"), ("a", "(3, 3)")]


def test_two_descriptors_of_one_name_are_rejected_on_the_driver() -> None:
    with pytest.raises(StateRegistrationError, match="state 'shared' of operator 'op' is registered twice"):
        JobTestHarness(process(TwoTypes()))


class Open(KeyedProcessFunction[str, Any, Any]):
    count = ValueStateDescriptor("count", int, default=0)

    def open(self, context: Any) -> None:
        self.read = self.count.value
        assert Open.count == ValueStateDescriptor("count", int, default=0)
        self.again = context.get_state(Open.count)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.again.update(self.read() + value.v)
        yield context.current_key, repr(self.count.value())


def test_open_sees_the_states_and_the_class_has_the_descriptors() -> None:
    with JobTestHarness(process(Open())) as harness:
        harness.source("in").send_all([("a", 1), ("a", 2)])
        assert seen(harness) == [("a", "1"), ("a", "3")]


class ReadsInOpen(Open):
    def open(self, context: Any) -> None:
        self.count.value()


class RegistersAState(Open):
    def open(self, context: Any) -> None:
        context.get_state(self.count)


class RegistersAnOperatorState(KeyedProcessFunction[str, Any, Any]):
    handled = SplitListStateDescriptor("handled", int)

    def open(self, context: Any) -> None:
        context.operator_state.get_list_state(self.handled)

    def process_element(self, value: Any, context: Any) -> None: ...


def test_uses_of_state_that_open_forbids_are_rejected() -> None:
    with pytest.raises(StateBackendError, match="there is no current key yet"):
        JobTestHarness(process(ReadsInOpen()))
    advice = "a descriptor in the class body is registered before open\\(\\), so use the attribute as the state"
    with pytest.raises(StateRegistrationError, match=f"get_state was given a state: {advice}"):
        JobTestHarness(process(RegistersAState()))
    with pytest.raises(StateRegistrationError, match=f"operator_state.get_list_state was given a state: {advice}"):
        JobTestHarness(process(RegistersAnOperatorState()))


class InInit(Counts):
    def __init__(self) -> None:
        self.count.value()


class InSetup(Counts):
    def setup(self) -> None:
        self.count.value()


def test_outside_of_a_run_the_error_says_where_state_can_be_used() -> None:
    message = r"state 'count' of {} does not exist before open\(\): use it in process_element"
    with pytest.raises(StateBackendError, match=message.format("Counts")):
        Counts(1).count.value()
    with pytest.raises(StateBackendError, match=message.format("InInit")):
        InInit()
    with pytest.raises(UserFunctionError, match=message.format("InSetup")):
        JobTestHarness(process(InSetup(1)))


def test_a_run_does_not_open_the_program_object_which_can_be_copied() -> None:
    function = Counts(1)
    with JobTestHarness(process(function)):
        pass
    assert vars(function) == {"step": 1}
    assert vars(copy.deepcopy(function)) == vars(pickle.loads(pickle.dumps(function))) == {"step": 1}


@attrs.frozen
class FrozenFunction(KeyedProcessFunction[str, Any, Any]):
    step: int
    count: ClassVar[Any] = ValueStateDescriptor("count", int, default=0)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + self.step)
        yield context.current_key, repr(self.count.value())


def test_a_function_may_be_a_frozen_attrs_class() -> None:
    with JobTestHarness(process(FrozenFunction(2))) as harness:
        harness.source("in").send_all([("a", 1), ("a", 2)])
        assert seen(harness) == [("a", "2"), ("a", "4")]


class PerWindow(ProcessWindowFunction[str, Any, Any, Any]):
    windows = ValueStateDescriptor("count", int, default=0)
    fired = ValueStateDescriptor("count", int, default=0).per_window()

    def process(self, key: str, context: Any, elements: list[Any]) -> Iterator[Any]:
        self.windows.update(self.windows.value() + 1)
        self.fired.update(self.fired.value() + 1)
        yield key, repr((self.windows.value(), self.fired.value(), len(elements)))

    def clear(self, context: Any) -> None:
        self.fired.clear()


def windowed(function: Any, assigner: Any) -> Callable[[HarnessJob], None]:
    def build(job: HarnessJob) -> None:
        windows = job.source("in", SCHEMA).key_by("k").window(assigner).allowed_lateness(100)
        job.output("out", windows.process(function, uid="op", schema="k string, seen string"))

    return build


def test_a_window_function_has_state_of_the_key_and_of_the_window() -> None:
    with JobTestHarness(windowed(PerWindow(), TumblingEventTimeWindows.of(10))) as harness:
        source = harness.source("in")
        source.send(("a", 1), timestamp_ms=1)
        source.send(("b", 1), timestamp_ms=1)
        source.send(("a", 1), timestamp_ms=11)
        source.watermark(19)
        source.send(("a", 1), timestamp_ms=2)
        assert sorted(seen(harness)) == [
            ("a", "(1, 1, 1)"),
            ("a", "(2, 1, 1)"),
            ("a", "(3, 2, 2)"),
            ("b", "(1, 1, 1)"),
        ]


def test_state_per_window_is_rejected_where_windows_merge() -> None:
    with JobTestHarness(windowed(PerWindow(), EventTimeSessionWindows.with_gap(10))) as harness:
        harness.source("in").send(("a", 1), timestamp_ms=1)
        with pytest.raises(UserFunctionError, match="merge"):
            harness.source("in").end()


class PerWindowWithoutWindows(Counts):
    fired = ValueStateDescriptor("fired", int).per_window()


def test_state_per_window_is_rejected_without_windows() -> None:
    with pytest.raises(StateRegistrationError, match=r"operator 'op': state 'fired' is per window.*remove .per_window"):
        JobTestHarness(process(PerWindowWithoutWindows(1)))


class Both(KeyedCoProcessFunction[str, Any, Any, Any]):
    total = ValueStateDescriptor("total", int, default=0)

    def process_element1(self, value: Any, context: Any) -> Iterator[Any]:
        self.total.update(self.total.value() + value.v)
        yield context.current_key, repr(self.total.value())

    process_element2 = process_element1


class Join(ProcessJoinFunction[str, Any, Any, Any]):
    total = ValueStateDescriptor("total", int, default=0)

    def process_element(self, left: Any, right: Any, context: Any) -> Iterator[Any]:
        self.total.update(self.total.value() + left.v * right.v)
        yield context.current_key, repr(self.total.value())


def test_functions_of_two_keyed_inputs() -> None:
    def build(job: HarnessJob) -> None:
        left, right = (job.source(name, SCHEMA).key_by("k") for name in ("left", "right"))
        schema = "k string, seen string"
        job.output("both", left.connect(right).process(Both(), uid="both", schema=schema))
        joined = left.interval_join(right).between(-5, 5).process(Join(), uid="join", schema=schema)
        job.output("joined", joined)

    with JobTestHarness(build) as harness:
        harness.source("left").send(("a", 2), timestamp_ms=1)
        harness.source("right").send(("a", 3), timestamp_ms=1)
        harness.source("right").send(("a", 4), timestamp_ms=1)
        assert [tuple(row) for row in harness.taken_records("both")] == [("a", "2"), ("a", "5"), ("a", "9")]
        assert [tuple(row) for row in harness.taken_records("joined")] == [("a", "6"), ("a", "14")]


class Rules(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    rules = BroadcastStateDescriptor("rules", str, int)
    total = ValueStateDescriptor("total", int, default=0)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.total.update(self.total.value() + value.v * (self.rules.get("factor") or 0))
        if value.v < 0:
            self.rules.put("factor", value.v)
        yield context.current_key, repr(self.total.value())

    def process_broadcast_element(self, value: Any, context: Any) -> None:
        self.rules.put(value.k, value.v)


class RulesWithoutKeys(BroadcastProcessFunction[Any, Any, Any]):
    rules = BroadcastStateDescriptor("rules", str, int)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value.k, repr(self.rules.get("factor"))

    def process_broadcast_element(self, value: Any, context: Any) -> None:
        self.rules.put(value.k, value.v)


class KeyedWithoutKeys(RulesWithoutKeys):
    total = ValueStateDescriptor("total", int, default=0)


def broadcast(function: Any, keyed: bool) -> Callable[[HarnessJob], None]:
    def build(job: HarnessJob) -> None:
        stream: Any = job.source("in", SCHEMA)
        rules = job.source("rules", SCHEMA).broadcast()
        connected = (stream.key_by("k") if keyed else stream).connect(rules)
        job.output("out", connected.process(function, uid="op", schema="k string, seen string"))

    return build


def test_a_broadcast_state_of_the_class_is_protected_like_one_of_open() -> None:
    for function, keyed, result in ((Rules(), True, "21"), (RulesWithoutKeys(), False, "7")):
        with JobTestHarness(broadcast(function, keyed), parallelism=2) as harness:
            harness.source("rules").send(("factor", 7))
            harness.source("in").send(("a", 3))
            assert seen(harness) == [("a", result)]
    with JobTestHarness(broadcast(Rules(), True)) as harness:
        harness.source("rules").send(("factor", 7))
        with pytest.raises(
            UserFunctionError, match="broadcast state 'rules' can be changed only in process_broadcast_"
        ):
            harness.source("in").send(("a", -1))
    with pytest.raises(StateRegistrationError, match="a BroadcastProcessFunction has no keyed state, here 'total'"):
        JobTestHarness(broadcast(KeyedWithoutKeys(), False))


class Asks(AsyncFunction[Any, Any]):
    asked = ValueStateDescriptor("asked", int)

    async def async_invoke(self, value: Any, context: Any) -> list[Any]:
        return []


def test_an_async_function_has_no_state_in_the_class_body() -> None:
    def build(job: HarnessJob) -> None:
        stream = job.source("in", SCHEMA)
        waited = AsyncDataStream.unordered_wait(stream, Asks(), timeout=1000, uid="op", schema=SCHEMA)
        job.output("out", waited)

    with pytest.raises(StateRegistrationError, match="operator 'op': an AsyncFunction has no state"):
        JobTestHarness(build)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_local_job_restores_the_state_after_a_restart(backend: str, tmp_path: Path) -> None:
    results: list[Any] = []

    def run(function: Any, values: list[int]) -> None:
        env = LocalStreamEnvironment(job_dir=tmp_path / "job", backend=backend, parallelism=2)
        stream = env.from_elements([{"k": "a", "v": value} for value in values], SCHEMA)
        stream.key_by("k").process(function, uid="op", schema=SCHEMA).sink_to(results.append)
        env.execute("job")

    run(Counts(1), [1, 2])
    run(Counts(1), [1, 2, 3])
    assert [row["v"] for row in results] == [1, 2, 3, 4, 5]

    class AsText(Counts):
        count: Any = ValueStateDescriptor("count", list[str])

    with pytest.raises(StateMigrationException, match="state 'count'"):
        run(AsText(1), [1, 2, 3, 4])
