"""Rare content of `_metadata`: finished operators and subtasks, and features that are rejected with advice."""

from __future__ import annotations

import re

import pytest

from snapshots.data_views import DataOutputView
from statebackend.checkpoint.errors import SavepointError
from statebackend.savepoint.errors import ForeignFormatError, UnsupportedForeignStateError
from statebackend.savepoint.foreign.flink_metadata import MAGIC, operator_id_of, read_flink_metadata


def metadata(*subtasks: bytes, count: int | None = None, max_parallelism: int = 8, version: int = 4) -> bytes:
    """The metadata of one operator with parallelism 2, followed by a Java object as in version 4."""
    out = DataOutputView()
    out.write(MAGIC)
    out.write_int(version)
    out.write_long(7)
    out.write_int(0)
    out.write_int(1)
    out.write(bytes.fromhex(operator_id_of("counting")))
    out.write_int(2)
    out.write_int(max_parallelism)
    out.write_unsigned_byte(0)
    out.write_int(len(subtasks) if count is None else count)
    for subtask in subtasks:
        out.write(subtask)
    if version >= 4:
        out.write(b"\xac\xed\x00\x05sr\x00\x00")
    return out.to_bytes()


def subtask(index: int, keyed: bytes = b"\0", inputs: int = 0, outputs: int = 0) -> bytes:
    out = DataOutputView()
    for number in (index, 0, 0):
        out.write_int(number)
    out.write(keyed)
    out.write_unsigned_byte(0)
    out.write_int(inputs)
    out.write_int(outputs)
    return out.to_bytes()


def key_groups(first: int, *offsets: int, count: int | None = None) -> bytes:
    out = DataOutputView()
    out.write_unsigned_byte(7)
    out.write_int(first)
    out.write_int(len(offsets) if count is None else count)
    for offset in offsets:
        out.write_long(offset)
    out.write_unsigned_byte(6)
    out.write_utf("file")
    out.write_long(100)
    return out.to_bytes()


def test_finished_operators_and_subtasks_have_no_state() -> None:
    [operator] = read_flink_metadata(metadata(count=-1), "place").operators
    assert operator.is_finished
    assert operator.subtasks == ()
    finished = DataOutputView()
    finished.write_int(-2)
    [operator] = read_flink_metadata(metadata(finished.to_bytes(), subtask(0)), "place").operators
    assert [(one.index, one.keyed) for one in operator.subtasks] == [(0, None), (1, None)]


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 0), (0, 3)])
def test_records_in_channels_are_rejected_with_advice(inputs: int, outputs: int) -> None:
    advice = r"place, byte \d+: .* unaligned checkpoint\. Take a savepoint, or a checkpoint with execution\."
    with pytest.raises(UnsupportedForeignStateError, match=advice):
        read_flink_metadata(metadata(subtask(0, inputs=inputs, outputs=outputs)), "place")


@pytest.mark.parametrize(("kind", "advice"), [(8, "--type canonical"), (14, "--type canonical")])
def test_a_changelog_is_rejected_with_advice(kind: int, advice: str) -> None:
    with pytest.raises(UnsupportedForeignStateError, match=advice):
        read_flink_metadata(metadata(subtask(0, bytes([kind]))), "place")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (metadata(subtask(0), subtask(0)), "repeated"),
        (metadata(subtask(2)), "do not exist"),
        (metadata(count=1 << 30), "count 1073741824 at byte"),
        (metadata(count=-5), "count -5 at byte"),
        (metadata(subtask(0, key_groups(7, 1, 2))), "key groups 7 to 8 of 8"),
        (metadata(subtask(0, key_groups(-1, 1))), "key groups -1 to -1 of 8"),
        (metadata(subtask(0, key_groups(0, count=1 << 30))), "does not fit"),
        (metadata(max_parallelism=1 << 20), "max parallelism 1048576"),
        (metadata(version=3) + b"x", "1 bytes follow the last operator"),
        (metadata(version=2), "version 2 of Flink's metadata"),
        (b"\0" * 8, "not metadata of Flink"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_absurd_numbers_are_rejected_with_the_place(data: bytes, reason: str) -> None:
    with pytest.raises(ForeignFormatError, match=rf"^place.*{re.escape(reason)}"):
        read_flink_metadata(data, "place")
    assert issubclass(ForeignFormatError, SavepointError)
