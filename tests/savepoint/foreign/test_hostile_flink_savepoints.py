"""Damaged savepoints of Flink raise errors of the library, within bounds of time and memory, and import nothing.

``STATEBACKEND_FUZZ=all`` flips every byte. Otherwise a fixed sample is flipped, with another bit for each byte.
"""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import sys
from collections.abc import Iterator

import pytest
from golden_savepoints import GOLDEN

from snapshots.errors import StateFormatError
from statebackend.checkpoint.errors import CheckpointError, SavepointError
from statebackend.savepoint.foreign.errors import ForeignFormatError
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.errors import StateBackendError

EXPECTED_ERRORS = (CheckpointError, StateFormatError, StateBackendError)
SAMPLE = 40
MAX_GROWTH_KIB = 400 << 10


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copytree(GOLDEN / "hashmap-canonical" / "savepoint", tmp_path / "savepoint")
    return tmp_path / "savepoint"


def read_all(place: pathlib.Path, *uids: str) -> int:
    """The number of entries and elements of these operators."""
    savepoint = Savepoint.open(place)
    count = 0
    for uid in uids or savepoint.operators:
        operator = savepoint.operators.get(uid)
        if operator is None:
            continue
        for name in operator.states:
            count += sum(1 for _ in savepoint.read(uid, name))
        for name in operator.operator_states:
            count += sum(1 for _ in savepoint.read_operator_state(uid, name))
    return count


def positions(size: int) -> Iterator[int]:
    step = 1 if os.environ.get("STATEBACKEND_FUZZ") == "all" else max(1, size // SAMPLE)
    return iter(range(0, size, step))


@pytest.mark.parametrize(
    ("name", "uids"),
    [
        ("_metadata", ("golden-longkey", "golden-op")),
        ("1cdfe8df-16c3-412a-a1f3-a37c72d7d775", ("golden-window",)),
    ],
)
def test_flipped_bytes_raise_errors_of_the_library(place: pathlib.Path, name: str, uids: tuple[str, ...]) -> None:
    file = place / name
    whole = file.read_bytes()
    modules, growth = set(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    raised = 0
    for position in positions(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        try:
            read_all(place, *uids)
        except EXPECTED_ERRORS:
            raised += 1
    assert raised > SAMPLE // 10
    assert not {module for module in set(sys.modules) - modules if module.startswith(("golden.", "org."))}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - growth < MAX_GROWTH_KIB


@pytest.mark.parametrize("name", ["_metadata", "27ea0999-44a4-4d0b-be0f-ae1b4f48712c"])
def test_truncated_files_are_rejected_by_name(place: pathlib.Path, name: str) -> None:
    file = place / name
    whole = file.read_bytes()
    # The tail of the metadata is a Java object that nobody reads.
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


def test_a_kind_of_state_in_other_letters_is_rejected(place: pathlib.Path) -> None:
    data = (place / "_metadata").read_bytes()
    assert b"\0\4LIST" in data
    (place / "_metadata").write_bytes(data.replace(b"\0\4LIST", b"\0\4LISt"))
    with pytest.raises(ForeignFormatError, match="of the unknown kind 'LISt'"):
        Savepoint.open(place)
