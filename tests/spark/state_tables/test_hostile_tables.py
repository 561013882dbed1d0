"""Unusual state tables: names, sizes, partition counts, keys, and unknown serializers."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from attrs import evolve
from pyspark.sql.datasource import EqualTo, In
from tables_read import parts_of, reader_of, rows_of

from statebackend import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.checkpoint.errors import MissingFileError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.spark.state_tables.options import StateTableError
from statebackend.spark.state_tables.source import StateTableSource
from statebackend.state.canonical import encoded_canonical, read_canonical
from statebackend.state.key_groups import KeyGroupRange
from typeserializers import LongSerializer, SqlTime, SqlTimeSerializer, StringSerializer

REPOSITORY = Path(__file__).resolve().parents[3]


def savepoint_of(path: Path, plan: Plan, max_parallelism: int = 16) -> Path:
    SavepointWriter.new(path, max_parallelism=max_parallelism).write(plan)
    return path


def test_fields_and_states_can_have_any_name(tmp_path: Path) -> None:
    names = ["größe", "key", "A", "a", "value_"]
    record = attrs.make_class("Größen", {name: attrs.field(type=int) for name in names})
    descriptor = ValueStateDescriptor("der. stand/ `1`", record)
    entries = [("a", record(*range(len(names))))]
    path = savepoint_of(tmp_path / "s", Plan().add_operator("op. é", "string").add_state("op. é", descriptor, entries))
    reader = reader_of(path, state="der. stand/ `1`")
    [batch] = [batch for part in parts_of(reader) for batch in reader.read(part)]
    assert [field.name for field in batch.schema.field("value").type] == names
    assert [row["state"] for row in rows_of(path, kind="metadata")] == ["der. stand/ `1`"]


def test_a_thousand_subtasks_are_a_thousand_partitions_and_a_key_is_in_one(tmp_path: Path) -> None:
    entries = [(number, -number) for number in range(3000)]
    plan = Plan().change_parallelism(1000).add_operator("o", "bigint")
    path = savepoint_of(tmp_path / "s", plan.add_state("o", ValueStateDescriptor("v", int), entries), 1000)
    reader = reader_of(path, state="v")
    assert 900 < len(parts_of(reader)) <= 1000
    read = [row for part in parts_of(reader)[::50] for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(read) > 20
    assert all(row["value"] == -row["key"] for row in read)
    [part] = parts_of(reader_of(path, EqualTo(("key",), 77), state="v"))
    assert {"key_group": part.value.key_groups[0].start, "key": 77, "value": -77} in [
        row for batch in reader.read(part) for row in batch.to_pylist()
    ]
    assert len(parts_of(reader_of(path, In(("key",), (1, 2, 3)), state="v"))) <= 3


def test_a_large_value_is_a_batch_of_its_own(tmp_path: Path) -> None:
    fat = b"x" * (64 << 20)
    entries = [("fat", fat), *((f"thin {number}", b"y") for number in range(100))]
    plan = Plan().add_operator("o", "string").add_state("o", ValueStateDescriptor("v", bytes), entries)
    path = savepoint_of(tmp_path / "s", plan, 1)
    reader = reader_of(path, state="v")
    sizes = [(batch.num_rows, batch.nbytes) for part in parts_of(reader) for batch in reader.read(part)]
    assert sum(rows for rows, _ in sizes) == 101
    assert max(rows for rows, size in sizes if size > 64 << 20) <= 2
    reader = reader_of(path, state="v", columns="key")
    assert sum(batch.nbytes for part in parts_of(reader) for batch in reader.read(part)) < 10_000


def test_a_long_list_in_many_row_groups_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebackend.state.canonical.BATCH_ROWS", 2)
    entries = [("a", [1]), ("b", list(range(50))), ("c", [])]
    plan = Plan().add_operator("o", "string").add_state("o", ListStateDescriptor("v", int), entries)
    path = savepoint_of(tmp_path / "s", plan)
    assert {row["key"]: len(row["value"]) for row in rows_of(path, state="v")}["b"] == 50
    assert len(rows_of(path, state="v", columns="key_group")) == len(rows_of(path, state="v"))


def test_a_null_key_of_another_writer_is_a_row(tmp_path: Path) -> None:
    """No job has a null key, so the test writes its bytes and the matching checksum in the metadata."""
    plan = Plan().add_operator("o", "string").add_state("o", ValueStateDescriptor("v", int), [("", 1), ("a", 2)])
    path = savepoint_of(tmp_path / "s", plan, 1)
    [part] = parts_of(reader_of(path, state="v"))
    file_system, [file] = part.value.file_system, part.value.handle.files
    [rows] = read_canonical(file_system.location(file.path), KeyGroupRange(0, 0))
    keys = [StringSerializer().to_bytes(None), *rows.keys[1:]]
    content, _ = encoded_canonical([rows._replace(keys=keys)])
    reader = reader_of(path, state="v")
    written = file_system.write_file(file.path, content)
    changed = type(part)(evolve(part.value, handle=evolve(part.value.handle, files=(written,))))
    [batch] = reader.read(changed)
    assert [(row["key"], row["value"]) for row in batch.to_pylist()] == [(None, 1), ("a", 2)]


def test_a_type_without_spark_equivalent_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    descriptor = ValueStateDescriptor("v", SqlTimeSerializer())
    plan = Plan().add_operator("o", "string").add_state("o", descriptor, [("a", SqlTime(1000))])
    path = savepoint_of(tmp_path / "s", plan)
    with pytest.raises(StateTableError, match=r"column 'value' is of type time32\[ms\], .* leave it out"):
        rows_of(path, state="v")
    assert [row["key"] for row in rows_of(path, state="v", columns="key")] == ["a"]


def test_an_empty_state_has_columns_and_no_rows(tmp_path: Path) -> None:
    descriptor = MapStateDescriptor("v", StringSerializer(), LongSerializer())
    path = savepoint_of(tmp_path / "s", Plan().add_operator("o", "string").add_state("o", descriptor, []))
    assert rows_of(path, state="v") == []
    schema = StateTableSource({"path": str(path), "state": "v"}).schema()
    assert schema.fieldNames() == ["key_group", "key", "user_key", "value"]
    assert [row["entries"] for row in rows_of(path, kind="metadata")] == [0]


def test_a_file_that_vanishes_during_the_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebackend.state.canonical_files.READ_AT_ONCE_BYTES", 0)
    monkeypatch.setattr("statebackend.spark.state_tables.tables.PART_BYTES", 100)
    plan = Plan().add_operator("o", "string")
    path = savepoint_of(
        tmp_path / "s", plan.add_state("o", ValueStateDescriptor("v", int), [(str(key), key) for key in range(100)])
    )
    reader = reader_of(path, state="v")
    parts = parts_of(reader)
    assert list(reader.read(parts[0]))
    for file in path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(MissingFileError, match=r"part-00000.*\.parquet is missing"):
        list(reader.read(parts[-1]))


SHOP_SERIALIZERS = """
from snapshots import DataInputView, DataOutputView, SimpleTypeSerializerSnapshot, register_snapshot
from typeserializers import TypeSerializer


