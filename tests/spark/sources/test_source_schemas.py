"""Which changes of a source's columns are compatible, as a function without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from statebackend.checkpoint.errors import CorruptJobIdentityError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import ReadSource
from statebackend.spark.sources.offset_log import check_schemas
from statebackend.spark.sources.progress import SOURCE_ORDER_FILE_NAME, SourceOrder, read_source_order, source_order
from statebackend.streaming.errors import JobRestoreError

FLIGHTS = ReadSource("FileSource[/in]", "flights", "0")
RATES = ReadSource("rate", "rates", "1")


def struct(**columns: Any) -> dict[str, Any]:
    """A schema in Spark's JSON form."""
    return {
        "type": "struct",
        "fields": [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in columns.items()],
    }


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def goes_on(was: Any, now: Any) -> None:
    check_schemas(SourceOrder((FLIGHTS,), (was,)), SourceOrder((FLIGHTS,), (now,)), "/job/spark")


BASE = struct(carrier="string", delay="integer")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (BASE, BASE),
        (BASE, struct(delay="integer", carrier="string")),
        (BASE, struct(carrier="string", delay="integer", gate="string")),
        (BASE, struct(delay="integer")),
        (BASE, struct(carrier="string", delay="long")),
        (struct(a="byte", b="short", c="float"), struct(a="short", b="long", c="double")),
        (struct(a="decimal(10,2)"), struct(a="decimal(12,4)")),
        (
            struct(at=BASE, all=array(BASE)),
            struct(at=struct(carrier="string", delay="long", new="date"), all=array(struct(delay="integer"))),
        ),
        (struct(by=mapping("integer", "float")), struct(by=mapping("long", "double"))),
        (None, BASE),
        (BASE, None),
    ],
)
def test_compatible_columns(was: Any, now: Any) -> None:
    goes_on(was, now)


@pytest.mark.parametrize(
    ("was", "now", "reported"),
    [
        (BASE, struct(carrier="string", delay="string"), "delay was integer and is string"),
        (BASE, struct(carrier="string", delay="short"), "delay was integer and is short"),
        (struct(a="long"), struct(a="double"), "a was long and is double"),
        (struct(a="double"), struct(a="float"), "a was double and is float"),
        (struct(a="decimal(10,2)"), struct(a="decimal(12,5)"), r"a was decimal\(10,2\) and is decimal\(12,5\)"),
        (struct(a="decimal(10,2)"), struct(a="decimal(11,1)"), r"a was decimal\(10,2\)"),
        (struct(a="decimal(10,2)"), struct(a="long"), r"a was decimal\(10,2\) and is long"),
        (struct(a="integer"), struct(a=array("integer")), "a was integer and is array"),
        (struct(a=array("integer")), struct(a=array("string")), r"a\[\] was integer and is string"),
        (struct(a=mapping("string", "long")), struct(a=mapping("string", "date")), r"a\[\] was long and is date"),
        (struct(a=mapping("string", "long")), struct(a=mapping("binary", "long")), r"a\[\] was string and is binary"),
        (struct(at=struct(x="long")), struct(at=struct(x="date")), r"at\.x was long and is date"),
        (struct(at=struct(x="long")), struct(at=struct(y="long")), "'x' is removed inside of at and 'y' is new"),
        (
            BASE,
            struct(carrier="string", minutes="integer"),
            "'delay' is removed and 'minutes' is new.*Keep the former col",
        ),
        (
            BASE,
            struct(airline="string", minutes="integer"),
            "'carrier', 'delay' are removed and 'airline', 'minutes' are",
        ),
        (struct(a={"type": "udt", "class": "x"}), struct(a={"type": "udt", "class": "y"}), "a was udt and is udt"),
    ],
)
def test_incompatible_columns_are_rejected_in_one_line(was: Any, now: Any, reported: str) -> None:
    with pytest.raises(JobRestoreError, match=reported) as rejected:
        goes_on(was, now)
    assert "the source 'flights' of the job, FileSource[/in], has other columns than /job/spark" in str(rejected.value)
    assert "restore_source_progress=False" in str(rejected.value)
    assert "\n" not in str(rejected.value)


def test_each_source_is_compared_with_the_one_of_its_uid() -> None:
    other = struct(value="long")
    former = SourceOrder((FLIGHTS, RATES), (BASE, other))
    check_schemas(former, SourceOrder((RATES, FLIGHTS), (other, BASE)), "/job")
    moved = SourceOrder((RATES, FLIGHTS), (other, struct(carrier="string", delay="date")))
    with pytest.raises(JobRestoreError, match=r"'flights' .*delay was integer.*\{'flights': False\}"):
        check_schemas(former, moved, "/job")
    check_schemas(former, moved, "/job", ["flights"])
    # A new source has no former columns.
    check_schemas(former, SourceOrder((ReadSource("rate", "new", "0"),), (struct(value="date"),)), "/job")


def test_a_file_has_a_schema_for_each_source_and_the_current_version(tmp_path: Any) -> None:
    files = CheckpointFileSystem.from_uri(tmp_path)
    sources = [{"name": "FileSource[/in]", "uid": "flights", "log": "0"}]
    files.write_file(SOURCE_ORDER_FILE_NAME, checksummed_json({"sources": sources}, 1))
    with pytest.raises(CorruptJobIdentityError, match="is not valid: 'schemas'"):
        read_source_order(files)
    files.write_file(f"new/{SOURCE_ORDER_FILE_NAME}", source_order((FLIGHTS, RATES), (BASE, None)))
    assert read_source_order(files, "new") == SourceOrder((FLIGHTS, RATES), (BASE, None))
    assert read_source_order(files, "nowhere") is None
    for number, schemas in enumerate(([], [BASE, BASE], ["long"], 5)):
        path = f"{number}/{SOURCE_ORDER_FILE_NAME}"
        files.write_file(path, checksummed_json({"sources": sources, "schemas": schemas}, 1))
        with pytest.raises(CorruptJobIdentityError, match="is not valid"):
            read_source_order(files, str(number))
    with pytest.raises(ValueError, match="2 sources have 1 schemas"):
        source_order((FLIGHTS, RATES), (BASE,))
