"""State as Arrow tables has the entries that reading one by one returns, for every kind, form and backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from inspected_job import SALES, run_job

from statebackend import Progress, RestoredState, Savepoint, StateEntries, StateEntry
from statebackend.checkpoint import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.savepoint import savepoint
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.state_entries import EntriesPart
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.canonical import SCHEMA
from statebackend.state.errors import StateRestoreError
from statebackend.state.state_meta import KeyedStateMeta, StateMeta
from statebackend.state.value_state import VALUE
from typeserializers import IntSerializer, KryoSerializerSnapshot, LongSerializer, StringSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["savepoint", "heap", "rocksdb"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    directory = tmp_path_factory.mktemp("state")
    job = run_job("heap" if request.param == "savepoint" else request.param, directory / "job")
    if request.param == "savepoint":
        job.savepoint(directory / "savepoint")
        return Savepoint.open(directory / "savepoint")
    return Savepoint.open(directory / "job")


def row_of(entry: StateEntry) -> dict[str, Any]:
    """The entry as a row. Times are integers in both."""
    values = {name: plain_value(getattr(entry, name)) for name in ("key", "namespace", "user_key", "value")}
    return {"key_group": entry.key_group, **values, "last_access_ms": plain_value(entry.last_access_ms)}


@pytest.mark.extended_after(1)
def test_every_state_has_the_same_entries_in_a_table_as_one_by_one(opened: Savepoint) -> None:
    for operator, state in opened.states:
        entries = opened.read(operator, state)
        table = entries.to_arrow()
        table.validate(full=True)
        assert table.schema == entries.arrow_schema
        expected = [row_of(entry) for entry in entries]
        assert [{name: row.get(name) for name in row_of(EMPTY)} for row in table.to_pylist()] == expected
        assert entries.notes == {}


EMPTY = StateEntry(0, None, None, None, None)


def test_columns_have_the_stored_types(opened: Savepoint) -> None:
    totals = pa.struct({"sales": pa.int64(), "turnover": pa.float64(), "note": pa.string()})
    expected = {
        "totals": {"key": pa.string(), "value": totals},
        "timed": {"key": pa.string(), "value": pa.int64(), "last_access_ms": pa.int64()},
        "amounts": {"key": pa.string(), "value": pa.list_(pa.field("element", pa.int64()))},
        "by amount": {"key": pa.string(), "user_key": pa.int64(), "value": pa.string()},
    }
    for state, columns in expected.items():
        schema = opened.read("per shop", state).arrow_schema
        assert schema == pa.schema({"key_group": pa.int32(), **columns})


def test_batches_have_the_requested_size_and_one_key_is_a_table_too(opened: Savepoint) -> None:
    entries = opened.read("per shop", "by amount")
    batches = list(entries.to_arrow_batches(max_rows=7))
    assert max(batch.num_rows for batch in batches) == 7
    assert pa.Table.from_batches(batches) == entries.to_arrow()
    assert {batch.num_rows for batch in entries.to_arrow_batches(max_bytes=1)} == {1}
    one = opened.read("per shop", "by amount", key="shop 3")
    own = [sale["amount"] for sale in SALES if sale["shop"] == "shop 3"]
    assert sorted(one.to_arrow()["user_key"].to_pylist()) == own
    assert len(list(one)) == len(list(one)) == len(own), "every iteration reads again"
    absent = opened.read("per shop", "by amount", key="no shop").to_arrow()
    assert (absent.num_rows, absent.schema) == (0, entries.arrow_schema)


def test_one_key_is_read_from_its_subtask_only(opened: Savepoint, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[KeyedStateHandle] = []
    read_columns = savepoint.stored_columns

    def counting(restored: RestoredHandle, *arguments: Any) -> Iterator[pa.RecordBatch]:
        asked.append(restored.handle)
        return read_columns(restored, *arguments)

    monkeypatch.setattr(savepoint, "stored_columns", counting)
    parts = opened.operators["per shop"].parts
    assert parts is opened.operators["per shop"].parts, "metadata is decoded once"
    for shop in ("shop 3", "shop 9"):
        [entry] = opened.read("per shop", "totals", key=shop)
        timers = list(opened.read("per shop", "_timer_state/processing_user-timers", key=shop))
        assert {timer.key for timer in timers} == {entry.key} == {shop}
        assert len(timers) == entry.value.sales
        assert len(asked) == 2
        assert asked[0] is asked[1] in [part.handle for part in parts]
        asked.clear()


def stored(value_snapshot: Any, *values: bytes | None) -> EntriesPart:
    """One subtask whose entries have these bytes, under the keys 0, 1, ..."""
    state = StateMeta.of_one_schema(
        "amounts", VALUE, VoidNamespaceSerializer().snapshot_configuration(), {"value": value_snapshot}
    )
    keys = [LongSerializer().to_bytes(number) for number in range(len(values))]

    def columns() -> Iterator[pa.RecordBatch]:
        stored = [[0] * len(keys), keys, [b"\1"] * len(keys), [None] * len(keys), list(values)]
        yield pa.record_batch(stored, schema=SCHEMA)

    return EntriesPart(KeyedStateMeta(LongSerializer().snapshot_configuration(), 0, (state,)), state, columns)


def test_values_of_unknown_serializers_are_stored_bytes() -> None:
    entries = StateEntries([stored(KryoSerializerSnapshot(), b"\x01kryo", b"")])
    assert entries.to_arrow()["value"].to_pylist() == [b"\x01kryo", b""]
    assert list(entries.notes) == ["value"]
    assert "bytes as they are stored" in entries.notes["value"]
    assert entries.to_arrow()["key"].to_pylist() == [0, 1]


@pytest.mark.parametrize("damage", [b"\0\0\0", b"\0" * 9, None])
def test_bytes_that_do_not_fit_are_reported_by_state_and_group(damage: bytes | None) -> None:
    whole = LongSerializer().to_bytes(5)
    entries = StateEntries([stored(LongSerializer().snapshot_configuration(), whole, damage, whole)])
    with pytest.raises(StateRestoreError, match="state 'amounts', key group 0: "):
        entries.to_arrow()


def test_subtasks_with_different_types_are_no_table_but_can_be_iterated() -> None:
    parts = [
        stored(IntSerializer().snapshot_configuration(), IntSerializer().to_bytes(1)),
        stored(StringSerializer().snapshot_configuration(), StringSerializer().to_bytes("a")),
    ]
    with pytest.raises(SavepointError, match=r"value: int32 and as .*value: string"):
        StateEntries(parts).to_arrow()
    assert [entry.value for entry in StateEntries(parts)] == [1, "a"]


def test_without_pandas_a_frame_is_rejected_with_advice(opened: Savepoint, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = opened.read("per shop", "totals")
    # The import of a module that is None in `sys.modules` fails as if it were not installed.
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install pandas, or use to_arrow"):
        entries.to_pandas()


def test_reading_a_whole_state_reports_progress_to_its_end(opened: Savepoint) -> None:
    reported: list[Progress] = []
    listening = Savepoint(
        RestoredState(opened.metadata, CheckpointFileSystem.from_uri(opened.uri)), (), reported.append
    )
    for _ in range(2):
        entries = list(listening.read("per shop", "by amount"))
        assert (reported[-1].is_done, reported[-1].entries) == (True, len(entries))
        parts = [one.part for one in reported]
        assert parts == sorted(parts, key=lambda part: part or 0.0)
        assert 0 < (reported[-1].part or 0) <= 1
        reported.clear()
    list(listening.read("per shop", "by amount", key="shop 3"))
    assert reported == []
    sizes = sum(size for _, size in listening.verify())
    assert sum(one.size_bytes for one in reported if one.is_done) == sizes
    assert all(one.size_bytes <= (one.total_bytes or 0) for one in reported)
