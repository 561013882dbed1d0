"""Damaged Flink savepoints raise errors of the library within limits of time and memory, and import no modules.

By default the tests flip a few bytes per file. ``STATEBACKEND_FUZZ=1000`` flips 1,000 bytes, and
``STATEBACKEND_FUZZ=all`` every byte. The bytes are spread over the file, and the flipped bit varies. Errors name the
file, except for an unknown serializer, which may be valid.
"""

from __future__ import annotations

import pathlib
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

import pytest
from effort import FUZZ
from golden_savepoints import GOLDEN

from snapshots.data_views import DataInputView
from snapshots.envelope import UnopenedSnapshot, snapshot_to_bytes
from snapshots.errors import StateFormatError, UnknownSnapshotError
from statebackend.checkpoint.errors import CheckpointError, SavepointError
from statebackend.savepoint.errors import ForeignFormatError
from statebackend.savepoint.foreign.flink_headers import read_keyed_header
from statebackend.savepoint.foreign.flink_metadata import operator_id_of
from statebackend.savepoint.foreign.flink_rows import HeapGroups
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.canonical import CanonicalBatch
from statebackend.state.descriptors import VALUE_ROLE
from statebackend.state.errors import StateBackendError
from statebackend.state.state_meta import STATE_KINDS, StateMeta
from typeserializers import LongSerializer, VoidNamespaceSerializer

pytestmark = pytest.mark.slow

EXPECTED_ERRORS = (CheckpointError, StateFormatError, StateBackendError)
SAMPLE = 30
MAX_GROWTH_KIB = 400 << 10
LIMIT_S = 300
"""Reading a savepoint of these tests takes less than a second."""


def copied(name: str, directory: pathlib.Path) -> pathlib.Path:
    shutil.copytree(GOLDEN / name / "savepoint", directory / "savepoint")
    return directory / "savepoint"


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    return copied("hashmap-canonical", tmp_path)


def read_all(place: pathlib.Path, *uids: str) -> int:
    """The number of entries and elements in these operators."""
    savepoint = Savepoint.open(place)
    count = 0
    for uid in uids or savepoint.operators:
        operator = savepoint.operators.get(uid) or savepoint.operators.get(operator_id_of(uid))
        if operator is None:
            continue
        for name in operator.states:
            count += sum(1 for _ in savepoint.read(operator.uid, name))
        for name in operator.operator_states:
            count += sum(1 for _ in savepoint.read_operator_state(operator.uid, name))
    return count


