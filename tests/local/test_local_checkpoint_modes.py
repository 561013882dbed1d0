"""Jobs in each checkpointing mode: real operators, state, files and checkpoints, with abandoned and restored runs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from statebackend import (
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
)
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.coordinator.requests import CheckpointLimits, CheckpointRequestKind
from statebackend.checkpoint.errors import CorruptFileError, StorageError
from statebackend.checkpoint.state_handles import FileHandle, OpaqueStateHandle
from statebackend.local import LocalStreamEnvironment
from statebackend.local import checkpoints as local_checkpoints
from statebackend.local.graph import rows_of
from statebackend.local.job_parts import CheckpointSettings
from statebackend.local.network.network import Shuffled
from statebackend.local.run import LocalRun
from statebackend.local.source import LocalSource
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.time.watermark_generators import Watermark

pytestmark = pytest.mark.slow

RECORD: Final = "k string, place int, late boolean"
SCHEMA: Final = parsed_schema(RECORD, "test")
MODES: Final = {
    "aligned": CheckpointingMode.ALIGNED,
    "unaligned": CheckpointingMode.UNALIGNED,
    "after 2 ms": CheckpointingMode.unaligned_after(2),
    "at least once": CheckpointingMode.AT_LEAST_ONCE,
}
LENGTH: Final = 60


class Remember(KeyedProcessFunction[str, Any, Any]):
    """Stores the positions of the records of a key, and emits whether each was late."""

    def open(self, context: RuntimeContext) -> None:
        self.places = context.get_list_state(ListStateDescriptor("places", int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        self.places.add(value.place)
        is_late = context.timestamp is not None and context.timestamp <= context.timer_service.current_watermark()
        yield context.current_key, value.place, value.late or is_late


class Clock:
    """A clock that a test moves."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def environment_of(root: Path, results: list[Any], parallelism: int, schema: str = RECORD) -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment(
        job_dir=root / "job", parallelism=parallelism, max_parallelism=8, clock=lambda: 0
    )
    first = environment.from_elements([], schema, uid="in").key_by("k").process(Remember(), uid="one", schema=RECORD)
    second = first.key_by(lambda row: row.k.lower()).process(Remember(), uid="two", schema=RECORD)
    second.sink_to(results)
    return environment


def script(seed: int) -> list[tuple[str, int | None]]:
    """Records as (key, event time), and watermarks."""
    chance = random.Random(seed)
    made: list[tuple[str, int | None]] = []
    for place in range(LENGTH):
        if chance.random() < 0.25:
            made.append(("", 10 * place))
        else:
            made.append((chance.choice("aAbBcCdD"), 10 * place - chance.choice((0, 0, 25, 400))))
    return made


def late_places(script: Sequence[tuple[str, int | None]]) -> set[int]:
    """Records that their only source sends after a watermark."""
    late, watermark_ms = set(), -(1 << 63)
    for place, (key, time_ms) in enumerate(script):
        assert time_ms is not None
        if not key:
            watermark_ms = max(watermark_ms, time_ms)
        elif time_ms <= watermark_ms:
            late.add(place)
    return late


class Feeding:
    """A source that records its position at the barrier of each checkpoint."""

    def __init__(self, run: LocalRun, script: Sequence[tuple[str, int | None]], place: int) -> None:
        [self.source] = run.job_network.sources.values()
        self.script, self.place, self.given = script, place, place
        self.positions: dict[int, int] = {}
        original = self.source.output.send_barrier

        def send_barrier(barrier: Any) -> Any:
            self.positions[barrier.checkpoint_id] = self.place
            return original(barrier)

        self.source.output.send_barrier = send_barrier  # type: ignore[method-assign]

    def feed(self, count: int) -> None:
        for place in range(self.given, min(self.given + count, len(self.script))):
            self.source.feed(partial(self._read, place))
            self.given += 1

    def _read(self, place: int, source: LocalSource) -> None:
        key, time_ms = self.script[place]
        assert time_ms is not None
        if key:
            source.read(rows_of([(key, place, False)], SCHEMA), [time_ms])
        else:
            source.read_time(Watermark(time_ms))
        self.place = place + 1


def settings_of(mode: CheckpointingMode, clock: Clock) -> CheckpointSettings:
    limits = CheckpointLimits(max_concurrent_checkpoints=3)
    return CheckpointSettings(mode=mode, limits=limits, tolerable_failures=1000, now_ms=clock)


