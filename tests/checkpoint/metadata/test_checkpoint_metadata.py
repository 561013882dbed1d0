from __future__ import annotations

import io
import re
import tracemalloc
import zlib

import attrs
import fastavro
import pytest
from checkpoint_builders import file_handle, metadata_of, operator_state
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import (
    ChannelWatermark,
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    CorruptFileError,
    CorruptMetadataError,
    InputChannel,
    InputWatermark,
    InvariantViolationError,
    MissingFileError,
    NodeWatermark,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    TimersDue,
    UnsupportedMetadataVersionError,
    WatermarkState,
    read_metadata,
)
from statebackend.checkpoint import metadata_bytes as metadata_module
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata_bytes import check_metadata_size
from statebackend.checkpoint.metadata_schema import BLOCK_SCHEMA, FORMAT_VERSION, HEADER_SCHEMA, METADATA_SCHEMA
from statebackend.checkpoint.store import checkpoint_directories as metadata_file
from statebackend.checkpoint.store.checkpoint_directories import write_metadata
from statebackend.checkpoint.store.savepoint_directory import SavedSourceProgress, write_source_progress

pytestmark = pytest.mark.slow

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10)
NO_CHECKSUM = "xxh3:" + "0" * 32
CHECKSUM = re.compile(rb"xxh3:[0-9a-f]{32}")


@pytest.fixture
def fs(tmp_path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path)


def container(record: dict, *, schema: object = None, version: str = str(FORMAT_VERSION), **options) -> bytes:
    """A container file with any content and a valid checksum."""
    output = io.BytesIO()
    keys = {"statebackend.metadata_version": version, "statebackend.checksum": NO_CHECKSUM}
    options.setdefault("codec", "deflate")
    fastavro.writer(output, schema or METADATA_SCHEMA, [record], metadata=keys, **options)
    data = output.getvalue()
    return data.replace(NO_CHECKSUM.encode(), checksum_of_bytes(data).encode(), 1)


def offsets_of(offsets: bytes) -> SourcePositions:
    return SourcePositions(batch_id=1, offsets=offsets)


def record_of(fs: CheckpointFileSystem, metadata: CheckpointMetadata) -> dict:
    write_metadata(fs, "good", metadata)
    with open(fs.local_path("good/_metadata"), "rb") as source:
        (record,) = fastavro.reader(source)
    return record


def check_rejected(fs: CheckpointFileSystem, data: bytes, match: str = "") -> None:
    fs.write_file("bad/_metadata", data)
    with pytest.raises(CorruptMetadataError, match=r"bad/_metadata.*" + match):
        read_metadata(fs, "bad")


def test_metadata_round_trips(fs) -> None:
    metadata = metadata_of(7, (file_handle("shared/a"),), parent_checkpoint_id=3, parent_digest=checksum_of_bytes(b""))
    handle = write_metadata(fs, "checkpoints/chk-7", metadata)
    assert read_metadata(fs, "checkpoints/chk-7") == metadata
    assert fs.read_file(handle)
    assert metadata.files == (file_handle("shared/a"),)


@given(
    sources=st.none()
    | st.lists(
        st.builds(ReadSource, st.text(st.characters(codec="utf-8")), st.none() | TEXT, st.none() | TEXT), max_size=3
    ).map(tuple),
    times=st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), min_size=5, max_size=5),
    batch_id=st.integers(0, (1 << 63) - 1),
    channels=st.sets(st.tuples(TEXT, st.just("") | TEXT), max_size=3),
    sinks=st.dictionaries(TEXT, st.binary(), max_size=3),
    properties=st.dictionaries(TEXT, st.text(st.characters(codec="utf-8")), max_size=3),
    offsets=st.binary(),
    kind=st.sampled_from(CheckpointKind),
)
def test_any_content_survives(
    tmp_path_factory, sources, times, batch_id, channels, sinks, properties, offsets, kind
) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path_factory.mktemp("any"))
    metadata = metadata_of(
        source_positions=SourcePositions(batch_id=batch_id, offsets=offsets, sources=sources),
        processing_time_ms=None if times[0] is None else times[0] % (1 << 63),
        watermarks=WatermarkState(
            times[1],
            tuple(
                ChannelWatermark(
                    source=source, channel=channel, largest_timestamp_ms=times[2], watermark_ms=times[3], is_idle=True
                )
                for source, channel in sorted(channels)
            ),
            tuple(
                NodeWatermark(
                    node=source,
                    watermark_ms=times[2],
                    sent_watermark_ms=times[3],
                    epoch_watermark_ms=times[1],
                    inputs=(InputWatermark(times[4], (InputChannel(source, times[0], True),)),),
                )
                for source in sorted({source for source, _ in channels})
            ),
        ),
        timers_due=(TimersDue("counter", times[3], times[4]),),
        restored_from=SavepointIdentity("job/of/another", 3, 5),
        sink_committables=sinks,
        sink_identities={name: name for name in sorted(sinks)[:1]},
        properties=properties,
        kind=kind,
    )
    write_metadata(fs, "", metadata)
    assert read_metadata(fs, "") == metadata


