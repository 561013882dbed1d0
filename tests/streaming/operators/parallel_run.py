"""One operator in several subtasks, which can be rescaled and moved to another backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hypothesis import strategies as st

from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.streaming.operators.operator import Operator
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import EmittedRow, OperatorTestHarness

BACKENDS = {"heap": HeapStateBackend(), "rocksdb": RocksDBStateBackend()}

KEYS = ["a", "b", "c"]

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 1), st.sampled_from(KEYS), st.integers(0, 3), st.integers(-20, 40)),
        st.tuples(st.just("watermark"), st.integers(-25, 45)),
        st.tuples(st.just("cut")),
        st.tuples(st.just("restart"), st.sampled_from(sorted(BACKENDS)), st.integers(1, 3)),
    ),
    max_size=40,
)
"""Records (input, key, value, timestamp), watermarks, batch ends, and restarts with a backend and a parallelism."""


class Model(Protocol):
    """What an operator of two inputs should do, in plain Python."""

    def record(self, input_index: int, key: str, value: int, time: int) -> None: ...

    def advance(self, watermark: int) -> None: ...


class ParallelRun:
    """Records go to the subtask of their key, watermarks to all; ``make`` creates the operator of a subtask."""

    def __init__(self, harness: BackendHarness, make: Callable[[], Operator], **given: Any) -> None:
        self._harness = harness
        self._make = make
        self._given = given
        self._runs: list[OperatorTestHarness] = []
        self.watermark_ms = MIN_TIMESTAMP

    def start(self, state_backend: Any, parallelism: int) -> None:
        """Reopen the subtasks from a canonical savepoint of the previous ones."""
        handles = []
        for number, run in enumerate(self._runs):
            run.operator.prepare_snapshot()
            self._harness.snapshot(run.backend)
            handles.append(self._harness.export(run.backend, f"part-{number}"))
            run.operator.close()
        self._harness.close([run.backend for run in self._runs])
        self._runs = [
            OperatorTestHarness(
                self._harness,
                state_backend,
                self._make(),
                *handles,
                watermark=self.watermark_ms,
                subtask=subtask,
                parallelism=parallelism,
                **self._given,
            )
            for subtask in range(parallelism)
        ]

    def play(self, events: Iterable[Any], model: Model) -> list[EmittedRow]:
        """Play events until the end of time, also on the model; returns the output."""
        emitted: list[EmittedRow] = []
        batch: list[Any] = []
        batch_input = 0
        for kind, *what in [*events, ("watermark", MAX_TIMESTAMP)]:
            if batch and (kind != "record" or what[0] != batch_input):
                self.records(*batch, input_index=batch_input)
                batch = []
            if kind == "record":
                batch_input, *record = what
                batch.append(tuple(record))
                model.record(*what)
            elif kind == "watermark":
                self.watermark(what[0])
                model.advance(what[0])
            elif kind == "restart":
                emitted += self.taken()
                self.start(BACKENDS[what[0]], what[1])
        return emitted + self.taken()

    def records(self, *records: tuple[Any, Any, int | None], input_index: int = 0) -> None:
        """Records as (key, record, timestamp), in a batch for each subtask."""
        for subtask, run in enumerate(self._runs):
            groups = key_group_range_of_subtask(subtask, len(self._runs), self._harness.max_parallelism)
            own = [one for one in records if self._harness.key_group(one[0]) in groups]
            if own:
                run.records(*own, input_index=input_index)

    def watermark(self, watermark: int) -> None:
        """A watermark, which is dropped unless it advances."""
        self.watermark_ms = max(watermark, self.watermark_ms)
        for run in self._runs:
            run.watermark(watermark)
            run.operator.prepare_snapshot()

    def taken(self) -> list[EmittedRow]:
        """The output since the last call."""
        emitted = [one for run in self._runs for one in run.emitted]
        for run in self._runs:
            run.emitted.clear()
        return emitted

    def entries(self) -> list[dict[str, int]]:
        """The state entries of each subtask."""
        return [run.entries() for run in self._runs]