def run_once(
    root: Path, mode: CheckpointingMode, parallelism: int, seed: int, given: Sequence[Any], place: int, finish: bool
) -> tuple[list[Any], dict[int, int], int]:
    """Run once from the job directory. Return output, source positions, and how many subtasks had records in flight."""
    chance, clock, results = random.Random(seed), Clock(), list[Any]()
    environment = environment_of(root, results, parallelism)
    with environment.opened_run(
        scheduler=Shuffled(seed), capacity=2, checkpoints=settings_of(mode, clock), sources_send_time=True
    ) as run:
        feeding = Feeding(run, given, place)
        for _ in range(chance.randrange(6, 14)):
            feeding.feed(chance.randrange(6, 16))
            run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
            for _ in range(chance.randrange(5, 60)):
                run.step()
                clock.now_ms += chance.random() < 0.1
        if finish:
            feeding.feed(len(given))
            while run.step() is not None:
                clock.now_ms += 1
            run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
        latest = run.parts.store.latest()
        in_flight = 0
        if latest is not None:
            states = [state for operator in latest.operators for state in operator.subtasks]
            in_flight = sum(state.has_in_flight_records for state in states)
        # Here the run ends without a shutdown. Its results and positions are those of its last checkpoint.
        return results, feeding.positions, in_flight


def newest(root: Path, parallelism: int) -> int | None:
    """The id of the newest checkpoint."""
    with environment_of(root, [], parallelism).opened_run(sources_send_time=True) as run:
        return run.restored_id


def play(root: Path, mode: CheckpointingMode, parallelisms: Sequence[int], seed: int) -> tuple[list[Any], int]:
    """The output of consecutive runs, and how many subtasks had records in flight between them."""
    given, results, place, in_flight = script(seed), list[Any](), 0, 0
    for number, parallelism in enumerate(parallelisms):
        is_last = number == len(parallelisms) - 1
        came_out, positions, count = run_once(root, mode, parallelism, seed + number, given, place, is_last)
        results += came_out
        in_flight += 0 if is_last else count
        if not is_last:
            restored_id = newest(root, parallelism)
            # If there is no checkpoint, the next run starts at the position where this run started.
            place = place if restored_id is None else positions.get(restored_id, place)
    return results, in_flight


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("parallelisms", [(2, 2, 2), pytest.param((2, 3, 1), marks=pytest.mark.extended)])
def test_a_continued_job_emits_every_record_as_its_mode_promises(
    tmp_path: Path, name: str, parallelisms: tuple[int, ...]
) -> None:
    in_flight = 0
    for seed in range(3):
        results, count = play(tmp_path / str(seed), MODES[name], parallelisms, 100 * seed)
        in_flight += count
        given = script(100 * seed)
        expected = {place for place, (key, _) in enumerate(given) if key}
        found = Counter(row.place for row in results)
        assert found.keys() == expected
        if MODES[name].is_exactly_once:
            assert set(found.values()) == {1}
            for key in "abcd":
                for own in (key, key.upper()):
                    places = [row.place for row in results if given[row.place][0] == own]
                    assert places == sorted(places)
            assert {row.place for row in results if row.late} == late_places(given)
    assert (in_flight > 0) is MODES[name].may_be_unaligned


def with_records_in_flight(root: Path) -> tuple[int, str]:
    """A job directory whose newest checkpoint has records in flight. Return the checkpoint id and the keys."""
    results: list[Any] = []
    environment = environment_of(root, results, 2)
    checkpoints = settings_of(CheckpointingMode.UNALIGNED, Clock())
    with environment.opened_run(checkpoints=checkpoints, capacity=8, scheduler=ReadsFirst()) as run:
        # Elements that are in the channels at the start are processed first.
        run.step()
        keys = "aAbBcCdD" * 2
        feeding = Feeding(run, [(key, 0) for key in keys], 0)
        feeding.feed(len(keys))
        for _ in range(10):
            run.step()
        taken = run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
        assert taken is not None
        assert results == []
        return taken, keys[: feeding.positions[taken]]


class ReadsFirst:
    """A scheduler that prefers mails, then sources while there is capacity, then upstream over downstream subtasks."""

    def choose(self, moves: Iterator[Any]) -> Any:
        known = list(moves)
        mails = [one for one in known if one.mail is not None]
        return next(iter(mails or known[-1:]), None)


def test_a_checkpoint_reports_the_duration_of_its_barriers_and_the_overtaken_records(tmp_path: Path) -> None:
    clock = Clock()
    environment = environment_of(tmp_path, [], 2)
    checkpoints = settings_of(CheckpointingMode.UNALIGNED, clock)
    with environment.opened_run(checkpoints=checkpoints, capacity=8, scheduler=ReadsFirst()) as run:
        run.step()
        Feeding(run, [(key, 0) for key in "aAbBcCdD"], 0).feed(8)
        for _ in range(6):
            run.step()
        request = run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        while run.checkpoints.take_answer(request) is None:
            run.step()
            clock.now_ms += 1
        newest_one = run.parts.store.latest()
        assert newest_one is not None
        one, two = (run.barriers.operators[uid] for uid in ("one", "two"))
        assert run.barriers.newest.keys() == {(uid, index) for uid in ("one", "two") for index in range(2)}
        sizes = {
            (operator.uid, index): sum(file.size_bytes for file in files)
            for operator in newest_one.operators
            for index, state in enumerate(operator.subtasks)
            for files in [[*_files(state.input_channels), *_files(state.output_channels)]]
        }
        assert {name: known.in_flight_bytes for name, known in run.barriers.newest.items()} == sizes
        assert one.in_flight_bytes > 0
        assert (one.snapshots, one.unaligned_snapshots, two.snapshots) == (2, 2, 2)
        assert 0 < one.longest_start_delay_ms <= two.longest_start_delay_ms
        assert two.longest_capture_ms > 0


