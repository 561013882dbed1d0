"""In a fork of the local runtime, a reader that modifies its record changes no record of another reader.

On Spark each reader has its own objects. The elements that a program provides stay unchanged.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import pytest

from statebackend import (
    FUTURE_RECORDS,
    BroadcastStateDescriptor,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    StreamJobError,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.stream_graph import SplitRead
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness

TAGGED = "k string, tags array<string>"
SIDE: OutputTag[Any] = OutputTag("side", TAGGED)
RULES = BroadcastStateDescriptor("rules", str, int)


@attrs.define
class Tagged:
    k: str
    tags: list[str]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


ELEMENTS: dict[str, Callable[[], list[Any]]] = {
    "dicts": lambda: [{"k": "a", "tags": ["first"]}, {"k": "b", "tags": []}],
    "objects": lambda: [Tagged("a", ["first"]), Tagged("b", [])],
}
EXPECTED = [("a", ["first", "{}"]), ("b", ["{}"])]


class Adds(KeyedProcessFunction[Any, Any, Any]):
    """Appends a tag to the list of each record, and emits it."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        value["tags"].append(self.tag)
        context.output(SIDE, (value["k"], value["tags"]))
        yield value["k"], value["tags"]


def adds(stream: DataStream, tag: str) -> Any:
    return stream.key_by(lambda record: record["k"]).process(Adds(tag), uid=tag, schema=TAGGED)


def with_tag(tag: str) -> list[tuple[str, list[str]]]:
    return [(k, [one.format(tag) for one in tags]) for k, tags in EXPECTED]


def sorted_rows(rows: Iterable[Any]) -> list[tuple[str, list[str]]]:
    return sorted((row["k"], list(row["tags"])) for row in rows)


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("epoch_size", [None, 1])
def test_each_operator_has_its_own_records(kind: str, epoch_size: int | None) -> None:
    elements, sinks = ELEMENTS[kind](), [list[Any](), list[Any](), list[Any]()]
    environment = LocalStreamEnvironment(epoch_size=epoch_size)
    stream = environment.from_elements(elements)
    for tag, sink in zip(("x", "y", "z"), sinks, strict=True):
        adds(stream, tag).sink_to(sink, uid=tag)
    environment.execute()
    assert [sorted_rows(sink) for sink in sinks] == [with_tag("x"), with_tag("y"), with_tag("z")]
    assert elements == ELEMENTS[kind]()


def test_operators_after_an_operator_have_their_own_records() -> None:
    sinks: list[list[Any]] = [[], [], [], []]
    environment = LocalStreamEnvironment()
    first = adds(environment.from_elements(ELEMENTS["dicts"]()), "x")
    for tag, stream, sink in zip("yzvw", [first, first, *[first.get_side_output(SIDE)] * 2], sinks, strict=True):
        adds(stream, tag).sink_to(sink, uid=f"sink {tag}")
    environment.execute()
    assert [[row[1][-2:] for row in sorted_rows(sink)] for sink in sinks] == [[["x", tag]] * 2 for tag in "yzvw"]


def test_each_sink_has_its_own_rows() -> None:
    changed: list[Any] = []
    kept: list[Any] = []

    def change(row: Any) -> None:
        row.tags.clear()
        changed.append(row)

    environment = LocalStreamEnvironment()
    stream = adds(environment.from_elements(ELEMENTS["dicts"]()), "x")
    stream.sink_to(change, uid="changes")
    stream.sink_to(kept, uid="keeps")
    environment.execute()
    assert sorted_rows(changed) == [("a", []), ("b", [])]
    assert sorted_rows(kept) == with_tag("x")


def test_a_stateless_step_changes_nothing_for_another_reader() -> None:
    sinks: list[list[Any]] = [[], []]

    def clear(record: Any) -> list[Any]:
        record["tags"].clear()
        return [record]

    environment = LocalStreamEnvironment()
    stream = environment.from_elements(ELEMENTS["dicts"]())
    adds(stream.flat_map(clear), "x").sink_to(sinks[0], uid="cleared")
    adds(stream, "y").sink_to(sinks[1], uid="kept")
    environment.execute()
    assert [sorted_rows(sink) for sink in sinks] == [[("a", ["x"]), ("b", ["x"])], with_tag("y")]


