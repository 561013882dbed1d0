"""Runs a plan on the local runtime, and compares every output with the model."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from statebackend import DataStream, StateBackend, WatermarkStrategy
from statebackend.local import LocalStreamEnvironment
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness
from verification.simulation.graphs.functions import SCHEMA, with_times
from verification.simulation.graphs.model import END, GraphModel, Output
from verification.simulation.graphs.plan import Event, GraphPlan, Stream
from verification.simulation.graphs.program import outputs, write_program
from verification.simulation.violation import require_that

__all__ = [
    "BOUND_MS",
    "batches_of",
    "compare",
    "expected_batches",
    "plain_row",
    "read_elements",
    "run_graph",
    "sent_record",
]

BOUND_MS: Final = 4
BACKENDS: Final[Mapping[str, Callable[[], StateBackend]]] = {"heap": HeapStateBackend, "rocksdb": RocksDBStateBackend}


def run_graph(plan: GraphPlan) -> None:
    """Run a plan. Raises `Violation` if an output differs from the model."""
    with tempfile.TemporaryDirectory() as directory:
        if plan.is_batched:
            _run_batches(plan, Path(directory))
        else:
            _run_events(plan, Path(directory))


def batches_of(plan: GraphPlan) -> list[tuple[Event | None, list[Event]]]:
    """Return the batches of a plan, each with the cut before it."""
    batches: list[tuple[Event | None, list[Event]]] = [(None, [])]
    for event in plan.events:
        if event.kind == "cut":
            batches.append((event, []))
        else:
            batches[-1][1].append(event)
    return batches


def expected_batches(plan: GraphPlan, *, drains: bool = True) -> list[list[Output]]:
    """Return the expected output of each batch; the last one ends with the maximum watermark."""
    model, largest = GraphModel(plan), dict[int, int]()
    # The runtime reads broadcast sources first, each to its end.
    rules = {node.inputs[1][0] for node in plan.nodes if node.kind == "broadcast"}
    sources = [index for index, node in enumerate(plan.nodes) if node.kind == "source"]
    sources.sort(key=lambda source: source not in rules)
    expected = []
    for _, events in batches_of(plan):
        emitted: list[Output] = []
        for event in sorted(events, key=lambda one: sources.index(one.source)):
            emitted += model.record(event.source, _row(event), event.record[2])
            largest[event.source] = max(largest.get(event.source, event.record[2]), event.record[2])
        for source in sources:
            if source in largest:
                emitted += model.watermark(source, largest[source] - BOUND_MS - 1)
        expected.append(emitted)
    if drains:
        for source in sources:
            expected[-1] += model.watermark(source, END)
    return expected


def compare(
    plan: GraphPlan, expected: Sequence[Output], seen: Counter[Any], what: str, *, has_times: bool = True
) -> None:
    """Raise `Violation` if the outputs differ from the model."""
    shown = set(outputs(plan))
    wanted = Counter(
        (stream, row, time) if has_times else (stream, row) for stream, row, time in expected if stream in shown
    )
    missing, surplus = wanted - seen, seen - wanted
    require_that(
        not missing and not surplus,
        f"every output is that of the model: {what}: missing {_listed(missing)}, surplus {_listed(surplus)}",
    )


def _listed(counter: Counter[Any]) -> list[Any]:
    return sorted(counter.elements(), key=repr)[:6]


def _row(event: Event) -> tuple[int, int, int, tuple[int, ...]]:
    return (*event.record, (event.record[1],))


def sent_record(event: Event) -> tuple[Any, ...]:
    """Return the record of an event as a source sends it."""
    return with_times((*event.record, [event.record[1]]))


def plain_row(row: Any) -> tuple[Any, ...]:
    """Return an emitted row in the form of the model."""
    k, v, t, l, *_ = row  # noqa: E741
    require_that(tuple(row) == with_times((k, v, t, l)), f"a time or an interval was changed: {row}")
    return k, v, t, tuple(l)


def _name(stream: Stream) -> str:
    return f"{stream[0]}-{stream[1]}"


def _run_events(plan: GraphPlan, directory: Path) -> None:
    model, streams = GraphModel(plan), {_name(stream): stream for stream in outputs(plan)}
    sources = [index for index, node in enumerate(plan.nodes) if node.kind == "source"]

    def build(job: HarnessJob) -> None:
        write_program(
            plan, lambda index: job.source(f"{index}", SCHEMA), lambda stream, read: job.output(_name(stream), read)
        )

    harness = JobTestHarness(build, parallelism=plan.parallelism, backend=BACKENDS[plan.backend]())
    expected: list[Output]
    try:
        clock = 0
        known = {f"{index}" for index in _read_sources(plan)}
        for place, event in enumerate([*plan.events, *(Event("end", source) for source in sources)]):
            if event.kind == "cut":
                path = harness.snapshot(directory / f"{place}")
                # A processing-time timer that was due at its registration fires at the start of the next epoch, both in
                # the job that continues and in the restored one.
                expected = model.clock(clock)
                compare(plan, expected, _taken(harness, streams), f"before cut {place}")
                harness.close()
                harness = JobTestHarness(
                    build,
                    parallelism=event.parallelism,
                    backend=BACKENDS[event.backend](),
                    seed=event.seed,
                    from_snapshot=path,
                    processing_time_ms=clock,
                )
                compare(plan, expected, _taken(harness, streams), f"after cut {place}")
                continue
            expected = []
            is_read = f"{event.source}" in known
            if event.kind == "record":
                if is_read:
                    harness.source(f"{event.source}").send(sent_record(event), event.record[2])
                expected = model.record(event.source, _row(event), event.record[2])
            elif event.kind == "clock":
                clock = event.time
                harness.advance_processing_time(clock)
                expected = model.clock(clock)
            elif event.kind == "watermark":
                if is_read:
                    harness.source(f"{event.source}").watermark(event.time)
                expected = model.watermark(event.source, event.time)
            else:
                if is_read:
                    harness.source(f"{event.source}").end()
                expected = model.watermark(event.source, END)
            compare(plan, expected, _taken(harness, streams), f"event {place}, {event.kind}")
    finally:
        harness.close()


def _read_sources(plan: GraphPlan) -> set[int]:
    """The sources that an output depends on; the harness has no others."""
    read: set[int] = set()
    waiting = [number for number, _ in outputs(plan)]
    while waiting:
        number = waiting.pop()
        if number not in read:
            read.add(number)
            waiting += [before for before, _ in plan.nodes[number].inputs]
    return {number for number in read if plan.nodes[number].kind == "source"}


def _taken(harness: JobTestHarness, streams: dict[str, Stream]) -> Counter[Any]:
    taken = [one for one in harness.taken() if isinstance(one, Emitted)]
    return Counter((streams[one.output], plain_row(one.record), one.timestamp_ms) for one in taken)


def _run_batches(plan: GraphPlan, directory: Path) -> None:
    parallelism, backend, savepoint = plan.parallelism, plan.backend, None
    job_dir = directory / "job-0"
    batches, read = batches_of(plan), _read_sources(plan)
    for number, ((cut, events), expected) in enumerate(zip(batches, expected_batches(plan), strict=True)):
        if cut is not None:
            parallelism = cut.parallelism
            # With the same backend, the job continues from the checkpoint of its directory. Otherwise it starts from a
            # savepoint.
            if cut.backend != backend:
                backend, job_dir = cut.backend, directory / f"job-{number}"
                path = directory / f"savepoint-{number}"
                savepoint = str(path) if path.exists() else None
        seen: dict[Stream, list[Any]] = {}
        environment = LocalStreamEnvironment(job_dir=job_dir, backend=BACKENDS[backend](), parallelism=parallelism)
        write_program(plan, partial(read_elements, environment, events), partial(_sink, seen))
        job = environment.execute("graph", from_savepoint=savepoint, drain=number == len(batches) - 1)
        if number + 1 < len(batches):
            following = batches[number + 1][0]
            # A job that has processed nothing rejects a savepoint.
            has_processed = any(event.source in read for _, batch in batches[: number + 1] for event in batch)
            if following is not None and following.backend != backend and has_processed:
                job.savepoint(directory / f"savepoint-{number + 1}")
        environment.close()
        counted = Counter((stream, plain_row(row)) for stream, rows in seen.items() for row in rows)
        compare(plan, expected, counted, f"batch {number}", has_times=False)


def read_elements(environment: LocalStreamEnvironment, events: Sequence[Event], index: int) -> DataStream:
    """Return the records of a source in a batch, as a stream with timestamps."""
    rows = [sent_record(event) for event in events if event.source == index]
    strategy: WatermarkStrategy[Any] = WatermarkStrategy.for_bounded_out_of_orderness(BOUND_MS)
    stream = environment.from_elements(rows, SCHEMA, uid=f"source-{index}")
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamps("t"))


def _sink(seen: dict[Stream, list[Any]], stream: Stream, read: DataStream) -> None:
    read.sink_to(seen.setdefault(stream, []), uid=_name(stream))
