"""Cached encodings, which the driver reuses in the next epoch."""

from __future__ import annotations

import io
import pickle

import attrs
import fastavro
import pytest
import xxhash
from checkpoint_builders import acknowledgement, file_handle, metadata_of, operator_state

from statebackend.checkpoint import (
    Acknowledgement,
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    FileHandle,
    MalformedAcknowledgementError,
    OperatorState,
    SourcePositions,
    read_metadata,
)
from statebackend.checkpoint.handle_records import encode_subtask_state, file_handle_to_record, subtask_state_to_record
from statebackend.checkpoint.metadata_schema import METADATA_SCHEMA
from statebackend.checkpoint.store.checkpoint_directories import write_metadata

FILES = (file_handle("shared/a"), file_handle("shared/b"))


def travelled(sent: Acknowledgement) -> Acknowledgement:
    return Acknowledgement.decode(sent.encode())


def whole_record(metadata: CheckpointMetadata) -> bytes:
    """The record as the encoder writes it in one piece."""
    record = attrs.asdict(metadata, recurse=False)
    record["kind"] = metadata.kind.value
    for name in ("sink_committables", "sink_identities"):
        del record[name]
    positions = metadata.source_positions
    record["source_positions"] = None if positions is None else {**attrs.asdict(positions), "sources": None}
    record["timers_due"] = []
    record["sinks"] = [
        {"name": name, "identity": None, "committable": content} for name, content in metadata.sink_committables.items()
    ]
    record["source_progress_files"] = [file_handle_to_record(file) for file in metadata.source_progress_files]
    record["operators"] = [
        {
            **attrs.asdict(operator, recurse=False),
            "subtasks": [subtask_state_to_record(one) for one in operator.subtasks],
        }
        for operator in metadata.operators
    ]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(METADATA_SCHEMA), record)
    return out.getvalue()


def test_received_state_is_written_with_its_encoding() -> None:
    sent = acknowledgement(files=FILES)
    state = travelled(sent).state
    assert state.encoding is not None
    assert encode_subtask_state(state) == encode_subtask_state(sent.state)


def test_a_changed_copy_of_state_does_not_keep_the_encoding() -> None:
    state = travelled(acknowledgement(files=FILES)).state
    changed = attrs.evolve(state, keyed=None)
    assert changed.encoding is None
    assert len(encode_subtask_state(changed)) < len(encode_subtask_state(state))


def test_state_is_pickled_without_its_encoding() -> None:
    state = travelled(acknowledgement(files=FILES)).state
    copy = pickle.loads(pickle.dumps(state))
    assert (copy, copy.encoding) == (state, None)
    assert len(pickle.dumps(state)) == len(pickle.dumps(attrs.evolve(state)))


def test_unchanged_file_descriptions_are_reused() -> None:
    other = file_handle("shared/b", b"other data")
    known = {file.path: file for file in (FILES[0], other)}
    decoded = Acknowledgement.decode(acknowledgement(files=FILES).encode(), known)
    assert decoded.state.files == FILES
    assert decoded.state.files[0] is FILES[0]


@pytest.mark.parametrize("altered", [attrs.evolve(FILES[0], size_bytes=5), file_handle("shared/a", b"atad")])
def test_a_known_file_does_not_hide_another_size_or_checksum(altered: FileHandle) -> None:
    decoded = Acknowledgement.decode(acknowledgement(files=(altered,)).encode(), {"shared/a": FILES[0]})
    assert decoded.state.files == (altered,)


def test_known_files_do_not_allow_a_handle_to_name_a_file_twice() -> None:
    sent = acknowledgement(files=FILES)
    object.__setattr__(sent.state.keyed, "files", (FILES[0], FILES[0]))
    with pytest.raises(MalformedAcknowledgementError, match="same file twice"):
        Acknowledgement.decode(sent.encode(), {"shared/a": FILES[0]})


@pytest.mark.parametrize("kind", CheckpointKind)
@pytest.mark.parametrize("has_travelled", [False, True])
def test_a_record_of_parts_equals_the_encoded_whole(tmp_path, kind: CheckpointKind, has_travelled: bool) -> None:
    sent = [acknowledgement(1, index, files=(file_handle(f"shared/{index}"),)) for index in range(2)]
    subtasks = tuple(travelled(one).state if has_travelled else one.state for one in sent)
    operators = (
        operator_state("another", FILES),
        OperatorState("counter", "Counter", 4, subtasks),
    )
    changes = (
        {}
        if kind is CheckpointKind.CHECKPOINT
        else {
            "kind": CheckpointKind.SAVEPOINT,
            "source_progress_files": (file_handle("source-progress/offsets/7"),),
        }
    )
    metadata = metadata_of(1, operators=operators, **changes)
    fs = CheckpointFileSystem.from_uri(tmp_path)
    write_metadata(fs, "here", metadata)
    assert read_metadata(fs, "here") == metadata
    written = (tmp_path / "here" / "_metadata").read_bytes()
    # The file ends with a digest of the record.
    assert written[-16:] == xxhash.xxh3_128_digest(whole_record(metadata))


def test_a_record_without_operators_is_readable(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    write_metadata(fs, "here", metadata_of(operators=()))
    assert read_metadata(fs, "here").operators == ()


def test_a_large_record_is_read_by_every_avro_reader(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    metadata = metadata_of(source_positions=SourcePositions(batch_id=1, offsets=bytes(range(256)) * (8 << 10)))
    write_metadata(fs, "here", metadata)
    assert read_metadata(fs, "here") == metadata
    [record] = fastavro.reader(io.BytesIO((tmp_path / "here" / "_metadata").read_bytes()))
    assert record["source_positions"]["offsets"] == metadata.source_offsets
