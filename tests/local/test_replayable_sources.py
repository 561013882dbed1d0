"""Replayable sources: a checkpoint stores the position of each split, at any parallelism."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_continuous_run import WHILE_WAITING
from test_continuous_run import Count as PoisonedCount
from test_run_steps import RECORD
from test_staged_sinks import Files

from statebackend import JobDefinitionError, JobRestoreError, StreamJobError, UserFunctionError, WatermarkStrategy
from statebackend.local import LocalStreamEnvironment, source_reading
from statebackend.streaming.stream_graph import SplitRead

pytestmark = pytest.mark.slow


class Lists:
    """A source of lists, one per split; positions are list indices."""

    def __init__(self, lists: Mapping[str, Sequence[Any]], begin: int = 0) -> None:
        self.lists = dict(lists)
        self.read_at: list[tuple[str, int]] = []
        self._begin = begin

    def splits(self) -> Mapping[str, int]:
        return dict.fromkeys(self.lists, self._begin)

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        self.read_at.append((split, position))
        records = self.lists[split][position : position + max_records]
        following = position + len(records)
        return SplitRead(records, following, following >= len(self.lists[split]))


def splits_of(count: int, number: int = 3) -> dict[str, list[Any]]:
    return {f"split-{split}": [{"k": f"k{place % 5}", "n": place} for place in range(count)] for split in range(number)}


def run(source: Any, sink: Any, job_dir: Path, **options: Any) -> Any:
    execute = {name: options.pop(name) for name in ("from_savepoint", "allow_non_restored_state") if name in options}
    environment = LocalStreamEnvironment(job_dir=job_dir, **options)
    stream = environment.from_source(source, RECORD, uid=options.get("uid", "lists")).key_by("k")
    stream.process(PoisonedCount(), uid="count", schema=RECORD).sink_to(sink, uid="out")
    return environment.execute("job", **execute)


HOW: dict[str, dict[str, Any]] = {
    "by the clock": {"checkpoint_interval": 1},
    "unaligned": {"checkpoint_interval": 1, "unaligned_checkpoints": True},
    "by records": {"epoch_size": 500},
    "all at once": {},
}


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_failed_job_continues_after_its_position_and_emits_each_record_once(
    tmp_path: Path, how: str, backend: str
) -> None:
    lists = splits_of(6000)
    lists["split-1"][4000]["n"] = -1
    sink = Files(tmp_path / "out")
    with pytest.raises(UserFunctionError, match="poison"):
        run(Lists(lists), sink, tmp_path / "job", parallelism=2, backend=backend, **HOW[how])
    reported = len(sink.committed())
    assert reported < 18_000
    lists["split-1"][4000]["n"] = 0
    again, sink = Lists(lists), Files(tmp_path / "out")
    run(again, sink, tmp_path / "job", parallelism=3, backend=backend, **HOW[how])
    assert Counter(key for key, _ in sink.committed()) == dict.fromkeys([f"k{n}" for n in range(5)], 3600)
    # Each count was emitted once, so state and positions are consistent.
    assert len(set(sink.committed())) == 18_000
    # Records with emitted results are not read again. Only records in flight, which the state has, are read beyond
    # them.
    read_before = sum(dict(reversed(again.read_at)).values())
    assert read_before >= reported if how == "unaligned" else read_before == reported


class IdentifiedLists(Lists):
    """A source whose splits have identities. Later calls return later identities."""

    def __init__(self, lists: Mapping[str, Sequence[Any]], *identities: str) -> None:
        super().__init__(lists)
        self.identities = list(identities)

    def split_identities(self) -> Mapping[str, str]:
        identity = self.identities.pop(0) if len(self.identities) > 1 else self.identities[0]
        return dict.fromkeys(self.lists, identity)


RECREATED = r"source 'lists': split 'split-0', which was read up to position \d+, was deleted and created again"


def test_a_start_with_a_split_that_was_created_again_is_an_error(tmp_path: Path) -> None:
    # The first checkpoint stores no identities, like those of older releases.
    run(Lists(splits_of(10)), [], tmp_path / "job")
    run(IdentifiedLists(splits_of(20), "first"), [], tmp_path / "job").savepoint(tmp_path / "savepoint")
    out: list[Any] = []
    with pytest.raises(StreamJobError, match=RECREATED):
        run(IdentifiedLists(splits_of(30), "second"), out, tmp_path / "job")
    with pytest.raises(StreamJobError, match=RECREATED):
        run(IdentifiedLists(splits_of(30), "second"), out, tmp_path / "new", from_savepoint=tmp_path / "savepoint")
    assert not out
    run(IdentifiedLists(splits_of(30), "first"), out, tmp_path / "job")
    assert len(out) == 30


@pytest.mark.parametrize("how", HOW)
def test_a_split_that_is_created_again_during_a_run_fails_the_checkpoint(tmp_path: Path, how: str) -> None:
    out: list[Any] = []
    with pytest.raises(StreamJobError, match=RECREATED):
        run(IdentifiedLists(splits_of(10), "first", "second"), out, tmp_path / "job", **HOW[how])
    assert not out


class GrowingUntil(Lists):
    """A source whose split grows until a condition holds. Then it has one last record, which fails."""

    def __init__(self, split: str, is_so: Callable[[], bool]) -> None:
        super().__init__({split: [{"k": "k", "n": 1}] * 25_000})
        self._is_so = is_so

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        if position + max_records >= len(self.lists[split]):
            more = [{"k": "k", "n": -1}] if self._is_so() else [{"k": "k", "n": 1}] * WHILE_WAITING
            self.lists[split] = [*self.lists[split], *more]
        got = super().read(split, position, max_records)
        return SplitRead(got.records, got.position)


@pytest.mark.parametrize("how", ["by the clock", "unaligned"])
def test_checkpoints_continue_after_the_end_of_one_of_two_sources_and_record_it(tmp_path: Path, how: str) -> None:
    sink = Files(tmp_path / "out")
    short = {"short": [{"k": "k", "n": 1}] * 100}
    growing = GrowingUntil("long", lambda: len(sink.committed()) > 1000)

    def execute(read: Sequence[Lists]) -> None:
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", parallelism=2, **HOW[how])
        first, second = (environment.from_source(one, RECORD, uid=next(iter(one.lists))) for one in read)
        counted = first.union(second).key_by("k").process(PoisonedCount(), uid="count", schema=RECORD)
        counted.sink_to(sink, uid="out")
        environment.execute("job")

    with pytest.raises(UserFunctionError, match="poison"):
        execute([Lists(short), growing])
    assert len(sink.committed()) > 1000, "checkpoints behind the end of the short one"
    again, mended = Lists(short), Lists({"long": [{"k": "k", "n": 1}] * len(growing.lists["long"])})
    execute([again, mended])
    assert [position for _, position in again.read_at] == [100]
    counts = sorted(count for _, count in sink.committed())
    assert counts == list(range(1, len(short["short"]) + len(mended.lists["long"]) + 1))


def test_a_savepoint_has_the_positions_and_a_new_split_is_read_from_its_start(tmp_path: Path) -> None:
    first: list[Any] = []
    job = run(Lists(splits_of(50, 2)), first, tmp_path / "job")
    savepoint = job.savepoint(tmp_path / "savepoint").path
    more: list[Any] = []
    lists = splits_of(50, 3)
    lists["split-0"].append({"k": "k0", "n": 50})
    source = Lists(lists)
    run(source, more, tmp_path / "other", from_savepoint=savepoint, parallelism=2)
    assert len(more) == 51
    assert dict(reversed(source.read_at)) == {"split-0": 50, "split-1": 50, "split-2": 0}


def test_a_skipped_part_of_a_split_is_skipped_once(tmp_path: Path) -> None:
    class Sparse(Lists):
        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            got = super().read(split, position, 10)
            return SplitRead([record for record in got.records if record["n"] < 10], got.position, got.is_at_end)

    for read_at in ([("split-0", place) for place in (0, 10, 20)], [("split-0", 30)]):
        source, results = Sparse(splits_of(30, 1)), list[Any]()
        run(source, results, tmp_path / "job")
        assert (source.read_at, len(results)) == (read_at, 10 if len(read_at) > 1 else 0)


def test_a_finished_job_reads_nothing_again(tmp_path: Path) -> None:
    results: list[Any] = []
    run(Lists(splits_of(20)), results, tmp_path / "job")
    run(Lists(splits_of(20)), results, tmp_path / "job", checkpoint_interval=1)
    assert len(results) == 60


@pytest.mark.parametrize("how", ["by the clock", "by records"])
def test_an_unbounded_job_stops_on_request_and_continues_from_its_savepoint(tmp_path: Path, how: str) -> None:
    class Endless(Lists):
        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            following = position + max_records
            return SplitRead([{"k": "k", "n": place} for place in range(position, following)], following)

    def execute(job_dir: Path, **options: Any) -> tuple[Any, list[Any]]:
        results: list[Any] = []
        environment = LocalStreamEnvironment(job_dir=job_dir, **HOW[how])

        def take(row: Any) -> None:
            results.append(row)
            if len(results) == 3000:
                environment.request_stop()

        stream = environment.from_source(Endless({"all": ()}), RECORD, uid="lists").key_by("k")
        stream.process(PoisonedCount(), uid="count", schema=RECORD).sink_to(take, uid="out")
        return environment.execute("job", **options), results

    job, first = execute(tmp_path / "job")
    assert [row[1] for row in first] == list(range(1, len(first) + 1))
    savepoint = job.savepoint(tmp_path / "savepoint").path
    _, second = execute(tmp_path / "other", from_savepoint=savepoint)
    assert [row[1] for row in second] == list(range(len(first) + 1, len(first) + len(second) + 1))


def test_a_removed_split_is_rejected(tmp_path: Path) -> None:
    run(Lists(splits_of(20, 2)), [], tmp_path / "job")
    with pytest.raises(JobRestoreError, match="split 'split-1', which was read up to position 20, no longer exists"):
        run(Lists(splits_of(20, 1)), [], tmp_path / "job")


def test_a_removed_source_is_rejected_unless_its_positions_may_be_dropped(tmp_path: Path) -> None:
    run(Lists(splits_of(20, 1)), [], tmp_path / "job")

    def without(**options: Any) -> list[Any]:
        results: list[Any] = []
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
        stream = environment.from_elements([("k0", 1)], RECORD).key_by("k")
        stream.process(PoisonedCount(), uid="count", schema=RECORD).sink_to(results)
        environment.execute("job", **options)
        return results

    with pytest.raises(JobRestoreError, match="operators that the job does not have: 'lists'"):
        without()
    assert without(allow_non_restored_state=True) == [("k0", 5)]


def test_a_source_that_goes_back_or_returns_too_much_is_named_in_the_error(tmp_path: Path) -> None:
    class Back(Lists):
        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            return SplitRead([], -1)

    with pytest.raises(StreamJobError, match=r"source 'lists', split 'split-0': .* position must not decrease"):
        run(Back(splits_of(1, 1)), [], tmp_path / "job")


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (None, "returned None; it must return a SplitRead"),
        (([], 1, True), r"returned \(\[\], 1, True\); it must return a SplitRead"),
        (SplitRead(None, 1), "it must return a SplitRead of records"),  # type: ignore[arg-type]
        (SplitRead([], None), "returned the position None; a position is a whole number of 64 bits"),  # type: ignore[arg-type]
        (SplitRead([], True), "returned the position True"),
        (SplitRead([], 1 << 63), "returned the position 9223372036854775808"),
        (
            SplitRead([{"k": "k", "n": 1}], 0),
            "returned 1 records and the same position, so they would be read again",
        ),
        (SplitRead([{"k": "k", "n": 1}] * 9999, 9999), "returned 9999 records; return at most"),
    ],
)
def test_an_invalid_read_of_a_split_names_the_source(tmp_path: Path, given: Any, reported: str) -> None:
    class Odd(Lists):
        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            return given  # type: ignore[no-any-return]

    with pytest.raises(StreamJobError, match=rf"source 'lists', split 'split-0': reading \d+ records .* {reported}"):
        run(Odd(splits_of(1, 1)), [], tmp_path / "job")


def test_a_source_that_raises_is_named(tmp_path: Path) -> None:
    class NotRead(Lists):
        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            raise OSError("no such host")

    class NotListed(Lists):
        def splits(self) -> Any:
            raise OSError("no such host")

    read_failed = r"source 'lists', split 'split-0': read\(\) from position 0 raised OSError: no such host"
    with pytest.raises(UserFunctionError, match=read_failed):
        run(NotRead(splits_of(1, 1)), [], tmp_path / "job")
    with pytest.raises(UserFunctionError, match=r"source 'lists': splits\(\) raised OSError: no such host"):
        run(NotListed({}), [], tmp_path / "job")


@pytest.mark.parametrize("given", [["a"], {1: 0}, {"a": "0"}, {"a": 1 << 63}, None])
def test_a_source_without_start_positions_is_rejected_by_name(tmp_path: Path, given: Any) -> None:
    class Odd(Lists):
        def splits(self) -> Any:
            return given

    with pytest.raises(JobDefinitionError, match=r"source 'lists': splits\(\) returned .* by the name of the split"):
        run(Odd({}), [], tmp_path / "job")


def test_other_sources_and_duplicate_uids_are_rejected(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    with pytest.raises(JobDefinitionError, match="pass a ReplayableSource"):
        environment.from_source([1], uid="lists")  # type: ignore[arg-type]
    stream = environment.from_source(Lists({}), RECORD, uid="count").key_by("k")
    stream.process(PoisonedCount(), uid="count", schema=RECORD).sink_to([])
    with pytest.raises(JobDefinitionError, match="have the uid 'count'"):
        environment.execute("job")
    assert not (tmp_path / "job").exists()


def test_a_source_without_data_is_polled_again(tmp_path: Path) -> None:
    class Slow(Lists):
        asked = 0

        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            self.asked += 1
            if self.asked % 3:
                return SplitRead([], position)
            return super().read(split, position, max_records)

    for place, how in enumerate(HOW.values()):
        results: list[Any] = []
        run(Slow(splits_of(1000, 2)), results, tmp_path / str(place), **how)
        assert len(results) == 2000


def test_a_job_directory_without_a_checkpoint_records_the_savepoint_given_later(
    tmp_path: Path,
) -> None:
    first: list[Any] = []
    job = run(Lists(splits_of(5, 1)), first, tmp_path / "first")
    job.savepoint(tmp_path / "savepoint")
    poisoned = {"split-0": [*splits_of(5, 1)["split-0"], {"k": "k0", "n": -1}]}
    for options in ({}, {"from_savepoint": tmp_path / "savepoint"}):
        lists = poisoned if options else {"split-0": poisoned["split-0"][-1:]}
        with pytest.raises(UserFunctionError, match="poison"):
            run(Lists(lists), [], tmp_path / "job", **options)
    again: list[Any] = []
    run(Lists({"split-0": [*poisoned["split-0"][:-1], {"k": "k0", "n": 5}]}), again, tmp_path / "job")
    assert again == [("k0", 2)]


@pytest.mark.parametrize(
    ("how", "ahead"),
    [({}, 2200), ({"epoch_size": 1}, 4), ({"epoch_size": 3}, 4), ({"checkpoint_interval": 1}, 2200)],
    ids=str,
)
def test_a_finished_source_holds_no_other_source_of_its_alignment_group(how: dict[str, Any], ahead: int) -> None:
    looks = itertools.count()

    def clock() -> int:
        assert next(looks) < 100_000, "the run waits for ever"
        return 0

    environment = LocalStreamEnvironment(clock=clock, **how)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("n")
    read = {"behind": range(11), "ahead": range(0, 100 * ahead, 100)}
    first, second = (
        environment.from_source(Lists({uid: [{"k": "k", "n": n} for n in times]}), RECORD, uid=uid)
        # One source ends while the other is ahead by more than the allowed drift.
        .assign_timestamps_and_watermarks(strategy.with_watermark_alignment("all", 5))
        for uid, times in read.items()
    )
    counts: list[Any] = []
    counted = first.union(second).key_by("k").process(PoisonedCount(), uid="count", schema=RECORD)
    counted.sink_to(counts)
    environment.execute("job")
    assert len(counts) == 11 + ahead


class Waiting(Lists):
    """A source without more data that calls a function at each poll."""

    def __init__(self, at_each: Callable[[int], object]) -> None:
        super().__init__({"only": [{"k": "k", "n": 1}]})
        self._asked = itertools.count(1)
        self._at_each = at_each

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        got = super().read(split, position, max_records)
        if not got.records:
            asked = next(self._asked)
            assert asked < 10_000, "the run goes on for ever"
            self._at_each(asked)
        return SplitRead(got.records, got.position)


@pytest.mark.parametrize("how", [{}, {"epoch_size": 3}, {"checkpoint_interval": 60_000}], ids=str)
def test_an_unbounded_job_stops_on_request_and_makes_no_empty_checkpoints(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(source_reading, "time", clock)
    environment = LocalStreamEnvironment(**how)
    source = Waiting(lambda asked: asked == 1000 and environment.request_stop())
    stream = environment.from_source(source, RECORD, uid="lists").key_by("k")
    counts: list[Any] = []
    stream.process(PoisonedCount(), uid="count", schema=RECORD).sink_to(counts)
    job = environment.execute("job")
    assert len(counts) == 1
    assert len(slept) > 900, "the cores are left to others"
    # The run takes five seconds: one epoch for the record, and one for each check of the clock.
    assert job.epochs <= 30