def _files(part: OpaqueStateHandle | None) -> Sequence[FileHandle]:
    return () if part is None else part.files


def test_a_savepoint_has_nothing_in_flight_in_an_unaligned_job(tmp_path: Path) -> None:
    checkpoint_id, _ = with_records_in_flight(tmp_path)
    environment = environment_of(tmp_path, [], 2)
    checkpoints = settings_of(CheckpointingMode.UNALIGNED, Clock())
    with environment.opened_run(checkpoints=checkpoints, capacity=8, scheduler=ReadsFirst()) as run:
        assert run.restored_id == checkpoint_id
        [latest] = [one for one in run.parts.store.all() if one.checkpoint_id == checkpoint_id]
        assert any(state.has_in_flight_records for one in latest.operators for state in one.subtasks)
        Feeding(run, [(key, 0) for key in "aAbBcCdD"], 0).feed(8)
        run.take_checkpoint(CheckpointRequestKind.SAVEPOINT)
        newest_one = run.parts.store.latest()
        assert newest_one is not None
        assert newest_one.checkpoint_id > checkpoint_id
        assert not any(state.has_in_flight_records for one in newest_one.operators for state in one.subtasks)


def test_a_job_restores_records_in_flight_in_any_mode(tmp_path: Path) -> None:
    _, keys = with_records_in_flight(tmp_path)
    results: list[Any] = []
    with environment_of(tmp_path, results, 3).opened_run() as run:
        while run.step() is not None:
            pass
        run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    assert Counter(row.k for row in results) == Counter(keys.lower())


def test_records_in_flight_of_another_schema_are_rejected_and_nothing_changes(tmp_path: Path) -> None:
    with_records_in_flight(tmp_path)
    before = sorted((tmp_path / "job" / "checkpoints").iterdir())
    environment = environment_of(tmp_path, [], 2, schema="k string, place bigint, late boolean")
    with (
        environment.opened_run() as run,
        pytest.raises(JobRestoreError, match=r"input 0 of 'one' were rows of another schema.*take a savepoint"),
    ):
        run.step()
    assert sorted((tmp_path / "job" / "checkpoints").iterdir()) == before


def test_a_damaged_file_of_records_in_flight_is_rejected(tmp_path: Path) -> None:
    with_records_in_flight(tmp_path)
    [file, *_] = sorted((tmp_path / "job" / "shared").rglob("*-channels-in"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with environment_of(tmp_path, [], 2).opened_run() as run, pytest.raises(CorruptFileError):
        run.step()


class Ruled(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Emits the input of both sides."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value

    def process_broadcast_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value


def test_a_stream_that_is_also_broadcast_is_not_overtaken(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    stream = environment.from_elements([], RECORD, uid="in")
    ruled = stream.key_by("k").connect(stream.broadcast(BroadcastStateDescriptor("rules", str, int)))
    ruled.process(Ruled(), uid="ruled", schema=RECORD).sink_to([])
    with environment.opened_run(checkpoints=settings_of(CheckpointingMode.UNALIGNED, Clock())) as run:
        # A checkpoint can store in-flight records of the keyed input, but not of the broadcast input.
        assert not any(one.may_be_overtaken for subtask in run.network.operators for one in subtask.channels)


class Counting(KeyedProcessFunction[str, Any, Any]):
    """Stores its input records in operator state."""

    def open(self, context: RuntimeContext) -> None:
        self.places = context.operator_state.get_list_state(SplitListStateDescriptor("places", int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> None:
        self.places.add(value.place)


def test_state_of_a_failed_write_of_records_in_flight_is_removed_with_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise StorageError("the disk is full")

    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    counted = environment.from_elements([], RECORD, uid="in").key_by("k").process(Counting(), uid="c", schema=RECORD)
    counted.sink_to([])
    settings = settings_of(CheckpointingMode.UNALIGNED, Clock())
    with environment.opened_run(checkpoints=settings, sources_send_time=True) as run:
        feeding = Feeding(run, script(1), 0)
        run.begin_epoch()
        for count in (20, 20):
            feeding.feed(count)
            with monkeypatch.context() as patched:
                patched.setattr(local_checkpoints, "write_channel_state", fail)
                request_id = run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
                while run.step() is not None:
                    pass
            answer = run.checkpoints.take_answer(request_id)
            assert answer is not None
            assert answer.failure is not None
        run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
        store, files = run.parts.store, run.parts.directory.file_system
        newest = store.latest()
        assert newest is not None
        assert set(files.list_files("shared", include_temporary=True)) == {one.path for one in newest.files}
