"""Savepoints of Flink are read completely: every entry, timer and operator element equals the job's model."""

from __future__ import annotations

import json
import pathlib
import random
import re
import shutil

import pyarrow.parquet as pq
import pytest
import rocksdict
from golden_savepoints import GOLDEN, NAMES, expected_of, found_in, keyed_state, timers, wanted_of

from snapshots.errors import MalformedDataError, StateFormatError
from statebackend import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.savepoint.errors import ForeignFormatError
from statebackend.savepoint.foreign.flink_metadata import operator_id_of
from statebackend.savepoint.foreign.flink_rows import RowMaker
from statebackend.savepoint.foreign.rocksdb_files import ForeignDatabase, is_needed
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import meta_of_descriptor
from typeserializers import LongSerializer, StringSerializer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_timer_and_element_is_read(name: str) -> None:
    expected = expected_of(name)
    found = found_in(Savepoint.open(GOLDEN / name / "savepoint"), expected)
    assert found == wanted_of(expected)


@pytest.mark.parametrize("name", NAMES)
def test_states_are_read_in_any_order(name: str) -> None:
    wanted = wanted_of(expected_of(name))["keyedOperators"]["golden-keyed"]["states"]
    savepoint = Savepoint.open(GOLDEN / name / "savepoint")
    stored = [state for state in savepoint.operators["golden-keyed"].states if state in wanted]
    assert len(stored) > 5
    # Read the states backwards, and then all of them again.
    for state in [*reversed(stored), *stored]:
        assert keyed_state(savepoint, "golden-keyed", state) == wanted[state]


