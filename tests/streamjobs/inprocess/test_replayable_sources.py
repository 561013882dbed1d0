"""Sources that can be read again: how far their splits are read stands in the checkpoint, at any parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_continuous_run import Count as PoisonedCount
from test_run_steps import RECORD
from test_staged_sinks import Files

from streamjobs import JobDefinitionError, JobRestoreError, StreamJobError, UserFunctionError
from streamjobs.api.replayable_source import SplitRead
from streamjobs.inprocess import LocalStreamEnvironment


class Lists:
    """A source of lists, one a split; positions are places in them."""

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
    "by the clock": {"checkpoint_interval_ms": 1},
    "unaligned": {"checkpoint_interval_ms": 1, "unaligned_checkpoints": True},
    "by records": {"epoch_size": 500},
    "all at once": {},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_job_that_fails_reads_on_behind_what_counts_and_puts_out_each_record_once(
    tmp_path: Path, how: str, backend: str
) -> None:
    lists = splits_of(6000)
    lists["split-1"][4000]["n"] = -1
    sink = Files(tmp_path / "out")
    with pytest.raises(UserFunctionError, match="poison"):
        run(Lists(lists), sink, tmp_path / "job", parallelism=2, backend=backend, **HOW[how])
    told = len(sink.committed())
    assert told < 18_000
    lists["split-1"][4000]["n"] = 0
    again, sink = Lists(lists), Files(tmp_path / "out")
    run(again, sink, tmp_path / "job", parallelism=3, backend=backend, **HOW[how])
    assert Counter(key for key, _ in sink.committed()) == dict.fromkeys([f"k{n}" for n in range(5)], 3600)
    # Each count was put out once: state and positions belong together.
    assert len(set(sink.committed())) == 18_000
    assert (min(position for _, position in again.read_at) > 0) == (told > 0)


def test_a_savepoint_has_the_positions_and_a_new_split_is_read_from_its_begin(tmp_path: Path) -> None:
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


def test_nothing_is_read_again_by_a_job_that_was_at_its_end(tmp_path: Path) -> None:
    results: list[Any] = []
    run(Lists(splits_of(20)), results, tmp_path / "job")
    run(Lists(splits_of(20)), results, tmp_path / "job", checkpoint_interval_ms=1)
    assert len(results) == 60


@pytest.mark.parametrize("how", ["by the clock", "by records"])
def test_a_job_over_a_source_without_an_end_stops_when_it_is_asked_and_goes_on_from_its_savepoint(
    tmp_path: Path, how: str
) -> None:
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


def test_a_split_that_is_gone_is_refused(tmp_path: Path) -> None:
    run(Lists(splits_of(20, 2)), [], tmp_path / "job")
    with pytest.raises(JobRestoreError, match="has no split 'split-1' any more, which was read up to position 20"):
        run(Lists(splits_of(20, 1)), [], tmp_path / "job")


def test_a_source_that_is_gone_is_refused_unless_its_positions_may_be(tmp_path: Path) -> None:
    run(Lists(splits_of(20, 1)), [], tmp_path / "job")

    def without(**options: Any) -> list[Any]:
        results: list[Any] = []
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
        stream = environment.from_elements([("k0", 1)], RECORD).key_by("k")
        stream.process(PoisonedCount(), uid="count", schema=RECORD).sink_to(results)
        environment.execute("job", **options)
        return results

    with pytest.raises(JobRestoreError, match="operators that the job has not: 'lists'"):
        without()
    assert without(allow_non_restored_state=True) == [("k0", 5)]


def test_a_source_that_goes_back_or_gives_too_much_is_an_error_that_names_it(tmp_path: Path) -> None:
    class Back(Lists):
        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            return SplitRead([], -1)

    with pytest.raises(StreamJobError, match=r"source 'lists', split 'split-0': .* position never goes back"):
        run(Back(splits_of(1, 1)), [], tmp_path / "job")


def test_what_is_no_source_and_a_uid_that_is_taken_are_refused(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    with pytest.raises(JobDefinitionError, match="no ReplayableSource"):
        environment.from_source([1], uid="lists")  # type: ignore[arg-type]
    stream = environment.from_source(Lists({}), RECORD, uid="count").key_by("k")
    stream.process(PoisonedCount(), uid="count", schema=RECORD).sink_to([])
    with pytest.raises(JobDefinitionError, match="have the uid 'count'"):
        environment.execute("job")
    assert not (tmp_path / "job").exists()


def test_a_source_that_has_nothing_yet_is_asked_again(tmp_path: Path) -> None:
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