def test_any_avro_tool_reads_it(fs) -> None:
    record = record_of(fs, metadata_of(7))
    assert record["checkpoint_id"] == 7
    assert record["operators"][0]["subtasks"][1]["keyed"]["key_group_start"] == 2


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

    check(METADATA_SCHEMA, "metadata")


def test_every_truncation_is_detected(fs) -> None:
    write_metadata(fs, "good", metadata_of())
    data = fs.read_file("good/_metadata")
    for length in range(len(data)):
        with pytest.raises(CorruptMetadataError, match="x is not usable"):
            metadata_module.decode_metadata(data[:length], "x")
    check_rejected(fs, data[:-1])
    check_rejected(fs, b"")
    check_rejected(fs, data + b"\0")


def test_every_flipped_bit_is_detected(fs) -> None:
    write_metadata(fs, "good", metadata_of())
    data = bytearray(fs.read_file("good/_metadata"))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMetadataError) as caught:
            metadata_module.decode_metadata(bytes(data), "x")
        assert not isinstance(caught.value, UnsupportedMetadataVersionError)
        data[bit // 8] ^= 1 << bit % 8


def test_equal_content_has_equal_bytes(fs) -> None:
    assert write_metadata(fs, "a", metadata_of()).checksum == write_metadata(fs, "b", metadata_of()).checksum


def test_the_error_names_a_missing_file(fs) -> None:
    with pytest.raises(MissingFileError, match="nowhere/_metadata"):
        read_metadata(fs, "nowhere")


def test_foreign_files_are_rejected(fs) -> None:
    check_rejected(fs, b"PAR1 not avro at all")
    output = io.BytesIO()
    fastavro.writer(output, {"type": "record", "name": "x", "fields": []}, [{}])
    check_rejected(fs, output.getvalue(), "not a metadata file of this package")


def test_a_newer_format_is_reported_as_newer(fs) -> None:
    newer = FORMAT_VERSION + 1
    fs.write_file("bad/_metadata", container(record_of(fs, metadata_of()), version=str(newer)))
    message = f"bad/_metadata was written by a newer version of statebackend: its format has version {newer}, "
    with pytest.raises(UnsupportedMetadataVersionError, match=message):
        read_metadata(fs, "bad")


def test_a_foreign_schema_is_rejected_before_it_is_used(fs) -> None:
    bomb = {
        "type": "record",
        "name": "statebackend.CheckpointMetadata",
        "fields": [{"name": "operators", "type": {"type": "array", "items": "null"}}],
    }
    data = container({"operators": [None] * 1000}, schema=bomb)
    check_rejected(fs, data, f"schema is not that of format version {FORMAT_VERSION}")


def test_texts_in_the_schema_may_change(fs) -> None:
    schema = {**METADATA_SCHEMA, "doc": "Said otherwise."}
    fs.write_file("other/_metadata", container(record_of(fs, metadata_of()), schema=schema))
    assert read_metadata(fs, "other") == metadata_of()


def test_a_record_that_breaks_an_invariant_is_rejected(fs) -> None:
    record = record_of(fs, metadata_of())
    record["operators"][0]["subtasks"][1]["keyed"]["key_group_end"] = 2
    check_rejected(fs, container(record), "breaks an invariant: operator 'counter' must cover key groups 0 to 3")
    record = record_of(fs, metadata_of(files=(file_handle("shared/a"),)))
    record["operators"][0]["subtasks"][0]["keyed"]["files"][0]["path"] = "../../etc/passwd"
    check_rejected(fs, container(record), r"breaks an invariant: path '../../etc/passwd'")


def test_other_codecs_and_several_records_are_rejected(fs) -> None:
    record = record_of(fs, metadata_of())
    check_rejected(fs, container(record, codec="null"), "deflate")
    output = io.BytesIO()
    fastavro.writer(
        output,
        METADATA_SCHEMA,
        [record, record],
        codec="deflate",
        metadata={"statebackend.metadata_version": str(FORMAT_VERSION), "statebackend.checksum": NO_CHECKSUM},
    )
    data = output.getvalue()
    check_rejected(fs, data.replace(NO_CHECKSUM.encode(), checksum_of_bytes(data).encode(), 1), "exactly one record")


def test_a_decompression_bomb_is_rejected(fs, monkeypatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", 100_000)
    record = record_of(fs, metadata_of())
    record["source_positions"]["offsets"] = bytes(1_000_000)
    data = container(record)
    assert len(data) < 100_000
    check_rejected(fs, data, "more than the limit of 100000 bytes")


def test_a_decompression_bomb_is_not_decompressed(fs, monkeypatch) -> None:
    record = record_of(fs, metadata_of())
    record["source_positions"]["offsets"] = bytes(32 << 20)
    data = container(record)
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", 100_000)
    tracemalloc.start()
    try:
        check_rejected(fs, data, "more than the limit of 100000 bytes")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_record_with_two_sinks_of_the_same_name_is_rejected(fs) -> None:
    record = record_of(fs, metadata_of())
    record["sinks"] *= 2
    check_rejected(fs, container(record), "breaks an invariant: two sinks have the same name")


def test_unreadable_metadata_is_not_written(fs, monkeypatch) -> None:
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", 100_000)
    with pytest.raises(InvariantViolationError, match="limit"):
        write_metadata(fs, "a", metadata_of(source_positions=offsets_of(bytes(1_000_000))))
    assert fs.list_files() == ()


def with_block(file: bytes, **changes: object) -> bytes:
    """The file with a changed part of its block and a valid checksum."""
    source = io.BytesIO(file)
    header = fastavro.schemaless_reader(source, HEADER_SCHEMA, None)
    start = source.tell()
    block = fastavro.schemaless_reader(source, BLOCK_SCHEMA, None)
    output = io.BytesIO()
    fastavro.schemaless_writer(output, BLOCK_SCHEMA, {**block, **changes})
    found = header["meta"]["statebackend.checksum"]
    changed = file[:start].replace(found, NO_CHECKSUM.encode(), 1) + output.getvalue()
    return changed.replace(NO_CHECKSUM.encode(), checksum_of_bytes(changed).encode(), 1)


def test_bytes_after_the_record_are_rejected(fs) -> None:
    record = record_of(fs, metadata_of())
    body = io.BytesIO()
    fastavro.schemaless_writer(body, METADATA_SCHEMA, record)

    def block(content: bytes) -> bytes:
        deflate = zlib.compressobj(wbits=-15)
        return with_block(container(record), data=deflate.compress(content) + deflate.flush())

    fs.write_file("whole/_metadata", block(body.getvalue()))
    assert read_metadata(fs, "whole") == metadata_of()
    check_rejected(fs, block(body.getvalue() + b"\0"), "there are bytes after its record")
    check_rejected(fs, block(body.getvalue()[:-1]), "cannot be decoded")


@pytest.mark.parametrize("changes", [{"count": 0}, {"count": 2}, {"sync": bytes(16)}])
def test_a_replaced_block_is_rejected(fs, changes) -> None:
    check_rejected(
        fs, with_block(container(record_of(fs, metadata_of())), **changes), "exactly one record in one block"
    )


def test_bytes_after_the_block_are_rejected(fs) -> None:
    data = container(record_of(fs, metadata_of()))
    place = data.index(b"xxh3:")
    longer = data[:place] + NO_CHECKSUM.encode() + data[place + 37 :] + b"\0"
    longer = longer.replace(NO_CHECKSUM.encode(), checksum_of_bytes(longer).encode(), 1)
    check_rejected(fs, longer, "exactly one record in one block")


def test_a_savepoint_stores_its_source_progress_in_files(fs) -> None:
    content = {"offsets/7": b"offsets", "sources/0/9.compact": b"log" * 1000, "metadata": b"{}"}
    files = write_source_progress(fs, content)
    assert [file.path for file in files] == [f"source-progress/{name}" for name in sorted(content)]
    savepoint = metadata_of(kind=CheckpointKind.SAVEPOINT, source_progress_files=files)
    assert set(files) <= set(savepoint.files)
    write_metadata(fs, "new", savepoint)
    assert read_metadata(fs, "new") == savepoint
    assert dict(SavedSourceProgress(fs, savepoint)) == content
    assert len(SavedSourceProgress(fs, savepoint)) == 3
    with pytest.raises(KeyError):
        SavedSourceProgress(fs, savepoint)["offsets/8"]
    fs.write_file("source-progress/offsets/7", b"offsetz")
    with pytest.raises(CorruptFileError, match="source-progress/offsets/7"):
        SavedSourceProgress(fs, savepoint)["offsets/7"]


PROGRESS_FILE = file_handle("source-progress/offsets/7")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"kind": CheckpointKind.CHECKPOINT}, "only a savepoint"),
        ({"source_progress_files": [PROGRESS_FILE]}, "must be a tuple"),
        ({"source_progress_files": (PROGRESS_FILE.path,)}, "must be a tuple"),
        ({"source_progress_files": (PROGRESS_FILE, PROGRESS_FILE)}, "must be distinct"),
        ({"source_progress_files": (file_handle("offsets/7"),)}, "must be below source-progress/"),
        ({"source_progress_files": (file_handle("source-progress"),)}, "must be below source-progress/"),
    ],
)
def test_invalid_files_of_source_progress_are_rejected(changes, match) -> None:
    content = {"kind": CheckpointKind.SAVEPOINT, "source_progress_files": (PROGRESS_FILE,)}
    with pytest.raises(InvariantViolationError, match=match):
        metadata_of(**{**content, **changes})


