"""Compressed state, many key groups, heap timers and incremental checkpoints of Flink 2.3, written by one job.

The full checkpoint with heap timers is of Flink 1.15. The archive ``variants.tar.gz`` has one directory for each
variant. Checkpoints contain absolute paths of the machine that wrote them, and their directories were moved as a whole.
"""

from __future__ import annotations

import gc
import pathlib
import pickle
import re
import shutil
import tarfile
import tempfile

import pyarrow as pa
import pytest
from golden_savepoints import GOLDEN

from snapshots.errors import MalformedDataError, UnresolvableSerializerError
from statebackend.checkpoint.errors import MissingFileError
from statebackend.savepoint.errors import ForeignFormatError
from statebackend.savepoint.foreign.snappy_frames import STREAM_START, crc32c, decompress_frames, python_crc32c
from statebackend.savepoint.savepoint import Savepoint

pytestmark = pytest.mark.slow

VALUES = [*range(500), *range(50001, 50500)]
"""The values that the job had received."""

VARIANTS = (
    "hashmap-canonical-compressed",
    "hashmap-native-compressed",
    "rocksdb-full-heap-timers",
    "rocksdb-heap-timers",
    "rocksdb-incremental",
)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    place: pathlib.Path = tmp_path_factory.mktemp("variants")
    with tarfile.open(GOLDEN / "variants.tar.gz") as archive:
        archive.extractall(place, filter="data")
    return place


def opened(variants: pathlib.Path, name: str) -> Savepoint:
    [metadata] = (variants / name).rglob("_metadata")
    return Savepoint.open(metadata.parent)


@pytest.mark.parametrize("name", VARIANTS)
def test_all_states_and_timers_are_those_of_the_model(variants: pathlib.Path, name: str) -> None:
    savepoint = opened(variants, name)
    of_key: dict[str, list[int]] = {}
    for value in VALUES:
        of_key.setdefault(f"key-{value % 100}", []).append(value)
    assert {entry.key: entry.value for entry in savepoint.read("op", "count")} == {
        key: len(values) for key, values in of_key.items()
    }
    assert {entry.key: sorted(entry.value) for entry in savepoint.read("op", "list")} == of_key
    assert {(entry.key, entry.user_key) for entry in savepoint.read("op", "map")} == {
        (f"key-{value % 100}", f"m{value % 7}") for value in VALUES
    }
    timers = savepoint.read("op", "_timer_state/event_user-timers")
    assert sorted(timer.value for timer in timers) == [1_000_000_000 + value for value in VALUES]
    assert all(f"key-{timer.value % 100}" == timer.key for timer in timers)


@pytest.mark.parametrize("name", VARIANTS)
def test_kryo_state_is_named_with_advice(variants: pathlib.Path, name: str) -> None:
    savepoint = opened(variants, name)
    assert "Kryo" in (savepoint.schema("op", "kryo").unknown or "")
    with pytest.raises(UnresolvableSerializerError, match=r"Case\$Secret with Kryo.* give Case\$Secret a serializer"):
        list(savepoint.read("op", "kryo"))


def test_state_is_read_by_another_process_from_its_uri(variants: pathlib.Path) -> None:
    savepoint = opened(variants, "rocksdb-incremental")
    files = pickle.loads(pickle.dumps(savepoint.file_system))
    assert files.uri == savepoint.file_system.uri
    assert files.checkpoint_metadata == savepoint.metadata


def test_both_implementations_of_the_checksum_agree() -> None:
    # The check value of CRC-32C (iSCSI) in the catalogue of CRC algorithms.
    assert python_crc32c(b"123456789") == crc32c(b"123456789") == 0xE3069283
    data = bytes(range(256)) * 5
    assert [python_crc32c(data[:size]) for size in range(1, 1280, 97)] == [
        crc32c(data[:size]) for size in range(1, 1280, 97)
    ]


def chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_damaged_chunk_is_detected(is_compressed: bool) -> None:
    content = b"a" * 100
    crc = crc32c(content)
    checksum = (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
    stored = pa.Codec("snappy").compress(content, asbytes=True) if is_compressed else content
    whole = STREAM_START + chunk(0 if is_compressed else 1, checksum + stored)
    assert decompress_frames(whole) == content
    with pytest.raises(MalformedDataError, match="the compressed chunk at byte 10 does not match its checksum"):
        decompress_frames(STREAM_START + chunk(0 if is_compressed else 1, bytes(4) + stored))
    with pytest.raises(MalformedDataError, match="the compressed chunk at byte 10 is truncated"):
        decompress_frames(whole[:-1])


def test_a_wrong_checksum_of_a_compressed_chunk_is_detected(variants: pathlib.Path, tmp_path: pathlib.Path) -> None:
    [metadata] = (variants / "hashmap-canonical-compressed").rglob("_metadata")
    for file in metadata.parent.iterdir():
        data = bytearray(file.read_bytes())
        # After a stream identifier, the first block has its type, its length and its checksum.
        position = data.find(b"\xff\x06\x00\x00sNaPpY\x00")
        if file.name != "_metadata" and position >= 0:
            data[position + 14] ^= 1
        (tmp_path / file.name).write_bytes(data)
    savepoint = Savepoint.open(tmp_path)
    with pytest.raises(ForeignFormatError, match=r"key group \d+ from byte \d+ on: .*does not match its checksum"):
        list(savepoint.read("op", "count"))


def test_files_in_other_directories_are_read_only_from_the_given_ones(
    variants: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(variants / "rocksdb-incremental", tmp_path / "job")
    shutil.move(tmp_path / "job" / "shared", tmp_path / "elsewhere")
    with pytest.raises(MissingFileError, match=r"shared/.* is missing.*moved=.*--moved OLD=NEW"):
        Savepoint.open(tmp_path / "job" / "chk-3")
    metadata = (tmp_path / "job" / "chk-3" / "_metadata").read_bytes()
    [old] = set(re.findall(rb"file:[\w/.-]+/shared", metadata))
    shared = old.decode()
    exact = {shared: str(tmp_path / "elsewhere")}
    # The innermost directory counts, in any order.
    around = {shared.removesuffix("/shared"): str(tmp_path / "nowhere")}
    for moved in (exact, around | exact, exact | around):
        savepoint = Savepoint.open(tmp_path / "job" / "chk-3", moved=moved)
        assert sum(entry.value for entry in savepoint.read("op", "count")) == len(VALUES)


def test_files_of_one_name_in_two_directories_are_two_files(variants: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(variants / "rocksdb-incremental", tmp_path / "job")
    metadata = tmp_path / "job" / "chk-3" / "_metadata"
    content = metadata.read_bytes()
    [shared] = set(re.findall(rb"file:[\w/.-]+/shared", content))
    first, second = sorted(set(re.findall(re.escape(shared) + rb"/([\w-]+)", content)))[:2]
    other = shared[:-1] + b"2"
    metadata.write_bytes(content.replace(shared + b"/" + second, other + b"/" + first))
    (tmp_path / "other").mkdir()
    shutil.move(tmp_path / "job" / "shared" / second.decode(), tmp_path / "other" / first.decode())
    moved = {shared.decode(): str(tmp_path / "job" / "shared"), other.decode(): str(tmp_path / "other")}
    savepoint = Savepoint.open(tmp_path / "job" / "chk-3", moved=moved)
    assert sum(entry.value for entry in savepoint.read("op", "count")) == len(VALUES)


@pytest.mark.parametrize("name", VARIANTS)
def test_states_are_equal_in_a_second_read(variants: pathlib.Path, name: str) -> None:
    # The first read finds the positions of all states in a file, and opens a database. Later reads reuse both.
    savepoint = opened(variants, name)
    states = ("count", "list", "map", "_timer_state/event_user-timers")
    first = [list(map(str, savepoint.read("op", state))) for state in states]
    assert all(first)
    assert [list(map(str, savepoint.read("op", state))) for state in states] == first
    alone = [list(map(str, opened(variants, name).read("op", state))) for state in states]
    assert alone == first


def test_the_private_directory_of_a_database_is_removed(
    variants: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    savepoint = opened(variants, "rocksdb-incremental")
    list(savepoint.read("op", "count"))
    half_read = iter(savepoint.read("op", "count"))
    next(half_read)
    assert list(tmp_path.rglob("CURRENT"))
    del half_read, savepoint
    gc.collect()
    assert not list(tmp_path.rglob("CURRENT"))