def positions(size: int) -> Sequence[int]:
    count = size if FUZZ == "all" else min(size, int(FUZZ) if FUZZ.isdigit() else SAMPLE)
    return [size * index // count for index in range(count)]


FILES = [
    ("hashmap-canonical", "_metadata", ("golden-longkey", "golden-op")),
    ("hashmap-canonical", "1cdfe8df-16c3-412a-a1f3-a37c72d7d775", ("golden-window",)),
    ("1.13.6-rocksdb-canonical", "_metadata", ("golden-longkey", "golden-op")),
    ("1.13.6-rocksdb-canonical", "cda1b862-a4b8-4d28-9090-24a4d60e7506", ("golden-window",)),
    ("1.20.5-hashmap-native", "_metadata", ("golden-longkey", "golden-op")),
    ("1.20.5-hashmap-native", "dd84f1de-0fa3-4440-bda3-0ac755b030d8", ("golden-window",)),
    # The content of the SST files is in `_metadata`.
    ("rocksdb-native", "_metadata", ("golden-longkey", "golden-window")),
]


@contextmanager
def within_limits() -> Iterator[None]:
    """Fail if the block uses too much memory, imports a class that a savepoint names, or hangs."""

    def stop(*_: object) -> None:
        raise AssertionError(f"a savepoint was still being read after {LIMIT_S} seconds")

    modules, growth = set(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    former = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
    assert not {module for module in set(sys.modules) - modules if module.startswith(("golden.", "org."))}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - growth < MAX_GROWTH_KIB


def is_rejected(file: pathlib.Path, data: bytes, uids: tuple[str, ...]) -> bool:
    """Whether the damaged file raises an error. Changed values do not, because Flink stores no checksums of values."""
    file.write_bytes(data)
    signal.alarm(LIMIT_S)
    try:
        read_all(file.parent, *uids)
    except EXPECTED_ERRORS as error:
        text = str(error)
        assert str(file.parent) in text or "serializer" in text, text
        return True
    return False


@pytest.mark.extended_after(2)
@pytest.mark.parametrize(("savepoint", "name", "uids"), FILES)
def test_flipped_bytes_raise_errors_of_the_library(
    savepoint: str, name: str, uids: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    file = copied(savepoint, tmp_path) / name
    whole = file.read_bytes()
    raised = 0
    with within_limits():
        for position in positions(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            raised += is_rejected(file, damaged, uids)
    assert raised > SAMPLE // 10


def test_bytes_after_the_entries_of_a_broadcast_state_are_rejected(place: pathlib.Path) -> None:
    savepoint = Savepoint.open(place)
    [uid] = (uid for uid, operator in savepoint.operators.items() if "op-broadcast" in operator.operator_states)
    _, [part] = next(iter(savepoint.operators[uid].operator_state_parts("op-broadcast")))
    position = int(savepoint.file_system.location(part.slices[0].file.path).rpartition("byte ")[2])
    data = bytearray((place / "_metadata").read_bytes())
    # The number of entries is before them.
    data[position + 3] -= 1
    (place / "_metadata").write_bytes(data)
    with pytest.raises(ForeignFormatError, match=f"byte {position}: .* bytes follow the entries"):
        list(Savepoint.open(place).read_operator_state(uid, "op-broadcast"))


@pytest.mark.parametrize(("savepoint", "name", "uids"), FILES)
def test_random_damage_raises_errors_of_the_library(
    savepoint: str, name: str, uids: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    file = copied(savepoint, tmp_path) / name
    whole, random = file.read_bytes(), Random(name)
    raised = 0
    with within_limits():
        for _ in range(2000 if FUZZ not in {"", "few"} else SAMPLE // 2):
            raised += is_rejected(file, damaged_by(random, whole), uids)
    assert raised > SAMPLE // 10


def damaged_by(random: Random, whole: bytes) -> bytes:
    """Truncate the bytes, move a part of them, or change several numbers."""
    kind, data = random.randrange(6), bytearray(whole)
    if kind == 0:
        return whole[: random.randrange(len(whole))]
    if kind == 1:
        source, size = random.randrange(len(whole)), random.choice((1, 8, 100, 5000))
        target = random.randrange(len(whole))
        data[target : target + size] = whole[source : source + size]
        return bytes(data)
    for _ in range(random.choice((1, 2, 5, 20))):
        position = random.randrange(len(data))
        number = random.choice((b"\x7f\xff\xff\xff", b"\xff" * 4, bytes(4), b"\0\1\0\0", random.randbytes(4), b""))
        data[position : position + 4] = number
    return bytes(data)


@pytest.mark.parametrize("name", ["_metadata", "27ea0999-44a4-4d0b-be0f-ae1b4f48712c"])
def test_truncated_files_are_rejected_by_name(place: pathlib.Path, name: str) -> None:
    file = place / name
    whole = file.read_bytes()
    # The end of the metadata is a Java object that is not read.
    for size in (0, 3, 4, 7, 100, len(whole) // 2):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=name):
            read_all(place)


@pytest.mark.parametrize("stored", ["../../secret-0000-4d0b-be0f-ae1b4f48712c", "/etc/passwd/0-4d0b-be0f-ae1b4f487"])
def test_paths_outside_of_the_directory_are_rejected(place: pathlib.Path, stored: str) -> None:
    name = "27ea0999-44a4-4d0b-be0f-ae1b4f48712c"
    data = (place / "_metadata").read_bytes()
    assert name.encode() in data
    path = stored.encode().ljust(len(name), b"x")[: len(name)]
    (place / "_metadata").write_bytes(data.replace(name.encode(), path))
    with pytest.raises(ForeignFormatError, match=r"_metadata: path .* is rejected"):
        Savepoint.open(place)


def test_a_missing_file_is_named_with_the_option_that_finds_it(place: pathlib.Path) -> None:
    (place / "27ea0999-44a4-4d0b-be0f-ae1b4f48712c").unlink()
    with pytest.raises(CheckpointError, match=r"27ea0999.* is missing.*--moved OLD=NEW"):
        Savepoint.open(place)


def test_another_version_is_rejected(place: pathlib.Path) -> None:
    data = bytearray((place / "_metadata").read_bytes())
    data[7] = 99
    (place / "_metadata").write_bytes(data)
    with pytest.raises(SavepointError, match="version 99 of Flink's metadata; versions 3 to 6"):
        Savepoint.open(place)


def utf(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def test_the_search_for_the_end_of_an_unknown_serializer_is_bounded() -> None:
    # Every fourth byte of an area is a possible end of the serializer, and thousands of valid states follow.
    long = utf("org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot") + b"\0\0\0\3"
    state = bytes(8) + b"\0\0\0\1" + utf("VALUE_SERIALIZER") + b"\0\0\0\2" + long
    key = b"\0\0\0\2" + utf("com.example.Unknown") + b"\0\0\0\1"
    size = 16_000
    # Each possible end has a number of states, and a name that reaches to the end of the area.
    ends = b"".join(b"\x70\0" + (size - start - 4).to_bytes(2, "big") for start in range(0, size, 4))
    states = b"".join(utf(f"s{number}") + state for number in range(5_000))
    header = b"\0\0\0\6\0" + key + ends + state + states
    signal.alarm(LIMIT_S)
    with within_limits(), pytest.raises(StateFormatError, match=r"com\.example\.Unknown"):
        read_keyed_header(DataInputView(header))


def test_the_search_for_the_states_after_unknown_ones_is_bounded() -> None:
    long, void = LongSerializer().snapshot_configuration(), VoidNamespaceSerializer().snapshot_configuration()
    unknown = UnopenedSnapshot(snapshot_to_bytes(long), UnknownSnapshotError("com.example.Unknown"))
    metas = [StateMeta.of_one_schema(f"s{one}", STATE_KINDS["value"], void, {VALUE_ROLE: unknown}, ()) for one in "abc"]
    # At each of these places the second state may begin. From each, all the rest is searched for the third one.
    places = b"\0\1\0\0\0\1" * 50_000
    groups = HeapGroups(long, metas, is_compressed=False)
    signal.alarm(LIMIT_S)
    with within_limits(), pytest.raises(StateFormatError, match="the values of state 'sa' is unknown"):
        groups.reader(0)(bytes(4) + b"\0\0\0\0\0\1" + places + bytes(100_000), 0, CanonicalBatch.empty())


def test_an_unknown_kind_of_state_is_rejected(place: pathlib.Path) -> None:
    data = (place / "_metadata").read_bytes()
    assert b"\0\4LIST" in data
    (place / "_metadata").write_bytes(data.replace(b"\0\4LIST", b"\0\4LISt"))
    with pytest.raises(ForeignFormatError, match="of the unknown kind 'LISt'"):
        Savepoint.open(place)
