"""`KafkaSource` on the Spark runtime, without jars, against a real broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_job_fixture import pickled_by_value

from statebackend import JobDefinitionError, KeyedProcessFunction, ValueStateDescriptor
from statebackend.connectors import FileSink, KafkaRecord, KafkaSource
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from kafka_server import KafkaServer

RECORD = "key string, n bigint"


class Count(KeyedProcessFunction[str, Any, Any]):
    """Emits the key, the number of the record, and the record count of the key."""

    count = ValueStateDescriptor("count", int, default=0)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        count = self.count.value() + 1
        self.count.update(count)
        yield value.key, value.n, count


def decoded(record: KafkaRecord) -> Any:
    assert record.key is not None
    return record.key.decode(), int(record.value or b"")


class Job:
    """A job on Spark that counts the records of a topic."""

    def __init__(self, spark: Any, server: KafkaServer, directory: Path) -> None:
        self.spark, self.server, self.directory = spark, server, directory

    def run(self, *topics: str, job: str = "job", epoch_size: int | None = None, **options: Any) -> Any:
        """Run until all available records are read. Return the finished job."""
        from statebackend.spark import SparkStreamEnvironment

        environment = SparkStreamEnvironment(
            self.spark, job_dir=self.directory / job, local_state_directory=self.directory / "local", parallelism=2
        )
        source = KafkaSource({**self.server.settings, "sasl.password": "s3cret"}, topics, decode=decoded)
        with pickled_by_value(sys.modules[__name__]):
            records = environment.from_source(source, RECORD, uid="kafka", epoch_size=epoch_size)
            counted = records.key_by("key").process(Count(), uid="count", schema=f"{RECORD}, count bigint")
            counted.sink_to(FileSink(str(self.directory / "rows")), uid="rows")
            started = environment.execute("count", trigger={"availableNow": True}, **options)
            started.await_termination()
        return started

    def rows(self) -> list[tuple[Any, ...]]:
        import pyarrow.dataset as ds

        table = ds.dataset(self.directory / "rows", format="parquet", partitioning="hive").to_table()
        return sorted(zip(*(table[name].to_pylist() for name in ("key", "n", "count")), strict=True))


@pytest.fixture
def job(spark: Any, kafka_server: KafkaServer, tmp_path: Path) -> Job:
    return Job(spark, kafka_server, tmp_path)


def produce(server: KafkaServer, topic: str, partition: int, first: int, count: int) -> None:
    values = [b"%d" % number for number in range(first, first + count)]
    server.produce(topic, values, partition=partition, key=b"k%d" % partition)


@pytest.mark.spark
def test_it_reads_each_record_once_over_restarts_and_new_partitions(job: Job, kafka_server: KafkaServer) -> None:
    topic = kafka_server.new_topic(2)
    produce(kafka_server, topic, 0, 0, 300)
    produce(kafka_server, topic, 1, 0, 30)
    first = job.run(topic, epoch_size=150)
    kafka_server.add_partitions(topic, 3)
    produce(kafka_server, topic, 2, 0, 20)
    produce(kafka_server, topic, 1, 30, 10)
    job.run(topic)

    expected = {"k0": 300, "k1": 40, "k2": 20}
    assert job.rows() == sorted((key, n, n + 1) for key, count in expected.items() for n in range(count))
    assert len(first.epochs) == 3, "an epoch has at most 150 records"
    files = [path for path in (job.directory / "job").rglob("*") if path.is_file()]
    assert files
    assert not any(b"s3cret" in path.read_bytes() for path in files)


@pytest.mark.spark
def test_a_job_from_a_savepoint_continues_at_its_positions(job: Job, kafka_server: KafkaServer) -> None:
    topic = kafka_server.new_topic()
    produce(kafka_server, topic, 0, 0, 10)
    job.run(topic).savepoint(job.directory / "savepoint")
    produce(kafka_server, topic, 0, 10, 5)
    job.run(topic, job="second", from_savepoint=job.directory / "savepoint")

    assert job.rows() == [("k0", n, n + 1) for n in range(15)]


@pytest.mark.spark
def test_positions_survive_a_change_of_runtime(job: Job, kafka_server: KafkaServer) -> None:
    topic, out = kafka_server.new_topic(2), []

    def run_locally(name: str, from_savepoint: Path | None = None) -> None:
        environment = LocalStreamEnvironment(job_dir=job.directory / name)
        source = KafkaSource(kafka_server.settings, topic, start="latest", until="latest", decode=decoded)
        records = environment.from_source(source, RECORD, uid="kafka")
        counted = records.key_by("key").process(Count(), uid="count", schema=f"{RECORD}, count bigint")
        counted.sink_to(out)
        environment.execute(from_savepoint=from_savepoint).savepoint(job.directory / f"{name} savepoint")

    run_locally("nothing")
    produce(kafka_server, topic, 0, 0, 10)
    run_locally("local", job.directory / "nothing savepoint")
    produce(kafka_server, topic, 0, 10, 5)
    produce(kafka_server, topic, 1, 0, 3)
    job.run(topic, from_savepoint=job.directory / "local savepoint").savepoint(job.directory / "spark savepoint")
    produce(kafka_server, topic, 1, 3, 4)
    run_locally("again", job.directory / "spark savepoint")

    assert job.rows() == [*(("k0", n, n + 1) for n in range(10, 15)), *(("k1", n, n + 1) for n in range(3))]
    assert out == [*(("k0", n, n + 1) for n in range(10)), *(("k1", n, n + 1) for n in range(3, 7))]


@pytest.mark.spark
def test_deleted_topics_are_errors(job: Job, kafka_server: KafkaServer) -> None:
    topic, other = kafka_server.new_topic(), kafka_server.new_topic()
    produce(kafka_server, topic, 0, 0, 10)
    produce(kafka_server, other, 0, 0, 1)
    job.run(topic, other)
    kafka_server.delete_topic(topic)
    with pytest.raises(Exception, match=rf"topic '{topic}' does not exist.*If it was deleted"):
        job.run(topic, other)
    kafka_server.new_topic(name=topic)
    produce(kafka_server, topic, 0, 0, 1)
    with pytest.raises(Exception, match=rf"'{topic}-0' was read up to position 10, and now ends at 1"):
        job.run(topic, other)
    with pytest.raises(Exception, match=rf"split '{topic}-0', which was read up to position 10, no longer exists"):
        job.run(other)


@pytest.mark.spark
def test_a_topic_that_was_created_again_is_an_error(
    spark: Any, tmp_path: Path, kafka_with_topic_ids: KafkaServer
) -> None:
    server, job = kafka_with_topic_ids, Job(spark, kafka_with_topic_ids, tmp_path)
    topic = server.new_topic()
    server.produce_each(topic, [b"%d" % n for n in range(10)], key=b"k0")
    job.run(topic)
    server.delete_topic(topic)
    server.new_topic(name=topic)
    server.produce_each(topic, [b"%d" % n for n in range(20)], key=b"k0")
    with pytest.raises(Exception, match=rf"'{topic}-0', which was read up to position 10, was deleted and created ag"):
        job.run(topic)

    assert job.rows() == [("k0", n, n + 1) for n in range(10)]


@pytest.mark.spark
def test_an_invalid_source_is_rejected(spark: Any, tmp_path: Path) -> None:
    from statebackend.spark import SparkStreamEnvironment

    environment = SparkStreamEnvironment(spark, job_dir=tmp_path / "job")
    source = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, "t")
    with pytest.raises(JobDefinitionError, match="which is no MicroBatchSource"):
        environment.from_source([1], RECORD, uid="kafka")  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="epoch_size is 0; it takes at least 1 record"):
        environment.from_source(source, RECORD, uid="kafka", epoch_size=0)
    with pytest.raises(JobDefinitionError, match="pass it as the second argument"):
        environment.from_source(source, None, uid="kafka")
