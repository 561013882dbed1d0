"""Jobs without state, such as from a source to a table: checkpoints hold positions and staged output only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from chain_runner import pickled_by_value, write_batches

from statebackend import DataStream, EpochError
from statebackend.connectors import FileSink
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.stream_graph import ReplayableSource, SplitRead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Sale(NamedTuple):
    shop: str
    amount: int


def doubled(sale: Sale) -> Sale:
    return Sale(sale.shop, 2 * sale.amount)


def without_state(stream: DataStream, directory: Path) -> None:
    sales = stream.as_records(Sale).filter(lambda sale: sale.amount > 1)
    sales.map(doubled).sink_to(FileSink(directory, "json"))


def written(directory: Path) -> list[int]:
    parts = (part.read_text() for part in directory.glob("epoch=*/part-*"))
    return sorted(json.loads(line)["amount"] for part in parts for line in part.splitlines())


class Sales(ReplayableSource):
    def __init__(self, count: int) -> None:
        self.count = count

    def splits(self) -> dict[str, int]:
        return {"all": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        end = min(position + max_records, self.count)
        return SplitRead([("a", number) for number in range(position, end)], end, end == self.count)


def local(directory: Path, count: int, job_dir: str) -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment(job_dir=directory / job_dir, epoch_size=2)
    without_state(environment.from_source(Sales(count), Sale, uid="sales"), directory / "files")
    return environment


def test_a_local_job_without_state_continues_at_its_positions(tmp_path: Path) -> None:
    local(tmp_path, 4, "job").execute()
    assert written(tmp_path / "files") == [4, 6]
    assert not local(tmp_path, 7, "job").check()
    job = local(tmp_path, 7, "job").execute()
    assert written(tmp_path / "files") == [4, 6, 8, 10, 12]
    job.savepoint(tmp_path / "savepoint")
    local(tmp_path, 8, "other").execute(from_savepoint=tmp_path / "savepoint")
    assert written(tmp_path / "files") == [4, 6, 8, 10, 12, 14]


def test_a_job_without_state_and_positions_has_nothing_to_save(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment()
    environment.from_elements([1]).map(lambda one: one).sink_to([])
    with pytest.raises(EpochError, match="nothing to save: the job has processed nothing or has no state"):
        environment.execute().savepoint(tmp_path / "savepoint")


@pytest.mark.spark
def test_a_spark_job_without_state_writes_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import SparkStreamEnvironment

    def run(batches: Sequence[Sequence[dict[str, Any]]], job_dir: str, **options: Any) -> Any:
        source = write_batches(tmp_path, batches)
        frame = spark.readStream.schema("shop string, amount bigint").option("maxFilesPerTrigger", 1).json(str(source))
        environment = SparkStreamEnvironment(
            spark, job_dir=tmp_path / job_dir, local_state_directory=tmp_path / "local", parallelism=1
        )
        without_state(environment.from_dataframe(frame), tmp_path / "files")
        job = environment.execute("without-state", trigger={"availableNow": True}, **options)
        job.await_termination()
        return job

    batches = [[{"shop": "a", "amount": number}] for number in range(1, 6)]
    with pickled_by_value(__name__):
        assert [one.epoch_id for one in run(batches[:3], "job").epochs] == [0, 1, 2]
        assert written(tmp_path / "files") == [4, 6]
        job = run(batches[:4], "job")
        assert [one.epoch_id for one in job.epochs] == [3]
        assert written(tmp_path / "files") == [4, 6, 8]
        job.savepoint(tmp_path / "savepoint")
        run(batches, "other", from_savepoint=tmp_path / "savepoint")
    assert written(tmp_path / "files") == [4, 6, 8, 10]