def test_savepoints_of_different_versions_and_backends_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (str(GOLDEN / name / "savepoint") for name in ("1.20.5-hashmap-native", "1.13.6-rocksdb-canonical"))
    assert main(["diff", old, new, "--entries", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": [], "entries": []}


def test_commands_print_the_content_of_a_flink_savepoint(capsys: pytest.CaptureFixture[str]) -> None:
    place = str(GOLDEN / "1.20.5-hashmap-native" / "savepoint")
    assert main(["inspect", place]) == 0
    # Flink also lists operators without state.
    assert f"operator {operator_id_of('golden-filter')}: parallelism 1, no state\n" in capsys.readouterr().out
    assert main(["inspect", place, "--verify", "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert (inspected["kind"], inspected["checkpoint_id"], inspected["max_parallelism"]) == ("savepoint", 3, 128)
    assert main(["show", place, "golden-window", "window-contents", "--key", "key-098", "--json"]) == 0
    shown = [one["value"] for one in json.loads(capsys.readouterr().out)]
    assert shown == [[["key-098", 9800 + number]] for number in range(4)]
    assert main(["schema", place, "--json"]) == 0
    schemas = json.loads(capsys.readouterr().out)
    assert schemas[operator_id_of("golden-op")]["operator_states"]["op-broadcast"]["types"]["key"] == {"type": "str"}


def test_a_state_is_exported(tmp_path: pathlib.Path) -> None:
    place = str(GOLDEN / "hashmap-canonical" / "savepoint")
    target = tmp_path / "pojo.parquet"
    assert main(["export", place, "golden-keyed", "pojo", str(target), "--to", "parquet"]) == 0
    entries = expected_of("hashmap-canonical")["keyedOperators"]["golden-keyed"]["states"]["pojo"]["entries"]
    rows = pq.read_table(target).to_pylist()
    assert {row["key"]: row["value"]["stringField"] for row in rows} == {
        entry["key"]: entry["value"]["fields"]["stringField"] for entry in entries
    }


def test_a_key_is_found_without_its_hash() -> None:
    savepoint = Savepoint.open(GOLDEN / "hashmap-canonical" / "savepoint")
    assert [entry.value for entry in savepoint.read("golden-keyed", "count", key="key-098")] == [4]
    assert list(savepoint.read("golden-keyed", "count", key="no key")) == []


@pytest.mark.parametrize("name", ["1.20.5-hashmap-native", "hashmap-canonical"])
def test_an_unknown_serializer_is_named_and_all_other_states_are_read(name: str, tmp_path: pathlib.Path) -> None:
    shutil.copytree(GOLDEN / name / "savepoint", tmp_path / "savepoint")
    known, unknown = b".PojoSerializerSnapshot", b".PetaSerializerSnapshot"
    for file in (tmp_path / "savepoint").iterdir():
        file.write_bytes(file.read_bytes().replace(known, unknown))
    savepoint = Savepoint.open(tmp_path / "savepoint")
    assert "PetaSerializerSnapshot" in (savepoint.schema("golden-keyed", "pojo").unknown or "")
    with pytest.raises(StateFormatError, match=r"unknown serializer snapshot .*PetaSerializerSnapshot"):
        list(savepoint.read("golden-keyed", "pojo"))
    wanted = wanted_of(expected_of(name))["keyedOperators"]["golden-keyed"]
    del wanted["states"]["pojo"]
    assert {state: keyed_state(savepoint, "golden-keyed", state) for state in wanted["states"]} == wanted["states"]
    assert {queue: timers(savepoint, "golden-keyed", queue) for queue in wanted["timers"]} == wanted["timers"]


def test_a_state_with_an_unknown_key_does_not_hide_the_others(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(GOLDEN / "hashmap-canonical" / "savepoint", tmp_path / "savepoint")
    known = b"org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot"
    unknown = b"org.apache.flink.table.runtime.typeutils.RowDataSerializer".ljust(len(known), b"x")
    for file in (tmp_path / "savepoint").iterdir():
        file.write_bytes(file.read_bytes().replace(known, unknown))
    assert main(["inspect", str(tmp_path / "savepoint"), "--json"]) == 0
    operators = {one["uid"]: one for one in json.loads(capsys.readouterr().out)["operators"]}
    states = {one["name"]: one for one in operators["golden-longkey"]["states"]}
    assert "entries" not in states["lk-count"]
    assert "Cast the column to another type in the query" in states["lk-count"]["unknown"]
    assert {one["name"]: one for one in operators["golden-keyed"]["states"]}["pojo"]["entries"] > 0
    assert main(["inspect", str(tmp_path / "savepoint")]) == 0
    assert "lk-count" in capsys.readouterr().out


JOB = """
from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from typeserializers import IntSerializer

class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("lk-count", IntSerializer()))

    def process_element(self, record, context):
        return ()

def build():
    env = LocalStreamEnvironment()
    records = env.from_elements([], "number long")
    records.key_by("number").process(Count(), uid="golden-longkey", schema="a int").sink_to([])
    return env
"""


def test_a_job_is_checked_against_a_savepoint_that_stores_only_operator_ids(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_registrations: None
) -> None:
    (tmp_path / "job_of_numbers.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    place = str(GOLDEN / "1.13.6-rocksdb-canonical" / "savepoint")
    main(["check", place, "--job", "job_of_numbers:build", "--json"])
    [comparison] = json.loads(capsys.readouterr().out)
    assert comparison["rejection"] is None
    assert list(comparison["operators"]) == ["golden-longkey"]
    assert operator_id_of("golden-longkey") not in comparison["dropped_operators"]
    assert operator_id_of("golden-keyed") in comparison["dropped_operators"]
    text = json.dumps(comparison["operators"])
    assert "lk-count" in text
    assert "lk-map" in text
    # Sources and operators without state are not imported, so the job need not have them.
    stateless = {operator_id_of(uid) for uid in ("golden-source", "golden-filter")}
    assert stateless <= set(Savepoint.open(place).operators)
    assert not stateless & set(comparison["dropped_operators"])


def test_a_job_with_other_key_groups_is_checked_as_it_is_imported(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_registrations: None
) -> None:
    job = JOB.replace("LocalStreamEnvironment()", "LocalStreamEnvironment(max_parallelism=64)")
    (tmp_path / "job_of_few_groups.py").write_text(job)
    monkeypatch.chdir(tmp_path)
    place = str(GOLDEN / "hashmap-canonical" / "savepoint")
    for arguments in (["check", place], ["import", place, str(tmp_path / "ours")]):
        assert main([*arguments, "--job", "job_of_few_groups:build"]) == 1
        printed = capsys.readouterr().out
        assert "is not imported, unless" in printed
        assert "operator 'golden-longkey': compatible" in printed
        assert "pass --allow-loss" in printed


def test_full_checkpoints_of_rocksdb_have_canonical_groups_under_another_handle(
    tmp_path: pathlib.Path,
) -> None:
    # For a full checkpoint of RocksDB, Flink 1.13 uses the handle of native key groups of the HashMap backend.
    name = "1.13.6-rocksdb-canonical"
    shutil.copytree(GOLDEN / name / "savepoint", tmp_path / "checkpoint")
    metadata = (tmp_path / "checkpoint" / "_metadata").read_bytes()
    for first in (0, 64):
        key_groups = first.to_bytes(4, "big") + (64).to_bytes(4, "big")
        assert metadata.count(b"\7" + key_groups)
        metadata = metadata.replace(b"\7" + key_groups, b"\3" + key_groups)
    (tmp_path / "checkpoint" / "_metadata").write_bytes(metadata)
    expected = expected_of(name)
    assert found_in(Savepoint.open(tmp_path / "checkpoint"), expected) == wanted_of(expected)


@pytest.mark.parametrize(
    ("descriptor", "key", "value", "message"),
    [
        (ValueStateDescriptor("n", LongSerializer()), b"\1" + bytes(9), bytes(7), "a value of 7 bytes instead of 8"),
        (ValueStateDescriptor("n", LongSerializer()), b"\1" + bytes(9), bytes(9), "a value of 9 bytes instead of 8"),
        (ValueStateDescriptor("n", LongSerializer()), b"\1" + bytes(8), bytes(8), "a key of 9 bytes instead of 10"),
        (
            MapStateDescriptor("n", int, LongSerializer()),
            b"\1" + bytes(17),
            bytes(8),
            "a value of 8 bytes instead of 9",
        ),
    ],
)
def test_bytes_of_another_length_than_their_type_are_not_copied(
    descriptor: StateDescriptor, key: bytes, value: bytes, message: str
) -> None:
    meta = meta_of_descriptor(descriptor, VOID_NAMESPACE_SERIALIZER)
    maker = RowMaker(LongSerializer().snapshot_configuration(), meta, 128)
    with pytest.raises(MalformedDataError, match=message):
        maker.columns([key], [value])


def test_rows_of_a_database_are_sorted_by_their_keys() -> None:
    meta = meta_of_descriptor(ValueStateDescriptor("n", LongSerializer()), VOID_NAMESPACE_SERIALIZER)
    maker = RowMaker(LongSerializer().snapshot_configuration(), meta, 128)
    stored = [b"\1" + LongSerializer().to_bytes(key) + b"\0" for key in (3, 1, 2)]
    rows = maker.columns(stored, [LongSerializer().to_bytes(key) for key in (30, 10, 20)])
    for name, factor in (("key", 1), ("value", 10)):
        expected = [LongSerializer().to_bytes(factor * key) for key in (1, 2, 3)]
        assert rows.column(name).to_pylist() == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (bytes(8) + b";" + bytes(8), "a list of 17 bytes has no separators of elements of 8 bytes"),
        (bytes(8) + b"," + bytes(7), "a list of 16 bytes has no elements of 8 bytes"),
    ],
    ids=["separator", "length"],
)
def test_a_damaged_list_of_a_database_is_rejected(value: bytes, message: str) -> None:
    meta = meta_of_descriptor(ListStateDescriptor("n", LongSerializer()), VOID_NAMESPACE_SERIALIZER)
    maker = RowMaker(LongSerializer().snapshot_configuration(), meta, 128)
    with pytest.raises(MalformedDataError, match=message):
        maker.columns([b"\1" + bytes(8) + b"\0"], [value])


def test_bytes_after_the_namespace_of_a_key_are_rejected() -> None:
    meta = meta_of_descriptor(ValueStateDescriptor("n", LongSerializer()), StringSerializer())
    maker = RowMaker(StringSerializer().snapshot_configuration(), meta, 128)
    text = StringSerializer().to_bytes("ab")
    # The lengths of the key and of the namespace follow them.
    key = b"\1" + 2 * (text + bytes([len(text)]))
    assert maker.columns([key], [bytes(8)]).column("namespace").to_pylist() == [text]
    with pytest.raises(MalformedDataError, match="1 bytes follow the namespace of a key"):
        maker.columns([key + b"x"], [bytes(8)])


def test_a_damaged_block_of_a_database_is_an_error_and_no_end_of_the_state(tmp_path: pathlib.Path) -> None:
    directory, options = tmp_path / "database", rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(directory), options)
    family = database.create_column_family("n", options)
    for number in range(2000):
        family[b"%04d" % number] = random.Random(number).randbytes(100)
    family.flush()
    family.close()
    database.close()
    for file in directory.iterdir():
        if re.match("[A-Z]+$|MANIFEST|.*sst", file.name) is None or file.name in ("LOG", "LOCK", "IDENTITY"):
            file.unlink()

    def keys(copy: str, stop: int) -> list[bytes]:
        shutil.copytree(directory, tmp_path / copy)
        found = ForeignDatabase(str(tmp_path / copy), copy, {}).scan("n", b"0100", b"%04d" % stop)
        return [key for chunk in found for key, _ in chunk]

    # Entries are read in chunks. The first chunk ends with the key 611.
    for stop in (611, 612, 1900):
        assert keys(f"until {stop}", stop) == [b"%04d" % number for number in range(100, stop)]
    [sorted_file] = directory.glob("*.sst")
    content = bytearray(sorted_file.read_bytes())
    content[content.index(b"1000") - 1000] ^= 1
    sorted_file.write_bytes(content)
    with pytest.raises(ForeignFormatError, match="state 'n': RocksDB cannot read the files"):
        keys("damaged", 1900)


@pytest.mark.parametrize(
    "name", ["000001.sst/../../other", "000001.sst\n", "../000001.sst", "MANIFEST-1/x", "LOCK", ""]
)
def test_a_name_that_no_file_of_a_database_has_is_rejected(name: str) -> None:
    with pytest.raises(ForeignFormatError, match="which is not a file of a RocksDB database"):
        is_needed(name, "here")
