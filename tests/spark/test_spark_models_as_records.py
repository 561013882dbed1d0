"""A Spark job stores pydantic models and msgspec structs instead of attrs classes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
from spark_job_fixture import SEEN, CountWords, Seen, WordCount, memory_sink, pickled_by_value, rows_of

from statebackend import ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from typeserializers.records.record_serializer import AttrsSerializer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class SeenModel(pydantic.BaseModel):
    times: int
    total: int
    label: str = "?"

    @pydantic.field_validator("times")
    @classmethod
    def some(cls, times: int) -> int:
        if times < 1:
            raise ValueError("seen at least once")
        return times


SEEN_STRUCT = """
import msgspec

class SeenStruct(msgspec.Struct):
    times: int
    total: int
    labels: list[str] = []
"""


class CountRecords(CountWords):
    """Counts like the `CountWords` of other tests, with another class of the same name as record."""

    def __init__(self, record_class: Any) -> None:
        self.record_class = record_class

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", AttrsSerializer(self.record_class, name="Seen")))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
        before = self.seen.value()
        assert before is None or type(before) is self.record_class
        times, total = (0, 0) if before is None else (before.times, before.total)
        self.seen.update(self.record_class(times=times + 1, total=total + value.number))
        yield value.word, times + 1, total + value.number


@pytest.fixture
def struct_class(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """A struct in a module that workers import, because msgspec defines its layout when the class is created."""
    file = tmp_path / "module_of_the_struct_seen.py"
    file.write_text(SEEN_STRUCT)
    spark.sparkContext.addPyFile(str(file))
    path = list(sys.path)
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module(file.stem).SeenStruct
    finally:
        sys.path[:] = path
        sys.modules.pop(file.stem, None)


@pytest.mark.extended
@pytest.mark.parametrize("family", ["pydantic", "msgspec"])
def test_models_restore_the_state_of_an_attrs_class(
    spark: SparkSession, tmp_path: Path, struct_class: Any, family: str
) -> None:
    entries = [("a", Seen(7, 70)), ("b", Seen(1, 1))]
    plan = Plan().add_operator("words", "string").add_state("words", ValueStateDescriptor("seen", SEEN), entries)
    SavepointWriter.new(tmp_path / "begin", max_parallelism=16).write(plan)
    word_count, sink = WordCount(spark, tmp_path), memory_sink()
    word_count.add_batch([("a", 1), ("c", 3)])
    word_count.add_batch([("a", 10)])
    record_class = SeenModel if family == "pydantic" else struct_class
    start = {"from_savepoint": tmp_path / "begin", "restore_source_progress": False}
    with pickled_by_value(sys.modules[__name__]):
        word_count.run(sink, CountRecords(record_class), execute=start)
    assert rows_of(sink) == [("a", 8, 71), ("a", 9, 81), ("c", 1, 3)]