class CelsiusSerializer(TypeSerializer):
    def serialize(self, value, out):
        out.write_double(value + 273.15)

    def deserialize(self, source):
        return round(source.read_double() - 273.15, 3)

    def create_instance(self):
        return 0.0

    def snapshot_configuration(self):
        return CelsiusSerializerSnapshot()


@register_snapshot("shop.celsius")
class CelsiusSerializerSnapshot(SimpleTypeSerializerSnapshot):
    serializer_class = CelsiusSerializer
"""

WORKER = """
import pickle, sys
modules = sys.argv[1]
for place in sys.argv[2:]:
    reader, parts = pickle.load(open(place, "rb"))
    try:
        print([row["value"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()])
    except Exception as error:
        print(type(error).__name__, error)
        if place == sys.argv[3]:
            sys.path.insert(0, modules)
"""


@pytest.mark.usefixtures("own_registrations")
def test_a_worker_without_a_serializer_of_the_program_reports_how_to_ship_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "shop_serializers.py").write_text(SHOP_SERIALIZERS)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    celsius = importlib.import_module("shop_serializers").CelsiusSerializer()
    plan = Plan().add_operator("o", "string").add_state("o", ValueStateDescriptor("v", celsius), [("a", 21.5)])
    path = savepoint_of(tmp_path / "s", plan)
    bare, named = reader_of(path, state="v"), reader_of(path, state="v", modules="shop_serializers")
    for name, reader in (("bare", bare), ("named", named)):
        (tmp_path / name).write_bytes(pickle.dumps((reader, parts_of(reader))))
    tasks = [str(tmp_path / name) for name in ("bare", "named", "named")]
    command = [sys.executable, "-c", WORKER, str(tmp_path / "modules"), *tasks]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    unknown, without_module, with_module = done.stdout.splitlines()
    assert unknown.startswith(
        "StateTableError state 'v' cannot be read by this worker: value: bytes as they are stored"
    )
    assert "shop.celsius" in unknown
    assert 'name its module with .option("modules", "package.module")' in unknown
    assert "the module 'shop_serializers' of the option modules cannot be imported" in without_module
    assert with_module == "['21.5']"
