"""Local jobs with several sources, sinks, readers and side outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    JobDefinitionError,
    KeyedProcessFunction,
    OutputTag,
    ProcessContext,
    RuntimeContext,
    StateMigrationException,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.state.key_groups import KeyHashError
from statebackend.streaming.rows.row_writer import RowMismatchError

ODD = OutputTag[Any]("odd", schema="key string, number int")
SEEN = "key string, number int, times int"


class Count(KeyedProcessFunction[Any, Any, Any]):
    """Emits ``{key, number, times}``; odd numbers go to a side output as well."""

    def open(self, context: RuntimeContext) -> None:
        self.times = context.get_state(ValueStateDescriptor("times", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        self.times.update(self.times.value() + 1)
        if value["number"] % 2:
            context.output(ODD, {"key": value["key"], "number": value["number"]})
            context.output(OutputTag("unread"), value)
        yield {"key": value["key"], "number": value["number"], "times": self.times.value()}


def records(text: str) -> list[dict[str, Any]]:
    """``a1 b2`` as records."""
    return [{"key": word[0], "number": int(word[1:])} for word in text.split()]


def run(job_dir: Path, left: str, right: str, **options: Any) -> tuple[list[str], list[str], list[str], Any]:
    """Two sources; the second operator counts the odd numbers of the first source and all of the second."""
    counted: list[Any] = []
    odd: list[Any] = []
    late: list[Any] = []
    environment = LocalStreamEnvironment(job_dir=job_dir, max_parallelism=8, **options)
    first = (
        environment.from_elements(records(left), uid="left").key_by("key").process(Count(), uid="first", schema=SEEN)
    )
    first.sink_to(counted, uid="counted")
    first.get_side_output(ODD).sink_to(odd, uid="odd")
    both = first.get_side_output(ODD).union(environment.from_elements(records(right), uid="right"))
    both.key_by("key").process(Count(), uid="second", schema=SEEN).sink_to(late, uid="late")
    job = environment.execute()
    return (
        sorted("{key}{number}:{times}".format(**one.asDict()) for one in counted),
        sorted("{key}{number}".format(**one.asDict()) for one in odd),
        sorted("{key}{number}:{times}".format(**one.asDict()) for one in late),
        job,
    )


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_graph_forks_at_a_side_output_and_joins_another_source(tmp_path: Path, parallelism: int) -> None:
    counted, odd, late, _ = run(tmp_path / "job", "a1 b2 a3", "b5 c7", parallelism=parallelism)
    assert counted == ["a1:1", "a3:2", "b2:1"]
    assert odd == ["a1", "a3"]
    assert late == ["a1:1", "a3:2", "b5:1", "c7:1"]
    counted, odd, late, _ = run(tmp_path / "job", "a2", "a4", parallelism=parallelism + 1)
    assert (counted, odd, late) == (["a2:3"], [], ["a4:3"])


def test_an_epoch_has_its_part_of_every_source_until_the_longest_ends(tmp_path: Path) -> None:
    counted, _, late, job = run(tmp_path / "job", "a1 a2 a3 a4 a5", "a10 a20", epoch_size=2)
    assert job.epochs == 3
    assert counted == ["a1:1", "a2:2", "a3:3", "a4:4", "a5:5"]
    assert late == ["a10:2", "a1:1", "a20:3", "a3:4", "a5:5"]


def test_no_sink_gets_output_of_a_failed_epoch(tmp_path: Path) -> None:
    class FailsAtSeven(Count):
        def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
            if value["number"] == 7:
                raise ArithmeticError("seven")
            return super().process_element(value, context)

    results: dict[str, list[Any]] = {"first": [], "second": [], "raw": []}
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=1)
    numbers = environment.from_elements(records("a1 a7"))
    first = numbers.key_by("key").process(Count(), uid="first", schema=SEEN)
    first.sink_to(results["first"], uid="first")
    first.key_by("key").process(FailsAtSeven(), uid="second", schema=SEEN).sink_to(results["second"], uid="second")
    numbers.sink_to(results["raw"], uid="raw")
    with pytest.raises(UserFunctionError, match=r"operator 'second', key 'a'.*seven"):
        environment.execute()
    assert {name: len(rows) for name, rows in results.items()} == {"first": 1, "second": 1, "raw": 1}


@pytest.mark.parametrize("tag", [None, "odd", 7])
def test_output_accepts_a_tag(tmp_path: Path, tag: Any) -> None:
    class Wrong(Count):
        def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
            context.output(tag, value)
            return iter(())

    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    environment.from_elements(records("a1")).key_by("key").process(Wrong(), uid="u", schema=SEEN).sink_to([])
    with pytest.raises(UserFunctionError, match=r"output\(\) takes an OutputTag and a record, not"):
        environment.execute()


@pytest.mark.parametrize("sink", [42, None, {"a": 1}, list, Exception])
def test_other_sinks_are_rejected_before_the_job_directory_changes(tmp_path: Path, sink: Any) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    counted = environment.from_elements(records("a1")).key_by("key").process(Count(), uid="u", schema=SEEN)
    counted.sink_to([], uid="right")
    counted.sink_to(sink, uid="wrong")
    with pytest.raises(JobDefinitionError, match=r"^sink_to was given .*, which is not a sink: pass a list"):
        environment.execute()
    assert not (tmp_path / "job").exists()


def test_a_failing_sink_withholds_no_record_from_the_others(tmp_path: Path) -> None:
    def fails(record: Any) -> None:
        raise ArithmeticError(f"no room for {record.number}")

    before: list[Any] = []
    behind: list[Any] = []
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=2)
    counted = environment.from_elements(records("a1 a2 a3")).key_by("key").process(Count(), uid="u", schema=SEEN)
    for uid, sink in {"before": before.append, "fails": fails, "behind": behind}.items():
        counted.sink_to(sink, uid=uid)
    with pytest.raises(ArithmeticError, match="no room for 1"):
        environment.execute()
    # The checkpoint of the failed epoch is stored, so that epoch is not processed again.
    assert [row.number for row in before] == [row.number for row in behind] == [1, 2]
    environment.close()


def counted_in_union(*streams: tuple[list[Any], str | None], transformed: bool = False) -> list[tuple[Any, int]]:
    """Count the records of a union by their column ``v``."""
    environment = LocalStreamEnvironment()
    sources = [environment.from_elements(*one, uid=f"source-{place}") for place, one in enumerate(streams)]
    first, *others = (one.flat_map(lambda record: [record]) for one in sources) if transformed else sources
    result: list[Any] = []

    class CountKeys(Count):
        def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
            self.times.update(self.times.value() + 1)
            yield context.current_key, self.times.value()

    first.union(*others).key_by("v").process(CountKeys(), uid="u", schema="v bigint, times int").sink_to(result)
    environment.execute()
    return [tuple(row) for row in result]


INT, BIGINT = ([{"v": 1}], "v int"), ([{"v": 1}, {"v": 1 << 40}], "v bigint")


@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("streams", [(INT, BIGINT), (BIGINT, INT)])
def test_the_keys_of_a_union_are_of_the_wider_type_in_either_order(streams: Any, transformed: bool) -> None:
    counted = counted_in_union(*streams, transformed=transformed)
    assert sorted(counted) == [(1, 1), (1, 2), (1 << 40, 1)]


@pytest.mark.parametrize("order", [1, -1])
def test_records_without_a_schema_are_checked_against_that_of_the_union(order: int) -> None:
    typed = ([{"v": 1}], "v bigint")
    assert counted_in_union(*(typed, ([{"v": 1}], None))[::order]) == [(1, 1), (1, 2)]
    with pytest.raises(RowMismatchError, match=r"^union\(\): column 'v' \(bigint\) cannot hold True"):
        counted_in_union(*(typed, ([{"v": True}], None))[::order])
    with pytest.raises(RowMismatchError, match=r"^union\(\): .*the row: \{'v': 1, 'w': 2\}"):
        counted_in_union(*(typed, ([{"v": 1, "w": 2}], None))[::order])


def test_true_is_not_the_key_1_where_no_schema_distinguishes_them() -> None:
    with pytest.raises(
        KeyHashError, match=r"operator 'u': key column 0 is of type bigint, which cannot hold a value of type bool"
    ):
        counted_in_union(([{"v": 1}], None), ([{"v": True}], None))


@pytest.mark.parametrize(("declared", "wrong"), [(bool, 1), (int, True)])
def test_true_is_not_the_key_1_where_key_type_distinguishes_them(declared: Any, wrong: Any) -> None:
    environment = LocalStreamEnvironment()
    keyed = environment.from_elements([{"v": wrong}]).key_by(lambda record: record["v"], key_type=declared)
    keyed.process(Count(), uid="counts", schema=SEEN).sink_to([])
    with pytest.raises(
        KeyHashError, match=rf"cannot hold a value of type {type(wrong).__name__}\. Schema and key_type decide"
    ):
        environment.execute()


def test_an_invalid_row_of_a_side_output_names_it(tmp_path: Path) -> None:
    class Wrong(Count):
        def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
            context.output(ODD, {"key": 1, "number": 1})
            return iter(())

    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    stream = environment.from_elements(records("a1")).key_by("key").process(Wrong(), uid="A", schema=SEEN)
    stream.get_side_output(ODD).sink_to([])
    with pytest.raises(RowMismatchError, match=r"^operator 'A', side output 'odd': column 'key'"):
        environment.execute()


def keyed_by(job_dir: Path, key: Any, elements: list[Any], schema: str | None, via: Any = None) -> list[Any]:
    """Count by a key, in a job directory whose state may have another key type."""
    environment = LocalStreamEnvironment(job_dir=job_dir, max_parallelism=8)
    stream = environment.from_elements(elements, schema)
    stream = stream if via is None else stream.flat_map(via)
    result: list[Any] = []
    stream.key_by(key).process(Count(), uid="u", schema=SEEN).sink_to(result)
    environment.execute()
    environment.close()
    return result


DECLARED = "key string, number int"


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("key", "schema"),
    [
        ("number", DECLARED),
        (lambda record: record.number, DECLARED),
        (lambda record: record["number"], None),
    ],
)
def test_other_key_types_are_rejected_before_the_directory_is_locked(
    tmp_path: Path, key: Any, schema: str | None
) -> None:
    keyed_by(tmp_path / "job", "key", records("a1"), DECLARED)
    before = files_in(tmp_path / "job")
    with pytest.raises(StateMigrationException, match=r"operator 'u': its state is incompatible; nothing was changed:"):
        keyed_by(tmp_path / "job", key, records("a1"), schema)
    assert files_in(tmp_path / "job") == before


def test_key_types_known_from_records_only_are_rejected_without_claiming_that_nothing_changed(tmp_path: Path) -> None:
    keyed_by(tmp_path / "job", "key", records("a1"), DECLARED)
    with pytest.raises(
        StateMigrationException, match="a record gave the types of its keys only after the start"
    ) as rejection:
        keyed_by(tmp_path / "job", "other", records("a1"), DECLARED, via=lambda row: [{"other": 5, **row.asDict()}])
    assert "nothing was changed" not in str(rejection.value)
    assert [row.times for row in keyed_by(tmp_path / "job", "key", records("a1"), DECLARED)] == [2]
