from __future__ import annotations

import io
import zlib

import attrs
import fastavro
import pytest
from checkpoint_builders import file_handle, metadata_of, operator_state
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    CorruptMetadataError,
    InvariantViolationError,
    MissingFileError,
    UnsafePathError,
    UnsupportedMetadataVersionError,
    read_metadata,
    write_metadata,
)
from checkpoint import metadata as metadata_module
from checkpoint.checksum import checksum_of_bytes
from checkpoint.metadata_schema import METADATA_SCHEMAS

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10)
NO_CHECKSUM = "xxh3:" + "0" * 32


@pytest.fixture
def fs(tmp_path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path)


def container(record: dict, *, schema: object = None, version: str = "1", **options) -> bytes:
    """A container file with a right checksum, whatever is in it."""
    output = io.BytesIO()
    keys = {"statebackend.format_version": version, "statebackend.checksum": NO_CHECKSUM}
    options.setdefault("codec", "deflate")
    fastavro.writer(output, schema or METADATA_SCHEMAS[1], [record], metadata=keys, **options)
    data = output.getvalue()
    return data.replace(NO_CHECKSUM.encode(), checksum_of_bytes(data).encode(), 1)


def record_of(fs: CheckpointFileSystem, metadata: CheckpointMetadata) -> dict:
    write_metadata(fs, "good", metadata)
    with open(fs.local_path("good/_metadata"), "rb") as source:
        (record,) = fastavro.reader(source)
    return record


def check_refused(fs: CheckpointFileSystem, data: bytes, match: str = "") -> None:
    fs.write_file("bad/_metadata", data)
    with pytest.raises(CorruptMetadataError, match=r"bad/_metadata.*" + match):
        read_metadata(fs, "bad")


def test_what_is_written_is_read_back(fs) -> None:
    metadata = metadata_of(
        7, (file_handle("shared/a"),), parent_checkpoint_id=3, parent_digest=checksum_of_bytes(b"")
    )
    handle = write_metadata(fs, "checkpoints/chk-7", metadata)
    assert read_metadata(fs, "checkpoints/chk-7") == metadata
    assert fs.read_file(handle)
    assert metadata.files == (file_handle("shared/a"),)


@given(
    source_progress=st.dictionaries(st.sampled_from(["a", "b/0", "b/1"]), st.binary()),
    sinks=st.dictionaries(TEXT, st.binary(), max_size=3),
    properties=st.dictionaries(TEXT, st.text(st.characters(codec="utf-8")), max_size=3),
    offsets=st.binary(),
    kind=st.sampled_from(CheckpointKind),
)
def test_any_content_survives(tmp_path_factory, source_progress, sinks, properties, offsets, kind) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path_factory.mktemp("any"))
    metadata = metadata_of(
        source_progress=source_progress,
        sink_committables=sinks,
        properties=properties,
        source_offsets=offsets,
        kind=kind,
    )
    write_metadata(fs, "", metadata)
    assert read_metadata(fs, "") == metadata


def test_any_avro_tool_reads_it(fs) -> None:
    record = record_of(fs, metadata_of(7))
    assert record["checkpoint_id"] == 7
    assert record["operators"][0]["subtasks"][1]["handle"]["key_group_start"] == 2


def test_every_field_of_the_schema_is_documented() -> None:
    def check(schema: object, where: str) -> None:
        if isinstance(schema, list):
            for one in schema:
                check(one, where)
        elif isinstance(schema, dict):
            for field in schema.get("fields", ()):
                assert field.get("doc"), f"{where}.{field['name']}"
                check(field["type"], f"{where}.{field['name']}")
            check(schema.get("items"), where)

    check(METADATA_SCHEMAS[1], "metadata")


def test_every_truncation_is_found(fs) -> None:
    write_metadata(fs, "good", metadata_of())
    data = fs.read_file("good/_metadata")
    for length in range(len(data)):
        with pytest.raises(CorruptMetadataError, match="x is not usable"):
            metadata_module._decode(data[:length], "x")
    check_refused(fs, data[:-1])
    check_refused(fs, b"")
    check_refused(fs, data + b"\0")