def test_the_size_of_metadata_is_known_before_it_is_written(fs, monkeypatch) -> None:
    check_metadata_size(metadata_of())
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", 100_000)
    with pytest.raises(InvariantViolationError, match="the limit is 100000"):
        check_metadata_size(metadata_of(source_positions=offsets_of(bytes(1_000_000))))


def test_a_truncated_stream_is_rejected(fs) -> None:
    record = record_of(fs, metadata_of())
    body = io.BytesIO()
    fastavro.schemaless_writer(body, METADATA_SCHEMA, record)
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
    check_rejected(fs, bytes(broken), "deflate stream")


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
        {"parent_checkpoint_id": 2, "parent_digest": NO_CHECKSUM},
        {"parent_checkpoint_id": 0, "parent_digest": "x"},
        {"source_positions": b"text"},
        {"watermarks": 5},
        {"timers_due": [TimersDue("counter", 1)]},
        {"timers_due": (TimersDue("counter", 1), TimersDue("counter", 2))},
        {"processing_time_ms": -1},
        {"restored_from": "job/1/5"},
        {"sink_identities": {"none": "a sink"}},
        {"sink_identities": {"sink": 5}},
        {"sink_committables": {"": b""}},
        {"properties": {"a": 1}},
    ],
)
def test_invalid_metadata_is_rejected(changes) -> None:
    with pytest.raises(InvariantViolationError):
        metadata_of(**{"checkpoint_id": 1, **changes})


