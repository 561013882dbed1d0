"""Checkpoints that Spark 3.5, 4.1 and 4.3 have written are read as tables and imported.

The queries are in `tests/golden/spark_checkpoints/write_spark_checkpoints.py`. All have read the same rows, and the
directories were moved afterwards.
"""

from __future__ import annotations

import datetime
import importlib.util
import shutil
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from statebackend import (
    EventTimeSessionWindows,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from statebackend.savepoint.errors import ForeignFormatError, PlanError
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.savepoint import Savepoint
from statebackend.streaming.operators.window_state import CONTENTS_NAME
from statebackend.streaming.stateful_processor import StatefulProcessorFunction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "spark_checkpoints"
OLDER, NEWEST = ("3.5", "4.1"), "4.3"
CENTURY_MS = 100 * 365 * 86_400_000

ROWS = {"a": [(3_000, 1), (9_999, 2), (25_000, 4)], "b": [(12_000, 3), (26_000, 5)], "c": [(27_000, 6)]}
"""The input rows: timestamps and numbers by key. The final watermark is 22,000."""

_WINDOW = {"start": 20_000, "end": 30_000}
_LEFT = [(4, "a", 25_000), (3, "b", 12_000), (5, "b", 26_000), (6, "c", 27_000)]
_TIMEOUTS = {"a": (3, ["x1", "x2", "x4"], 85_000), "b": (2, ["x3", "x5"], 86_000), "c": (1, ["x6"], 87_000)}

TABLES: dict[str, Mapping[str, list[Any]]] = {
    "windows": {"default": [({"window": _WINDOW, "k": k}, {"count": 1}) for k in ROWS]},
    "sessions": {
        "default": [
            (
                {"k": k, "sessionStartTime": rows[-1][0]},
                {"session_window": {"start": rows[-1][0], "end": rows[-1][0] + 10_000}, "k": k, "count": 1},
            )
            for k, rows in ROWS.items()
        ]
    },
    "unique": {"default": [({"k": k}, {"__dummy__": None}) for k in ROWS]},
    "unique-within-watermark": {"default": [({"k": "c"}, {"expiresAtMicros": 32_000_000})]},
    "join": {
        "left": [({"field0": k}, {"k": k, "ts": t, "x": x}) for x, k, t in _LEFT],
        "right": [({"field0": k}, {"k2": k, "ts2": t, "x2": x}) for x, k, t in _LEFT],
    },
    "with-state": {
        "default": [
            ({"k": k}, {"groupState": {"n": n, "texts": texts}, "timeoutTimestamp": t})
            for k, (n, texts, t) in _TIMEOUTS.items()
        ]
    },
    "with-state-1": {
        "default": [
            ({"k": k}, {"n": n, "texts": texts, "timeoutTimestamp": t}) for k, (n, texts, t) in _TIMEOUTS.items()
        ]
    },
    "processor": {
        "count": [({"k": k}, {"n": len(rows), "last": f"{k}{len(rows)}"}) for k, rows in ROWS.items()],
        "numbers": [({"k": k}, {"x": x}) for k, rows in ROWS.items() for _, x in rows],
        "times": [({"k": k}, {"x": x}, {"t": t}) for k, rows in ROWS.items() for t, x in rows],
    },
}


@pytest.fixture(scope="module", params=[*(pytest.param(one, marks=pytest.mark.extended) for one in OLDER), NEWEST])
def checkpoints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the checkpoints of one Spark version."""
    place = tmp_path_factory.mktemp("checkpoints") / request.param
    with tarfile.open(GOLDEN / f"{request.param}.tar.gz") as archive:
        archive.extractall(place, filter="data")
    return place


def plain(value: Any) -> Any:
    """A value without Spark's classes. Times are milliseconds."""
    if isinstance(value, datetime.datetime):
        return round(value.astimezone(datetime.timezone.utc).timestamp() * 1000)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value


def rows_of(checkpoint: Any, state: str) -> list[Any]:
    rows = [row.asDict(recursive=True) for row in checkpoint.rows(checkpoint.table(state))]
    for row in rows:
        del row["partition_id"]
    return sorted((tuple(map(plain, row.values())) for row in rows), key=repr)


def expected(query: str) -> Mapping[str, list[Any]] | None:
    name = query
    while name and name not in TABLES:
        name = name.rpartition("-")[0]
    return TABLES.get(name)


@pytest.mark.extended
def test_all_states_are_tables(spark: SparkSession, checkpoints: Path) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    read = set()
    for directory in sorted(checkpoints.iterdir()):
        checkpoint = SparkCheckpoint(spark, directory)
        tables = expected(directory.name)
        if tables is None:
            continue
        read.add(directory.name.partition("-")[0])
        assert set(checkpoint.operator().states) == set(tables), directory
        for state, rows in tables.items():
            found = rows_of(checkpoint, state)
            if "ttl" in directory.name:
                assert all(row[-1]["ttlExpirationMs"] > CENTURY_MS for row in found)
                found = [(*row[:-1], row[-1]["value"]) for row in found]
            assert found == sorted(rows, key=repr), (directory, state)
        assert checkpoint.watermark_ms == 22_000
    assert (
        read
        == {"windows", "sessions", "unique", "join"}
        | {
            "3.5": {"with"},
            "4.1": {"with", "processor"},
            "4.3": {"processor"},
        }[checkpoints.name]
    )


def test_sums_and_many_types_are_tables(spark: SparkSession, checkpoints: Path) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    for name, before in (("sums-hdfs", []), ("sums-1-hdfs", ["k"])):
        found = {row.key.k: list(row.value) for row in SparkCheckpoint(spark, checkpoints / name).table().collect()}
        sums = {k: sum(x for _, x in rows) for k, rows in ROWS.items()}
        assert found == {k: [*[k for _ in before], sums[k], sums[k], len(ROWS[k])] for k in ROWS}
    for name in ("types-hdfs", "types-rocksdb"):
        # Rows before the watermark were removed.
        found = {row.key.text: row for row in SparkCheckpoint(spark, checkpoints / name).table().collect()}
        assert set(found) == set(ROWS)
        key, value = found["b"].key.asDict(), found["b"].value
        assert key["bytes"] == b"b"
        assert (key["number"], key["flag"], key["maybe"]) == (5, True, 5)
        assert (key["day"], str(key["money"])) == (datetime.date(2026, 1, 6), "5.00")
        assert (plain(key["moment"]), value[1].asDict(), str(value[2])) == (26_000, {"x": 5, "text": "b"}, "5.00")


def test_an_error_names_the_file_of_the_checkpoint(spark: SparkSession, checkpoints: Path, tmp_path: Path) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    # Spark reads a copy with corrected metadata.
    name = "processor-rocksdb" if (checkpoints / "processor-rocksdb").exists() else "sessions-rocksdb"
    damaged = shutil.copytree(checkpoints / name, tmp_path / "damaged")
    for file in (damaged / "state").rglob("*.sst.crc"):
        file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    checkpoint = SparkCheckpoint(spark, damaged)
    with pytest.raises(ForeignFormatError, match=rf"Checksum error: file:{damaged}/state/0/\d/\S+\.sst at "):
        list(checkpoint.rows(checkpoint.table(checkpoint.operator().states[0])))


def test_a_value_that_python_cannot_represent_is_an_error(spark: SparkSession, checkpoints: Path) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    checkpoint = SparkCheckpoint(spark, checkpoints / "unique-hdfs")
    with pytest.raises(ForeignFormatError, match=r"Spark cannot read its state at batch \d+: .*utf-8"):
        list(checkpoint.rows(spark.sql("SELECT CAST(X'FF' AS STRING) AS text")))


def _lose_partition(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "state" / "0" / "1")


def _lose_number_of_partitions(checkpoint: Path) -> None:
    offsets = checkpoint / "offsets" / "2"
    offsets.write_text(offsets.read_text().replace("spark.sql.shuffle.partitions", "spark.sql.shuffle.partition"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_lose_partition, r"state/0/1 is missing: operator 0 \(unknown\) has 2 partitions"),
        (_lose_number_of_partitions, r"offsets/2 is damaged: its conf has no number 'spark\.sql\.shuffle\.partitions'"),
    ],
)
def test_a_missing_last_partition_of_spark_3_is_an_error(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    with tarfile.open(GOLDEN / "3.5.tar.gz") as archive:
        members = [one for one in archive.getmembers() if one.name.split("/")[0] == "windows-hdfs"]
        archive.extractall(tmp_path, members, filter="data")
    damage(tmp_path / "windows-hdfs")
    with pytest.raises(ForeignFormatError, match=message):
        SparkCheckpoint(spark, tmp_path / "windows-hdfs").table()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"{\"timeMode", r"{\"timeMode\"\""),
        (r"\"ProcessingTime\"", r"\"Sometime\""),
        (r"\"stateName\":\"times\"", r"\"stateNames\":\"times\""),
        (r"[{\"stateName\"", r"[7,{\"stateName\""),
    ],
)
def test_damaged_properties_of_an_operator_are_an_error(
    spark: SparkSession, tmp_path: Path, old: str, new: str
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    with tarfile.open(GOLDEN / f"{NEWEST}.tar.gz") as archive:
        members = [one for one in archive.getmembers() if one.name.split("/")[0] == "processor-ttl-rocksdb"]
        archive.extractall(tmp_path, members, filter="data")
    metadata = tmp_path / "processor-ttl-rocksdb" / "state" / "0" / "_metadata" / "v2"
    for path in metadata.iterdir():
        if path.name.isdecimal():
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new, 1))
    with pytest.raises(ForeignFormatError, match=r"state/0/_metadata is damaged: the properties of operator 0"):
        SparkCheckpoint(spark, tmp_path / "processor-ttl-rocksdb")


