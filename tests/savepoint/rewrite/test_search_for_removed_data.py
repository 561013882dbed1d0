"""A savepoint is searched for removed data in all of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from inspected_job import run_job

from statebackend import Savepoint
from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata, SourcePositions, TimersDue
from statebackend.checkpoint.state_handles import OpaqueStateHandle, OperatorState, SubtaskState
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory, write_savepoint
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.absence import remains
from statebackend.state.canonical import CanonicalBatch, encoded_canonical
from typeserializers.scalars.strings import StringSerializer

MIB = 1 << 20


def savepoint_of(directory: Path, subtask: SubtaskState, **sections: Any) -> Savepoint:
    return written(create_savepoint_directory(directory), subtask, **sections)


def written(target: CheckpointFileSystem, subtask: SubtaskState, **sections: Any) -> Savepoint:
    metadata = CheckpointMetadata(
        checkpoint_id=0,
        kind=CheckpointKind.SAVEPOINT,
        job_id="job",
        job_name="job",
        timestamp_ms=0,
        max_parallelism=4,
        operators=(OperatorState("one", "one", 4, (SubtaskState(), subtask)),),
        **sections,
    )
    write_savepoint(target, metadata)
    return Savepoint.open(target.uri)


def places(savepoint: Savepoint, marker: bytes | str) -> list[str]:
    return [one.place for one in remains(savepoint, marker=marker)]


@pytest.mark.parametrize("marker", ["", b""])
def test_an_empty_marker_is_rejected_because_it_matches_everything(tmp_path: Path, marker: Any) -> None:
    with pytest.raises(ValueError, match="the marker is empty; pass at least one byte or character"):
        list(remains(savepoint_of(tmp_path / "one", SubtaskState()), marker=marker))


def test_at_least_one_marker_is_required(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass what to search"):
        list(remains(savepoint_of(tmp_path / "one", SubtaskState())))


def test_a_marker_is_found_in_the_schema(tmp_path: Path) -> None:
    state = SubtaskState(operator=OpaqueStateHandle("of", b"said of Ada here"))
    assert "operator 'one', subtask 1" in places(savepoint_of(tmp_path / "one", state), "Ada")


def test_a_marker_is_found_in_the_source_positions(tmp_path: Path) -> None:
    positions = SourcePositions(batch_id=0, offsets=b"at Ada's record")
    found = places(savepoint_of(tmp_path / "one", SubtaskState(), source_positions=positions), "Ada")
    assert "source positions" in found


@pytest.mark.parametrize("begin", [0, 1, MIB - 5, MIB - 4, MIB - 1, MIB, 2 * MIB - 2, 2 * MIB - 5])
def test_a_marker_is_found_anywhere_in_a_file(tmp_path: Path, begin: int) -> None:
    data = bytearray(2 * MIB)
    data[begin : begin + 5] = b"Lovel"
    target = create_savepoint_directory(tmp_path / "one")
    file = target.write_file("operators/one/file", bytes(data))
    savepoint = written(target, SubtaskState(operator=OpaqueStateHandle("of", b"", (file,))))
    assert (places(savepoint, b"Lovel"), places(savepoint, b"Lovem")) == (["file operators/one/file"], [])


@pytest.mark.parametrize("length", [1, 126, 127, 20_000])
def test_a_text_of_any_length_is_found_inside_a_stored_text(tmp_path: Path, length: int) -> None:
    marker = "\u00fc" * length
    target = create_savepoint_directory(tmp_path / "one")
    file = target.write_file("operators/one/file", StringSerializer().to_bytes(f"of {marker} here"))
    savepoint = written(target, SubtaskState(operator=OpaqueStateHandle("of", b"", (file,))))
    assert places(savepoint, marker) == ["file operators/one/file"]


@pytest.mark.parametrize(
    ("section", "content"),
    [("properties", {"of": "Ada"}), ("job_name", "of Ada"), ("timers_due", (TimersDue("Ada", 1),))],
)
def test_a_marker_is_found_anywhere_in_the_metadata(tmp_path: Path, section: str, content: Any) -> None:
    savepoint = savepoint_of(tmp_path / "one", SubtaskState())
    changed = Savepoint(RestoredState(attrs.evolve(savepoint.metadata, **{section: content}), savepoint.file_system))
    assert section.replace("_", " ") in places(changed, "Ada")
    assert places(savepoint, "Ada") == []


def test_a_savepoint_is_searched_with_the_credentials_it_was_opened_with(tmp_path: Path) -> None:
    savepoint = savepoint_of(tmp_path / "one", SubtaskState(), properties={"of": "Ada"})
    store = CheckpointFileSystem("nowhere://key:secret@bucket/one", LocalStorage(str(tmp_path / "one")))
    assert places(Savepoint(RestoredState(savepoint.metadata, store)), "Ada") == ["properties"]


def test_a_checkpoint_with_compressed_files_proves_nothing(tmp_path: Path) -> None:
    run_job("rocksdb", tmp_path / "job")
    savepoint = Savepoint.open(tmp_path / "job")
    with pytest.raises(SavepointError, match="is a checkpoint, whose files its backend compresses"):
        list(remains(savepoint, marker="shop 3"))
    assert list(remains(savepoint, entries=lambda entry: bool(entry.key == "shop 3")))


@pytest.mark.parametrize("place", range(3))
def test_a_marker_is_found_in_every_row_group_of_a_file(tmp_path: Path, place: int) -> None:
    target = create_savepoint_directory(tmp_path / "one")
    values = [b"said of Ada" if index == place else b"nothing" for index in range(3)]
    batches = [CanonicalBatch([0], [b"key"], [b""], [None], [value]) for value in values]
    handle = target.write_file("operators/one/rows.parquet", encoded_canonical(batches)[0])
    savepoint = written(target, SubtaskState(operator=OpaqueStateHandle("of", b"", (handle,))))
    assert "the marker, in the column value" in [one.found for one in remains(savepoint, marker="Ada")]


def test_large_rows_are_searched_a_few_at_a_time(tmp_path: Path) -> None:
    target = create_savepoint_directory(tmp_path / "one")
    batch = CanonicalBatch([0], [b"key"], [b""], [None], [bytes(4 * MIB)])
    handle = target.write_file("operators/one/rows.parquet", encoded_canonical([batch] * 50)[0])
    savepoint = written(target, SubtaskState(operator=OpaqueStateHandle("of", b"", (handle,))))
    pool, default = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        assert places(savepoint, "Ada") == []
    finally:
        pa.set_memory_pool(default)
    assert 4 * MIB <= (pool.max_memory() or 0) <= 64 * MIB