def test_a_savepoint_may_continue_the_checkpoint_of_the_same_id() -> None:
    one = metadata_of(3, kind=CheckpointKind.SAVEPOINT, parent_checkpoint_id=3, parent_digest=NO_CHECKSUM)
    assert attrs.evolve(one) == one


def with_header(file: bytes, old: bytes, new: bytes) -> bytes:
    """The file with a changed part of its header and a valid checksum."""
    assert len(old) == len(new)
    found = CHECKSUM.search(file)
    assert found is not None
    changed = file.replace(found[0], NO_CHECKSUM.encode(), 1).replace(old, new, 1)
    return changed.replace(NO_CHECKSUM.encode(), checksum_of_bytes(changed).encode(), 1)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b"Obj\x01", b"Obj\x00", "not a metadata file of this package"),
        (b"Obj\x01", b"Obj\x02", "not a metadata file of this package"),
        (b"statebackend.metadata_version", b"statebackend.metadata_Version", "not a metadata file of this package"),
        (b"statebackend.checksum", b"statebackend.checkSum", "not a metadata file of this package"),
        (b"deflate", b"deflatd", "not compressed with deflate"),
        (b"deflate", b"deflatf", "not compressed with deflate"),
        (b"avro.codec", b"avro.coded", "not compressed with deflate"),
        (b"avro.schema", b"avro.schemb", "schema cannot be read"),
    ],
)
def test_a_changed_header_is_rejected(fs, old, new, match) -> None:
    check_rejected(fs, with_header(container(record_of(fs, metadata_of())), old, new), match)


