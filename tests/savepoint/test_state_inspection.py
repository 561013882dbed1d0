"""Savepoints and checkpoints are read from Python without the program: entries of every kind and backend."""

from __future__ import annotations

import datetime
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import attrs
import pytest
from inspected_job import NOW_MS, SALES, Totals, run_job, stored_in

from statebackend import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    Savepoint,
    SplitListStateDescriptor,
    StateEntry,
    StateRestoreError,
    ValueStateDescriptor,
)
from statebackend.checkpoint import CheckpointNotFoundError, CorruptFileError, MissingFileError, SavepointError
from statebackend.savepoint.errors import UnknownOperatorError, UnknownStateError
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state.key_groups import KeyHashError
from typeserializers import AttrsSerializer, BytesSerializer

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
BACKENDS = ("heap", "rocksdb")


NOON = datetime.datetime(2020, 7, 1, 12)


@attrs.frozen
class Amount:
    amount: int


@pytest.fixture(scope="module", params=[(backend, form) for backend in BACKENDS for form in ("savepoint", "job")])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint, or a job directory with checkpoints, of both backends."""
    return stored_in(tmp_path_factory.mktemp("state"), *request.param)


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_in(tmp_path_factory.mktemp("state"), "rocksdb", "savepoint")


def amounts_by_shop() -> dict[str, list[int]]:
    amounts: dict[str, list[int]] = defaultdict(list)
    for sale in SALES:
        amounts[sale["shop"]].append(sale["amount"])
    return amounts


def entries(path: Path, state: str, **options: Any) -> list[StateEntry]:
    return list(Savepoint.open(path).read("per shop", state, **options))


@pytest.mark.extended_after(1)
def test_entries_of_every_kind_equal_the_stored_ones(stored: Path) -> None:
    amounts = amounts_by_shop()
    totals = {entry.key: (entry.value.sales, entry.value.turnover) for entry in entries(stored, "totals")}
    assert totals == {shop: (len(own), float(sum(own))) for shop, own in amounts.items()}
    assert {entry.key: entry.value for entry in entries(stored, "amounts")} == amounts
    assert {entry.key: entry.value for entry in entries(stored, "largest")} == {
        shop: max(own) for shop, own in amounts.items()
    }
    assert {(entry.key, entry.user_key): entry.value for entry in entries(stored, "by amount")} == {
        (shop, amount): None if amount % 2 else "even" for shop, own in amounts.items() for amount in own
    }
    timers = entries(stored, "_timer_state/processing_user-timers")
    assert sorted((entry.key, entry.value) for entry in timers) == sorted(
        (sale["shop"], NOW_MS + 1000 * sale["amount"] + 1) for sale in SALES
    )


def test_last_access_times_accompany_values_and_elements(stored: Path) -> None:
    amounts = amounts_by_shop()
    assert {(entry.key, entry.value, entry.last_access_ms) for entry in entries(stored, "timed")} == {
        (shop, own[-1], NOW_MS) for shop, own in amounts.items()
    }
    for entry in entries(stored, "seen"):
        assert entry.value == [f"sale {amount}" for amount in amounts[entry.key]]
        assert entry.last_access_ms == (NOW_MS,) * len(entry.value)


def test_entries_are_sorted_by_key_group_and_a_key_is_read_from_its_own_group(stored: Path) -> None:
    everything = entries(stored, "by amount")
    assert [entry.key_group for entry in everything] == sorted(entry.key_group for entry in everything)
    for shop in ("shop 3", "shop 17"):
        assert entries(stored, "by amount", key=shop) == [entry for entry in everything if entry.key == shop]
    assert entries(stored, "by amount", key="no shop") == []


def test_a_key_of_another_type_is_rejected_and_not_reported_as_missing(stored: Path) -> None:
    with pytest.raises(KeyHashError, match="type string, which cannot hold"):
        entries(stored, "totals", key=7)


def test_operator_state_is_read_by_subtask(stored: Path) -> None:
    opened = Savepoint.open(stored)
    handled = list(opened.read_operator_state("per shop", "handled"))
    assert sorted(one.value for one in handled) == sorted(sale["amount"] for sale in SALES)
    assert {one.subtask_index for one in handled} == {0, 1}
    names = [(one.subtask_index, one.key, one.value) for one in opened.read_operator_state("per shop", "names")]
    assert names == [(0, "all", 1), (1, "all", 1)]


def test_schemas_show_the_width_of_numbers_and_the_fields_of_records(stored: Path) -> None:
    opened = Savepoint.open(stored)
    totals = opened.schema("per shop", "totals")
    assert (totals.kind, totals.types["key"].name, totals.types["value"].name) == ("value", "str", "Totals")
    [record] = totals.types["value"].records
    assert [(one.name, one.type_name, one.default) for one in record.fields] == [
        ("sales", "int64", None),
        ("turnover", "float64", None),
        ("note", "str | None", "None"),
    ]
    assert opened.schema("per shop", "by amount").types["user_key"].name == "int64"
    assert ("per shop", "amounts") in opened.states


@pytest.mark.extended_after(1)
def test_statistics_count_the_readable_entries(stored: Path) -> None:
    opened = Savepoint.open(stored)
    for state in opened.operators["per shop"].states:
        read = entries(stored, state)
        figures = opened.statistics("per shop", state)
        assert figures.entries == len(read), state
        assert sum(figures.entries_by_key_group.values()) == len(read)
        assert (figures.size_bytes > 0) == bool(read)
        assert figures.skew >= 1.0
    lists = opened.statistics("per shop", "amounts")
    assert [one.size_bytes for one in lists.largest] == sorted((one.size_bytes for one in lists.largest), reverse=True)


def test_entries_are_pickled_as_a_list(savepoint: Path) -> None:
    opened = pickle.loads(pickle.dumps(Savepoint.open(savepoint)))
    read = opened.read("per shop", "by amount")
    with pytest.raises(TypeError, match=r"pass the Savepoint, list\(entries\)"):
        pickle.dumps(read)
    assert pickle.loads(pickle.dumps(list(read))) == list(read)


def test_statistics_do_not_copy_large_values(tmp_path: Path) -> None:
    state = ValueStateDescriptor("content", BytesSerializer())
    values = [(key, os.urandom(8 << 20)) for key in "abc"]
    plan = Plan().add_operator("files", "string").add_state("files", state, values)
    SavepointWriter.new(tmp_path / "new", max_parallelism=4).write(plan)
    del values, plan
    opened = Savepoint.open(tmp_path / "new")
    opened.statistics("files", "content")
    tracemalloc.start()
    try:
        statistics = opened.statistics("files", "content")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (statistics.entries, len(statistics.largest)) == (3, 3)
    assert statistics.size_bytes > 24 << 20
    assert peak_bytes < 4 << 20


def test_a_process_without_the_program_reads_its_records(savepoint: Path) -> None:
    program = (
        "import json, sys\n"
        "from statebackend import Savepoint\n"
        "from statebackend.savepoint.plain_values import plain_value\n"
        "read = Savepoint.open(sys.argv[1]).read('per shop', 'totals', key='shop 0')\n"
        "print(json.dumps([plain_value(entry.value) for entry in read]))\n"
        "assert 'pyspark' not in sys.modules and 'statebackend.streaming' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(savepoint)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    own = amounts_by_shop()["shop 0"]
    assert json.loads(done.stdout) == [{"sales": len(own), "turnover": float(sum(own)), "note": None}]


def test_records_have_the_passed_classes_and_stand_ins_otherwise(stored: Path) -> None:
    for known in (Totals, AttrsSerializer(Totals)):
        opened = Savepoint.open(stored, known=[known])
        assert {type(entry.value) for entry in opened.read("per shop", "totals")} == {Totals}
    [stand_in] = entries(stored, "totals", key="shop 0")
    assert not isinstance(stand_in.value, Totals)
    assert repr(stand_in.value).startswith("Totals(sales=5, turnover=")


def test_a_checkpoint_is_found_by_its_directory_its_job_and_its_id(tmp_path: Path) -> None:
    run_job("heap", tmp_path / "job")
    newest = Savepoint.open(tmp_path / "job")
    older_id = newest.metadata.parent_checkpoint_id
    assert older_id is not None
    older = Savepoint.open(tmp_path / "job", older_id)
    assert older.metadata.checkpoint_id == older_id
    directory = tmp_path / "job" / "checkpoints" / f"chk-{older_id:012d}"
    assert Savepoint.open(directory).metadata == older.metadata
    assert len(list(Savepoint.open(directory).read("per shop", "by amount"))) < len(
        list(newest.read("per shop", "by amount"))
    )
    with pytest.raises(CheckpointNotFoundError, match="99"):
        Savepoint.open(tmp_path / "job", 99)
    with pytest.raises(CheckpointNotFoundError, match="holds no checkpoint 99"):
        Savepoint.open(directory, 99)


def test_errors_distinguish_places_without_state(tmp_path: Path, savepoint: Path) -> None:
    with pytest.raises(SavepointError, match="nowhere does not exist"):
        Savepoint.open(tmp_path / "nowhere")
    with pytest.raises(SavepointError, match="is not a savepoint"):
        Savepoint.open(tmp_path)
    opened = Savepoint.open(savepoint)
    assert repr(opened.read("per shop", "totals")) == "<entries of value state 'totals', in 2 subtasks>"
    with pytest.raises(UnknownOperatorError, match="there are per shop"):
        opened.schema("per ship", "totals")
    with pytest.raises(UnknownStateError, match=r"it has .*totals"):
        list(opened.read("per shop", "total"))
    with pytest.raises(UnknownStateError, match="it has handled, names"):
        list(opened.read_operator_state("per shop", "totals"))


@pytest.mark.parametrize("damage", ["absent", "truncated", "changed"])
def test_a_damaged_file_is_named_before_an_entry_of_it_is_returned(tmp_path: Path, damage: str) -> None:
    run_job("heap").savepoint(tmp_path / "savepoint")
    opened = Savepoint.open(tmp_path / "savepoint")
    [first, *_] = sorted((tmp_path / "savepoint" / "operators" / "per%20shop" / "totals").iterdir())
    content = first.read_bytes()
    if damage == "absent":
        first.unlink()
    else:
        first.write_bytes(
            content[:-1] if damage == "truncated" else content[:9] + bytes([content[9] ^ 1]) + content[10:]
        )
    for look in (
        lambda: list(opened.read("per shop", "totals")),
        lambda: opened.statistics("per shop", "totals"),
        lambda: list(opened.verify()),
    ):
        with pytest.raises((MissingFileError, CorruptFileError), match="totals/part-00000"):
            look()


def test_verify_reads_every_file(savepoint: Path) -> None:
    opened = Savepoint.open(savepoint)
    assert sorted(path for path, _ in opened.verify()) == sorted(file.path for file in opened.metadata.files)


def test_any_value_has_a_json_form() -> None:
    import datetime
    import decimal
    import enum
    import uuid

    class Colour(enum.Enum):
        RED = 1

    class Strange:
        def __repr__(self) -> str:
            raise RuntimeError

    values = [
        (float("nan"), "nan"),
        (b"\0a", {"base64": "AGE="}),
        ({2, 1}, [1, 2]),
        ({"a": {1: 2}}, {"a": [[1, 2]]}),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), "2026-01-02T00:00:00+00:00"),
        (datetime.timedelta(seconds=2), "2.0 s"),
        (datetime.timedelta(microseconds=-1_500_000), "-1.5 s"),
        (datetime.timedelta(microseconds=1), "0.000001 s"),
        (datetime.timedelta.max, "86399999999999.999999 s"),
        (datetime.timedelta.min, "-86399999913600.0 s"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (Colour.RED, "RED"),
        ((1, [None, True]), [1, [None, True]]),
        (Totals(1, 2.0), {"sales": 1, "turnover": 2.0, "note": None}),
    ]
    for value, expected in values:
        assert plain_value(value) == expected
        json.dumps(plain_value(value), allow_nan=False)
    assert "Strange" in plain_value(Strange())


def rejecting(record: object, attribute: object, amount: int) -> None:
    raise TypeError("no amount is right")


@pytest.mark.parametrize(
    ("descriptor", "elements"),
    [
        (SplitListStateDescriptor("amounts", Amount), [Amount(1)]),
        (BroadcastStateDescriptor("amounts", str, Amount), {"a": Amount(1)}),
        (BroadcastStateDescriptor("amounts", Amount, str), {Amount(1): "a"}),
    ],
)
def test_an_exception_of_a_class_of_the_program_names_the_operator_state(
    tmp_path: Path, descriptor: OperatorStateDescriptor, elements: Any
) -> None:
    plan = Plan().add_operator("one").add_operator_state("one", descriptor, elements)
    SavepointWriter.new(tmp_path / "savepoint", max_parallelism=8).write(plan)
    strict = attrs.make_class("Amount", {"amount": attrs.field(type=int, validator=rejecting)}, frozen=True)
    strict.__module__ = Amount.__module__
    found = Savepoint.open(tmp_path / "savepoint", known=[strict]).read_operator_state("one", "amounts")
    with pytest.raises(StateRestoreError, match=r"operator state 'amounts': a row .*: .*no amount is right"):
        list(found)
    # Columns are decoded from the bytes, without objects of the class.
    [row] = [row for batch in found.to_arrow_batches() for row in batch.to_pylist()]
    assert {"amount": 1} in row.values()


@pytest.mark.parametrize(
    ("columns", "stored_key", "key"),
    [
        ("timestamp", NOON.replace(tzinfo=datetime.timezone.utc), NOON),
        ("date", NOON.date(), NOON.replace(hour=0)),
        (("string", "bigint"), ("a", 1), ["a", 1]),
        (("string", "timestamp"), ("a", NOON.replace(tzinfo=datetime.timezone.utc)), ("a", NOON)),
    ],
)
def test_an_invalid_key_is_rejected_and_not_found(tmp_path: Path, columns: Any, stored_key: Any, key: Any) -> None:
    plan = Plan().add_operator("one", columns).add_state("one", ValueStateDescriptor("number", int), [(stored_key, 1)])
    SavepointWriter.new(tmp_path / "savepoint", max_parallelism=8).write(plan)
    opened = Savepoint.open(tmp_path / "savepoint")
    assert [entry.value for entry in opened.read("one", "number", key=stored_key)] == [1]
    with pytest.raises(KeyHashError):
        opened.read("one", "number", key=key)
