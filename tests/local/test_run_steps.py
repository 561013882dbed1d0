"""A local run driven step by step: by a seed, on a custom file system, abandoned at any step."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from counted_keys import Count
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import BroadcastStateDescriptor, KeyedBroadcastProcessFunction
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.coordinator.requests import (
    CheckpointFailureReason,
    CheckpointLimits,
    CheckpointRequestKind,
)
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.completed_checkpoint_store import DirectoryCheckpointStore
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.local import LocalStreamEnvironment
from statebackend.local.checkpoints import CheckpointFailedError, SnapshotWork, SnapshotWriter
from statebackend.local.job_parts import CheckpointSettings
from statebackend.local.network.network import DownstreamFirst, Shuffled
from statebackend.local.network.subtasks import Mail
from statebackend.local.run import LocalRun
from statebackend.local.source import LocalSource
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.observing.job_events import CheckpointFailed, JobListener

pytestmark = pytest.mark.slow

RECORD = "k string, n bigint"


@frozen
class Row:
    k: str
    n: int


class Clock:
    """A clock that a test moves, and the waits on it."""

    def __init__(self) -> None:
        self.now_ms = self.looks = 0
        self.waits: list[float] = []

    def __call__(self) -> int:
        self.looks += 1
        return self.now_ms

    def wait(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now_ms += round(wait_s * 1000)


def environment_of(results: list[Any], backend: str = "heap", parallelism: int = 2) -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment(backend=backend, parallelism=parallelism, max_parallelism=8, clock=lambda: 0)
    counted = environment.from_elements([], RECORD, uid="in").key_by("k").process(Count(), uid="count", schema=RECORD)
    counted.key_by("k").process(Count(), uid="again", schema=RECORD).sink_to(results)
    return environment


def feed(run: LocalRun, keys: Iterable[str]) -> None:
    [source] = run.job_network.sources.values()
    for key in keys:
        source.feed(partial(LocalSource.read, records=[{"k": key, "n": 1}]))


def steps(run: LocalRun) -> list[str]:
    """Move until no move is possible; returns the moves."""
    trace = []
    while (move := run.step()) is not None:
        trace.append(str(move))
    return trace


def play(run: LocalRun, keys: Iterable[str]) -> None:
    """Process records to the end."""
    feed(run, keys)
    steps(run)


class Crashing(CheckpointFileSystem):
    """A file system that allows this many writes and then fails, like a dead process."""

    def __init__(self, root: Path, writes: int | None) -> None:
        alive = CheckpointFileSystem.from_uri(root)
        super().__init__(alive.uri, alive._storage)
        self.writes = writes

    def write_file(self, *arguments: Any, **named: Any) -> Any:
        self._use()
        return super().write_file(*arguments, **named)

    def delete(self, *arguments: Any, **named: Any) -> Any:
        if self.writes is not None and self.writes <= 0:
            raise StorageError("dead")
        return super().delete(*arguments, **named)

    def upload(self, *arguments: Any, **named: Any) -> Any:
        self._use()
        return super().upload(*arguments, **named)

    def _use(self) -> None:
        if self.writes is not None:
            self.writes -= 1
            if self.writes < 0:
                raise StorageError("dead")


def opened(
    root: Path,
    environment: LocalStreamEnvironment,
    seed: int | None,
    checkpoints: CheckpointSettings,
    writes: int | None,
    retained: int = 3,
) -> Any:
    directory = JobDirectory.open(str(root), "job", 8)
    file_system = Crashing(root, writes)
    directory.file_system = file_system
    store = DirectoryCheckpointStore(file_system, retained)
    store.recover()
    store.delete_orphans()
    scheduler = DownstreamFirst() if seed is None else Shuffled(seed)
    return directory, environment.run_in(directory, store, checkpoints=checkpoints, scheduler=scheduler)


def trace_of(root: Path, seed: int) -> tuple[list[str], list[Any]]:
    results: list[Any] = []
    directory, opening = opened(
        root,
        environment_of(results),
        seed,
        CheckpointSettings(limits=CheckpointLimits(max_concurrent_checkpoints=3), tolerable_failures=9),
        None,
    )
    with directory, opening as run:
        trace: list[str] = []
        for keys in ("abc", "bca", "aab"):
            feed(run, keys)
            run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
            trace += [str(move) for _ in range(7) if (move := run.step()) is not None]
            trace += steps(run)
        run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        return trace + steps(run), results


def test_a_periodic_checkpoint_that_has_to_wait_is_asked_for_again_after_an_interval() -> None:
    clock = Clock()
    with environment_of([]).opened_run(checkpoints=CheckpointSettings(now_ms=clock)) as run:
        run.checkpoints.start(100)
        run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        for clock.now_ms in (100, 200, 320):
            assert run.checkpoints.fire_due()
            assert [one.kind.is_periodic for one in run.checkpoints.coordinator.waiting_requests] == [True]
            assert run.checkpoints.due_ms == clock.now_ms + 100
            assert not run.checkpoints.fire_due()


@settings(max_examples=examples(10))
@given(st.integers(0, 1 << 30))
def test_the_same_seed_makes_the_same_moves(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    root = tmp_path_factory.mktemp("runs")
    first, second = trace_of(root / "first", seed), trace_of(root / "second", seed)
    assert first == second
    assert Counter(row[0] for row in first[1]) == Counter("abcbcaaab")


def test_another_seed_makes_other_moves(tmp_path: Path) -> None:
    traces = {tuple(trace_of(tmp_path / str(seed), seed)[0]) for seed in range(4)}
    assert len(traces) == 4


def test_records_processed_before_a_delayed_write_are_not_in_the_snapshot(tmp_path: Path) -> None:
    """A scheduler that delays writes: a snapshot contains the state at the barrier."""

    class WritesLast:
        def choose(self, moves: Iterator[Any]) -> Any:
            known = list(moves)
            others = [one for one in known if one.mail is None or one.mail.name != "write"]
            return next(iter(others or known), None)

    results: list[Any] = []
    environment = environment_of(results, parallelism=1)
    directory, _ = opened(tmp_path / "job", environment, None, CheckpointSettings(), None)
    store = DirectoryCheckpointStore(directory.file_system)
    store.recover()
    with (
        directory,
        environment.run_in(directory, store, checkpoints=CheckpointSettings(), scheduler=WritesLast()) as run,
    ):
        play(run, "aa")
        run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        feed(run, "ab")
        trace = steps(run)
        first_write = next(place for place, move in enumerate(trace) if move.startswith("write"))
        # The source sent the barrier first. The records after it are processed before the first write.
        assert trace[:first_write].count("in[0] reads") == 2
        assert sorted(results) == [("a", 1), ("a", 2)]
        assert store.latest() is not None
    again: list[Any] = []
    environment = environment_of(again, parallelism=1)
    directory, opening = opened(tmp_path / "job", environment, None, CheckpointSettings(), None)
    with directory, opening as run:
        play(run, "ab")
        run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    assert sorted(again) == [("a", 3), ("b", 1)]


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_run_that_dies_between_any_two_writes_continues_from_a_complete_checkpoint(
    tmp_path: Path, backend: str
) -> None:
    """Try every number of writes until the run needs no more. After a crash, the missing records are sent again."""
    keys = ["ab", "bc", "aa"]
    for writes in range(200):
        root, results = tmp_path / str(writes), list[Any]()
        directory, opening = opened(root, environment_of(results, backend), writes, CheckpointSettings(), writes)
        done, has_died = 0, False
        with directory, opening as run:
            try:
                for piece in keys:
                    play(run, piece)
                    run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
                    done += 1
            except StorageError:
                has_died = True
        again: list[Any] = []
        rescaled = environment_of(again, backend, parallelism=3)
        directory, opening = opened(root, rescaled, writes, CheckpointSettings(), None)
        with directory, opening as run:
            known = 0 if run.restored_id is None else run.restored_id + 1
            # A checkpoint is complete when it is stored. A process that dies right after that was not notified.
            assert known in (done, done + 1) if has_died else known == len(keys)
            play(run, "".join(keys[known:]))
            play(run, "abc")
            run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
            last = {row[0]: row[1] for row in again}
        assert last == {"a": 4, "b": 3, "c": 2}, writes
        if not has_died:
            return
    pytest.fail("the run never came to its end")


def test_duplicate_messages_change_nothing(tmp_path: Path) -> None:
    results: list[Any] = []
    doubled = CheckpointSettings(post=lambda mail: (mail, mail))
    for seed in range(10):
        results.clear()
        directory, opening = opened(tmp_path / str(seed), environment_of(results), seed, doubled, None)
        with directory, opening as run:
            for keys in ("ab", "ca"):
                feed(run, keys)
                steps(run)
                run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
        assert sorted(results) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]


@pytest.mark.parametrize("name", ["trigger", "acknowledge"])
def test_a_checkpoint_with_a_lost_message_times_out_and_the_next_one_has_its_records(tmp_path: Path, name: str) -> None:
    clock, lost = Clock(), list[Mail]()

    def lose_first(mail: Mail) -> Iterable[Mail]:
        if mail.name == name and not lost:
            lost.append(mail)
            return ()
        return (mail,)

    results: list[Any] = []
    settings_of = CheckpointSettings(timeout_ms=100, tolerable_failures=1, now_ms=clock, post=lose_first)
    directory, opening = opened(tmp_path / "job", environment_of(results), None, settings_of, None)
    with directory, opening as run:
        play(run, "ab")
        request = run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        steps(run)
        assert run.checkpoints.take_answer(request) is None
        assert lost
        clock.now_ms = 100
        steps(run)
        answer = run.checkpoints.take_answer(request)
        assert answer is not None
        assert answer.failure is CheckpointFailureReason.EXPIRED
        assert results == []
        assert run.take_checkpoint(CheckpointRequestKind.ON_DEMAND) == 1
        assert sorted(results) == [("a", 1), ("b", 1)]


class Abandoned(JobListener):
    """Records the aborted checkpoints with their reasons."""

    def __init__(self) -> None:
        self.reasons: list[tuple[int | None, str]] = []

    def checkpoint_failed(self, event: CheckpointFailed) -> None:
        self.reasons.append((event.checkpoint.checkpoint_id, event.checkpoint.reason))


@pytest.mark.parametrize(
    ("late", "failure", "reason"),
    [
        ([("acknowledge", 0)], CheckpointFailureReason.SUBSUMED, "checkpoint 1 completed first"),
        ([("trigger", 0), ("acknowledge", 1)], CheckpointFailureReason.DECLINED_SUBSUMED, "a newer checkpoint arrived"),
    ],
)
def test_a_checkpoint_subsumed_by_a_newer_one_is_reported_and_is_not_a_failure(
    tmp_path: Path, late: list[tuple[str, int]], failure: CheckpointFailureReason, reason: str
) -> None:
    held: dict[tuple[str, int], Mail] = {}

    def hold_first(mail: Mail) -> Iterable[Mail]:
        name = mail.name, mail.checkpoint_id
        return () if name in late and held.setdefault(name, mail) is mail else (mail,)

    listener, results = Abandoned(), list[Any]()
    environment = environment_of(results)
    environment.add_listener(listener)
    settings_of = CheckpointSettings(
        limits=CheckpointLimits(max_concurrent_checkpoints=2), tolerable_failures=0, post=hold_first
    )
    directory, opening = opened(tmp_path / "job", environment, None, settings_of, None)
    with directory, opening as run:
        requests = []
        for key in "ab":
            play(run, key)
            requests.append(run.checkpoints.request(CheckpointRequestKind.ON_DEMAND))
        steps(run)
        for name in late:
            run.network.send(held[name])
            steps(run)
        answers = [run.checkpoints.take_answer(request) for request in requests]
        assert [one.failure for one in answers if one is not None] == [failure, None]
        assert run.take_checkpoint(CheckpointRequestKind.ON_DEMAND) == 2
        assert run.recorder.metrics().totals.failed_checkpoints == 1
    [(abandoned, reported)] = listener.reasons
    assert abandoned == 0
    assert reason in reported
    assert sorted(results) == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("has_threads", [False, True])
def test_waiting_for_a_checkpoint_that_only_a_timer_ends_does_nothing_else(tmp_path: Path, has_threads: bool) -> None:
    clock = Clock()
    settings_of = CheckpointSettings(
        timeout_ms=60_000,
        tolerable_failures=1,
        now_ms=clock,
        wait=clock.wait,
        has_threads=has_threads,
        post=lambda mail: () if mail.name == "acknowledge" and mail.checkpoint_id == 0 else (mail,),
    )
    directory, opening = opened(tmp_path / "job", environment_of([]), None, settings_of, None)
    with directory, opening as run:
        play(run, "ab")
        with pytest.raises(CheckpointFailedError, match="60000 ms"):
            run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    assert clock.waits == [60.0]
    assert clock.looks < 100


@pytest.mark.parametrize(("timeout_ms", "longest_s"), [(None, None), (60_000, 60.0)])
def test_waiting_for_a_checkpoint_waits_for_writer_threads_or_the_next_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_ms: int | None, longest_s: float | None
) -> None:
    clock, is_waited_for, waits = Clock(), threading.Event(), list[float | None]()
    write, collect = SnapshotWriter._write_on_thread, SnapshotWriter.collect

    def write_when_waited_for(writer: SnapshotWriter, work: SnapshotWork) -> None:
        is_waited_for.wait()
        write(writer, work)

    def noted_collect(writer: SnapshotWriter, wait_s: float | None = 0.0) -> None:
        if wait_s != 0:
            waits.append(wait_s)
            is_waited_for.set()
        collect(writer, wait_s)

    monkeypatch.setattr(SnapshotWriter, "_write_on_thread", write_when_waited_for)
    monkeypatch.setattr(SnapshotWriter, "collect", noted_collect)
    settings_of = CheckpointSettings(timeout_ms=timeout_ms, now_ms=clock, wait=clock.wait, has_threads=True)
    directory, opening = opened(tmp_path / "job", environment_of([]), None, settings_of, None)
    with directory, opening as run:
        play(run, "ab")
        assert run.take_checkpoint(CheckpointRequestKind.ON_DEMAND) == 0
        # At most one wait per write.
        assert 1 <= len(waits) <= len(run.job_network.subtasks)
    assert set(waits) == {longest_s}
    assert clock.waits == []


@pytest.mark.parametrize("seed", range(6))
def test_a_start_continues_from_the_requested_savepoint_and_its_records_are_emitted(tmp_path: Path, seed: int) -> None:
    results: list[Any] = []
    settings_of = CheckpointSettings(limits=CheckpointLimits(max_concurrent_checkpoints=3))
    directory, opening = opened(tmp_path / "job", environment_of(results), seed, settings_of, None)
    with directory, opening as run:
        play(run, "ab")
        requests = [run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)]
        feed(run, "a")
        requests.append(run.checkpoints.request(CheckpointRequestKind.SAVEPOINT))
        feed(run, "b")
        steps(run)
        answers = [run.checkpoints.take_answer(request) for request in requests]
        # A trigger may overtake the previous one, which the source then declines. Every request is answered.
        allowed = (None, CheckpointFailureReason.DECLINED_SUBSUMED)
        assert all(answer is not None and answer.failure in allowed for answer in answers)
        assert run.checkpoints.is_idle
    again: list[Any] = []
    directory, opening = opened(tmp_path / "job", environment_of(again), None, CheckpointSettings(), None)
    with directory, opening as run:
        play(run, "ab")
        run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    reported = {key: max(count for known, count in results if known == key) for key in "ab"}
    assert sorted(again) == sorted((key, count + 1) for key, count in reported.items())


@pytest.mark.parametrize("mode", [CheckpointingMode.ALIGNED, CheckpointingMode.UNALIGNED])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_read_after_the_barrier_of_a_stop(tmp_path: Path, seed: int, mode: CheckpointingMode) -> None:
    results: list[Any] = []
    settings_of = CheckpointSettings(mode=mode, limits=CheckpointLimits(max_concurrent_checkpoints=3))
    directory, opening = opened(tmp_path / "job", environment_of(results), seed, settings_of, None)
    with directory, opening as run:
        feed(run, "abc" * 20)
        for _ in range(40):
            run.step()
        run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        for _ in range(seed * 10):
            run.step()
        run.stop()
        assert run.has_stopped
        [source] = run.job_network.sources.values()
        read = 60 - source.unread
        assert 0 < read < 60
        steps(run)
        assert source.unread == 60 - read
    assert sum(1 for _ in results) == read, "what was read is in the checkpoint, and came out with it"
    directory, opening = opened(tmp_path / "job", environment_of(results), None, CheckpointSettings(), None)
    with directory, opening as run:
        play(run, ("abc" * 20)[read:])
        run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    assert sorted(results) == sorted((key, count) for key in "abc" for count in range(1, 21))


RULES = BroadcastStateDescriptor("rules", str, int)


class Ruled(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Its broadcast state changes rarely, so most checkpoints refer to the file of the previous one."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield context.current_key, context.get_broadcast_state(RULES).get(value.k) or 0

    def process_broadcast_element(self, value: Any, context: Any) -> Sequence[Any]:
        context.get_broadcast_state(RULES).put(value.k, value.n)
        return ()


def test_no_checkpoint_misses_files_of_one_dropped_meanwhile(tmp_path: Path) -> None:
    """The base of a snapshot depends on when its task is notified about a completed checkpoint."""
    settings_of = CheckpointSettings(limits=CheckpointLimits(max_concurrent_checkpoints=3))
    for seed in range(25):
        root = tmp_path / str(seed)
        environment = LocalStreamEnvironment(max_parallelism=8, clock=lambda: 0)
        keyed = environment.from_elements([], RECORD, uid="in").key_by("k")
        rules = environment.from_elements([], RECORD, uid="rules").broadcast(RULES)
        keyed.connect(rules).process(Ruled(), uid="ruled", schema=RECORD).sink_to([])
        directory, opening = opened(root, environment, seed, settings_of, None, retained=1)
        with directory, opening as run:
            requests = []
            records, rule = run.job_network.sources.values()
            rule.feed(partial(LocalSource.read, records=[Row(k="a", n=1)]))
            for key in "abcdefgh":
                records.feed(partial(LocalSource.read, records=[Row(k=key, n=1)]))
                requests.append(run.checkpoints.request(CheckpointRequestKind.ON_DEMAND))
                for _ in range(9):
                    run.step()
            steps(run)
            answers = [run.checkpoints.take_answer(request) for request in requests]
            failures = {one.failure for one in answers if one is not None}
            assert CheckpointFailureReason.FINALIZE_FAILED not in failures
            assert sum(one is not None and one.failure is None for one in answers) > 1
        assert len(list((root / "checkpoints").glob("*/_metadata"))) == 1


def test_a_run_that_cannot_store_its_final_checkpoint_fails_and_commits_nothing(tmp_path: Path) -> None:
    results: list[Any] = []
    settings_of = CheckpointSettings(tolerable_failures=1000)
    directory, opening = opened(tmp_path / "job", environment_of(results), None, settings_of, 0)
    with directory, opening as run:
        feed(run, "abc")
        with pytest.raises(StorageError, match="dead"):
            run.stop()
        with pytest.raises(StreamJobError, match="the run has failed"):
            run.step()
    assert results == []


def test_periodic_checkpoints_keep_the_minimum_pause(tmp_path: Path) -> None:
    clock = Clock()
    settings_of = CheckpointSettings(now_ms=clock, limits=CheckpointLimits(minimum_pause_ms=50))
    directory, opening = opened(tmp_path / "job", environment_of([]), None, settings_of, None)
    with directory, opening as run:
        run.checkpoints.start(interval_ms=30)
        ids = []
        for now_ms in range(0, 200, 10):
            clock.now_ms = now_ms
            feed(run, "a")
            steps(run)
            ids.append(run.epochs)
    # The first checkpoint is at 30. 60 is too early, so the second is at 80; 110 is too early, so the third is at 130.
    assert [ids.index(count) * 10 for count in (1, 2, 3, 4)] == [30, 80, 130, 180]


def test_a_due_checkpoint_is_taken_while_timers_fire(tmp_path: Path) -> None:
    clock = Clock()
    directory, opening = opened(tmp_path / "job", environment_of([]), None, CheckpointSettings(now_ms=clock), None)
    with directory, opening as run:
        run.checkpoints.start(interval_ms=30)
        play(run, "a")
        clock.now_ms = 40
        run.advance_processing_time(40)
        assert run.epochs == 1


def test_periodic_requests_do_not_queue_up_behind_a_slow_checkpoint(tmp_path: Path) -> None:
    clock = Clock()
    hold: list[Mail] = []

    def keep(mail: Mail) -> Iterable[Mail]:
        if mail.name == "trigger" and mail.checkpoint_id == 0:
            hold.append(mail)
            return ()
        return (mail,)

    settings_of = CheckpointSettings(now_ms=clock, post=keep)
    directory, opening = opened(tmp_path / "job", environment_of([]), None, settings_of, None)
    with directory, opening as run:
        run.checkpoints.start(interval_ms=1)
        for clock.now_ms in range(2000):
            steps(run)
        assert len(run.checkpoints.coordinator.waiting_requests) == 1
        run.checkpoints.stop()
        for mail in hold:
            run.network.send(mail)
        play(run, "a")
        assert run.checkpoints.is_idle
        assert run.take_checkpoint(CheckpointRequestKind.ON_DEMAND) is not None


def test_files_of_a_failed_checkpoint_are_removed_when_a_newer_one_completes(tmp_path: Path) -> None:
    clock = Clock()

    def lose(mail: Mail) -> Iterable[Mail]:
        is_last = mail.name == "acknowledge" and mail.checkpoint_id == 0 and str(mail.task) == "count[1]"
        return () if is_last else (mail,)

    settings_of = CheckpointSettings(timeout_ms=10, tolerable_failures=1, now_ms=clock, post=lose)
    directory, opening = opened(tmp_path / "job", environment_of([]), None, settings_of, None)
    with directory, opening as run:
        play(run, "abcdefgh")
        run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        steps(run)
        clock.now_ms = 10
        steps(run)
        play(run, "i")
        assert run.take_checkpoint(CheckpointRequestKind.ON_DEMAND) == 1
        store = run.parts.store
        referred = {file.path for one in store.all() for file in one.files}
        there = set(directory.file_system.list_files("shared"))
        # The next checkpoint uses files of the failed one. These are not deleted, and unreferenced files are.
        assert any("-000000000000-" in path for path in referred)
        assert referred == there
    again: list[Any] = []
    directory, opening = opened(tmp_path / "job", environment_of(again), 3, CheckpointSettings(), None)
    with directory, opening as run:
        play(run, "a")
        run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    assert again == [("a", 2)]
