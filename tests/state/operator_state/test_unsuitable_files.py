"""Operator state rejects foreign files and invalid values, names them, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapshots.errors import SerializationError
from statebackend.checkpoint import CheckpointFileSystem
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor, OperatorStateMode
from statebackend.state.operator_state_handles import (
    FORMAT_KEY,
    SCHEMA,
    FileSlice,
    encoded_rows,
    read_slice,
)
from statebackend.state.operator_state_handles import (
    ROWS_FORMAT as FORMAT,
)
from statebackend.state.operator_state_tables import TABLES
from statebackend.testing.backends.evolving_records import leg_v1
from typeserializers import LongSerializer, StringSerializer

SEVEN = LongSerializer().to_bytes(7)
KEY = StringSerializer().to_bytes("key")


def test_a_duplicate_key_is_rejected() -> None:
    table = TABLES[OperatorStateMode.BROADCAST]("things", {"key": StringSerializer(), "value": LongSerializer()})
    with pytest.raises(StateRestoreError, match="operator state 'things', row 2: key 'key': it occurs twice"):
        table.load_rows([(KEY, SEVEN), (KEY, None)], {})


def test_an_invalid_mutable_value_names_the_state_and_changes_nothing(operator: Any) -> None:
    (backend,) = operator.start()
    state = backend.get_state(BroadcastStateDescriptor("legs", str, leg_v1()))
    with pytest.raises(SerializationError, match="operator state 'legs'"):
        state.put("a", "no leg")
    assert state.is_empty()


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA.with_metadata(None),
        SCHEMA.with_metadata({FORMAT_KEY: FORMAT + b"x"}),
        pa.schema([(name + "s", pa.binary()) for name in SCHEMA.names], {FORMAT_KEY: FORMAT}),
        pa.schema([(name, pa.binary()) for name in reversed(SCHEMA.names)], {FORMAT_KEY: FORMAT}),
    ],
    ids=["no format", "another format", "other columns", "another order"],
)
def test_a_foreign_file_is_rejected_with_its_path(tmp_path: Path, schema: pa.Schema) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path)
    written = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array([SEVEN])] * 2, schema=schema), written)
    file = store.write_file("other", written.getvalue().to_pybytes())
    with pytest.raises(StateRestoreError, match=r"other does not hold operator state of format"):
        list(read_slice(store, FileSlice(file, 0, 1)))


def test_a_slice_beyond_its_file_is_rejected_with_both_numbers(tmp_path: Path) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path)
    file = store.write_file("rows", encoded_rows([(None, SEVEN)] * 3))
    with pytest.raises(StateRestoreError, match="has 3 rows, but rows up to 4 are referred to"):
        list(read_slice(store, FileSlice(file, 0, 4)))
    assert len(list(read_slice(store, FileSlice(file, 0, 3)))) == 3