@pytest.mark.parametrize("version", ["0", "-1"])
def test_a_version_below_1_is_rejected(fs, version) -> None:
    check_rejected(fs, container(record_of(fs, metadata_of()), version=version), "there is no format version")


def test_a_version_that_is_not_a_number_is_rejected(fs) -> None:
    check_rejected(fs, container(record_of(fs, metadata_of()), version="one"), "format version b'one' is not a number")


@pytest.mark.parametrize("checksum", [b"", b"xxh3:", b"xxh3:" + b"g" * 32, b"\xff" * 37])
def test_an_invalid_checksum_is_shown_in_the_error(fs, checksum) -> None:
    data = container(record_of(fs, metadata_of()))
    header = fastavro.schemaless_reader(io.BytesIO(data), HEADER_SCHEMA, None)
    header["meta"]["statebackend.checksum"] = checksum
    output = io.BytesIO()
    fastavro.schemaless_writer(output, HEADER_SCHEMA, header)
    check_rejected(fs, output.getvalue(), "is not a checksum")


def test_metadata_has_at_most_the_maximal_size(fs, monkeypatch) -> None:
    metadata = metadata_of(source_positions=offsets_of(bytes(range(256)) * 4))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, METADATA_SCHEMA, record_of(fs, metadata))
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", body.tell())
    with monkeypatch.context() as patched:
        patched.setattr(metadata_module, "MAX_METADATA_BYTES", body.tell() - 1)
        with pytest.raises(InvariantViolationError, match="limit"):
            write_metadata(fs, "a", metadata)
    check_metadata_size(metadata)
    size_bytes = write_metadata(fs, "a", metadata).size_bytes
    for module in (metadata_module, metadata_file):
        monkeypatch.setattr(module, "MAX_METADATA_BYTES", size_bytes)
    assert read_metadata(fs, "a") == metadata
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", size_bytes - 1)
    with pytest.raises(CorruptMetadataError, match=f"{size_bytes} bytes are more than the limit of {size_bytes - 1}"):
        read_metadata(fs, "a")


def test_a_decompressed_record_has_at_most_the_maximal_size(fs, monkeypatch) -> None:
    metadata = metadata_of(source_positions=offsets_of(bytes(100_000)))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, METADATA_SCHEMA, record_of(fs, metadata))
    write_metadata(fs, "a", metadata)
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", body.tell())
    assert read_metadata(fs, "a") == metadata
    monkeypatch.setattr(metadata_module, "MAX_METADATA_BYTES", body.tell() - 1)
    with pytest.raises(CorruptMetadataError, match="more than the limit"):
        read_metadata(fs, "a")


def test_the_size_of_a_checkpoint_sums_metadata_and_distinct_files() -> None:
    shared = file_handle("shared/a", b"12345")
    one = metadata_of(operators=(operator_state("one", (shared,)), operator_state("two", (shared,))))
    metas = sum(len(subtask.keyed.meta) for operator in one.operators for subtask in operator.subtasks)
    assert one.files == (shared,)
    assert one.size_bytes == metas + 5
