"""Savepoints that Flink writes are read, and Flink restores exported ones: ``make test-flink``.

``FLINK_LIB`` is the directory of Flink's jars, as in the package apache-flink-libraries. Without it the tests are
skipped. They need a JDK.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import shutil

import pytest
from attrs import evolve
from golden_savepoints import FLINK_LIBRARIES, run_engine

from snapshots.errors import UnresolvableSerializerError
from statebackend import (
    BroadcastStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SplitListStateDescriptor,
    StateTtlConfig,
    UnionListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.savepoint.foreign.flink_import import without_sources
from statebackend.savepoint.foreign.flink_metadata import operator_id_of
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.flink_writer import write_flink_savepoint
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_location import find_state
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.state.clock import wall_clock
from typeserializers import TimeWindow, TimeWindowSerializer

pytestmark = pytest.mark.skipif(not FLINK_LIBRARIES, reason="FLINK_LIB is not set")

RESTORING = pathlib.Path(__file__).with_name("RestoreCase.java")
SOURCE = pathlib.Path(__file__).with_name("SavepointCase.java")
VALUES = [*range(500), *range(50001, 50500)]
"""The numbers that the two subtasks of the source send before they slow down."""

HEAP_TIMERS = "state.backend.rocksdb.timer-service.factory=HEAP"
CASES = {
    "hashmap": (128, ["state.backend.type=hashmap"]),
    "hashmap compressed": (4096, ["state.backend.type=hashmap", "execution.checkpointing.snapshot-compression=true"]),
    "rocksdb": (128, ["state.backend.type=rocksdb"]),
    "rocksdb heap timers": (128, ["state.backend.type=rocksdb", HEAP_TIMERS]),
    "rocksdb incremental": (
        4096,
        [
            "state.backend.type=rocksdb",
            "execution.checkpointing.incremental=true",
            "execution.checkpointing.snapshot-compression=true",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_state_of_the_engine_is_the_state_of_the_model(case: str, tmp_path: pathlib.Path) -> None:
    max_parallelism, options = CASES[case]
    run_engine(SOURCE, tmp_path / "state", max_parallelism, *options, classes=tmp_path)
    for form in ("CANONICAL", "NATIVE"):
        [place] = (tmp_path / "state" / form).iterdir()
        # Flink does not write heap timers into native savepoints of RocksDB.
        check(Savepoint.open(place), has_timers=(case, form) != ("rocksdb heap timers", "NATIVE"))
    # A retained checkpoint contains absolute paths, but the directory may be moved as a whole.
    moved = shutil.move(tmp_path / "state" / "checkpoints", tmp_path / "elsewhere")
    # Flink may leave parts of a checkpoint that was in progress when the job was cancelled.
    complete = pathlib.Path(moved).glob("*/chk-*/_metadata")
    check(Savepoint.open(max((one.parent for one in complete), key=lambda one: int(one.name.removeprefix("chk-")))))


def check(savepoint: Savepoint, *, has_timers: bool = True) -> None:
    keys = {f"key-{value % 100}" for value in VALUES}
    of_key = {key: [value for value in VALUES if f"key-{value % 100}" == key] for key in keys}
    read = savepoint.read
    assert {entry.key: entry.value for entry in read("counting", "count")} == {
        key: len(values) for key, values in of_key.items()
    }
    assert {entry.key: sorted(entry.value) for entry in read("counting", "list")} == of_key
    assert sorted((entry.key, entry.user_key, entry.value) for entry in read("counting", "map")) == sorted(
        (f"key-{value % 100}", f"m{value}", value) for value in VALUES
    )
    if has_timers:
        timers = read("counting", "_timer_state/event_user-timers")
        assert sorted(timer.value for timer in timers) == [1_000_000_000 + value for value in VALUES]
    with pytest.raises(UnresolvableSerializerError, match="Opaque with Kryo"):
        list(read("counting", "opaque"))
    assert len(list(savepoint.read_operator_state("numbers", "SourceReaderState"))) > 0


KEYS = ["", "K\u00f6ln \u2713 \U0001f600", *(f"key-{number}" for number in range(300))]
HOUR_MS = 3_600_000
BACKENDS = {"hashmap": 128, "rocksdb": 4096}


def found(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("FOUND|"))


def restored(savepoint: pathlib.Path, backend: str, classes: pathlib.Path, max_parallelism: int) -> list[str]:
    arguments = (savepoint, max_parallelism, 300, f"state.backend.type={backend}")
    return found(run_engine(RESTORING, *arguments, classes=classes))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_engine_restores_an_exported_savepoint(backend: str, tmp_path: pathlib.Path) -> None:
    max_parallelism, now_ms = BACKENDS[backend], wall_clock()
    numbers = dict(zip(KEYS, itertools.count(1), strict=False))
    windows = {0: 5, 10_000: 7}
    plan = Plan().add_operator("counting", "string").add_operator("windows", "string").add_operator("elements")
    plan.add_state("counting", ValueStateDescriptor("count", int), numbers.items())
    plan.add_state("counting", ListStateDescriptor("list", int), [(key, [1, n]) for key, n in numbers.items()])
    entries = [(key, f"m{one}", n + one) for key, n in numbers.items() for one in range(3)]
    plan.add_state("counting", MapStateDescriptor("map", str, int), entries)
    timed = ValueStateDescriptor("timed", int, ttl=StateTtlConfig("1 hour"))
    # Every second entry is expired.
    times = [StateEntry(0, key, None, None, n, now_ms - n % 2 * 2 * HOUR_MS) for key, n in numbers.items()]
    plan.add_state("counting", timed, times)
    in_map = MapStateDescriptor("timed map", str, int, ttl=StateTtlConfig("1 hour"))
    plan.add_state("counting", in_map, [evolve(one, user_key="n") for one in times])
    plan.add_timers("counting", [(key, 1_000_000 + n) for key, n in numbers.items()], time="event")
    contents = [("", TimeWindow(start, start + 10_000), value) for start, value in windows.items()]
    sums = ReducingStateDescriptor("window-contents", max, int)
    plan.add_state("windows", sums, contents, namespace=TimeWindowSerializer())
    ends = [(key, window, window.end - 1) for key, window, _ in contents]
    plan.add_timers("windows", ends, time="event", service="window-timers", namespace=TimeWindowSerializer())
    plan.add_operator_state("elements", SplitListStateDescriptor("split", int), range(7))
    plan.add_operator_state("elements", UnionListStateDescriptor("union", str), ["a", "b"])
    plan.add_operator_state("elements", BroadcastStateDescriptor("rules", str, int), {"rule": 1, "other": 2})
    plan.change_parallelism(2)
    SavepointWriter.new(tmp_path / "ours", max_parallelism=max_parallelism).write(plan)
    write_flink_savepoint(find_state(tmp_path / "ours"), tmp_path / "exported")
    wanted = [
        f"FOUND|entry|{key}|{n}|{'null' if n % 2 else n}|[1, {n}]|{{m0={n}, m1={n + 1}, m2={n + 2}}}|"
        f"{'null' if n % 2 else n}"
        for key, n in numbers.items()
    ]
    wanted += [f"FOUND|timer|{key}|{1_000_000 + n}" for key, n in numbers.items()]
    wanted += [f"FOUND|window||{start}|{start + 10_000}|{value}" for start, value in windows.items()]
    wanted += [f"FOUND|split|{number}" for number in range(7)]
    # Both subtasks receive all of these elements.
    wanted += 2 * ["FOUND|union|a", "FOUND|union|b", "FOUND|rule|rule|1", "FOUND|rule|other|2"]
    assert restored(tmp_path / "exported", backend, tmp_path, max_parallelism) == sorted(wanted)


def test_state_goes_from_the_engine_to_ours_and_back(tmp_path: pathlib.Path) -> None:
    run_engine(SOURCE, tmp_path / "state", 128, "state.backend.type=rocksdb", classes=tmp_path)
    [flink] = (tmp_path / "state" / "CANONICAL").iterdir()
    source, sources = without_sources(find_state(flink), ["counting"])
    # Flink 1.20 stores no uids.
    assert [one.uid for one in sources] in (["numbers"], [operator_id_of("numbers")])
    plan = Plan().remove_state("counting", "opaque")
    plan.change_values("counting", "count", ValueStateDescriptor("count", int), lambda count: count * 10)
    plan.keep_entries("counting", lambda entry: entry.user_key != "m7", states=["map"])
    SavepointWriter.copy_of_restored(source, tmp_path / "ours").write(plan)
    write_flink_savepoint(find_state(tmp_path / "ours"), tmp_path / "exported")
    lines = restored(tmp_path / "exported", "hashmap", tmp_path, 128)
    wanted = [f"FOUND|timer|key-{value % 100}|{1_000_000_000 + value}" for value in VALUES]
    assert [line for line in lines if line.startswith("FOUND|timer|")] == sorted(wanted)
    of_key: dict[str, list[int]] = {}
    for value in VALUES:
        of_key.setdefault(f"key-{value % 100}", []).append(value)
    entries = [line.split("|")[2:] for line in lines if line.startswith("FOUND|entry|")]
    assert len(entries) == len(KEYS)
    for key, count, _, elements, of_map, _ in entries:
        values = of_key.get(key, [])
        assert count == (str(len(values) * 10) if values else "null")
        assert sorted(json.loads(elements)) == sorted(values)
        pairs = of_map.strip("{}").split(", ") if values else []
        assert sorted(pairs) == sorted(f"m{value}={value}" for value in values if value != 7)
