"""A savepoint of a job on Spark starts a job of the local runtime."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.checkpoint.metadata_bytes import decode_metadata, encode_metadata
from statebackend.connectors import JsonLinesSource
from statebackend.local import LocalStreamEnvironment

SCHEMA = "shop string"


class Count(KeyedProcessFunction[Any, Any, Any]):
    count = ValueStateDescriptor("count", int, default=0)

    def process_element(self, sale: Any, context: Any) -> Any:
        self.count.update(self.count.value() + 1)
        yield sale.shop, self.count.value()


def job(sales: Path, rows: list[Any], **settings: Any) -> LocalStreamEnvironment:
    env = LocalStreamEnvironment(**settings)
    shops = env.from_source(JsonLinesSource(str(sales), SCHEMA), SCHEMA, uid="sales").key_by("shop")
    shops.process(Count(), uid="counts", schema="shop string, count bigint").sink_to(rows)
    return env


def test_a_source_that_cannot_continue_at_the_position_of_spark_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sales, rows = tmp_path / "sales", list[Any]()
    sales.mkdir()
    (sales / "first.jsonl").write_text('{"shop": "north"}\n')
    job(sales, rows).execute().savepoint(tmp_path / "savepoint")

    metadata_file = tmp_path / "savepoint" / "_metadata"
    metadata = decode_metadata(metadata_file.read_bytes(), str(metadata_file))
    operators = tuple(one for one in metadata.operators if one.uid != "sales")
    source = ReadSource("FileStreamSource[file:/sales]", "sales", "0")
    positions = SourcePositions(batch_id=0, offsets=b"v1", sources=(source,))
    metadata_file.write_bytes(encode_metadata(evolve(metadata, operators=operators, source_positions=positions)))

    settings: dict[str, Any] = {"job_dir": tmp_path / "job"}
    with caplog.at_level(logging.WARNING):
        job(sales, rows, **settings).execute("shops", from_savepoint=tmp_path / "savepoint")
    assert rows[-1] == ("north", 2)
    assert "source 'sales' is read from its beginning" in caplog.text
    assert "FileStreamSource[file:/sales]" in caplog.text

    caplog.clear()
    (sales / "second.jsonl").write_text('{"shop": "north"}\n')
    with caplog.at_level(logging.WARNING):
        job(sales, rows, **settings).execute("shops", from_savepoint=tmp_path / "savepoint")
    assert rows[-1] == ("north", 3)
    assert "sales" not in caplog.text
