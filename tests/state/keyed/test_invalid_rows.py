"""Invalid canonical rows, metadata and queues are rejected before anything is created from them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import evolve

from statebackend import PriorityQueueDescriptor, StateRegistrationError, StateRestoreError, ValueStateDescriptor
from statebackend.state.canonical import SCHEMA, CanonicalBatch, read_canonical
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.heap.heap_state_table import HeapStateTable
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.state_meta import KeyedStateMeta, encode_meta, meta_of_descriptor
from statebackend.state.state_store import StateTable
from statebackend.testing.backends.harness import MAP, BackendHarness, fill
from typeserializers import LongSerializer

ROW: dict[str, Any] = {"key_group": 3, "key": b"k", "namespace": b"\0", "user_key": None, "value": b"v"}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BackendHarness]:
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def a_file(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> bytes:
    """A file of rows of another writer, in which every column is nullable."""
    nullable = pa.schema([pa.field(one.name, one.type) for one in schema], schema.metadata)
    written = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=nullable), written)
    return bytes(written.getvalue())


def test_rows_without_a_key_group_are_rejected_in_any_position() -> None:
    assert [batch.values for batch in read_canonical("rows", KeyGroupRange(0, 9), a_file([ROW, ROW]))] == [[b"v"] * 2]
    for rows in ([{**ROW, "key_group": None}, ROW], [ROW, {**ROW, "key_group": None}], [{**ROW, "key_group": None}]):
        with pytest.raises(StateRestoreError, match=r"rows cannot be read as canonical state: .*without a key group"):
            list(read_canonical("rows", KeyGroupRange(0, 9), a_file(rows)))


@pytest.mark.parametrize("metadata", [None, {b"statebackend.keyed_state": b"canonical-0"}], ids=["none", "another"])
def test_a_file_of_another_format_is_rejected(metadata: dict[bytes, bytes] | None) -> None:
    with pytest.raises(StateRestoreError, match="rows does not hold canonical state of format"):
        list(read_canonical("rows", KeyGroupRange(0, 9), a_file([ROW], SCHEMA.with_metadata(metadata))))


def test_a_row_of_a_map_has_a_user_key_or_marks_the_map_as_removed(harness: BackendHarness) -> None:
    backend: Any = harness.open(HeapStateBackend())
    fill(harness, backend, range(1))
    table = backend._store.tables[MAP.name].content.table
    before = dict(table.history.live)
    with pytest.raises(StateRestoreError, match="a row of a map state has a value but no user key"):
        table.load_entry(0, 0, None, b"a value", None)
    assert table.history.live == before


def test_the_error_for_an_unreadable_value_reaches_another_process(harness: BackendHarness) -> None:
    backend: Any = harness.open(HeapStateBackend())
    fill(harness, backend, range(1))
    table = backend._store.tables[MAP.name].content.table
    rows = CanonicalBatch.of_rows([(0, b"not a key", b"\0", b"k", b"v")])
    with pytest.raises(StateRestoreError, match="the entry of key 6e6f742061206b6579 in key group 0") as caught:
        table.load_batch(rows, table.form.load)
    received = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(received, StateRestoreError)
    assert str(received) == str(caught.value)


def test_metadata_of_a_state_with_two_schemas_does_not_fit_version_one() -> None:
    state = meta_of_descriptor(ValueStateDescriptor("count", int), VOID_NAMESPACE_SERIALIZER)
    keys = LongSerializer().snapshot_configuration()
    assert encode_meta(KeyedStateMeta(keys, 0, (state,)))
    for parts in ((), state.parts * 2):
        with pytest.raises(StateRestoreError, match=f"state 'count' has {len(parts)} parts; version 1 writes one"):
            encode_meta(KeyedStateMeta(keys, 0, (evolve(state, parts=parts),)))


def test_a_store_without_queues_rejects_their_registration(
    harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeapStateTable, "queue", StateTable.queue)
    backend = harness.open(HeapStateBackend())
    with pytest.raises(StateRegistrationError, match="state 'due': this backend keeps no priority queues"):
        backend.get_priority_queue(PriorityQueueDescriptor("due", int))
    # The backend remains usable, and its snapshots are complete.
    fill(harness, backend, range(3))
    assert sorted(harness.open(HeapStateBackend(), harness.snapshot(backend).handle).get_keys("value")) == [0, 1, 2]
