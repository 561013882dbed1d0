"""The sinks of a job as one, and whose committables a checkpoint has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend import JobDefinitionError, JobRestoreError
from statebackend.checkpoint import CheckpointKind, CheckpointMetadata
from statebackend.spark import MemorySink, NoopSink, ParquetSink
from statebackend.streaming.runtime.job_sinks import JobSinks
from statebackend.streaming.sink import sink_identity


class Noting:
    """Notes what it is told in a list that several share, and may fail."""

    def __init__(self, name: str, told: list[tuple[Any, ...]]) -> None:
        self.identity = name
        self._told = told
        self.failure: Exception | None = None

    def _note(self, *what: Any) -> None:
        self._told.append((self.identity, *what))
        if self.failure is not None:
            raise self.failure

    def stage(self, frame: Any, epoch_id: int, attempt_id: str) -> bytes:
        self._note("stage", frame)
        return f"{self.identity} {epoch_id}".encode()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        self._note("commit", epoch_id, committable)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        self._note("abort", epoch_id, attempt_id)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        self._note("recover", last_completed_epoch_id, job_id)


def checkpoint(committables: dict[str, bytes], identities: dict[str, str]) -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint_id=7,
        kind=CheckpointKind.CHECKPOINT,
        job_id="job",
        job_name="job",
        timestamp_ms=1,
        max_parallelism=4,
        operators=(),
        sink_committables=committables,
        sink_identities=identities,
    )


def two(told: list[tuple[Any, ...]]) -> tuple[Noting, Noting, JobSinks]:
    first, second = Noting("a", told), Noting("b", told)
    return first, second, JobSinks({"sink": first, "late": second})


def test_every_sink_is_told_every_step_in_the_order_of_the_program() -> None:
    told: list[tuple[Any, ...]] = []
    _, _, sinks = two(told)
    sinks.recover(6, "job")
    committables = sinks.stage(lambda uid, sink: sink.stage(uid, 7, "attempt"))
    assert committables == {"sink": b"a 7", "late": b"b 7"}
    sinks.commit(7, committables)
    assert told == [
        ("a", "recover", 6, "job"),
        ("b", "recover", 6, "job"),
        ("a", "stage", "sink"),
        ("b", "stage", "late"),
        ("a", "commit", 7, b"a 7"),
        ("b", "commit", 7, b"b 7"),
    ]


def test_a_sink_that_cannot_abort_keeps_no_other_from_it() -> None:
    told: list[tuple[Any, ...]] = []
    first, second, sinks = two(told)
    first.failure = second.failure = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone"):
        sinks.abort(7, "attempt")
    assert sorted(told) == [("a", "abort", 7, "attempt"), ("b", "abort", 7, "attempt")]


def test_a_job_with_one_sink_writes_and_reads_what_it_did_without_a_uid() -> None:
    sinks = JobSinks({"sink": NoopSink()})
    assert sinks.identities == {"sink": sink_identity(NoopSink())}


def test_a_checkpoint_says_of_each_sink_what_it_staged_and_which_it_was() -> None:
    told: list[tuple[Any, ...]] = []
    _, _, sinks = two(told)
    assert sinks.identities == {"sink": "a", "late": "b"}
    sinks.commit_again(checkpoint({"sink": b"1", "late": b"2"}, dict(sinks.identities)))
    assert told == [("a", "commit", 7, b"1"), ("b", "commit", 7, b"2")]


def test_a_committable_is_for_the_sink_that_staged_it(tmp_path: Path) -> None:
    sink, same, other = ParquetSink(tmp_path / "a"), ParquetSink(f"file://{tmp_path}/a/"), ParquetSink(tmp_path / "b")
    noted = {"sink": sink_identity(sink)}
    JobSinks({"sink": same}).check_commits(checkpoint({"sink": b"rows"}, noted))
    JobSinks({"sink": NoopSink()}).check_commits(checkpoint({"sink": b""}, {"sink": sink_identity(NoopSink())}))
    # Older checkpoints do not say whose it is.
    JobSinks({"sink": other}).check_commits(checkpoint({"sink": b"rows"}, {}))
    # There is nothing to commit.
    JobSinks({"sink": other}).commit_again(checkpoint({"sink": b""}, {"sink": sink_identity(NoopSink())}))
    for changed in (other, NoopSink(), MemorySink()):
        with pytest.raises(JobRestoreError, match=r"epoch 7 is complete.*staged by another sink: ParquetSink\(.*/a'\)"):
            JobSinks({"sink": changed}).check_commits(checkpoint({"sink": b"rows"}, noted))


def test_nothing_is_committed_if_one_of_the_sinks_is_not_there_any_more() -> None:
    told: list[tuple[Any, ...]] = []
    first, _, sinks = two(told)
    found = checkpoint({"sink": b"1", "late": b"2"}, dict(sinks.identities))
    with pytest.raises(JobRestoreError, match="staged by another sink: b, not none"):
        JobSinks({"sink": first}).commit_again(found)
    assert told == []
    # One that was added since has nothing to commit.
    JobSinks({"sink": first, "late": Noting("b", told), "third": Noting("c", told)}).commit_again(found)
    assert told == [("a", "commit", 7, b"1"), ("b", "commit", 7, b"2")]


def test_two_sinks_that_write_to_one_place_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(JobDefinitionError, match=r"the sinks 'a' and 'b' write to the same place, ParquetSink\("):
        JobSinks({"a": ParquetSink(tmp_path), "b": ParquetSink(tmp_path)})
    JobSinks({"a": NoopSink(), "b": NoopSink()})