@pytest.fixture(scope="module")
def programs() -> Any:
    """The module that wrote the checkpoints."""
    spec = importlib.util.spec_from_file_location("golden_spark_programs", GOLDEN / "write_spark_checkpoints.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def skip_unless_readable(spark: SparkSession, name: str) -> None:
    """Skip a checkpoint of a format that this release of Spark cannot read."""
    if name.endswith("format-2") and spark.version < "4.2":
        pytest.skip("Spark 4.1 cannot read this format")


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("mode", ["rocksdb", "event-time-changelog", "ttl-format-2"])
def test_processors_are_imported(
    spark: SparkSession, checkpoints: Path, tmp_path: Path, programs: Any, mode: str
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint, processor_plan

    if checkpoints.name == "3.5":
        return
    skip_unless_readable(spark, mode)
    checkpoint = SparkCheckpoint(spark, checkpoints / f"processor-{mode}")
    has_ttl, has_timers = "ttl" in mode, mode != "rocksdb"
    processor = programs.Kept(CENTURY_MS if has_ttl else None, has_timers)
    time_mode = checkpoint.operator().time_mode
    assert time_mode is not None
    function = StatefulProcessorFunction(processor, time_mode, "k string, n bigint", 1)
    checkpoint.write(tmp_path / "savepoint", processor_plan(checkpoint, {"kept": function}), max_parallelism=8)
    savepoint = Savepoint.open(tmp_path / "savepoint")

    def entries(state: str) -> list[Any]:
        return list(savepoint.read("kept", state))

    assert {one.key: fields(one.value) for one in entries("count")} == {
        k: (len(rows), f"{k}{len(rows)}") for k, rows in ROWS.items()
    }
    assert {one.key: [fields(x) for x in one.value] for one in entries("numbers")} == {
        k: [(x,) for _, x in rows] for k, rows in ROWS.items()
    }
    assert {(one.key, *fields(one.user_key), *fields(one.value)) for one in entries("times")} == {
        (k, x, t) for k, rows in ROWS.items() for t, x in rows
    }
    if has_ttl:
        # Values expire at the time at which they would have expired on Spark.
        stored = {row.key.k: row.value.ttlExpirationMs for row in checkpoint.table("count").collect()}
        assert {one.key: one.last_access_ms + CENTURY_MS for one in entries("count")} == stored
        assert {one.last_access_ms for one in entries("times")} == {stored["a"] - CENTURY_MS}
    if has_timers:
        kind, delay_ms = ("processing", CENTURY_MS) if has_ttl else ("event", 60_000 - 1)
        [queue] = [name for _, name in savepoint.states if name.startswith(f"_timer_state/{kind}")]
        assert {(one.key, one.value) for one in entries(queue)} == {
            (k, t + delay_ms) for k, rows in ROWS.items() for t, _ in rows
        }


class KeptHere:
    """State of a function that continues `Kept` of the golden programs."""

    ttl = StateTtlConfig(f"{CENTURY_MS} ms")
    count = ValueStateDescriptor("count", int, ttl=ttl)
    numbers = ListStateDescriptor("numbers", int, ttl=ttl)
    times = MapStateDescriptor("times", int, int, ttl=ttl)


DOCUMENTED = (Path(__file__).resolve().parents[2] / "docs" / "transform-with-state.md").read_text()


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("mode", ["ttl-format-2", "ttl-rocksdb"])
def test_a_plan_moves_a_processor_with_ttl_to_another_function(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    skip_unless_readable(spark, mode)
    with tarfile.open(GOLDEN / f"{NEWEST}.tar.gz") as archive:
        members = [one for one in archive.getmembers() if one.name.split("/")[0] == f"processor-{mode}"]
        archive.extractall(tmp_path, members, filter="data")
    checkpoint = SparkCheckpoint(spark, tmp_path / f"processor-{mode}")
    source = DOCUMENTED.partition("# plan.py\n")[2].partition("```")[0].replace("3600000", str(CENTURY_MS))
    monkeypatch.setitem(sys.modules, "job", SimpleNamespace(Kept=KeptHere))
    program: dict[str, Any] = {}
    exec(source, program)
    checkpoint.write(tmp_path / "savepoint", program["plan"](checkpoint), max_parallelism=8)
    savepoint = Savepoint.open(tmp_path / "savepoint")
    [expiry_ms] = {row.value.ttlExpirationMs for row in checkpoint.table("count").collect() if row.key.k == "a"}
    found = {
        state: {
            (one.key, one.user_key, tuple(one.value) if state == "numbers" else one.value): one.last_access_ms
            for one in savepoint.read("kept", state)
        }
        for state in ("count", "numbers", "times")
    }
    assert set(found["count"]) == {(k, None, len(rows)) for k, rows in ROWS.items()}
    assert set(found["numbers"]) == {(k, None, tuple(x for _, x in rows)) for k, rows in ROWS.items()}
    assert set(found["times"]) == {(k, x, t) for k, rows in ROWS.items() for t, x in rows}
    assert found["count"]["a", None, 3] == expiry_ms - CENTURY_MS
    assert found["numbers"]["a", None, (1, 2, 4)] == (expiry_ms - CENTURY_MS,) * 3
    assert found["times"]["a", 4, 25_000] == expiry_ms - CENTURY_MS
    timers = savepoint.read("kept", "_timer_state/processing_user-timers")
    assert {(one.key, one.value) for one in timers} == {
        (k, t + CENTURY_MS) for k, rows in ROWS.items() for t, _ in rows
    }
    for state in ("count", "numbers", "times"):
        with pytest.raises(PlanError, match=rf"state '{state}' of operator 0 is a list, a map, or has TTL"):
            checkpoint.entries("value.value.n", state)


@attrs.frozen
class Counted:
    n: int
    texts: list[str]


COUNTED = ValueStateDescriptor("counted", Counted)
LEFT = ListStateDescriptor("left", tuple[int, int])


def test_rows_of_user_functions_and_joins_are_imported_by_a_plan(
    spark: SparkSession, checkpoints: Path, tmp_path: Path
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    if (checkpoints / "with-state-hdfs").exists():
        checkpoint = SparkCheckpoint(spark, checkpoints / "with-state-hdfs")
        plan = Plan().add_operator("counted", checkpoint.key_columns())
        plan.add_state("counted", COUNTED, checkpoint.entries(lambda row: Counted(*row.groupState)))
        timeouts = checkpoint.entries(lambda row: row.timeoutTimestamp - 1)
        plan.add_timers("counted", ((key, ms) for key, ms in timeouts if ms > 0), time="event")
        checkpoint.write(tmp_path / "counted", plan, max_parallelism=8)
        savepoint = Savepoint.open(tmp_path / "counted", known=[Counted])
        assert {one.key: one.value for one in savepoint.read("counted", "counted")} == {
            k: Counted(n, texts) for k, (n, texts, _) in _TIMEOUTS.items()
        }
        [queue] = [name for _, name in savepoint.states if name.startswith("_timer_state/event")]
        assert {one.key: one.value for one in savepoint.read("counted", queue)} == {
            k: t - 1 for k, (_, _, t) in _TIMEOUTS.items()
        }
    join = "join-2-changelog" if checkpoints.name == "3.5" else "join-3-format-2"
    skip_unless_readable(spark, join)
    checkpoint = SparkCheckpoint(spark, checkpoints / join)
    plan = Plan().add_operator("joined", checkpoint.key_columns())
    left = checkpoint.entries(lambda row: [(plain(row.ts), row.x)], "left")
    checkpoint.write(tmp_path / "joined", plan.add_state("joined", LEFT, left, merge=list.__add__), sources=["a", "b"])
    found = {one.key: sorted(one.value) for one in Savepoint.open(tmp_path / "joined").read("joined", "left")}
    assert found == {k: [(t, x) for x, of, t in _LEFT if of == k] for k in ROWS}


def fields(record: Any) -> tuple[Any, ...]:
    return attrs.astuple(record)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("kind", ["windows", "sessions"])
def test_windows_are_imported_with_their_timers(
    spark: SparkSession, checkpoints: Path, tmp_path: Path, kind: str
) -> None:
    from statebackend.spark import SparkStreamEnvironment
    from statebackend.spark.foreign_state import SparkCheckpoint
    from statebackend.spark.frame_sinks import MemorySink

    windows: Any = TumblingEventTimeWindows.of("10 seconds")
    if kind == "sessions":
        windows = EventTimeSessionWindows.with_gap("10 seconds")
    environment = SparkStreamEnvironment(spark, job_dir=tmp_path / "job", max_parallelism=8)
    stream = spark.readStream.schema("k string, t bigint").json(str(tmp_path))
    timed = stream.selectExpr("k", "timestamp_millis(t) AS ts").withWatermark("ts", "5 seconds")
    counted = environment.from_dataframe(timed).key_by("k").window(windows)
    counted.count(uid="counts", schema="k string, start bigint, stop bigint, n bigint").sink_to(MemorySink())
    checkpoint = SparkCheckpoint(spark, checkpoints / f"{kind}-rocksdb")
    checkpoint.write(tmp_path / "savepoint", checkpoint.add_windows(Plan(), environment, "counts"), max_parallelism=8)
    savepoint = Savepoint.open(tmp_path / "savepoint")
    spans = dict.fromkeys(ROWS, (20_000, 30_000))
    if kind == "sessions":
        spans = {k: (rows[-1][0], rows[-1][0] + 10_000) for k, rows in ROWS.items()}
    contents = list(savepoint.read("counts", CONTENTS_NAME))
    assert {one.key: (one.namespace.start, one.namespace.end) for one in contents} == spans
    assert {one.value for one in contents} == {1}
    [queue] = [name for _, name in savepoint.states if name.startswith("_timer_state/event")]
    assert {one.key: one.value for one in savepoint.read("counts", queue)} == {
        k: end - 1 for k, (_, end) in spans.items()
    }
