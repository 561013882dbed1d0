"""A Spark processor on our state, without Spark: reads, allowed writes, and rejected ones."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from statebackend import JobDefinitionError, StateMigrationException, UserFunctionError
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.operators.stateful_processor import ProcessorSchema
from statebackend.streaming.rows.row_reader import row_class

ROWS = "k string, n int"


class Processor:
    """The methods that every processor has; ``handle`` processes the rows of a key."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        return iter(())

    def close(self) -> None: ...


def row(**values: Any) -> Any:
    """A row as Spark's ``Row(name=value)``."""
    return tuple.__new__(row_class(tuple(values)), values.values())


class Asking(Processor):
    """Emits the result of a function on the states, in order, for each key and epoch."""

    def __init__(self, ask: Callable[[Asking], list[Any]], schema: str = "n int") -> None:
        self.ask = ask
        self.schema = schema

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.value = handle.getValueState("value", self.schema)
        self.list = handle.getListState("list", self.schema)
        self.map = handle.getMapState("map", "n int", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        yield from (row(k=key[0], text=repr(answer)) for answer in self.ask(self))


def run(
    processor: Any,
    elements: Sequence[Any] = (("a", 1),),
    *,
    keys: Sequence[Any] = ("k",),
    output: Any = "k string, text string",
    epoch_size: int = 100,
    schema: str = ROWS,
    savepoint: Path | None = None,
    time_mode: str = "none",
    **options: Any,
) -> list[tuple[Any, ...]]:
    results: list[Any] = []
    execute = {name: options.pop(name) for name in ("from_savepoint",) if name in options}
    environment = LocalStreamEnvironment(epoch_size=epoch_size, **options)
    stream = environment.from_elements([one if isinstance(one, tuple) else tuple(one) for one in elements], schema)
    grouped = stream.group_by(*keys).transform_with_state(processor, output, "update", time_mode, uid="processor")
    grouped.sink_to(results)
    job = environment.execute("job", **execute)
    if savepoint is not None:
        job.savepoint(savepoint)
    return [tuple(one) for one in results]


def answers(ask: Callable[[Any], list[Any]], schema: str = "n int") -> list[str]:
    return [text for _, text in run(Asking(ask, schema))]


def test_all_rows_of_a_key_and_epoch_are_one_call() -> None:
    class Sizes(Processor):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            yield row(k=key[0], text=str([one.n for one in rows]))

    elements = [("b", 1), ("a", 2), ("b", 3), ("a", 4), ("c", 5), ("b", 6)]
    assert run(Sizes(), elements, epoch_size=4) == [("a", "[2, 4]"), ("b", "[1, 3]"), ("b", "[6]"), ("c", "[5]")]


def test_the_key_is_a_tuple_of_its_columns() -> None:
    class Keys(Processor):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            yield row(text=repr(key))

    assert run(Keys(), output="text string") == [("('a',)",)]
    assert run(Keys(), keys=("k", "n"), output="text string") == [("('a', 1)",)]
    assert run(Keys(), keys=(["k", "n"],), output="text string") == [("('a', 1)",)]


def test_a_value_is_a_tuple_or_nothing() -> None:
    def ask(of: Asking) -> list[Any]:
        before = of.value.get(), of.value.exists()
        of.value.update((1,))
        written = of.value.get(), of.value.exists()
        of.value.update((None,))
        null = of.value.get(), of.value.exists()
        of.value.clear()
        return [before, written, null, of.value.get()]

    assert answers(ask) == ["(None, False)", "((1,), True)", "((None,), True)", "None"]


@pytest.mark.parametrize(
    "value", [(5,), [5], {"n": 5}, row(other=5)], ids=["tuple", "list", "dict by name", "row by position"]
)
def test_accepted_forms_of_a_value(value: Any) -> None:
    def ask(of: Asking) -> list[Any]:
        of.value.update(value)
        return [of.value.get()]

    assert answers(ask) == ["(5,)"]


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ((), r"\(\) has 0 values, and the schema has the 1 fields n"),
        ((1, 2), "has 2 values"),
        (9, "9 is not a value of state: give a tuple of the fields n"),
        (None, "None is not a value of state"),
        (("x",), "'x'"),
        ((1.5,), "1.5"),
    ],
)
def test_rejected_forms_of_a_value_name_state_and_key(value: Any, reported: str) -> None:
    with pytest.raises(UserFunctionError, match=f"operator 'processor', key 'a'.*{reported}"):
        answers(lambda of: [of.value.update(value)])


