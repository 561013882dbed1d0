"""The local environment runs the program that runs on Spark, without a JVM."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import attrs
import pytest
from emitted_objects import OBJECT, collecting, emitting_objects

from statebackend import (
    JobDefinitionError,
    JobRestoreError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    NoCurrentKeyError,
    NullKeyError,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
    StateMigrationException,
    StateRegistrationError,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.checkpoint import MissingFileError
from statebackend.local import LocalJob, LocalStreamEnvironment
from statebackend.state.key_groups import KeyHashError
from statebackend.streaming.errors import EpochError
from typeserializers import AttrsSerializer, IntSerializer, former_names

pytestmark = pytest.mark.slow


@attrs.frozen
class Sale:
    shop: str
    amount: int


@attrs.frozen
class Totals:
    sales: Annotated[int, IntSerializer()]
    turnover: int
    worst: str = ""


@attrs.frozen
class TotalsRenamed:
    revenue: float = attrs.field(metadata=former_names("turnover"))
    sales: int = 0
    note: str = "new"


RENAMED = AttrsSerializer(TotalsRenamed, name="Totals")

SALES = [Sale("north", 3), Sale("south", 5), Sale("north", 4), Sale("south", 1), Sale("north", 1)]

BACKENDS = ("heap", "rocksdb")
SUMS = "shop string, sales bigint, turnover bigint"


class SumPerShop(KeyedProcessFunction[str, Sale, tuple[str, int, int]]):
    def open(self, context: RuntimeContext) -> None:
        self.totals = context.get_state(ValueStateDescriptor("totals", Totals))
        self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
        self.by_amount = context.get_map_state(MapStateDescriptor("by amount", int, int))

    def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
        before = self.totals.value() or Totals(0, 0)
        after = Totals(before.sales + 1, before.turnover + value.amount)
        self.totals.update(after)
        self.amounts.add(value.amount)
        self.by_amount.put(value.amount, (self.by_amount.get(value.amount) or 0) + 1)
        yield context.current_key, after.sales, after.turnover


class ReadTotals(KeyedProcessFunction[str, Sale, Any]):
    """Version 2 of the program, with a changed record class."""

    def open(self, context: RuntimeContext) -> None:
        self.totals = context.get_state(ValueStateDescriptor("totals", RENAMED))
        self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
        self.by_amount = context.get_map_state(MapStateDescriptor("by amount", int, int))

    def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
        yield context.current_key, self.totals.value(), self.amounts.get(), sorted(self.by_amount.items())


def run(function: KeyedProcessFunction[Any, Any, Any], elements: list[Any], **options: Any) -> list[Any]:
    execute = {name: options.pop(name) for name in ("from_savepoint", "allow_non_restored_state") if name in options}
    environment = LocalStreamEnvironment(**options)
    results: list[Any] = []
    environment.from_elements(elements).key_by("shop").process(
        emitting_objects(function), uid="totals", schema=OBJECT
    ).sink_to(collecting(results))
    environment.execute("sales", **execute)
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("epoch_size", [None, 1, 2])
def test_state_is_kept_per_key_across_epochs(backend: str, parallelism: int, epoch_size: int | None) -> None:
    results = run(SumPerShop(), SALES, backend=backend, parallelism=parallelism, epoch_size=epoch_size)
    assert sorted(results) == [
        ("north", 1, 3),
        ("north", 2, 7),
        ("north", 3, 8),
        ("south", 1, 5),
        ("south", 2, 6),
    ]


@pytest.mark.parametrize("old_backend", BACKENDS)
@pytest.mark.parametrize("new_backend", BACKENDS)
def test_a_savepoint_moves_between_backends_parallelisms_and_schemas(
    tmp_path: Path, old_backend: str, new_backend: str
) -> None:
    environment = LocalStreamEnvironment(backend=old_backend, parallelism=3, epoch_size=2)
    environment.from_elements(SALES).key_by("shop").process(SumPerShop(), uid="totals", schema=SUMS).sink_to([])
    report = environment.execute("sales").savepoint(tmp_path / "savepoint")
    assert report.rows == {"totals": {"totals": 2, "amounts": report.rows["totals"]["amounts"], "by amount": 5}}
    restored = run(
        ReadTotals(),
        [Sale("north", 0), Sale("south", 0)],
        backend=new_backend,
        parallelism=2,
        from_savepoint=tmp_path / "savepoint",
    )
    assert sorted(restored, key=str) == [
        ("north", TotalsRenamed(8.0, 3, "new"), [3, 4, 1], [(1, 1), (3, 1), (4, 1)]),
        ("south", TotalsRenamed(6.0, 2, "new"), [5, 1], [(1, 1), (5, 1)]),
    ]


def test_a_job_directory_continues_where_it_ended(tmp_path: Path) -> None:
    run(SumPerShop(), SALES[:3], job_dir=tmp_path / "job")
    assert run(SumPerShop(), SALES[3:], job_dir=tmp_path / "job") == [("south", 2, 6), ("north", 3, 8)]


def test_output_of_a_failed_epoch_does_not_reach_the_sink(tmp_path: Path) -> None:
    class FailsOnFive(SumPerShop):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
            if value.amount == 5:
                raise ArithmeticError("five")
            yield from super().process_element(value, context)

    results: list[Any] = []
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=1)
    environment.from_elements(SALES).key_by("shop").process(FailsOnFive(), uid="totals", schema=SUMS).sink_to(results)
    with pytest.raises(UserFunctionError, match=r"'totals', key 'south', record Sale\(shop='south', amount=5\).*five"):
        environment.execute("sales")
    assert results == [("north", 1, 3)]
    # The next run starts with the state of the epoch that was completed before the failure.
    assert run(SumPerShop(), [Sale("north", 1)], job_dir=tmp_path / "job") == [("north", 2, 4)]


def test_incompatible_state_is_rejected_with_state_path_and_advice(tmp_path: Path) -> None:
    class ReadsText(ReadTotals):
        def open(self, context: RuntimeContext) -> None:
            serializer = AttrsSerializer(
                attrs.make_class("Totals", {"sales": attrs.field(type=str), "turnover": attrs.field(type=int)})
            )
            self.totals = context.get_state(ValueStateDescriptor("totals", serializer))
            self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
            self.by_amount = context.get_map_state(MapStateDescriptor("by amount", int, int))

    run(SumPerShop(), SALES, job_dir=tmp_path / "job")
    with pytest.raises(StateMigrationException) as rejection:
        run(ReadsText(), SALES, job_dir=tmp_path / "job")
    message = str(rejection.value)
    assert "state 'totals'" in message
    assert ".sales: incompatible [field-type-changed]" in message
    assert "Keep int, or convert it to str" in message
    assert run(SumPerShop(), SALES[:1], job_dir=tmp_path / "job") == [("north", 4, 11)]


@pytest.mark.parametrize("is_savepoint", [False, True])
def test_check_reports_the_result_of_a_start_without_starting(tmp_path: Path, is_savepoint: bool) -> None:
    class KeepsTotalsOnly(KeyedProcessFunction[str, Sale, Any]):
        def __init__(self, serializer: AttrsSerializer[Any]) -> None:
            self.serializer = serializer

        def open(self, context: RuntimeContext) -> None:
            self.totals = context.get_state(ValueStateDescriptor("totals", self.serializer))

        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
            raise AssertionError("a look processes nothing")

    def check(serializer: AttrsSerializer[Any], **options: Any) -> Any:
        directory = tmp_path / "another" if is_savepoint else tmp_path / "job"
        environment = LocalStreamEnvironment(job_dir=directory)
        environment.from_elements(SALES).key_by("shop").process(
            KeepsTotalsOnly(serializer), uid="totals", schema="shop string"
        ).sink_to([])
        return environment.check(from_savepoint=tmp_path / "savepoint" if is_savepoint else None, **options)["totals"]

    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    environment.from_elements(SALES).key_by("shop").process(SumPerShop(), uid="totals", schema=SUMS).sink_to([])
    environment.execute("sales").savepoint(tmp_path / "savepoint")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    as_text = attrs.make_class("Totals", {"sales": attrs.field(type=str), "turnover": attrs.field(type=int)})
    rejected = check(AttrsSerializer(as_text), allow_non_restored_state=True)
    assert not rejected.is_compatible
    assert "Keep int" in str(rejected)
    renamed = check(RENAMED, allow_non_restored_state=True)
    assert renamed.is_compatible
    assert sorted(renamed.unregistered) == ["amounts", "by amount"]
    with pytest.raises(JobRestoreError, match="does not register: 'amounts'"):
        check(RENAMED)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


class Remind(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[Any]) -> None:
        context.timer_service.register_processing_time_timer("1 day")

    def on_timer(self, timestamp: int, context: Any) -> None:
        pass


class Forget(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[Any]) -> None:
        pass


def test_a_function_that_lost_its_on_timer_is_advised_to_keep_it(tmp_path: Path) -> None:
    run(Remind(), SALES, job_dir=tmp_path / "job")
    with pytest.raises(JobRestoreError, match="These are timers: keep on_timer"):
        run(Forget(), SALES[:1], job_dir=tmp_path / "job")

    class RemindAndSum(Remind):
        count = ValueStateDescriptor("count", int)

    run(RemindAndSum(), SALES, job_dir=tmp_path / "both")
    with pytest.raises(JobRestoreError, match=r"Register it under its old name \(for timers: keep on_timer\)"):
        run(Forget(), SALES[:1], job_dir=tmp_path / "both")


def test_unregistered_state_is_rejected_unless_allowed_and_then_kept(tmp_path: Path) -> None:
    class OnlyTotals(SumPerShop):
        def open(self, context: RuntimeContext) -> None:
            self.totals = context.get_state(ValueStateDescriptor("totals", Totals))

        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
            totals = self.totals.value()
            assert totals is not None
            yield context.current_key, totals.sales, totals.turnover

    run(SumPerShop(), SALES, job_dir=tmp_path / "job")
    with pytest.raises(JobRestoreError, match="does not register: 'amounts', 'by amount'"):
        run(OnlyTotals(), SALES[:1], job_dir=tmp_path / "job")
    assert run(OnlyTotals(), SALES[:1], job_dir=tmp_path / "job", allow_non_restored_state=True) == [("north", 3, 8)]
    results = run(ReadTotals(), SALES[:1], job_dir=tmp_path / "job")
    assert results[0][2] == [3, 4, 1]


def test_a_removed_operator_is_rejected_unless_allowed(tmp_path: Path) -> None:
    run(SumPerShop(), SALES, job_dir=tmp_path / "job")

    def run_renamed(allow: bool) -> list[Any]:
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
        results: list[Any] = []
        environment.from_elements(SALES[:1]).key_by("shop").process(SumPerShop(), uid="renamed", schema=SUMS).sink_to(
            results
        )
        environment.execute("sales", allow_non_restored_state=allow)
        return results

    with pytest.raises(JobRestoreError, match="operators that the job does not have: 'totals'"):
        run_renamed(allow=False)
    assert run_renamed(allow=True) == [("north", 1, 3)]


def test_a_changed_max_parallelism_is_rejected_with_both_values(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(parallelism=2)
    environment.from_elements(SALES).key_by("shop").process(SumPerShop(), uid="totals", schema=SUMS).sink_to([])
    environment.execute("sales").savepoint(tmp_path / "savepoint")
    with pytest.raises(JobRestoreError, match=r"max_parallelism 128, the job 64.*Set max_parallelism=128"):
        run(SumPerShop(), SALES, max_parallelism=64, from_savepoint=tmp_path / "savepoint")


def test_wrong_definitions_name_what_is_missing() -> None:
    environment = LocalStreamEnvironment()
    stream = environment.from_elements(SALES)
    with pytest.raises(JobDefinitionError, match="has no uid"):
        stream.key_by("shop").process(SumPerShop())
    stream.key_by("shop").process(SumPerShop(), uid="one", schema=SUMS)
    with pytest.raises(JobDefinitionError, match="two operators have the uid 'one'"):
        stream.key_by("shop").process(SumPerShop(), uid="one", schema=SUMS)
    with pytest.raises(JobDefinitionError, match="no sink"):
        environment.execute("sales")
    with pytest.raises(JobDefinitionError, match="the class SumPerShop; make an instance"):
        stream.key_by("shop").process(SumPerShop, uid="class")  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="columns as arguments"):
        stream.key_by(["shop", "amount"])
    with pytest.raises(JobDefinitionError, match="at least one column"):
        stream.key_by()
    with pytest.raises(JobDefinitionError, match="KeyedProcessFunction, not 5"):
        stream.key_by("shop").process(5, uid="five")  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="max_parallelism"):
        LocalStreamEnvironment(parallelism=200)


def test_keys_of_two_types_are_rejected_with_the_operator() -> None:
    with pytest.raises(KeyHashError, match=r"operator 'totals': .*string, which cannot hold 7.*keys of the same types"):
        run(SumPerShop(), [Sale("north", 1), Sale(7, 1)])  # type: ignore[arg-type]


def test_a_null_key_is_an_error() -> None:
    with pytest.raises(NullKeyError, match="operator 'totals': a record has a null key"):
        run(SumPerShop(), [Sale("north", 1), Sale(None, 1)])  # type: ignore[arg-type]


def test_state_cannot_be_used_in_open() -> None:
    class TouchesInOpen(SumPerShop):
        def open(self, context: RuntimeContext) -> None:
            super().open(context)
            self.totals.value()

    with pytest.raises(NoCurrentKeyError, match="no current key"):
        run(TouchesInOpen(), SALES)


def test_one_name_cannot_belong_to_two_states() -> None:
    class Twice(SumPerShop):
        def open(self, context: RuntimeContext) -> None:
            context.get_state(ValueStateDescriptor("totals", int))
            context.get_state(ValueStateDescriptor("totals", str))

    with pytest.raises(StateRegistrationError, match="registered twice"):
        run(Twice(), SALES)


def test_chained_operators_have_separate_state() -> None:
    class Maximum(KeyedProcessFunction[int, tuple[str, int, int], tuple[int, str]]):
        def open(self, context: RuntimeContext) -> None:
            self.best = context.get_state(ValueStateDescriptor("best", int, default=0))

        def process_element(
            self, value: tuple[str, int, int], context: ProcessContext[int]
        ) -> Iterator[tuple[int, str]]:
            self.best.update(max(self.best.value() or 0, value[2]))
            yield context.current_key, f"{value[0]}:{self.best.value()}"

    environment = LocalStreamEnvironment(epoch_size=2)
    results: list[Any] = []
    totals = environment.from_elements(SALES).key_by("shop").process(SumPerShop(), uid="totals", schema=SUMS)
    totals.key_by(lambda row: row[1]).process(Maximum(), uid="maximum", schema="sales bigint, best string").sink_to(
        results
    )
    environment.execute("sales")
    assert sorted(results) == [(1, "north:3"), (1, "south:5"), (2, "north:7"), (2, "south:7"), (3, "north:8")]


def test_a_composite_key_is_a_tuple() -> None:
    class Count(KeyedProcessFunction[tuple[str, int], Sale, Any]):
        def open(self, context: RuntimeContext) -> None:
            self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

        def process_element(self, value: Sale, context: ProcessContext[tuple[str, int]]) -> Iterator[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield *context.current_key, self.count.value()

    environment = LocalStreamEnvironment(epoch_size=1)
    results: list[Any] = []
    keyed = environment.from_elements([*SALES, Sale("north", 3)]).key_by("shop", "amount")
    keyed.process(Count(), uid="count", schema="shop string, amount bigint, count bigint").sink_to(results)
    environment.execute("sales")
    assert results[-1] == ("north", 3, 2)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "飛行機" * 60])
def test_a_savepoint_accepts_states_and_operators_of_any_name(tmp_path: Path, name: str) -> None:
    class Count(KeyedProcessFunction[str, Sale, tuple[str, int]]):
        def open(self, context: RuntimeContext) -> None:
            self.count = context.get_state(ValueStateDescriptor(name, int))

        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
            self.count.update((self.count.value() or 0) + 1)
            yield context.current_key, self.count.value() or 0

    def counted(directory: str, **options: Any) -> tuple[Any, list[Any]]:
        environment = LocalStreamEnvironment(job_dir=tmp_path / directory)
        results: list[Any] = []
        sales = environment.from_elements(SALES).key_by("shop")
        sales.process(Count(), uid=name, schema="shop string, count bigint").sink_to(results)
        return environment.execute(**options), sorted(results)[-1]

    first, last = counted("first")
    assert last == ("south", 2)
    first.savepoint(tmp_path / "savepoint")
    assert counted("second", from_savepoint=tmp_path / "savepoint")[1] == ("south", 4)


@pytest.mark.parametrize("record", ["word", b"word", {"word": 1}, attrs.make_class("Word", ["_fields"])(1)])
def test_a_returned_record_is_not_iterated(record: Any) -> None:
    class Returns(SumPerShop):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Any:
            return record

    with pytest.raises(UserFunctionError, match="yield it, or return a list of records"):
        run(Returns(), SALES)
    assert run(SumPerShop(), []) == []


def test_a_list_of_records_can_be_returned() -> None:
    class Returns(SumPerShop):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Any:
            return [(value.shop, 1), (value.shop, 2)]

    assert run(Returns(), SALES[:1]) == [("north", 1), ("north", 2)]


def test_a_descriptor_is_passed_to_the_method_of_its_kind() -> None:
    class Mistaken(SumPerShop):
        def open(self, context: RuntimeContext) -> None:
            context.get_state(MapStateDescriptor("by amount", int, int))  # type: ignore[arg-type]

    with pytest.raises(StateRegistrationError, match="map state is registered with get_map_state"):
        run(Mistaken(), SALES)


def test_a_failure_shows_the_line_of_the_program() -> None:
    def divide(amount: int) -> float:
        return amount / 0

    class Divides(SumPerShop):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
            yield divide(value.amount)

    with pytest.raises(UserFunctionError, match=r"division by zero \(test_local_environment.py, line \d+, in divide\)"):
        run(Divides(), SALES)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_only_some_subtasks_register_has_one_schema(tmp_path: Path, backend: str) -> None:
    """State that only some subtasks migrate could not be restored at another parallelism."""

    class Late(KeyedProcessFunction[str, Sale, Any]):
        def open(self, context: RuntimeContext) -> None:
            self.runtime = context

        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
            yield self.runtime.get_state(ValueStateDescriptor("totals", RENAMED)).value()

    class InSubtaskZero(ReadTotals):
        def open(self, context: RuntimeContext) -> None:
            if context.subtask_index == 0:
                super().open(context)

    class LateAndUnchanged(Late):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
            yield self.runtime.get_state(ValueStateDescriptor("totals", Totals)).value()
            yield self.runtime.get_list_state(ListStateDescriptor("amounts", int)).get()

    def restart(function: Any, parallelism: int = 4, **options: Any) -> list[Any]:
        return run(function, SALES[:1], job_dir=tmp_path / "job", backend=backend, parallelism=parallelism, **options)

    restart(SumPerShop())
    with pytest.raises(UserFunctionError, match=r"schema of state 'totals' has changed, but open\(\) did not"):
        restart(Late(), allow_non_restored_state=True)
    with pytest.raises(StateRegistrationError, match=r"open\(\) registered .*'totals'.* but not in subtask 1"):
        restart(InSubtaskZero())
    assert restart(LateAndUnchanged(), allow_non_restored_state=True) == [Totals(1, 3), [3]]
    # All subtasks migrate, even those without a record, so the state can be restored at any parallelism.
    assert restart(ReadTotals()) == [("north", TotalsRenamed(3.0, 1, "new"), [3], [(3, 1)])]
    for parallelism in (1, 3, 16):
        assert restart(ReadTotals(), parallelism) == [("north", TotalsRenamed(3.0, 1, "new"), [3], [(3, 1)])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_new_state_must_be_registered_in_open(tmp_path: Path, backend: str) -> None:
    class Late(KeyedProcessFunction[str, Sale, Any]):
        def open(self, context: RuntimeContext) -> None:
            self.runtime = context

        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
            yield self.runtime.get_state(ValueStateDescriptor("late", int)).value()

    class OnlyWhenRestored(SumPerShop):
        def open(self, context: RuntimeContext) -> None:
            super().open(context)
            if context.is_restored:
                context.get_state(ValueStateDescriptor("late", int))

    class OfTheWrongContext(SumPerShop):
        def process_element(self, value: Sale, context: Any) -> Any:
            return context.get_state(ValueStateDescriptor("late", int))

    class LateOfTheSubtask(Late):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[Any]:
            yield self.runtime.operator_state.get_list_state(SplitListStateDescriptor("late", int)).get()

    with pytest.raises(UserFunctionError, match=r"operator state 'late' is new, but open\(\) did not register it"):
        run(LateOfTheSubtask(), SALES, job_dir=tmp_path / "late", backend=backend)
    with pytest.raises(UserFunctionError, match=r"operator 'totals', key 'north'.* state 'late' is new, but open\(\)"):
        run(Late(), SALES, job_dir=tmp_path / "late", backend=backend)
    run(SumPerShop(), SALES, job_dir=tmp_path / "job", backend=backend)
    with pytest.raises(StateRegistrationError, match=r"state 'late' is new, .*register it in open\(\)"):
        run(OnlyWhenRestored(), SALES, job_dir=tmp_path / "job", backend=backend)
    with pytest.raises(UserFunctionError, match=r"no 'get_state'; register state in open\(\)"):
        run(OfTheWrongContext(), SALES, job_dir=tmp_path / "job", backend=backend)


def test_open_has_no_current_key_and_a_result_that_is_not_iterable_is_named() -> None:
    class AsksForTheKey(SumPerShop):
        def open(self, context: RuntimeContext) -> None:
            self.key = context.current_key

    class ReturnsANumber(SumPerShop):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Any:
            return 3

    with pytest.raises(NoCurrentKeyError, match=r"operator 'totals': open\(\) has no current key"):
        run(AsksForTheKey(), SALES)
    with pytest.raises(UserFunctionError, match="process_element returned 3, which is not an iterable of records"):
        run(ReturnsANumber(), SALES)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_survives_the_deletion_of_its_environment_variable(tmp_path: Path, backend: str) -> None:
    def execute() -> LocalJob:
        environment = LocalStreamEnvironment(backend=backend)
        environment.from_elements(SALES).key_by("shop").process(SumPerShop(), uid="totals", schema=SUMS).sink_to([])
        return environment.execute("sales")

    job = execute()
    gc.collect()
    job.savepoint(tmp_path / "savepoint")
    rows = run(SumPerShop(), SALES[:1], from_savepoint=tmp_path / "savepoint", backend=backend)
    assert rows == [("north", 4, 11)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_state_file_is_named_before_the_job_runs(tmp_path: Path, backend: str) -> None:
    run(SumPerShop(), SALES, job_dir=tmp_path / "job", backend=backend)
    file = next(path for path in (tmp_path / "job" / "shared").rglob("*") if path.is_file())
    file.unlink()
    seen: list[Any] = []

    class Notes(SumPerShop):
        def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
            seen.append(value)
            yield from super().process_element(value, context)

    with pytest.raises(MissingFileError, match=file.name):
        run(Notes(), SALES, job_dir=tmp_path / "job", backend=backend)
    assert seen == []


def test_a_missing_key_or_order_column_is_reported_with_the_operator() -> None:
    def build(key: Any, order_by: Any = ()) -> None:
        environment = LocalStreamEnvironment()
        stream = environment.from_elements(SALES).key_by(key)
        stream.process(SumPerShop(), uid="totals", schema=SUMS, order_by=order_by).sink_to([])
        environment.execute("sales")

    with pytest.raises(JobDefinitionError, match=r"operator 'totals': key_by\('shp'\), but a record has no field"):
        build("shp")
    with pytest.raises(JobDefinitionError, match=r"operator 'totals': order_by\('when'\), but a record has no field"):
        build("shop", "when")
    with pytest.raises(JobDefinitionError, match=r"operator 'totals': key_by takes field names or functions, not int"):
        build(7)
    with pytest.raises(JobDefinitionError, match=r"'totals': key_by\(\): a function returned 1.5, a float, which"):
        build(lambda sale: 1.5)
    with pytest.raises(
        UserFunctionError, match=r"operator 'totals': the function of order_by raised ZeroDivisionError"
    ):
        build("shop", lambda sale: sale.amount / 0)


def test_an_epoch_without_records_for_an_operator_has_a_checkpoint(tmp_path: Path) -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=1)
    large = environment.from_elements(SALES).flat_map(lambda sale: [sale] if sale.amount > 3 else [])
    large.key_by("shop").process(SumPerShop(), uid="totals", schema=SUMS).sink_to(results)
    job = environment.execute("sales")
    assert (job.epochs, results) == (5, [("south", 1, 5), ("north", 1, 4)])
    assert run(SumPerShop(), [Sale("south", 1)], job_dir=tmp_path / "job") == [("south", 2, 6)]

    environment = LocalStreamEnvironment(job_dir=tmp_path / "nothing")
    environment.from_elements(SALES).flat_map(lambda sale: []).key_by("shop").process(
        SumPerShop(), uid="totals", schema=SUMS
    ).sink_to(results)
    with pytest.raises(EpochError, match="nothing to save"):
        environment.execute("sales").savepoint(tmp_path / "savepoint")
