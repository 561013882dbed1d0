"""Operator state in functions, over epochs, restarts, rescaling, schemas and backends, in the local runtime."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest
from emitted_objects import OBJECT, collecting, emitting_objects

from statebackend import (
    BroadcastStateDescriptor,
    EpochError,
    JobRestoreError,
    KeyedProcessFunction,
    ListStateDescriptor,
    PriorityQueueDescriptor,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
    StateBackendClosedError,
    StateMigrationException,
    StateRegistrationError,
    UnionListStateDescriptor,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.local import LocalJob, LocalStreamEnvironment
from statebackend.state.backend_parameters import KeyedStateBackendParameters
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.operator_state_handles import decode_operator_state
from statebackend.state.operator_state_redistribution import RestoredOperatorState
from statebackend.state.state_backend import state_backend
from statebackend.streaming.operators.subtask_backends import SubtaskBackends
from typeserializers import AttrsSerializer, LongSerializer

pytestmark = pytest.mark.slow

BACKENDS = ("heap", "rocksdb")
PARALLELISM = 3
NUMBERS = list(range(20))


class Probe(KeyedProcessFunction[int, Any, Any]):
    """Runs the tests' actions in ``on_open`` and for each record, and emits requested values."""

    def open(self, context: RuntimeContext) -> None:
        self.runtime = context
        self.on_open(context)

    def on_open(self, context: RuntimeContext) -> None:
        """Registers state."""

    def process_element(self, value: Any, context: ProcessContext[int]) -> Iterator[Any]:
        yield from self.on_element(value["number"])

    def on_element(self, number: int) -> Iterator[Any]:
        yield from ()


class Collect(Probe):
    """A split list of the numbers of each subtask; emits all of them for each record."""

    def on_open(self, context: RuntimeContext) -> None:
        self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", int))
        self.times = context.get_state(ValueStateDescriptor("seen", int, default=0))

    def on_element(self, number: int) -> Iterator[Any]:
        self.seen.add(number)
        self.times.update((self.times.value() or 0) + 1)
        yield number, self.times.value()


