"""The golden files of single formats can be read, and are written with the same bytes. No release rewrites them."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapshots.errors import StateFormatError
from statebackend.checkpoint import CorruptJobIdentityError, UnsupportedMetadataVersionError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, parse_checksummed_json
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata_bytes import decode_metadata
from statebackend.checkpoint.metadata_schema import HEADER_SCHEMA
from statebackend.checkpoint.state_handles import OpaqueStateHandle
from statebackend.local.channel_state import decode_meta as decode_channel_meta
from statebackend.savepoint.errors import StateLockError
from statebackend.savepoint.lockfile import lock_from_bytes
from statebackend.state.canonical import SCHEMA, read_canonical
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.operator_state_handles import SCHEMA as OPERATOR_SCHEMA
from statebackend.state.operator_state_handles import decode_operator_state
from statebackend.state.parquet_bounds import BoundedParquetFile
from statebackend.state.state_meta import decode_meta, encode_meta
from statebackend.streaming.runtime.job_sinks import decode_committables
from statebackend.streaming.sink import SinkError
from tests.golden_formats.golden_formats import FILES, GOLDEN, Golden, schema_lock
from tests.golden_formats.golden_states import STATES, golden_handle

PAGES = Path(__file__).parents[2] / "docs"
PRE_RELEASE = "was written by a pre-release of statebackend"
NEWER = "was written by a newer version of statebackend: its format has version 2, and this version reads up to 1"


def data_of(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("one", FILES, ids=lambda one: one.name)
def test_a_golden_file_is_read_and_written_in_the_same_bytes(one: Golden) -> None:
    data = data_of(one.name)
    found = one.decode(data)
    assert one.comparable(one.encode(one.content)) == one.comparable(data)
    if one.name == "state-1.lock":
        # Snapshots do not define equality.
        assert one.encode(found) == data
    elif one.name == "channel-state-1.elements":
        assert found == data
    else:
        assert found == one.content


def test_no_golden_file_was_changed_and_each_has_a_reader() -> None:
    sums = dict(reversed(line.split("  ")) for line in (GOLDEN / "SHA256SUMS").read_text().splitlines())
    files = [path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    found = {path.relative_to(GOLDEN).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert {name for name in found if "/" not in name} == {"SHA256SUMS", *(one.name for one in FILES)}
    assert {name.split("/")[0] for name in found if "/" in name} == set(STATES)
    del found["SHA256SUMS"]
    assert sums == found


@pytest.mark.parametrize("name", STATES)
def test_the_metadata_of_golden_state_is_written_in_the_same_bytes(name: str) -> None:
    handle = golden_handle(name)
    assert encode_meta(decode_meta(handle.meta, len(handle.files))) == handle.meta


@pytest.mark.parametrize("name", ["job", "origin", "rollback", "no-data-epoch", "driver-lease"])
def test_the_page_of_formats_shows_the_checksum_of_the_golden_file(name: str) -> None:
    [checksum] = re.findall(rb'"checksum": "(xxh3:[0-9a-f]{32})"', data_of(f"{name}.json"))
    assert checksum.decode() in (PAGES / "formats-checkpoint.md").read_text("utf-8")


def with_header(data: bytes, **keys: str) -> bytes:
    """Metadata with other keys in its header, and a valid checksum."""
    source = io.BytesIO(data)
    schema = fastavro.parse_schema(HEADER_SCHEMA)
    header: Any = fastavro.schemaless_reader(source, schema, None)
    del header["meta"]["statebackend.metadata_version"]
    none = b"xxh3:" + b"0" * 32
    header["meta"].update({f"statebackend.{name}": text.encode() for name, text in keys.items()})
    header["meta"]["statebackend.checksum"] = none
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, header)
    unsigned = written.getvalue() + data[source.tell() :]
    return unsigned.replace(none, checksum_of_bytes(unsigned).encode(), 1)


def test_metadata_of_a_pre_release_or_a_newer_version_is_rejected() -> None:
    data = data_of("metadata-1")
    with pytest.raises(UnsupportedMetadataVersionError, match=f"here {PRE_RELEASE}.*start the job without state"):
        decode_metadata(with_header(data, format_version="6"), "here")
    with pytest.raises(UnsupportedMetadataVersionError, match=f"here {NEWER}. Install the version"):
        decode_metadata(with_header(data, metadata_version="2"), "here")


def test_json_of_a_pre_release_or_a_newer_version_is_rejected() -> None:
    content = checksummed_json({"job_id": "a"}, 2)
    with pytest.raises(CorruptJobIdentityError, match=f"job.json {NEWER}"):
        parse_checksummed_json(content, "job.json", 1)
    checksum = checksum_of_bytes(b'{"format_version":1,"job_id":"a"}')
    former = f'{{"format_version": 1, "job_id": "a", "checksum": "{checksum}"}}'.encode()
    with pytest.raises(CorruptJobIdentityError, match=f"job.json {PRE_RELEASE}.*Start the job in a new job directory"):
        parse_checksummed_json(former, "job.json", 1)
    with pytest.raises(CorruptJobIdentityError, match=r"job\.json has no version 0"):
        parse_checksummed_json(checksummed_json({}, 0), "job.json", 1)


def decode_operator_meta(data: bytes) -> object:
    return decode_operator_state(OpaqueStateHandle("operator_state", data))


@pytest.mark.parametrize(
    ("decode", "error", "magic", "former"),
    [
        (lambda data: decode_meta(data, 0), StateRestoreError, b"SBKS", b"SBM1\0\0\0\1"),
        (decode_operator_meta, StateRestoreError, b"SBOS", b"\0\0\0\3"),
        (decode_channel_meta, StateFormatError, b"SBCH", b"SBCS\1"),
        (decode_committables, SinkError, b"SBSE", b'{"version": 1}'),
    ],
    ids=["keyed state", "operator state", "channel state", "staged epochs"],
)
def test_binary_formats_of_a_pre_release_or_a_newer_version_are_rejected(
    decode: Callable[[bytes], object], error: type[Exception], magic: bytes, former: bytes
) -> None:
    with pytest.raises(error, match=PRE_RELEASE):
        decode(former + b"\0" * 100)
    with pytest.raises(error, match=NEWER):
        decode(magic + b"\0\0\0\2" + b"\0" * 100)


@pytest.mark.parametrize(
    ("schema", "key"),
    [(SCHEMA, b"statebackend.format"), (OPERATOR_SCHEMA, b"statebackend.operator_state.format")],
    ids=["keyed state", "operator state"],
)
def test_parquet_files_of_a_pre_release_or_a_newer_version_are_rejected(schema: pa.Schema, key: bytes) -> None:
    [own_key] = schema.metadata
    for metadata, message in (
        ({key: b"1"}, PRE_RELEASE),
        ({own_key: b"2"}, NEWER),
        ({}, "does not hold rows of format 1"),
    ):
        target = pa.BufferOutputStream()
        pq.write_table(schema.with_metadata(metadata).empty_table(), target)
        with BoundedParquetFile(pa.BufferReader(target.getvalue())) as file:
            assert re.search(message, file.format_problem(schema, "rows", "the file") or "")


def test_the_rows_of_a_pre_release_are_not_read() -> None:
    target = pa.BufferOutputStream()
    pq.write_table(SCHEMA.with_metadata({b"statebackend.format": b"1"}).empty_table(), target)
    with pytest.raises(StateRestoreError, match=f"the file {PRE_RELEASE}"):
        list(read_canonical("the file", KeyGroupRange(0, 127), target.getvalue().to_pybytes()))


def test_a_lockfile_of_a_pre_release_or_a_newer_version_is_rejected() -> None:
    text = data_of("state-1.lock")
    with pytest.raises(StateLockError, match=f"state.lock {PRE_RELEASE}.*Write it again: statebackend lock --job"):
        lock_from_bytes(text.replace(b"schema lockfile", b"state lock", 1), "state.lock")
    with pytest.raises(StateLockError, match=f"state.lock {NEWER}"):
        lock_from_bytes(text.replace(b"format 1", b"format 2", 1), "state.lock")
    assert schema_lock().max_parallelism == lock_from_bytes(text, "state.lock").max_parallelism