def test_every_flipped_bit_is_found(fs) -> None:
    write_metadata(fs, "good", metadata_of())
    data = bytearray(fs.read_file("good/_metadata"))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMetadataError) as caught:
            metadata_module._decode(bytes(data), "x")
        assert not isinstance(caught.value, UnsupportedMetadataVersionError)
        data[bit // 8] ^= 1 << bit % 8


def test_the_same_content_gives_the_same_bytes(fs) -> None:
    assert write_metadata(fs, "a", metadata_of()).checksum == write_metadata(fs, "b", metadata_of()).checksum


def test_a_missing_file_is_named(fs) -> None:
    with pytest.raises(MissingFileError, match="nowhere/_metadata"):
        read_metadata(fs, "nowhere")


def test_foreign_files_are_refused(fs) -> None:
    check_refused(fs, b"PAR1 not avro at all")
    output = io.BytesIO()
    fastavro.writer(output, {"type": "record", "name": "x", "fields": []}, [{}])
    check_refused(fs, output.getvalue(), "not a metadata file of this package")


def test_a_newer_format_is_refused_as_newer(fs) -> None:
    fs.write_file("bad/_metadata", container(record_of(fs, metadata_of()), version="2"))
    with pytest.raises(UnsupportedMetadataVersionError, match=r"bad/_metadata has format version 2.*up to 1"):
        read_metadata(fs, "bad")


def test_a_schema_that_is_not_ours_is_refused_before_it_is_used(fs) -> None:
    bomb = {
        "type": "record",
        "name": "statebackend.CheckpointMetadata",
        "fields": [{"name": "operators", "type": {"type": "array", "items": "null"}}],
    }
    check_refused(
        fs, container({"operators": [None] * 1000}, schema=bomb), "schema is not that of format version 1"
    )


def test_texts_in_the_schema_may_change(fs) -> None:
    schema = {**METADATA_SCHEMAS[1], "doc": "Said otherwise."}
    fs.write_file("other/_metadata", container(record_of(fs, metadata_of()), schema=schema))
    assert read_metadata(fs, "other") == metadata_of()


def test_a_record_that_breaks_an_invariant_is_refused(fs) -> None:
    record = record_of(fs, metadata_of())
    record["operators"][0]["subtasks"][1]["handle"]["key_group_end"] = 2
    check_refused(
        fs, container(record), "breaks an invariant: operator 'counter' must cover key groups 0 to 3"
    )
    record = record_of(fs, metadata_of(files=(file_handle("shared/a"),)))
    record["operators"][0]["subtasks"][0]["handle"]["files"][0]["path"] = "../../etc/passwd"
    check_refused(fs, container(record), r"breaks an invariant: path '../../etc/passwd'")


def test_other_codecs_and_several_records_are_refused(fs) -> None:
    record = record_of(fs, metadata_of())
    check_refused(fs, container(record, codec="null"), "deflate")
    output = io.BytesIO()
    fastavro.writer(
        output,
        METADATA_SCHEMAS[1],
        [record, record],
        codec="deflate",
        metadata={"statebackend.format_version": "1", "statebackend.checksum": NO_CHECKSUM},
    )
    data = output.getvalue()
    check_refused(
        fs, data.replace(NO_CHECKSUM.encode(), checksum_of_bytes(data).encode(), 1), "exactly one record"
    )


def test_a_decompression_bomb_is_refused(fs, monkeypatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", 100_000)
    record = record_of(fs, metadata_of())
    record["source_offsets"] = bytes(1_000_000)
    data = container(record)
    assert len(data) < 100_000
    check_refused(fs, data, "more than the limit of 100000 bytes")


def test_what_could_not_be_read_is_not_written(fs, monkeypatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", 100_000)
    with pytest.raises(InvariantViolationError, match="limit"):
        write_metadata(fs, "a", metadata_of(source_offsets=bytes(1_000_000)))
    assert fs.list_files() == ()


def test_a_stream_cut_before_its_end_is_refused(fs) -> None:
    record = record_of(fs, metadata_of())
    body = io.BytesIO()
    fastavro.schemaless_writer(body, METADATA_SCHEMAS[1], record)
    whole = zlib.compress(body.getvalue())[2:-4]
    data = container(record)
    start = data.index(whole[:20])
    header, sync = data[: start - 2], data[-16:]
    block = io.BytesIO()
    fastavro.schemaless_writer(
        block,
        {
            "type": "record",
            "name": "b",
            "fields": [{"name": "count", "type": "long"}, {"name": "data", "type": "bytes"}],
        },
        {"count": 1, "data": whole[:-5]},
    )
    header = header[: data.index(sync) + 16]
    broken = bytearray(header + block.getvalue() + sync)
    place = broken.index(b"xxh3:")
    broken[place : place + 37] = NO_CHECKSUM.encode()
    broken[place : place + 37] = checksum_of_bytes(bytes(broken)).encode()
    check_refused(fs, bytes(broken), "deflate stream")


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint_id": -1},
        {"kind": "CHECKPOINT"},
        {"timestamp_ms": 1.5},
        {"max_parallelism": 0},
        {"operators": [operator_state()]},
        {"operators": (operator_state(), operator_state())},
        {"parent_checkpoint_id": 0},
        {"parent_digest": NO_CHECKSUM},
        {"parent_checkpoint_id": 1, "parent_digest": NO_CHECKSUM},
        {"parent_checkpoint_id": 0, "parent_digest": "x"},
        {"source_offsets": "text"},
        {"source_progress": {"a": "text"}},
        {"sink_committables": {"": b""}},
        {"properties": {"a": 1}},
        {"format_version": 2},
    ],
)
def test_senseless_metadata_cannot_be_built(changes) -> None:
    with pytest.raises(InvariantViolationError):
        metadata_of(**{"checkpoint_id": 1, **changes})


def test_source_progress_cannot_leave_its_directory() -> None:
    with pytest.raises(UnsafePathError):
        metadata_of(source_progress={"../offsets/0": b""})


def test_a_savepoint_may_continue_the_checkpoint_of_its_own_id() -> None:
    one = metadata_of(3, kind=CheckpointKind.SAVEPOINT, parent_checkpoint_id=3, parent_digest=NO_CHECKSUM)
    assert attrs.evolve(one) == one
