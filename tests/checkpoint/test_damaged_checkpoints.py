"""Changing any byte of a durable file, even with a valid checksum, yields an error of this library or a value.

By default the tests try a sample of all changes. ``STATEBACKEND_FUZZ=all`` tries all of them.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import zlib
from collections.abc import Callable

import fastavro
import pytest
import xxhash

from statebackend.checkpoint import Acknowledgement, metadata_bytes
from statebackend.checkpoint.coordinator import acknowledgement as acknowledgements
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.handle_records import (
    decode_keyed_state_handle,
    decode_subtask_state,
    encode_keyed_state_handle,
    encode_subtask_state,
)
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.testing.serializers import damaged_everywhere

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "formats"
ACKNOWLEDGEMENT = (GOLDEN / "acknowledgement-1.bin").read_bytes()
STATE = Acknowledgement.decode(ACKNOWLEDGEMENT).state
METADATA = (GOLDEN / "metadata-1").read_bytes()
_SOURCE = io.BytesIO(METADATA)
_HEADER = fastavro.schemaless_reader(_SOURCE, metadata_bytes._HEADER, None)
_BLOCK_START = _SOURCE.tell()
_BLOCK = fastavro.schemaless_reader(_SOURCE, metadata_bytes._BLOCK, None)


def read_metadata(data: bytes) -> None:
    metadata_bytes.decode_metadata(data, "the metadata")


def read_acknowledgement_with_a_new_seal(content: bytes) -> None:
    start = len(acknowledgements._MAGIC) + 1
    Acknowledgement.decode(ACKNOWLEDGEMENT[:start] + xxhash.xxh3_64_digest(content) + content)


def read_metadata_with_a_new_seal(block: bytes) -> None:
    data = METADATA[:_BLOCK_START] + block
    seal = _HEADER["meta"][metadata_bytes._CHECKSUM_KEY]
    unsealed = data.replace(seal, metadata_bytes._NO_CHECKSUM.encode(), 1)
    read_metadata(data.replace(seal, checksum_of_bytes(unsealed).encode(), 1))


def read_record_with_a_new_seal(record: bytes) -> None:
    deflater, block = zlib.compressobj(wbits=-15), io.BytesIO()
    changed = {**_BLOCK, "data": deflater.compress(record) + deflater.flush()}
    fastavro.schemaless_writer(block, metadata_bytes._BLOCK, changed)
    read_metadata_with_a_new_seal(block.getvalue())


CASES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "acknowledgement": (ACKNOWLEDGEMENT, Acknowledgement.decode),
    "sealed acknowledgement": (ACKNOWLEDGEMENT[acknowledgements._HEADER_BYTES :], read_acknowledgement_with_a_new_seal),
    "state of a subtask": (encode_subtask_state(STATE), decode_subtask_state),
    "state handle": (encode_keyed_state_handle(STATE.keyed), decode_keyed_state_handle),
    "metadata": (METADATA, read_metadata),
    "sealed metadata": (METADATA[_BLOCK_START:], read_metadata_with_a_new_seal),
    "sealed record": (zlib.decompress(_BLOCK["data"], wbits=-15), read_record_with_a_new_seal),
}


@pytest.mark.parametrize("name", CASES)
def test_any_changed_byte_yields_an_error_of_this_library_or_a_value(name: str) -> None:
    data, read = CASES[name]
    read(data)
    for damaged in damaged_everywhere(data, limit=800):
        with contextlib.suppress(CheckpointError):
            read(damaged)


def test_bytes_after_a_state_handle_are_rejected() -> None:
    data = CASES["state handle"][0]
    with pytest.raises(CheckpointError, match="bytes follow a state handle"):
        decode_keyed_state_handle(data + b"\0")