def test_a_repeated_record_is_two_records() -> None:
    sinks: list[list[Any]] = [[], []]
    environment = LocalStreamEnvironment()
    stream = environment.from_elements(ELEMENTS["dicts"]())
    adds(stream.union(stream), "x").sink_to(sinks[0], uid="union")
    adds(stream.flat_map(lambda record: [record, record]), "y").sink_to(sinks[1], uid="step")
    environment.execute()
    assert [sorted_rows(sink) for sink in sinks] == [sorted(with_tag("x") * 2), sorted(with_tag("y") * 2)]


def test_each_broadcast_copy_belongs_to_its_subtask() -> None:
    class Rules(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
        def process_element(self, value: Any, context: Any) -> None: ...

        def process_broadcast_element(self, value: Any, context: Any) -> Iterable[Any]:
            value["tags"].append("rule")
            yield value["k"], value["tags"]

    rows: list[Any] = []
    environment = LocalStreamEnvironment(parallelism=3)
    keyed = environment.from_elements(ELEMENTS["dicts"](), uid="records").key_by(lambda record: record["k"])
    rules = environment.from_elements([{"k": "r", "tags": []}], uid="broadcast").broadcast(RULES)
    keyed.connect(rules).process(Rules(), uid="rules", schema=TAGGED).sink_to(rows)
    environment.execute()
    assert sorted_rows(rows) == [("r", ["rule"])] * 3


def test_readers_after_timestamps_have_their_own_records() -> None:
    sinks: list[list[Any]] = [[], []]
    environment = LocalStreamEnvironment(clock=lambda: 0)
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_future_limit("1 hour", FUTURE_RECORDS)
    stream = environment.from_elements(ELEMENTS["dicts"]()).assign_timestamps_and_watermarks(
        strategy.with_timestamps(lambda record: 0)
    )
    for tag, sink in zip("xy", sinks, strict=True):
        adds(stream, tag).sink_to(sink, uid=tag)
    environment.execute()
    assert [sorted_rows(sink) for sink in sinks] == [with_tag("x"), with_tag("y")]


class Reusing:
    """A source that reuses one record object."""

    def __init__(self) -> None:
        self.record: dict[str, Any] = {"k": "", "tags": []}

    def splits(self) -> Mapping[str, int]:
        return {"only": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        if position == 2:
            return SplitRead((), position, is_at_end=True)
        self.record["k"] = "ab"[position]
        self.record["tags"][:] = ["first"] if position == 0 else []
        return SplitRead([self.record], position + 1)


@pytest.mark.parametrize("interval_ms", [None, 10_000])
def test_a_replayable_source_may_reuse_its_objects(interval_ms: int | None) -> None:
    rows: list[Any] = []
    source = Reusing()
    environment = LocalStreamEnvironment(checkpoint_interval=interval_ms)
    adds(environment.from_source(source, uid="source"), "x").sink_to(rows)
    environment.execute()
    assert sorted_rows(rows) == with_tag("x")
    assert source.record == {"k": "b", "tags": []}


def test_a_record_sent_by_a_test_stays_unchanged() -> None:
    def build(job: HarnessJob) -> None:
        job.output("rows", adds(job.source("source"), "x"))

    record = ELEMENTS["dicts"]()[0]
    before = copy.deepcopy(record)
    with JobTestHarness(build) as harness:
        harness.source("source").send(record)
        [row] = [one.record for one in harness.taken() if isinstance(one, Emitted)]
    assert record == before
    assert list(row.tags) == ["first", "x"]


def test_a_record_that_cannot_be_copied_is_named() -> None:
    environment = LocalStreamEnvironment()
    adds(environment.from_elements([{"k": "a", "tags": [threading.Lock()]}]), "x").sink_to([])
    with pytest.raises(StreamJobError, match=r"source 'source', record \{'k': 'a'.*cannot be copied.*__deepcopy__"):
        environment.execute()


def test_immutable_records_are_not_copied() -> None:
    @attrs.frozen
    class Frozen:
        k: str
        number: int

    seen: list[Any] = []

    class Sees(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, context: Any) -> None:
            seen.append(value)

    for elements in ([Frozen("a", 1)], [("a", 1, None)], ["a"]):
        seen.clear()
        environment = LocalStreamEnvironment()
        stream = environment.from_elements(elements)
        for name in ("one", "other"):
            keyed = stream.key_by(lambda record: record.k if isinstance(record, Frozen) else record[0])
            keyed.process(Sees(), uid=name, schema="n int").sink_to([], uid=name)
        environment.execute()
        assert len(seen) == 2
        assert seen[0] is seen[1] is elements[0]
