"""Rows on the heap for bulk access: the same digests, files and entries as objects, in every interleaving."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from heap_subtask import HEAP, HeapSubtask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statebackend.state.heap.row_table import ValueRowTable
from statebackend.state.key_batch import KeyBatch
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.ttl import kept_rows
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.harness import BackendHarness, ManualClock
from typeserializers import LongSerializer, StringSerializer
from typeserializers.scalars.void import VOID_NAMESPACE

pytestmark = pytest.mark.slow

FORMS = {
    "plain": (ValueStateDescriptor("value", str), VOID_NAMESPACE_SERIALIZER, [VOID_NAMESPACE]),
    "expiring": (
        ValueStateDescriptor("value", str, ttl=StateTtlConfig("1 minute")),
        VOID_NAMESPACE_SERIALIZER,
        [VOID_NAMESPACE],
    ),
    "mutable": (ValueStateDescriptor("value", list[int]), VOID_NAMESPACE_SERIALIZER, [VOID_NAMESPACE]),
    "namespaces": (ValueStateDescriptor("value", str), LongSerializer(), [1, 2]),
    "namespaces of any length": (ValueStateDescriptor("value", str), StringSerializer(), ["", "ab"]),
}
KEYS = st.integers(0, 5)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3)), max_size=6)
STEPS = st.lists(
    st.tuples(st.just("write"), CHANGES, st.integers(0, 1))
    | st.sampled_from([(name,) for name in ("freeze", "run", "cancel", "keep", "restore", "pass time")]),
    max_size=14,
)


class Subtask(HeapSubtask):
    """A heap backend with one state, and its running snapshots. ``is_bulk`` may differ in each epoch."""

    def __init__(self, directory: Path, form: str, is_bulk: bool) -> None:
        self.descriptor, self.namespace_serializer, self.namespaces = FORMS[form]
        self.harness = BackendHarness(str(directory))
        self.clock = self.harness.clock = ManualClock()
        self.tasks: list[Any] = []
        self.results: list[Any] = []
        super().__init__(self.harness.open(HEAP))
        self.register(is_bulk)

    def register(self, is_bulk: bool) -> None:
        if is_bulk:
            self.backend.access_in_bulk()
        self.state: Any = self.backend.get_or_create_keyed_state(self.namespace_serializer, self.descriptor)

    def step(self, name: str, changes: Any = (), place: int = 0, *, is_bulk: bool) -> None:
        if name == "write":
            self.write(changes, self.namespaces[place % len(self.namespaces)])
        elif name == "pass time":
            self.clock.now_ms += 45_000
        elif name == "freeze":
            self.tasks.append(self.harness.prepare(self.backend))
        elif name == "run" and self.tasks:
            self.note(self.tasks.pop(0).run())
        elif name == "cancel" and self.tasks:
            self.tasks.pop(0).cancel()
        elif name in ("keep", "restore"):
            while self.tasks:
                self.step("run", is_bulk=is_bulk)
            snapshot = self.harness.snapshot(self.backend)
            self.note(snapshot)
            if name == "keep":
                self.release_states()
            else:
                super().__init__(self.harness.open(HEAP, snapshot.handle))
            self.register(is_bulk)

    def write(self, changes: Any, namespace: Any) -> None:
        self.state.set_current_namespace(namespace)
        is_list = not self.descriptor.serializer.is_immutable_type
        values = [None if size is None else [size] * size if is_list else "x" * size for _, size in changes]
        keys = [key for key, _ in changes]
        batch = KeyBatch(keys, list(map(self.harness.key_group, keys)), self.backend.key_setter())
        if len(changes) > 1:
            self.state.put_many(batch, values)
        else:
            for _, value in zip(batch.each(), values, strict=True):
                self.state.update(value)
        self.results += [self.state.get_many(batch), [self.state.value() for _ in batch.each()]]

    def note(self, snapshot: Any) -> None:
        self.results.append((snapshot.digest, snapshot.entries_written))
        with contextlib.closing(self.harness.open(HEAP, snapshot.handle)) as restored:
            self.results.append(list(restored.export_state("value")))


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("form", FORMS)
@given(steps=STEPS)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_have_the_digests_and_entries_of_objects(
    tmp_path_factory: pytest.TempPathFactory, form: str, steps: Any
) -> None:
    directory, is_bulk = tmp_path_factory.mktemp("rows"), True
    objects, rows = Subtask(directory / "objects", form, False), Subtask(directory / "rows", form, True)
    for step in [*steps, ("keep",)]:
        if step[0] in ("keep", "restore"):
            is_bulk = not is_bulk
        objects.step(*step, is_bulk=False)
        rows.step(*step, is_bulk=is_bulk)
        has_rows = isinstance(rows.entries("value"), ValueRowTable)
        assert has_rows == (is_bulk and form != "namespaces of any length")
    assert objects.results == rows.results
    for subtask in (objects, rows):
        subtask.harness.close()


def test_a_whole_snapshot_has_the_frozen_rows_that_the_filter_keeps(tmp_path: Path) -> None:
    subtask = Subtask(tmp_path, "namespaces", is_bulk=True)
    subtask.write([(key, key) for key in range(20)], 1)
    subtask.write([(key, 3) for key in range(10)], 2)
    table: Any = subtask.entries("value")
    frozen = table.freeze()
    subtask.write([(key, None if key % 2 else 7) for key in range(30)], 1)

    def row_filter(row: bytes) -> bytes | None:
        return None if len(row) == 4 else row[:5]

    written = [row for batch in table.batches_at(frozen, row_filter) for row in zip(*batch, strict=True)]
    assert written == list(kept_rows(row_filter, table.rows_at(frozen)))
    assert len(written) == 19
    subtask.harness.close()


def test_a_snapshot_in_bulk_encodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subtask = Subtask(tmp_path, "plain", is_bulk=True)
    subtask.step("write", [(1, 1), (2, 2)], is_bulk=True)
    monkeypatch.setattr(StringSerializer, "codec", property(lambda _: pytest.fail("a value was encoded")))
    assert subtask.harness.snapshot(subtask.backend).entries_written == 2
    subtask.harness.close()
