"""The sinks that write to servers pass `SinkContract`."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from attrs import frozen
from spark_job_fixture import WordCount, pickled_by_value

from statebackend.connectors.kafka_sink import KafkaSink
from statebackend.connectors.postgres import PostgresSink
from statebackend.streaming.sink import Sink
from statebackend.testing.sinks import Row, SinkContract

if TYPE_CHECKING:
    from kafka_server import KafkaServer
    from postgres_server import PostgresServer


@frozen
class Table:
    """A table of a server, in its own database."""

    server: PostgresServer
    database: str

    @property
    def conninfo(self) -> str:
        return self.server.conninfo(self.database)


class PostgresContract(SinkContract):
    """What append and upsert have in common."""

    can_roll_back = False
    secrets = ("a password of tests", "s3cret")
    options: Mapping[str, Any] = MappingProxyType({})

    @pytest.fixture
    def target_of(self, postgres_server: PostgresServer) -> Callable[[], Any]:
        def new_table() -> Table:
            table = Table(postgres_server, postgres_server.new_database())
            with psycopg.connect(table.conninfo) as connection:
                connection.execute("CREATE TABLE results (k text, n bigint, PRIMARY KEY (k, n))")
            return table

        return new_table

    @pytest.fixture
    def target(self, target_of: Callable[[], Any]) -> Any:
        return target_of()

    @pytest.fixture
    def second_target(self, target_of: Callable[[], Any]) -> Any:
        return target_of()

    def new_sink(self, target: Table) -> Sink:
        return PostgresSink(target.conninfo, "results", **self.options)

    def rows_in(self, target: Table) -> list[Row]:
        with psycopg.connect(target.conninfo) as connection:
            return connection.execute("SELECT k, n FROM results").fetchall()

    def broken_sink(self, target: Table) -> Sink:
        return PostgresSink(target.server.conninfo(target.database, password="s3cret"), "results")

    def faults(self) -> Sequence[Callable[[], AbstractContextManager[Any]]]:
        return (connection_breaks_before_copying, connection_breaks_after_the_commit)


class TestPostgresAppend(PostgresContract):
    pass


class TestPostgresUpsert(PostgresContract):
    options = MappingProxyType({"key": ["k", "n"]})


@contextlib.contextmanager
def connection_breaks_before_copying() -> Iterator[None]:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "copy", broken)
        yield


@contextlib.contextmanager
def connection_breaks_after_the_commit() -> Iterator[None]:
    commit = psycopg.Connection.commit

    def commit_and_break(connection: psycopg.Connection[Any]) -> None:
        commit(connection)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", commit_and_break)
        yield


@frozen
class Topic:
    """A topic with its own topic of epochs, because the contract uses the same job ids in all tests."""

    server: KafkaServer
    name: str


class TestKafkaSink(SinkContract):
    can_roll_back = False
    secrets = ("s3cret",)

    @pytest.fixture
    def target_of(self, kafka_server: KafkaServer) -> Callable[[], Any]:
        return lambda: Topic(kafka_server, kafka_server.new_topic(2))

    @pytest.fixture
    def target(self, target_of: Callable[[], Any]) -> Any:
        return target_of()

    @pytest.fixture
    def second_target(self, target_of: Callable[[], Any]) -> Any:
        return target_of()

    def new_sink(self, target: Topic) -> Sink:
        return KafkaSink(target.server.settings, target.name, key="k", epochs_topic=f"{target.name}-epochs")

    def rows_in(self, target: Topic) -> list[Row]:
        found = [json.loads(one.value()) for one in target.server.records(target.name)]
        return [(one["k"], one["n"]) for one in found]

    def broken_sink(self, target: Topic) -> Sink:
        settings = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "s3cret"}
        return KafkaSink(settings, f"topic-{uuid.uuid4().hex}", timeout_s=0.2)

    def faults(self) -> Sequence[Callable[[], AbstractContextManager[Any]]]:
        return (driver_dies_before_the_marker,)


@contextlib.contextmanager
def driver_dies_before_the_marker() -> Iterator[None]:
    def flushed(self: KafkaSink, producer: Any, epoch: Any) -> None:
        assert producer.flush(60) == 0
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaSink, "_write_marker", flushed)
        yield


@pytest.mark.spark
def test_a_spark_job_writes_each_epoch_to_postgres_and_to_kafka(
    spark: Any, tmp_path: Path, postgres_server: PostgresServer, kafka_server: KafkaServer
) -> None:
    table = Table(postgres_server, postgres_server.new_database())
    with psycopg.connect(table.conninfo) as connection:
        connection.execute("CREATE TABLE words (word text, times bigint, total bigint)")
    topic = kafka_server.new_topic()
    sinks: dict[str, Sink] = {
        "postgres": PostgresSink(table.conninfo, "words"),
        "kafka": KafkaSink(kafka_server.settings, topic, key="word"),
    }
    for name, sink in sinks.items():
        directory = tmp_path / name
        directory.mkdir()
        word_count = WordCount(spark, directory)
        word_count.add_batch([("a", 1), ("b", 2), ("a", 3)])
        with pickled_by_value():
            word_count.run(sink)
            word_count.add_batch([("a", 4)])
            word_count.run(sink)

        if name == "postgres":
            with psycopg.connect(table.conninfo) as connection:
                found = connection.execute("SELECT word, times, total FROM words").fetchall()
        else:
            records = kafka_server.records(topic)
            found = [tuple(json.loads(one.value()).values()) for one in records]
        assert sorted(found) == word_count.expected()