def test_a_list_keeps_its_order_and_is_never_stored_empty() -> None:
    def ask(of: Asking) -> list[Any]:
        found = [list(of.list.get()), of.list.exists()]
        of.list.appendValue((1,))
        of.list.appendList([(2,), (3,)])
        found += [list(of.list.get()), of.list.exists()]
        of.list.put([(9,)])
        found += [list(of.list.get())]
        of.list.clear()
        return [*found, of.list.exists()]

    assert answers(ask) == ["[]", "False", "[(1,), (2,), (3,)]", "True", "[(9,)]", "False"]
    for method in ("put", "appendList"):
        with pytest.raises(UserFunctionError, match=rf"state 'list': {method}\(\) was given an empty list"):
            answers(lambda of, method=method: [getattr(of.list, method)([])])


def test_a_map_returns_rows_by_key_and_tuples_in_iterations() -> None:
    def ask(of: Asking) -> list[Any]:
        found = [of.map.exists(), of.map.getValue((1,)), list(of.map.iterator())]
        for key in (3, -1, 2):
            of.map.updateValue((key,), (key * 10,))
        found += [of.map.getValue((2,)), of.map.getValue((2,)).n, of.map.containsKey((2,)), of.map.containsKey((5,))]
        found += [sorted(of.map.iterator()), sorted(of.map.keys()), sorted(of.map.values())]
        of.map.removeKey((2,))
        of.map.removeKey((7,))
        found += [sorted(of.map.keys())]
        of.map.clear()
        return [*found, of.map.exists()]

    assert answers(ask) == [
        *("False", "None", "[]", "Row(n=20)", "20", "True", "False"),
        *("[((-1,), (-10,)), ((2,), (20,)), ((3,), (30,))]", "[(-1,), (2,), (3,)]", "[(-10,), (20,), (30,)]"),
        *("[(-1,), (3,)]", "False"),
    ]


def test_values_of_all_kinds_round_trip_as_on_spark() -> None:
    schema = (
        "i tinyint, d double, b binary, t timestamp, l timestamp_ntz, a array<int>, m map<string,int>, s struct<x:int>"
    )
    instant = datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    local = datetime.datetime(2020, 1, 2)
    value = (1, 0.5, b"x", instant, local, [1, None], {"a": 1}, (7,))

    def ask(of: Asking) -> list[Any]:
        of.value.update(value)
        of.map.updateValue((1,), value)
        return [of.value.get(), of.map.getValue((1,)).t]

    in_local_time = instant.astimezone().replace(tzinfo=None)
    [read, row_time] = answers(ask, schema)
    assert read == f"(1, 0.5, b'x', {in_local_time!r}, {local!r}, [1, None], {{'a': 1}}, Row(x=7))"
    assert row_time == repr(in_local_time)


def test_a_nested_struct_is_read_by_name() -> None:
    schema = ProcessorSchema("s struct<a: string, b: string>, l array<struct<a: string, b: string>>", "here")
    given = {"b": "second", "a": "first"}
    [struct, [inside]] = schema.values(schema.stored((given, [given])))
    assert struct == inside == ("first", "second")


def test_decimals_have_the_scale_of_their_type_so_that_equal_keys_are_equal() -> None:
    schema = ProcessorSchema("d decimal(4,2)", "here")
    to_bytes = schema.serializer.to_bytes
    assert repr(schema.values(schema.stored((Decimal("1.5"),)))) == "(Decimal('1.50'),)"
    assert to_bytes(schema.stored((Decimal("1.500"),))) == to_bytes(schema.stored((Decimal("15E-1"),)))
    for wrong in ("1.555", "100", "1E+99999999"):
        with pytest.raises(ValueError, match=r"not a decimal of 4 digits, 2 after the point"):
            schema.stored((Decimal(wrong),))