def run(
    function: KeyedProcessFunction[Any, Any, Any],
    numbers: list[int],
    execute: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[LocalJob, list[Any]]:
    environment = LocalStreamEnvironment(**{"parallelism": PARALLELISM, "max_parallelism": 16, **options})
    results: list[Any] = []
    elements = [{"number": number, "key": number % 7} for number in numbers]
    environment.from_elements(elements).key_by("key").process(
        emitting_objects(function), uid="operator", schema=OBJECT
    ).sink_to(collecting(results))
    job = environment.execute("job", **(execute or {}))
    job.environment = environment  # type: ignore[attr-defined]  # keeps its temporary directory
    return job, results


def joined(parts: list[list[int]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(parts))


def subtasks(job: LocalJob) -> list[SubtaskState]:
    latest = job._store.latest()
    assert latest is not None
    return list(latest.operators[0].subtasks)


def shares(job: LocalJob, tmp_path: Path, name: str, function: type[Probe]) -> list[list[int]]:
    """The content of each subtask at the end of a job, read by a job that continues it."""
    report = job.savepoint(tmp_path / name)
    return seen_in(report.path, PARALLELISM, function)


def seen_in(savepoint: str, parallelism: int, function: type[Probe]) -> list[list[int]]:
    """The content of a savepoint in each subtask at open."""
    found: dict[int, list[int]] = {}

    class Look(function):  # type: ignore[misc, valid-type]
        def on_open(self, context: RuntimeContext) -> None:
            super().on_open(context)
            if context.is_restored:
                found[context.subtask_index] = list(self.seen.get())

        def on_element(self, number: int) -> Iterator[Any]:
            yield from ()

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    run(Look(), [0], {"from_savepoint": savepoint}, parallelism=parallelism)
    return [found[index] for index in range(parallelism)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("epoch_size", [None, 1, 7])
def test_a_split_list_persists_over_epochs_with_keyed_state_of_the_same_name(
    tmp_path: Path, backend: str, epoch_size: int | None
) -> None:
    job, results = run(Collect(), NUMBERS, backend=backend, epoch_size=epoch_size)
    assert sorted(results) == [(number, number // 7 + 1) for number in NUMBERS]
    report = job.savepoint(tmp_path / "savepoint")
    assert report.rows == {"operator": {"seen": 7}}
    assert report.operator_state_rows == {"operator": {"seen": len(NUMBERS)}}
    held = seen_in(report.path, PARALLELISM, Collect)
    assert joined(held) == NUMBERS
    # The subtask that processed a record holds it, so all records of a key are in one subtask.
    for key in range(7):
        assert sum(any(number % 7 == key for number in part) for part in held) == 1


def test_a_job_directory_continues_operator_state(tmp_path: Path) -> None:
    run(Collect(), NUMBERS[:9], job_dir=tmp_path / "job")
    job, _ = run(Collect(), NUMBERS[9:], job_dir=tmp_path / "job", epoch_size=4)
    assert joined(shares(job, tmp_path, "savepoint", Collect)) == NUMBERS


@pytest.mark.extended_after(5)
@pytest.mark.parametrize("old_backend", BACKENDS)
@pytest.mark.parametrize("new_backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_split_list_is_redistributed_evenly_at_another_parallelism(
    tmp_path: Path, old_backend: str, new_backend: str, parallelism: int
) -> None:
    job, _ = run(Collect(), NUMBERS, backend=old_backend, epoch_size=8)
    savepoint = job.savepoint(tmp_path / "savepoint").path
    held = seen_in(savepoint, parallelism, Collect)
    assert joined(held) == NUMBERS
    if parallelism != PARALLELISM:
        lengths = [len(part) for part in held]
        assert max(lengths) - min(lengths) <= 1
    rescaled, results = run(
        Collect(), NUMBERS, {"from_savepoint": savepoint}, backend=new_backend, parallelism=parallelism, epoch_size=6
    )
    before = [sum(number % 7 == key for number in NUMBERS) for key in range(7)]
    assert sorted(results) == [(number, before[number % 7] + number // 7 + 1) for number in NUMBERS]
    assert joined(shares(rescaled, tmp_path, "again", Collect)) == sorted(NUMBERS * 2)


def test_the_parallelism_of_a_job_directory_can_change_repeatedly(tmp_path: Path) -> None:
    numbers: list[int] = []
    for start, parallelism in enumerate([3, 1, 5, 2, 3]):
        batch = [start * 10 + offset for offset in range(10)]
        numbers += batch
        job, _ = run(Collect(), batch, job_dir=tmp_path / "job", parallelism=parallelism, epoch_size=3)
    assert joined(shares(job, tmp_path, "savepoint", Collect)) == numbers


class Own(Probe):
    """A union list in which each subtask stores its own elements, (subtask index, number of records)."""

    found: dict[tuple[int, int], list[tuple[int, int]]]

    def __init__(self) -> None:
        self.found = {}

    def __deepcopy__(self, memo: Any) -> Own:
        copied = type(self)()
        copied.found = self.found
        return copied

    def on_open(self, context: RuntimeContext) -> None:
        self.counts = context.operator_state.get_union_list_state(UnionListStateDescriptor("counts", tuple[int, int]))
        if context.epoch_id >= 0:
            self.found[context.epoch_id, context.subtask_index] = self.counts.get()
        own = [count for count in self.counts.get() if count[0] == context.subtask_index]
        self.counts.update(own or [(context.subtask_index, 0)])

    def on_element(self, number: int) -> Iterator[Any]:
        [(index, count)] = self.counts.get()
        self.counts.update([(index, count + 1)])
        yield self.runtime.subtask_index


def test_a_union_list_has_all_elements_at_a_start_and_own_ones_over_epochs(tmp_path: Path) -> None:
    first = Own()
    job, emitted = run(first, NUMBERS, job_dir=tmp_path / "job", epoch_size=10)
    assert job.epochs == 2
    assert [first.found[0, index] for index in range(3)] == [[], [], []]
    # The second epoch continues without another open(), so no subtask sees the elements of the others.
    assert {epoch_id for epoch_id, _ in first.found if epoch_id > 0} == set()
    at_end = [(index, emitted.count(index)) for index in range(3)]
    restarted = Own()
    run(restarted, NUMBERS[:1], job_dir=tmp_path / "job")
    assert [restarted.found[2, index] for index in range(3)] == [at_end] * 3
    savepoint = job.savepoint(tmp_path / "savepoint").path
    rescaled = Own()
    run(rescaled, NUMBERS[:1], {"from_savepoint": savepoint}, parallelism=5)
    assert [len(rescaled.found[max(rescaled.found)[0], index]) for index in range(5)] == [3] * 5


class Rules(Probe):
    """Broadcast state that every subtask writes equally in ``open()``, from the program's configuration."""

    def __init__(self, rules: dict[str, int]) -> None:
        self.configured = rules

    def on_open(self, context: RuntimeContext) -> None:
        self.rules = context.operator_state.get_broadcast_state(BroadcastStateDescriptor("rules", str, int))
        self.rules.put_all(self.configured)

    def on_element(self, number: int) -> Iterator[Any]:
        yield self.runtime.subtask_index, tuple(self.rules.items())


@pytest.mark.parametrize("parallelism", [1, 3, 7])
def test_broadcast_state_is_equal_in_all_subtasks_at_every_parallelism(tmp_path: Path, parallelism: int) -> None:
    job, _ = run(Rules({"b": 2, "a": 1}), NUMBERS, epoch_size=7)
    savepoint = job.savepoint(tmp_path / "savepoint")
    assert savepoint.operator_state_rows == {"operator": {"rules": 2 * PARALLELISM}}
    rescaled, emitted = run(Rules({"c": 3}), NUMBERS, {"from_savepoint": savepoint.path}, parallelism=parallelism)
    assert {rules for _, rules in emitted} == {(("b", 2), ("a", 1), ("c", 3))}
    rows = rescaled.savepoint(tmp_path / "rescaled").operator_state_rows
    assert rows == {"operator": {"rules": 3 * parallelism}}


@attrs.frozen
class Region:
    country: str


@attrs.frozen
class RegionWithCity:
    country: str
    city: str = "anywhere"


@attrs.frozen
class Limit:
    amount: int


@attrs.frozen
class LimitWithReason:
    amount: float
    reason: str = "none given"


def serializer(cls: type, name: str) -> AttrsSerializer[Any]:
    return AttrsSerializer(cls, name=name)


class Limits(Probe):
    """Broadcast state with records as keys and values, and a list of records."""

    region: type = Region
    limit: type = Limit

    def on_open(self, context: RuntimeContext) -> None:
        region, limit = serializer(self.region, "Region"), serializer(self.limit, "Limit")
        self.limits = context.operator_state.get_broadcast_state(BroadcastStateDescriptor("limits", region, limit))
        self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", limit))

    def on_element(self, number: int) -> Iterator[Any]:
        self.limits.put(self.region(f"country {number % 3}"), self.limit(number % 3))
        self.seen.add(self.limit(number))
        yield dict(self.limits.items()), self.seen.get()


class LimitsUpgraded(Limits):
    region = RegionWithCity
    limit = LimitWithReason

    def on_element(self, number: int) -> Iterator[Any]:
        yield dict(self.limits.items()), self.seen.get()


class LimitsIncompatible(Limits):
    def on_open(self, context: RuntimeContext) -> None:
        self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", str))
        self.limits = context.operator_state.get_list_state(SplitListStateDescriptor("limits", int))


@pytest.mark.parametrize("parallelism", [PARALLELISM, 2])
def test_operator_state_is_migrated_including_keys_of_broadcast_state(tmp_path: Path, parallelism: int) -> None:
    job, _ = run(Limits(), NUMBERS, parallelism=1)
    savepoint = job.savepoint(tmp_path / "savepoint").path
    job, emitted = run(LimitsUpgraded(), NUMBERS, {"from_savepoint": savepoint}, parallelism=parallelism, epoch_size=9)
    expected = {
        RegionWithCity(f"country {number}", "anywhere"): LimitWithReason(float(number), "none given")
        for number in range(3)
    }
    assert all(limits == expected for limits, _ in emitted)
    found = {limit for _, limits in emitted for limit in limits}
    assert found <= {LimitWithReason(float(number), "none given") for number in NUMBERS}
    report = job.schema_reports["operator"]
    assert [compatibility.state_name for compatibility in report.operator_state_compatibilities] == ["limits", "seen"]
    assert report.is_compatible
    assert "state 'limits': compatible after migration" in str(report)
    assert "<key>.city: added [field-added]" in str(report)
    migrated = {"limits": 0, "seen": 0}
    for restored in job.operator_state_restore_reports:
        migrated[restored.state_name] += restored.entries_migrated
    assert migrated == {"limits": 3 * parallelism, "seen": len(NUMBERS)}


def test_an_epoch_with_different_broadcast_copies_fails_and_nothing_is_stored(tmp_path: Path) -> None:
    class Differs(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            self.rules = context.operator_state.get_broadcast_state(BroadcastStateDescriptor("rules", str, int))
            self.rules.put("r", context.subtask_index // 2)

    reported = r"operator 'operator', epoch \d+: the copies of broadcast state 'rules' in subtasks 0 and 2 differ"
    with pytest.raises(EpochError, match=reported):
        run(Differs(), NUMBERS, job_dir=tmp_path / "job")
    job, _ = run(Differs(), NUMBERS, job_dir=tmp_path / "job", parallelism=2)
    assert job.epochs == 1


def test_incompatible_operator_state_is_rejected_before_the_job_starts(tmp_path: Path) -> None:
    job, _ = run(Limits(), NUMBERS, parallelism=1)
    savepoint = job.savepoint(tmp_path / "savepoint").path
    with pytest.raises(StateMigrationException) as raised:
        run(LimitsIncompatible(), NUMBERS, {"from_savepoint": savepoint}, job_dir=tmp_path / "job")
    message = str(raised.value)
    assert "operator 'operator': its state is incompatible; nothing was changed" in message
    assert "state 'seen'" in message
    assert "the restored state is a broadcast state, the descriptor is of a split state" in message
    assert run(LimitsUpgraded(), NUMBERS, {"from_savepoint": savepoint}, job_dir=tmp_path / "job")[0].epochs == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_unregistered_operator_state_is_rejected_or_kept_in_the_next_savepoint(tmp_path: Path, backend: str) -> None:
    job, _ = run(Collect(), NUMBERS, backend=backend)
    first = job.savepoint(tmp_path / "first").path
    with pytest.raises(JobRestoreError, match=r"does not register: 'seen', 'seen' \(operator state\)\. Register it"):
        run(Probe(), NUMBERS, {"from_savepoint": first}, backend=backend)
    for number, parallelism in enumerate([2, 5]):
        source = first if number == 0 else tmp_path / f"kept-{number - 1}"
        execute = {"from_savepoint": source, "allow_non_restored_state": True}
        job, _ = run(Probe(), NUMBERS, execute, backend=backend, parallelism=parallelism, epoch_size=6)
        assert job.schema_reports["operator"].unregistered_operator_state == ("seen",)
        assert "operator state 'seen': not registered, kept as it is" in str(job.schema_reports["operator"])
        assert job.savepoint(tmp_path / f"kept-{number}").operator_state_rows == {"operator": {"seen": len(NUMBERS)}}
    held = seen_in(str(tmp_path / "kept-1"), 4, Collect)
    assert joined(held) == NUMBERS


def test_a_failed_epoch_leaves_operator_state_unchanged(tmp_path: Path) -> None:
    class Fails(Collect):
        def on_element(self, number: int) -> Iterator[Any]:
            yield from super().on_element(number)
            if number == 12:
                raise ArithmeticError("twelve")

    with pytest.raises(UserFunctionError, match="twelve"):
        run(Fails(), NUMBERS, job_dir=tmp_path / "job", epoch_size=5)
    job, _ = run(Collect(), NUMBERS[10:], job_dir=tmp_path / "job", epoch_size=5)
    assert joined(shares(job, tmp_path, "savepoint", Collect)) == NUMBERS


def test_is_restored_is_true_in_the_first_epoch_of_a_run(tmp_path: Path) -> None:
    class Tell(Probe):
        def on_element(self, number: int) -> Iterator[Any]:
            yield self.runtime.is_restored

    assert run(Tell(), NUMBERS[:6], job_dir=tmp_path / "job", epoch_size=2)[1] == [False] * 6
    job, emitted = run(Tell(), NUMBERS[:6], job_dir=tmp_path / "job", epoch_size=2)
    assert emitted == [True] * 2 + [False] * 4
    savepoint = job.savepoint(tmp_path / "savepoint").path
    assert run(Tell(), NUMBERS[:2], {"from_savepoint": savepoint}, parallelism=1)[1] == [True] * 2


def test_operator_state_can_be_read_and_written_in_open(tmp_path: Path) -> None:
    class InOpen(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            self.epochs = context.operator_state.get_list_state(SplitListStateDescriptor("epochs", int))
            # On the driver it is empty, whatever is stored.
            assert context.epoch_id >= 0 or self.epochs.get() == []
            self.epochs.add(context.epoch_id)

        def on_element(self, number: int) -> Iterator[Any]:
            yield self.epochs.get()

    emitted = [run(InOpen(), NUMBERS[:1], job_dir=tmp_path / "job")[1] for _ in range(3)]
    assert emitted == [[[0]], [[0, 1]], [[0, 1, 2]]]


def test_handles_of_operator_state_are_closed_with_their_epoch() -> None:
    kept: list[Any] = []

    class Keeps(Collect):
        def on_element(self, number: int) -> Iterator[Any]:
            kept.append(self.seen)
            yield from super().on_element(number)

    run(Keeps(), NUMBERS[:1])
    with pytest.raises(StateBackendClosedError):
        kept[0].get()


def test_a_descriptor_of_another_mode_is_rejected_with_the_method_to_use() -> None:
    class Wrong(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            context.operator_state.get_list_state(UnionListStateDescriptor("x", int))  # type: ignore[arg-type]

    class Keyed(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            context.operator_state.get_broadcast_state(ListStateDescriptor("x", int))  # type: ignore[arg-type]

    class OperatorDescriptor(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            context.get_list_state(SplitListStateDescriptor("x", int))  # type: ignore[arg-type]

    class Queue(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            context.get_state(PriorityQueueDescriptor("x", int))  # type: ignore[arg-type]

    class RegisteredQueue(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            context.register(PriorityQueueDescriptor("x", int))

    class Twice(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            context.operator_state.get_list_state(SplitListStateDescriptor("x", int))
            context.operator_state.get_list_state(SplitListStateDescriptor("x", str))

    expected: dict[type[Probe], str] = {
        Wrong: "a union state is registered with get_union_list_state",
        Keyed: "get_broadcast_state was given .* it takes a BroadcastStateDescriptor",
        OperatorDescriptor: "with the methods of context.operator_state",
        Queue: "priority_queue state is registered with get_priority_queue of a backend, which functions cannot reach",
        RegisteredQueue: "'x' of operator 'operator' is a priority_queue, which a function cannot register",
        Twice: "'x' of operator 'operator' is registered twice",
    }
    for function, message in expected.items():
        with pytest.raises(StateRegistrationError, match=message):
            run(function(), NUMBERS)


class Plain(Probe):
    def on_open(self, context: RuntimeContext) -> None:
        self.times = context.get_state(ValueStateDescriptor("times", int, default=0))

    def on_element(self, number: int) -> Iterator[Any]:
        self.times.update((self.times.value() or 0) + 1)
        yield self.times.value()


def test_a_job_without_operator_state_creates_nothing_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reject(*_: Any) -> Any:
        raise AssertionError("no operator state was asked for")

    monkeypatch.setattr("statebackend.streaming.operators.subtask_backends.OperatorStateBackend", reject)
    job, _ = run(Plain(), NUMBERS, epoch_size=5)
    assert job.savepoint(tmp_path / "savepoint").operator_state_rows == {"operator": {}}
    assert [subtask.operator for subtask in subtasks(job)] == [None] * len(subtasks(job))


def subtask_state(directory: Path, restored: RestoredOperatorState | None = None) -> SubtaskBackends:
    parameters = KeyedStateBackendParameters(
        operator_uid="operator",
        key_serializer=LongSerializer(),
        max_parallelism=16,
        key_group_range=KeyGroupRange(0, 15),
        file_system=CheckpointFileSystem.from_uri(directory),
        file_prefix="shared/0",
        local_directory=os.path.join(directory, "local"),
    )
    return SubtaskBackends(state_backend("heap").create_keyed_state_backend(parameters), restored)


def test_operator_state_is_removed_if_its_keyed_part_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*arguments: Any) -> Any:
        raise OSError("the disk is full")

    state = subtask_state(tmp_path)
    state.register_operator_state(SplitListStateDescriptor("elements", int)).add(1)
    assert state.snapshot(0, "first").state.operator is not None
    written = sorted((tmp_path / "shared").iterdir())
    assert len(written) == 1
    state.register_operator_state(SplitListStateDescriptor("elements", int)).add(2)
    monkeypatch.setattr(state.keyed, "snapshot", reject)
    with pytest.raises(OSError, match="the disk is full"):
        state.snapshot(1, "second")
    assert sorted((tmp_path / "shared").iterdir()) == written


def test_the_digest_of_an_acknowledgement_covers_keyed_and_operator_state(tmp_path: Path) -> None:
    def digest(name: str, keyed: int, element: int) -> str:
        state = subtask_state(tmp_path / name)
        value = state.keyed.get_state(ValueStateDescriptor("keyed", int))
        state.keyed.set_current_key(1, 1)
        value.update(keyed)
        elements = state.register_operator_state(SplitListStateDescriptor("elements", int))
        elements.add(element)  # type: ignore[attr-defined]
        return state.snapshot(1, f"state-{name}").digest

    assert digest("a", 1, 1) == digest("b", 1, 1)
    assert len({digest("c", 1, 1), digest("d", 2, 1), digest("e", 1, 2)}) == 3


def test_a_snapshot_with_one_failed_part_leaves_no_file_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = subtask_state(tmp_path)
    elements = state.register_operator_state(SplitListStateDescriptor("elements", int))
    elements.add(1)  # type: ignore[attr-defined]
    keyed = mock.Mock(run=mock.Mock(side_effect=OSError("the disk is full")))
    monkeypatch.setattr(state.keyed, "prepare_snapshot", lambda *_: keyed)
    task = state.prepare_snapshot(1, "state")
    with pytest.raises(OSError, match="the disk is full"):
        task.run()
    assert keyed.cancel.called
    assert [path for path in (tmp_path / "shared").rglob("*") if path.is_file()] == []


def test_a_closed_subtask_starts_no_operator_state(tmp_path: Path) -> None:
    state = subtask_state(tmp_path)
    state.keyed.close()
    with pytest.raises(StateBackendClosedError):
        state.register_operator_state(SplitListStateDescriptor("elements", int))
    assert state.operator_state_names == ()


def test_unchanged_operator_state_is_referenced_and_not_written_again() -> None:
    class Once(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", int))
            if context.epoch_id == 0:
                self.seen.add_all(range(100))

    job, _ = run(Once(), NUMBERS, epoch_size=2)
    assert job.epochs == 10
    paths = [file.path for subtask in subtasks(job) for file in decode_operator_state(subtask.operator).files]
    assert len(paths) == PARALLELISM
    assert all("-000000000000-" in path for path in paths)


def test_the_example_of_the_guide_loses_no_count_over_restarts_and_parallelisms(tmp_path: Path) -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "operator-state.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in guide.split("```python\n")[1:]]
    [example] = [block for block in blocks if "class CountDamaged" in block]
    names: dict[str, Any] = {"KeyedProcessFunction": KeyedProcessFunction}
    exec(example, names)

    @attrs.frozen
    class Payment:
        shop: int
        amount: int | None

    payments = [Payment(number, None if number % 3 else number) for number in range(20)]
    for parallelism in (3, 5, 1):
        environment = LocalStreamEnvironment(
            job_dir=tmp_path / "job", parallelism=parallelism, max_parallelism=16, epoch_size=7
        )
        stream = environment.from_elements(payments).key_by("shop")
        stream.process(names["CountDamaged"](), uid="damaged", schema="key string").sink_to([])
        job = environment.execute("payments")
    damaged: list[int] = []

    class Look(Probe):
        def on_open(self, context: RuntimeContext) -> None:
            self.damaged = context.operator_state.get_list_state(SplitListStateDescriptor("damaged", int))
            if context.is_restored:
                damaged.extend(self.damaged.get())

        def process_element(self, value: Any, context: ProcessContext[int]) -> Iterator[Any]:
            yield from ()

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    savepoint = job.savepoint(tmp_path / "savepoint").path
    environment = LocalStreamEnvironment(parallelism=2, max_parallelism=16)
    stream = environment.from_elements([Payment(0, 0)]).key_by("shop")
    stream.process(Look(), uid="damaged", schema="key string").sink_to([])
    environment.execute("payments", from_savepoint=savepoint)
    assert sum(damaged) == 3 * sum(payment.amount is None for payment in payments)
