"""The source log of a job directory is reordered like the sources of the job. A crash at any step leaves it valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from test_source_matching import sources, v1

from statebackend.checkpoint import CheckpointFileSystem, CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.checkpoint.store.job_directory import JobOrigin, read_origin
from statebackend.checkpoint.store.savepoint_directory import write_source_progress
from statebackend.savepoint.restored_state import RestoredState
from statebackend.spark.sources.offset_log import (
    SourceLogPlan,
    end_interrupted_rearrangement,
    planned_source_log,
    source_log_directory,
)
from statebackend.spark.sources.progress import (
    SOURCE_ORDER_FILE_NAME,
    Schema,
    SourceOrder,
    read_source_order,
    source_order,
)
from statebackend.streaming.errors import JobRestoreError, SourceProgressMismatchError
from statebackend.streaming.runtime.starting_point import StartingPoint

AB, BCA = sources("a", "b"), sources("b", "c", "a")


def metadata(known: Sequence[ReadSource], **changes: Any) -> CheckpointMetadata:
    content: dict[str, Any] = {
        "checkpoint_id": 9,
        "kind": CheckpointKind.CHECKPOINT,
        "job_id": "job",
        "job_name": "count",
        "timestamp_ms": 5,
        "max_parallelism": 4,
        "operators": (),
        "source_positions": SourcePositions(batch_id=4, offsets=v1("a4", "b4"), sources=tuple(known)),
    }
    return CheckpointMetadata(**{**content, **changes})


class Job:
    """A job directory whose newest checkpoint is of batch 4, and whose log has the planned batch 5."""

    def __init__(self, path: Path, known: Sequence[ReadSource] = AB, order: Sequence[ReadSource] | None = AB) -> None:
        self.fs = CheckpointFileSystem.from_uri(path)
        self.point = StartingPoint(RestoredState(metadata(known), self.fs), is_own=True)
        files = {
            "metadata": b"{}",
            "offsets/3": v1("a3", "b3"),
            "offsets/4": v1("a4", "b4"),
            "offsets/5": v1("a5", "b5"),
            "commits/3": b"v1",
            "sources/0/0": b"of a",
            "sources/1/0": b"of b",
        }
        for name, content in files.items():
            self.fs.write_file(f"spark/{name}", content)
        if order is not None:
            self.fs.write_file(f"spark/{SOURCE_ORDER_FILE_NAME}", source_order(order))

    def plan(self, now: tuple[ReadSource, ...], *dropped: str, schemas: tuple[Schema, ...] = ()) -> SourceLogPlan:
        return planned_source_log(self.fs, self.point, now, dropped, schemas)

    def begin(self, now: tuple[ReadSource, ...], *dropped: str, schemas: tuple[Schema, ...] = ()) -> CheckpointMetadata:
        """Prepare the log like a start, and return the start position."""
        plan = self.plan(now, *dropped, schemas=schemas)
        end_interrupted_rearrangement(self.fs)
        plan.carry_out(self.fs, self.point, self.fs)
        state = plan.state(self.point.state)
        assert state is not None
        return state.metadata

    def log(self, directory: str = "spark") -> dict[str, bytes]:
        return {
            path.removeprefix(f"{directory}/"): self.fs.read_file(path)
            for path in self.fs.list_files(directory, include_temporary=True)
        }


def log_of(now: Sequence[ReadSource], *known: str) -> dict[str, bytes]:
    """The log of `Job` for these sources. ``known`` are the sources with a position."""
    uids = [one.uid for one in now]
    lines = {batch: [f"{uid}{batch}" if uid in known else "-" for uid in uids] for batch in (3, 4, 5)}
    return {
        "metadata": b"{}",
        "commits/3": b"v1",
        **{f"offsets/{batch}": v1(*lines[batch]) for batch in lines},
        **{f"sources/{place}/0": f"of {uid}".encode() for place, uid in enumerate(uids) if uid in known},
        SOURCE_ORDER_FILE_NAME: source_order(now),
    }


def test_a_log_in_another_order_is_rewritten_and_the_former_is_kept_aside(tmp_path: Path) -> None:
    job = Job(tmp_path)
    positions = job.begin(BCA).source_positions
    assert job.log() == log_of(BCA, "a", "b")
    assert positions == SourcePositions(batch_id=4, offsets=v1("b4", "-", "a4"), sources=BCA)
    assert job.log("set-aside/spark-1") == log_of(AB, "a", "b")
    # The checkpoint still has the previous order.
    assert job.begin(BCA).source_offsets == v1("b4", "-", "a4")
    assert job.begin(AB).source_offsets == v1("a4", "b4")
    assert job.log() == log_of(AB, "a", "b")
    assert job.fs.list_directories("set-aside") == ("spark-1", "spark-2")


def test_a_log_in_the_order_of_the_job_is_unchanged(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.begin(AB) == metadata(AB)
    assert (job.log(), job.fs.list_directories()) == (log_of(AB, "a", "b"), ("spark",))


def test_a_log_without_source_order_has_the_order_of_the_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path, order=None)
    job.begin(AB)
    assert job.log() == log_of(AB, "a", "b")
    job.begin(BCA)
    assert job.log() == log_of(BCA, "a", "b")


def test_a_dropped_source_is_removed_for_good(tmp_path: Path) -> None:
    job = Job(tmp_path)
    only_b = sources("b")
    with pytest.raises(JobRestoreError, match="allow_dropped_sources"):
        job.plan(only_b)
    job.begin(only_b, "a")
    assert job.log() == log_of(only_b, "b")
    with pytest.raises(JobRestoreError, match=r"has read the source 'a', which .*spark does not contain: .*set-aside"):
        job.plan(AB)


def test_a_log_that_contradicts_the_checkpoint_is_rejected(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fs.write_file("spark/offsets/4", v1("a4", "b0"))
    with pytest.raises(SourceProgressMismatchError, match=r"offsets/4 has other positions than the state"):
        job.plan(BCA)


def test_a_log_without_a_batch_is_started_again_in_another_order(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.point = StartingPoint()
    for batch in (3, 4, 5):
        job.fs.delete(f"spark/offsets/{batch}")
    job.plan(BCA).carry_out(job.fs, job.point, job.fs)
    assert job.log() == {SOURCE_ORDER_FILE_NAME: source_order(BCA)}


def test_a_planned_batch_is_not_given_to_other_sources_even_without_a_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.point = StartingPoint()
    other_way_round = sources("a", "b", names={"a": "FileSource[/b]", "b": "FileSource[/a]"})
    with pytest.raises(JobRestoreError, match=r"'a' of the job reads FileSource\[/b\], and the state at .*/spark"):
        job.plan(other_way_round)
    job.plan(AB).carry_out(job.fs, job.point, job.fs)
    job.plan(sources("b", "a")).carry_out(job.fs, job.point, job.fs)
    assert job.log() == log_of(sources("b", "a"), "a", "b")


def test_a_new_log_names_its_sources_from_the_start(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fs.delete_directory("spark")
    job.point = StartingPoint()
    job.plan(AB).carry_out(job.fs, job.point, job.fs)
    assert job.log() == {SOURCE_ORDER_FILE_NAME: source_order(AB)}


def test_remains_of_a_first_batch_that_was_not_written_are_removed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.point = StartingPoint()
    for batch in (3, 4, 5):
        job.fs.delete(f"spark/offsets/{batch}")
    offsets = tmp_path / "spark" / "offsets"
    for name in (".0.b7.tmp", "..0.b7.tmp.crc"):
        (offsets / name).write_bytes(b"")
    job.plan(AB).carry_out(job.fs, job.point, job.fs)
    assert not offsets.exists()
    assert job.log() == {name: content for name, content in log_of(AB, "a", "b").items() if "offsets/" not in name}


def test_remains_of_a_later_batch_stay(tmp_path: Path) -> None:
    job = Job(tmp_path)
    remains = tmp_path / "spark" / "offsets" / ".6.b7.tmp"
    remains.write_bytes(b"")
    job.begin(AB)
    assert remains.exists()
    assert (tmp_path / "spark" / "offsets" / "5").exists()


class Died(BaseException):
    """The process is killed."""


@contextmanager
def crash_before_step(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Crash before the n-th change of the disk. Yields a function that returns whether the crash happened."""
    left = step

    def crashing(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Died
            return change(*arguments, **options)

        return changed

    with monkeypatch.context() as patched:
        for name in ("write_file", "move_directory", "delete_directory", "delete"):
            patched.setattr(CheckpointFileSystem, name, crashing(getattr(CheckpointFileSystem, name)))
        yield lambda: left < 0


def test_a_crash_at_any_step_leaves_one_intact_log_and_the_next_start_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, died, left = 0, True, []
    while died:
        job = Job(tmp_path / str(step))
        with crash_before_step(step, monkeypatch) as has_died, suppress(Died):
            job.begin(BCA)
        died = has_died()
        left.append(source_log_directory(job.fs))
        assert job.log(left[-1]) in (log_of(AB, "a", "b"), log_of(BCA, "a", "b"))
        # The next start may have other sources again.
        for now in (sources("a", "d", "b"), BCA):
            job.begin(now)
            assert job.log() == log_of(now, "a", "b")
            assert set(job.fs.list_directories()) == {"spark", "set-aside"}
        step += 1
    assert set(left) == {"spark", "spark-rewritten"}


def from_savepoint(path: Path, is_new_origin: bool) -> StartingPoint:
    """A start from a savepoint of batch 4 that reads one of its sources from the beginning."""
    fs = CheckpointFileSystem.from_uri(path)
    progress = {"metadata": b"{}", "offsets/4": v1("a4", "b4"), "sources/0/0": b"of a", "sources/1/0": b"of b"}
    files = write_source_progress(fs, progress)
    known = metadata(AB, kind=CheckpointKind.SAVEPOINT, source_progress_files=files)
    origin = JobOrigin(
        savepoint_uri=str(path),
        savepoint_job_id="job",
        savepoint_id=9,
        savepoint_timestamp_ms=5,
        with_source_progress=True,
        restarted_sources=("a",),
    )
    return StartingPoint(RestoredState(known, fs), origin=origin, is_new_origin=is_new_origin)


def test_the_log_of_a_savepoint_starts_in_the_order_of_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    job.point = from_savepoint(tmp_path / "savepoint", is_new_origin=True)
    offsets = job.begin(BCA).source_offsets
    started = {
        "metadata": job.log()["metadata"],
        "offsets/4": v1("b4", "-", "-"),
        "sources/0/0": b"of b",
        SOURCE_ORDER_FILE_NAME: source_order(BCA),
    }
    assert (job.log(), offsets) == (started, started["offsets/4"])
    # The query has its own id.
    assert started["metadata"] != b"{}"
    # Before its first checkpoint, the log is reordered again, together with the planned batch.
    job.fs.write_file("spark/offsets/5", v1("b5", "c5", "a5"))
    job.point = from_savepoint(tmp_path / "savepoint", is_new_origin=False)
    assert job.begin(sources("a", "b", "c")).source_offsets == v1("-", "b4", "-")
    assert job.log()["offsets/5"] == v1("a5", "b5", "c5")


def read_with(**types: str) -> tuple[Schema, ...]:
    """Schemas with one column each."""
    return tuple(
        {"type": "struct", "fields": [{"name": name, "type": type_, "nullable": True, "metadata": {}}]}
        for name, type_ in types.items()
    )


def test_changed_columns_of_a_source_are_rejected_before_the_start_and_compatible_ones_are_recorded(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    # An earlier release recorded no schemas.
    job.begin(AB, schemas=read_with(a="integer", b="long"))
    assert read_source_order(job.fs, "spark") == SourceOrder(AB, read_with(a="integer", b="long"))
    before = job.log()
    for now, schemas in ((AB, read_with(a="date", b="long")), (BCA, read_with(b="long", c="long", a="date"))):
        with pytest.raises(JobRestoreError, match=r"'a' of the job, FileSource\[/a\], .*a was integer and is date"):
            job.plan(now, schemas=schemas)
    assert job.log() == before
    job.begin(AB, schemas=read_with(a="long", b="long"))
    assert read_source_order(job.fs, "spark") == SourceOrder(AB, read_with(a="long", b="long"))
    with pytest.raises(JobRestoreError, match="a was long and is integer"):
        job.plan(AB, schemas=read_with(a="integer", b="long"))
    job.begin(BCA, schemas=read_with(b="long", c="date", a="long"))
    assert read_source_order(job.fs, "spark") == SourceOrder(BCA, read_with(b="long", c="date", a="long"))


def test_columns_do_not_matter_before_anything_was_planned(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin(AB, schemas=read_with(a="integer", b="long"))
    for path in job.fs.list_files("spark/offsets"):
        job.fs.delete(path)
    job.plan(AB, schemas=read_with(a="date", b="long"))


def test_a_savepoint_has_the_columns_of_its_sources(tmp_path: Path) -> None:
    was = read_with(a="integer", b="long")
    point = from_savepoint(tmp_path / "savepoint", is_new_origin=True)
    assert point.state is not None
    point.state.file_system.write_file(f"source-progress/{SOURCE_ORDER_FILE_NAME}", source_order(AB, was))
    job = Job(tmp_path / "job")
    job.point = point
    with pytest.raises(JobRestoreError, match="b was long and is date"):
        job.plan(AB, schemas=read_with(a="integer", b="date"))
    # This source is read from its beginning.
    job.begin(AB, schemas=read_with(a="date", b="long"))
    assert read_source_order(job.fs, "spark") == SourceOrder(AB, read_with(a="date", b="long"))


def test_a_restarted_source_continues_once_the_job_has_its_own_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    origin = from_savepoint(tmp_path / "savepoint", is_new_origin=False).origin
    assert origin is not None
    assert origin.restarted_sources == ("a",)
    job.point = evolve(job.point, origin=origin)
    assert job.begin(BCA).source_offsets == v1("b4", "-", "a4")
    assert job.log() == log_of(BCA, "a", "b")


def test_a_source_read_from_the_beginning_may_be_another_one_or_none(tmp_path: Path) -> None:
    for place, now in enumerate((sources("a", "b", names={"a": "kafka"}), sources("b", "c"))):
        job = Job(tmp_path / f"job {place}")
        job.point = from_savepoint(tmp_path / f"savepoint {place}", is_new_origin=True)
        kept = {"a": "-", "b": "b4", "c": "-"}
        assert job.begin(now).source_offsets == v1(*(kept[str(one.uid)] for one in now))
    job.point = evolve(job.point, origin=evolve(job.point.origin, restarted_sources=()))  # type: ignore[type-var]
    with pytest.raises(JobRestoreError, match="has read the source 'a'"):
        job.plan(sources("b", "c"))


def test_a_crash_at_any_step_leaves_no_old_log_in_a_directory_started_from_a_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, died, has_origin = 0, True, set()
    while died:
        job = Job(tmp_path / f"job {step}")
        job.point = from_savepoint(tmp_path / f"savepoint {step}", is_new_origin=True)
        with crash_before_step(step, monkeypatch) as has_died, suppress(Died):
            job.begin(AB)
        died = has_died()
        has_origin.add(read_origin(job.fs) is not None)
        if read_origin(job.fs) is not None:
            assert job.log().get("offsets/4", b"") in (b"", v1("-", "b4"))
        step += 1
    assert has_origin == {False, True}


def test_positions_without_sources_are_rejected(tmp_path: Path) -> None:
    job = Job(tmp_path)
    nameless = metadata(AB, source_positions=SourcePositions(batch_id=4, offsets=v1("a4", "b4")))
    job.point = StartingPoint(RestoredState(nameless, job.fs), is_own=True)
    with pytest.raises(JobRestoreError, match="does not name the sources of its positions"):
        job.plan(AB)