@pytest.mark.parametrize("hour_utc", [0, 1])
def test_an_instant_in_a_repeated_hour_is_unchanged(monkeypatch: pytest.MonkeyPatch, hour_utc: int) -> None:
    schema = ProcessorSchema("t timestamp", "here")
    instant = datetime.datetime(2024, 10, 27, hour_utc, 30, tzinfo=datetime.timezone.utc)
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        [read] = schema.values(schema.stored((instant,)))
        assert (read.hour, read.minute, read.fold) == (2, 30, hour_utc)
        assert schema.stored((read,)) == schema.stored((instant,))
    time.tzset()


def test_emitted_rows_are_read_by_name_and_completed_with_nulls() -> None:
    class Emitting(Processor):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            return iter([row(text="x", extra=1, k="k"), row(k="only"), row(), ("by", "position")])

    assert run(Emitting()) == [("k", "x"), ("only", None), (None, None), ("by", "position")]
    processor = Processor()
    processor.handleInputRows = lambda *_: iter(["text"])  # type: ignore[method-assign]
    with pytest.raises(UserFunctionError, match="was emitted, which is not a Row of the columns k, text"):
        run(processor)


def test_values_of_the_input_may_be_emitted() -> None:
    class Forwarding(Processor):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            for one in rows:
                assert one.m == [("p", 1), ("q", None)]
                assert one.s == {"a": 1, "m": [("x", {"y": [("z", 2)]})]}
                yield one
                yield row(m={"p": 1, "q": None}, k="k", s=row(m={"x": {"y": {"z": 2}}}, a=1), l=[None, {}])
                yield row(m=one.m, k="k", s=(1, [("x", ([("z", 2)],))]), l=[None, []])

    struct = "struct<a: int, m: map<string, struct<y: map<string, int>>>>"
    schema = f"k string, m map<string, int>, s {struct}, l array<map<int, int>>"
    given = ("k", {"p": 1, "q": None}, (1, {"x": ({"z": 2},)}), [None, {}])
    first, second, third = run(Forwarding(), [given], schema=schema, output=schema)
    assert repr(first) == repr(second) == repr(third)
    assert (first[1], first[2].m["x"].y, first[3]) == ({"p": 1, "q": None}, {"z": 2}, [None, {}])


def test_an_error_of_a_processor_names_key_and_method() -> None:
    def ask(of: Asking) -> list[Any]:
        raise ArithmeticError("no")

    with pytest.raises(
        UserFunctionError, match="operator 'processor', key 'a': handleInputRows raised ArithmeticError: no"
    ):
        answers(ask)


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ((Processor, "k string", "update", "none"), "the argument is the class Processor; pass an instance"),
        ((object(), "k string", "update", "none"), "is not a StatefulProcessor: it lacks init, handleInputRows"),
        ((Processor(), "k string", "complete", "none"), "output_mode is 'complete'.*choose 'update'"),
        ((Processor(), "k string", "update", "EventTime"), "time_mode='eventTime' needs watermarks, and a source of"),
        ((Processor(), "k string", "update", "wall"), "time_mode is 'wall'; pass one of 'none', 'processingTime'"),
    ],
)
def test_processors_that_cannot_run_are_rejected_at_once(arguments: tuple[Any, ...], reported: str) -> None:
    stream = LocalStreamEnvironment().from_elements([("a", 1)], ROWS)
    with pytest.raises(JobDefinitionError, match=reported):
        stream.group_by("k").transform_with_state(*arguments)


class InitIs(Processor):
    def __init__(self, register: Callable[[Any], Any]) -> None:
        self.register = register

    def init(self, handle: Any) -> None:
        self.register(handle)


