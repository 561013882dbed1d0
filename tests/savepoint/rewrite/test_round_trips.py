"""From a job to a savepoint, to entries or a copy, and back to a job: the state equals a model of dicts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ReducingStateDescriptor,
    RuntimeContext,
    Savepoint,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.rewrite import Plan, SavepointWriter

pytestmark = pytest.mark.slow

LAST = ValueStateDescriptor("last", int)
EVERY = ListStateDescriptor("every", int)
COUNTS = MapStateDescriptor("counts", int, int)
LARGEST = ReducingStateDescriptor("largest", max, int)
STATES = (LAST, EVERY, COUNTS, LARGEST)

Model = dict[str, tuple[int, list[int], dict[int, int], int]]


class KeepAll(KeyedProcessFunction[str, Any, Any]):
    """Stores the numbers of each key in every kind of state, and emits all of it at each record."""

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(LAST)
        self.every = context.get_list_state(EVERY)
        self.counts = context.get_map_state(COUNTS)
        self.largest = context.get_reducing_state(LARGEST)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        number = value["n"]
        self.last.update(number)
        self.every.add(number)
        self.counts.put(number, (self.counts.get(number) or 0) + 1)
        self.largest.add(number)
        content = (number, self.every.get(), sorted(self.counts.items()), self.largest.get())
        yield {"k": value["k"], "content": repr(content)}


def run(
    records: list[tuple[str, int]], into: Path | None, start: Path | None, backend: str, parallelism: int, groups: int
) -> dict[str, str]:
    """The last output of each key. With ``into``, the run also takes a savepoint."""
    environment = LocalStreamEnvironment(backend=backend, parallelism=parallelism, max_parallelism=groups, epoch_size=5)
    content: list[Any] = []
    elements = [{"k": key, "n": number} for key, number in records]
    environment.from_elements(elements, schema="k string, n bigint").key_by("k").process(
        KeepAll(), uid="all", schema="k string, content string"
    ).sink_to(content)
    job = environment.execute("job", from_savepoint=start)
    if into is not None:
        job.savepoint(into)
    return {row["k"]: row["content"] for row in content}


def modelled(records: list[tuple[str, int]]) -> dict[str, str]:
    model: Model = {}
    for key, number in records:
        _, every, counts, largest = model.get(key, (0, [], {}, number))
        counts = {**counts, number: counts.get(number, 0) + 1}
        model[key] = (number, [*every, number], counts, max(largest, number))
    return {
        key: repr((last, every, sorted(counts.items()), largest))
        for key, (last, every, counts, largest) in model.items()
    }


def of_entries(source: Path, groups: int, target: Path) -> None:
    """Write a savepoint of all entries of another one, read one by one."""
    savepoint = Savepoint.open(source)
    plan = Plan().add_operator("all", "string")
    for descriptor in STATES:
        plan.add_state("all", descriptor, savepoint.read("all", descriptor.name))
    SavepointWriter.new(target, max_parallelism=groups).write(plan)


RECORDS = st.lists(st.tuples(st.sampled_from(["", "a", "b", "ä", "key"]), st.integers(-2, 2)), min_size=1, max_size=25)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    records=RECORDS,
    backends=st.tuples(*[st.sampled_from(["heap", "rocksdb"])] * 2),
    parallelism=st.tuples(*[st.integers(1, 3)] * 2),
    groups=st.tuples(st.sampled_from([3, 128]), st.sampled_from([3, 7, 1000])),
    by_entries=st.booleans(),
)
def test_state_round_trips(
    records: list[tuple[str, int]],
    backends: tuple[str, str],
    parallelism: tuple[int, int],
    groups: tuple[int, int],
    by_entries: bool,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        first, second = Path(directory, "first"), Path(directory, "second")
        run(records, first, None, backends[0], parallelism[0], groups[0])
        if by_entries:
            of_entries(first, groups[1], second)
        else:
            SavepointWriter.copy_of(first, second).write(Plan().change_max_parallelism(groups[1]))
        again = [(key, 3) for key in dict.fromkeys(key for key, _ in records)]
        content = run(again, None, second, backends[1], parallelism[1], groups[1])
        assert content == modelled(records + again)
