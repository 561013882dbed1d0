"""The sinks of a job as one, and the committables in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend import JobDefinitionError, JobRestoreError
from statebackend.checkpoint import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.spark import MemorySink, NoopSink, ParquetSink
from statebackend.spark.frame_sinks import FrameSinkAdapter
from statebackend.streaming.runtime.job_sinks import (
    JobSinks,
    StagedEpoch,
    decode_committables,
    encode_committables,
)
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

PARENT = SavepointIdentity("before", 6, 1)


class Noting(Sink):
    """Records its calls in a shared list, and can fail."""

    identity = ""

    def __init__(self, name: str, reported: list[tuple[Any, ...]]) -> None:
        self.identity = name  # type: ignore[misc]
        self._reported = reported
        self.failure: Exception | None = None

    def _note(self, *what: Any) -> None:
        self._reported.append((self.identity, *what))
        if self.failure is not None:
            raise self.failure

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: Any) -> bytes:
        return b""

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        self._note("commit", epoch.epoch_id, *committables)

    def abort(self, epoch: SinkEpoch) -> None:
        self._note("abort", epoch.epoch_id, epoch.attempt_id)

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        self._note("recover", last_epoch_id, lineage)


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


def staged(*committables: bytes) -> bytes:
    """One staged epoch."""
    return encode_committables([StagedEpoch(7, "run", committables)])


def two(reported: list[tuple[Any, ...]]) -> tuple[Noting, Noting, JobSinks]:
    first, second = Noting("a", reported), Noting("b", reported)
    return first, second, JobSinks({"sink": first, "late": second})


def test_each_step_calls_all_sinks_in_program_order() -> None:
    reported: list[tuple[Any, ...]] = []
    _, _, sinks = two(reported)
    sinks.recover(6, "job", PARENT)
    staged = {uid: encode_committables([StagedEpoch(7, "run", [b"1", b"2"])]) for uid in sinks.by_uid}
    sinks.commit(checkpoint(staged, dict(sinks.identities)))
    assert reported == [
        ("a", "recover", 6, SinkLineage("sink", "job", PARENT)),
        ("b", "recover", 6, SinkLineage("late", "job", PARENT)),
        ("a", "commit", 7, b"1", b"2"),
        ("b", "commit", 7, b"1", b"2"),
    ]


def test_a_sink_without_committables_is_not_called() -> None:
    reported: list[tuple[Any, ...]] = []
    _, _, sinks = two(reported)
    sinks.commit(checkpoint({"sink": encode_committables([StagedEpoch(7, "run", [])])}, {"sink": "a"}))
    assert reported == []


def test_epochs_of_failed_checkpoints_are_committed_in_ascending_order() -> None:
    reported: list[tuple[Any, ...]] = []
    _, _, sinks = two(reported)
    staged = encode_committables([StagedEpoch(7, "run", [b"7"]), StagedEpoch(5, "run", [b"5"])])
    sinks.commit(checkpoint({"late": staged}, {"late": "b"}))
    assert reported == [("b", "commit", 5, b"5"), ("b", "commit", 7, b"7")]


def test_a_lineage_names_its_job_and_the_job_of_its_savepoint() -> None:
    lineage = SinkLineage("sink", "job", PARENT)
    assert (lineage.name, lineage.parent_name) == ("job/sink", "before/sink")
    assert SinkLineage("sink", "job").parent_name is None
    epoch = SinkEpoch(lineage, 7, "run")
    assert (epoch.attempt_id, str(epoch)) == ("job.run", "epoch 7 of job/sink")


STAGED = st.lists(
    st.builds(StagedEpoch, st.integers(0, 1 << 62), st.text("ab-é", max_size=5), st.lists(st.binary(max_size=9))),
    max_size=4,
    unique_by=lambda one: one.epoch_id,
)


@given(STAGED)
def test_committables_round_trip(staged: list[StagedEpoch]) -> None:
    data = encode_committables(staged)
    assert decode_committables(data) == sorted(staged, key=lambda one: one.epoch_id)
    for damaged in (data[:-1], data + b"\0", data[:4] + bytes(4) + data[8:], data[:8] + b"\xff" + data[9:]):
        with pytest.raises(SinkError, match="the committables of a sink are damaged"):
            decode_committables(damaged)


def test_the_format_of_committables_is_frozen() -> None:
    form = "53425345 00000001 00000001 0000000000000007 00000001 72 00000001 00000002 6f6b"
    assert encode_committables([StagedEpoch(7, "r", [b"ok"])]) == bytes.fromhex(form)


def test_a_sink_that_cannot_roll_back_names_the_target_and_a_fix() -> None:
    with pytest.raises(SinkError, match=r"a cannot roll back to epoch 3\. Start from a savepoint"):
        Noting("a", []).roll_back(SinkLineage("sink", "job"), 3)


def test_sinks_that_cannot_roll_back_are_checked_first() -> None:
    class Hiding(Noting):
        def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
            return []

    sinks = JobSinks({"first": Hiding("first", []), "second": Noting("second", []), "third": Hiding("third", [])})
    assert list(sinks.rollback_sinks) == ["second", "first", "third"]


def test_a_sink_whose_abort_fails_prevents_no_other_abort() -> None:
    reported: list[tuple[Any, ...]] = []
    first, second, sinks = two(reported)
    first.failure = second.failure = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone"):
        sinks.abort("job", "run", 7)
    assert sorted(reported) == [("a", "abort", 7, "job.run"), ("b", "abort", 7, "job.run")]


def test_a_job_with_one_sink_keeps_its_format_without_uid() -> None:
    sinks = JobSinks({"sink": FrameSinkAdapter(NoopSink())})
    assert sinks.identities == {"sink": "noop"}


def test_a_checkpoint_has_the_committable_and_identity_of_each_sink() -> None:
    reported: list[tuple[Any, ...]] = []
    _, _, sinks = two(reported)
    assert sinks.identities == {"sink": "a", "late": "b"}
    sinks.commit_again(checkpoint({"sink": staged(b"1"), "late": staged(b"2")}, dict(sinks.identities)))
    assert reported == [("a", "commit", 7, b"1"), ("b", "commit", 7, b"2")]


def test_a_committable_is_given_to_the_sink_that_staged_it(tmp_path: Path) -> None:
    sink, same, other = ParquetSink(tmp_path / "a"), ParquetSink(f"file://{tmp_path}/a/"), ParquetSink(tmp_path / "b")
    noted = {"sink": sink.identity}
    JobSinks({"sink": same}).check_commits(checkpoint({"sink": staged(b"rows")}, noted))
    JobSinks({"sink": FrameSinkAdapter(NoopSink())}).check_commits(checkpoint({"sink": staged(b"")}, {"sink": "noop"}))
    # Older checkpoints do not contain the identity of the sink.
    JobSinks({"sink": other}).check_commits(checkpoint({"sink": staged(b"rows")}, {}))
    # There is nothing to commit.
    JobSinks({"sink": other}).commit_again(checkpoint({"sink": staged(b"")}, {"sink": "noop"}))
    for changed in (other, FrameSinkAdapter(NoopSink()), FrameSinkAdapter(MemorySink())):
        with pytest.raises(JobRestoreError, match=r"epoch 7 is complete.*staged by another sink: ParquetSink\(.*/a'\)"):
            JobSinks({"sink": changed}).check_commits(checkpoint({"sink": staged(b"rows")}, noted))


def test_nothing_is_committed_if_a_sink_is_missing() -> None:
    reported: list[tuple[Any, ...]] = []
    first, _, sinks = two(reported)
    found = checkpoint({"sink": staged(b"1"), "late": staged(b"2")}, dict(sinks.identities))
    with pytest.raises(JobRestoreError, match="staged by another sink: b, not none"):
        JobSinks({"sink": first}).commit_again(found)
    assert reported == []
    # A sink that was added later has nothing to commit.
    JobSinks({"sink": first, "late": Noting("b", reported), "third": Noting("c", reported)}).commit_again(found)
    assert reported == [("a", "commit", 7, b"1"), ("b", "commit", 7, b"2")]


def test_two_sinks_of_one_target_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(JobDefinitionError, match=r"the sinks 'a' and 'b' write to the same place, ParquetSink\("):
        JobSinks({"a": ParquetSink(tmp_path), "b": ParquetSink(tmp_path)})
    JobSinks({"a": FrameSinkAdapter(NoopSink()), "b": FrameSinkAdapter(NoopSink())})