@pytest.mark.parametrize(
    ("register", "reported"),
    [
        (lambda handle: [handle.getValueState("x", "n int"), handle.getListState("x", "n int")], "registers it twice"),
        (lambda handle: handle.getValueState("x", "n what"), "state 'x': the schema 'n what' cannot be read"),
        (lambda handle: handle.getValueState("x", "n int", 1000), "a time-to-live needs time_mode='processingTime'"),
        (lambda handle: handle.getValueState("__statebackend_x", "n int"), "the name must be a string that"),
        (lambda handle: handle.registerTimer(1), "registerTimer.* in time_mode='none'"),
        (
            lambda handle: [handle.getValueState("x", "n int"), handle.deleteIfExists("x")],
            "deleteIfExists.'x'. of a state that init.. registers",
        ),
    ],
)
def test_forbidden_calls_in_init_are_found_before_the_job_starts(register: Callable[[Any], Any], reported: str) -> None:
    with pytest.raises(StreamJobError, match=reported):
        run(InitIs(register))


def test_state_is_registered_in_init_only() -> None:
    with pytest.raises(JobDefinitionError, match=r"state 'late': register states in init\(\)"):
        answers(lambda of: [of.handle.getValueState("late", "n int")])


class Total(Processor):
    schema = "total int"

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        before = self.total.get()
        yield row(k=key[0], text=repr(before))
        fields = (before[-1] if before else 0) + sum(one.n for one in rows)
        self.total.update((fields,) if self.schema == Total.schema else {"total": fields})


class TotalOfMore(Total):
    schema = "label string, total bigint"


class TotalOfText(Total):
    schema = "total string"


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_state_migrates_to_a_schema_with_another_field(tmp_path: Path, backend: str) -> None:
    job = {"job_dir": tmp_path / "job", "backend": backend}
    assert run(Total(), [("a", 1), ("a", 2)], **job) == [("a", "None")]
    with pytest.raises(StateMigrationException, match="total"):
        run(TotalOfText(), [("a", 1)], **job)
    assert run(TotalOfMore(), [("a", 4)], **job) == [("a", "(None, 3)")]
    assert run(TotalOfMore(), [("a", 4)], **job) == [("a", "(None, 7)")]


def test_a_savepoint_restores_the_state_with_another_schema_and_backend(tmp_path: Path) -> None:
    run(Total(), [("a", 1), ("b", 2)], savepoint=tmp_path / "savepoint", parallelism=2, backend="heap")
    rows = run(TotalOfMore(), [("a", 4), ("b", 4), ("c", 4)], from_savepoint=tmp_path / "savepoint", backend="rocksdb")
    assert sorted(rows) == [("a", "(None, 1)"), ("b", "(None, 2)"), ("c", "None")]


class Once(Processor):
    """Registers a timer that is due at once and one that is not; emits values visible under TTL."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n int", 1 << 40)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        now = timerValues.getCurrentProcessingTimeInMs()
        if not self.seen.exists():
            self.seen.update((next(rows).n,))
            self.handle.registerTimer(now)
            self.handle.registerTimer(now + (1 << 40))
        yield row(
            k=key[0], text=f"{len(list(self.handle.listTimers()))} timers, {timerValues.getCurrentWatermarkInMs()}"
        )

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield row(k=key[0], text=f"fired {late} late, {self.seen.get()}")


def test_processing_time_timers_and_ttl_in_a_job() -> None:
    rows = run(Once(), [("a", 7), ("b", 8), ("a", 9)], epoch_size=2, time_mode="processingTime")
    assert rows == [
        ("a", "2 timers, 0"),
        ("b", "2 timers, 0"),
        ("a", "fired 0 late, (7,)"),
        ("b", "fired 0 late, (8,)"),
        ("a", "1 timers, 0"),
    ]


def test_pending_timers_are_in_a_savepoint(tmp_path: Path) -> None:
    at = tmp_path / "savepoint"
    run(Once(), [("a", 7), ("b", 8)], time_mode="processingTime", savepoint=at, parallelism=2, backend="heap")
    rows = run(Once(), [("a", 9), ("b", 9)], time_mode="processingTime", from_savepoint=at, backend="rocksdb")
    assert sorted(rows) == [("a", "1 timers, 0"), ("b", "1 timers, 0")]
