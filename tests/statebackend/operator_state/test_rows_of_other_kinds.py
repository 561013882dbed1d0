"""Rows of operator state that are not of the state that is asked for: refused by name, whatever they would give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpointing import CheckpointFileSystem
from migration import SchemaMigration
from snapshots.errors import SerializationError
from statebackend.api.errors import StateMigrationException, StateRestoreError
from statebackend.api.operator_state_descriptors import BroadcastStateDescriptor, OperatorStateMode
from statebackend.operator_state.operator_state_handles import FileSlice
from statebackend.operator_state.operator_state_rows import FORMAT, FORMAT_KEY, SCHEMA, encoded_rows, read_slice
from statebackend.operator_state.operator_state_tables import TABLES, OperatorStateTable
from testkit.backends.evolving_records import leg_v1
from typeserializers import IntSerializer, ListSerializer, LongSerializer, StringSerializer
from typeserializers.evolution.part_evolution import resolve_part

SEVEN = LongSerializer().to_bytes(7)
KEY = StringSerializer().to_bytes("key")

LIST_ROLES = {"element": LongSerializer()}
BROADCAST_ROLES = {"key": StringSerializer(), "value": LongSerializer()}


def a_table(mode: OperatorStateMode, serializers: Mapping[str, Any]) -> OperatorStateTable:
    return TABLES[mode]("things", serializers)


@pytest.mark.parametrize("mode", [OperatorStateMode.SPLIT, OperatorStateMode.UNION], ids=lambda mode: mode.name)
@pytest.mark.parametrize("row", [(KEY, SEVEN), (b"", SEVEN), (None, None), (KEY, None)])
def test_a_list_is_of_rows_without_a_key_and_with_a_value(mode: OperatorStateMode, row: Any) -> None:
    with pytest.raises(StateRestoreError, match=r"operator state 'things'.*: a row is not one of a list"):
        a_table(mode, LIST_ROLES).load_rows([(None, SEVEN), row], {})
    assert a_table(mode, LIST_ROLES).load_rows([(None, SEVEN)] * 2, {}) == 2


def test_a_broadcast_state_is_of_rows_with_a_key() -> None:
    with pytest.raises(StateRestoreError, match=r"operator state 'things'.*: a row is not one of a broadcast state"):
        a_table(OperatorStateMode.BROADCAST, BROADCAST_ROLES).load_rows([(KEY, SEVEN), (None, SEVEN)], {})
    assert a_table(OperatorStateMode.BROADCAST, BROADCAST_ROLES).load_rows([(KEY, None)], {}) == 1


@pytest.mark.parametrize("serializer", [LongSerializer(), ListSerializer(LongSerializer())], ids=repr)
@pytest.mark.parametrize("damage", [lambda data: data + b"\0", lambda data: data[:-1]], ids=["longer", "shorter"])
def test_a_row_that_ends_elsewhere_than_its_value_is_refused_by_its_number(serializer: Any, damage: Any) -> None:
    good = serializer.to_bytes(serializer.create_instance())
    with pytest.raises(StateRestoreError, match="operator state 'things', row 2: "):
        a_table(OperatorStateMode.SPLIT, {"element": serializer}).load_rows([(None, good), (None, damage(good))], {})


@pytest.mark.parametrize("damage", [lambda data: data + b"\0", lambda data: data[:-1]], ids=["longer", "shorter"])
def test_an_old_row_that_ends_elsewhere_than_its_value_is_refused_while_it_is_migrated(damage: Any) -> None:
    old, new = IntSerializer(), LongSerializer()
    snapshot = old.snapshot_configuration()
    migrations: Any = {"element": SchemaMigration.of_verdict(snapshot, new, resolve_part(snapshot, new))}
    good = (None, old.to_bytes(7))
    assert a_table(OperatorStateMode.SPLIT, LIST_ROLES).load_rows([good], migrations) == 1
    with pytest.raises(StateMigrationException, match="operator state 'things', row 2: "):
        a_table(OperatorStateMode.SPLIT, LIST_ROLES).load_rows([good, (None, damage(good[1]))], migrations)


def test_a_key_that_is_there_twice_is_refused_since_an_entry_would_be_lost() -> None:
    with pytest.raises(StateRestoreError, match="row 2: key 'key': it is there twice"):
        a_table(OperatorStateMode.BROADCAST, BROADCAST_ROLES).load_rows([(KEY, SEVEN), (KEY, None)], {})


def test_a_mutable_value_that_does_not_fit_names_the_state_and_changes_nothing(operator: Any) -> None:
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
def test_a_file_of_something_else_is_refused_by_its_place(tmp_path: Path, schema: pa.Schema) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path)
    written = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array([SEVEN])] * 2, schema=schema), written)
    file = store.write_file("other", written.getvalue().to_pybytes())
    with pytest.raises(StateRestoreError, match=r"other does not hold operator state of format"):
        list(read_slice(store, FileSlice(file, 0, 1)))


def test_a_slice_beyond_the_rows_of_its_file_is_refused_with_both_numbers(tmp_path: Path) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path)
    file = store.write_file("rows", encoded_rows([(None, SEVEN)] * 3))
    with pytest.raises(StateRestoreError, match="has 3 rows, but rows up to 4 are referred to"):
        list(read_slice(store, FileSlice(file, 0, 4)))
    assert len(list(read_slice(store, FileSlice(file, 0, 3)))) == 3
