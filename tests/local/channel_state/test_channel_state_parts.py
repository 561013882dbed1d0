"""Channel state as parts of subtask states and their files: written, read in order, and rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from statebackend.checkpoint import CheckpointFileSystem, MissingFileError, OperatorState
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.errors import CorruptFileError, StorageError
from statebackend.checkpoint.state_handles import OpaqueStateHandle, SubtaskState
from statebackend.local.channel_state import channels_of_checkpoint, forms_of_operators, write_channel_state
from statebackend.local.network.channel import RecordBatch
from statebackend.streaming.errors import EpochError, JobRestoreError
from statebackend.streaming.time.watermark_generators import Watermark
from tests.local.channel_state.channel_states import COUNTS, capture, counts, time

FORMS = forms_of_operators({"sender": [COUNTS], "reader": [COUNTS]})
SENDER, READER = TaskId("sender", 0), TaskId("reader", 0)


@pytest.fixture
def fs(tmp_path: Path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path)


def operator(subtask: TaskId, state: SubtaskState) -> OperatorState:
    return OperatorState(subtask.operator_uid, subtask.operator_uid, 1, (state,))


def written(fs: CheckpointFileSystem, subtask: TaskId, **channels: Any) -> SubtaskState:
    return write_channel_state(
        capture(**{"inputs": {}, **channels}), subtask, FORMS, fs, f"shared/{subtask.operator_uid}"
    )


def test_the_part_of_the_reader_comes_before_that_of_the_sender(fs: CheckpointFileSystem) -> None:
    reader = written(fs, READER, inputs={SENDER: [counts("first"), Watermark(5)]})
    sender = written(fs, SENDER, outputs={READER: [counts("second"), Watermark(7)]})
    for operators in (
        [operator(READER, reader), operator(SENDER, sender)],
        [operator(SENDER, sender), operator(READER, reader)],
    ):
        found = channels_of_checkpoint(operators, fs, FORMS)
        assert found.in_flight == {
            (SENDER, READER): [counts("first"), Watermark(5), counts("second"), Watermark(7)],
        }
        assert found.times == {READER: time(), SENDER: time()}


def test_without_records_there_is_no_file_but_watermarks_are_kept(fs: CheckpointFileSystem) -> None:
    state = written(fs, READER)
    assert not state.has_in_flight_records
    assert fs.list_files() == ()
    found = channels_of_checkpoint([operator(READER, state)], fs, FORMS)
    assert (found.in_flight, found.times) == ({}, {READER: time()})


def test_a_subtask_that_cannot_be_written_leaves_no_file(fs: CheckpointFileSystem) -> None:
    with pytest.raises(
        EpochError,
        match=r"subtask 0 of operator 'sender', checkpoint 7: the records in flight \(out\) cannot be written",
    ):
        written(fs, SENDER, inputs={READER: [counts("a")]}, outputs={READER: [RecordBatch(0, ["no row"])]})
    assert fs.list_files() == ()


def test_a_store_that_fails_leaves_no_file(fs: CheckpointFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    original = fs.write_file

    def fails_for_outputs(path: str, data: bytes, **named: Any) -> Any:
        if path.endswith("-out"):
            raise StorageError("full")
        return original(path, data, **named)

    monkeypatch.setattr(fs, "write_file", fails_for_outputs)
    with pytest.raises(StorageError):
        written(fs, SENDER, inputs={READER: [counts("a")]}, outputs={READER: [counts("b")]})
    assert fs.list_files() == ()


def test_every_flipped_byte_and_every_truncation_of_the_file_is_rejected(
    tmp_path: Path, fs: CheckpointFileSystem
) -> None:
    state = written(fs, READER, inputs={SENDER: [counts("a", times=[3]), Watermark(5)]})
    assert state.input_channels is not None
    file = tmp_path / state.input_channels.files[0].path
    data = file.read_bytes()
    for place in range(len(data)):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]):
            file.write_bytes(damaged)
            with pytest.raises(CorruptFileError):
                channels_of_checkpoint([operator(READER, state)], fs, FORMS)
    file.unlink()
    with pytest.raises(MissingFileError):
        channels_of_checkpoint([operator(READER, state)], fs, FORMS)


def test_a_foreign_part_or_one_with_other_files_is_rejected(fs: CheckpointFileSystem) -> None:
    state = written(fs, READER, inputs={SENDER: [counts("a")]})
    part = state.input_channels
    assert part is not None
    other = fs.write_file("other", b"other")
    for wrong, message in (
        (OpaqueStateHandle("theirs", b""), "format 'theirs' is not known"),
        (evolve(part, meta=b"nonsense"), "channel state begins with b'nons'"),
        (evolve(part, files=()), "the files named have other sizes"),
        (evolve(part, files=(other,)), "the files named have other sizes"),
        (evolve(part, files=(*part.files, other)), "the files named have other sizes"),
    ):
        with pytest.raises(JobRestoreError, match=f"{message}.*take a savepoint"):
            channels_of_checkpoint([operator(READER, SubtaskState(input_channels=wrong))], fs, FORMS)
