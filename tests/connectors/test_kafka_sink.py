"""`KafkaSink` against a real broker: each epoch once for readers of committed records, formats, fencing and errors."""

from __future__ import annotations

import datetime
import io
import json
import pickle
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.connectors.kafka_sink import KafkaSink
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.errors import UserFunctionError
from statebackend.streaming.sink import SinkEpoch, SinkError, SinkLineage

if TYPE_CHECKING:
    from kafka_server import KafkaServer

SCHEMA = pa.schema([("account", pa.string()), ("n", pa.int64())])
UTC = datetime.timezone.utc


class Target:
    """A topic with its own lineage."""

    def __init__(self, server: KafkaServer, partitions: int = 1) -> None:
        self.server = server
        self.topic = server.new_topic(partitions)
        self.lineage = SinkLineage("alerts", f"job-{uuid.uuid4().hex[:8]}")

    def sink(self, **settings: Any) -> KafkaSink:
        return KafkaSink(self.server.settings, self.topic, **settings)

    def recovered(self, last_epoch_id: int | None = None, **settings: Any) -> KafkaSink:
        sink = self.sink(**settings)
        sink.recover(self.lineage, last_epoch_id)
        return sink

    def epoch(self, epoch_id: int, run_id: str = "run-1") -> SinkEpoch:
        return SinkEpoch(self.lineage, epoch_id, run_id)

    def write(self, sink: KafkaSink, epoch_id: int, *subtasks: Sequence[Any], schema: pa.Schema = SCHEMA) -> None:
        epoch = self.epoch(epoch_id)
        sink.commit(epoch, staged(sink, epoch, subtasks, schema))

    def numbers(self, isolation: str = "read_committed") -> list[int]:
        return sorted(json.loads(one.value())["n"] for one in self.server.records(self.topic, isolation))


def staged(sink: KafkaSink, epoch: SinkEpoch, subtasks: Sequence[Sequence[Any]], schema: pa.Schema = SCHEMA) -> Any:
    """Stage as subtasks do, each with its own copy of the sink."""
    committables = []
    for index, rows in enumerate(subtasks):
        arrays = [pa.array([row[place] for row in rows], one.type) for place, one in enumerate(schema)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        task = pickle.loads(pickle.dumps(sink))
        committables.append(task.stage(epoch, index, pa.RecordBatchReader.from_batches(schema, [batch])))
    return [one for one in committables if one]


@pytest.fixture
def target(kafka_server: KafkaServer) -> Target:
    return Target(kafka_server)


def test_it_writes_the_rows_of_all_subtasks(target: Target) -> None:
    sink = target.recovered()
    target.write(sink, 1, [("a", 1), ("b", 2)], [], [("c", 3)])
    target.write(sink, 2, [("a", 4)])

    assert target.numbers() == [1, 2, 3, 4]


def test_a_repeated_commit_writes_nothing(target: Target) -> None:
    sink = target.recovered()
    committables = staged(sink, target.epoch(1), [[("a", 1)]])
    sink.commit(target.epoch(1), committables)
    sink.commit(target.epoch(1), committables)
    # Other drivers find the epoch only by its marker.
    target.sink().commit(target.epoch(1), committables)
    target.recovered(1).commit(target.epoch(1), committables)

    assert target.numbers() == [1]


def test_rows_that_were_sent_before_a_crash_are_aborted_by_the_next_driver(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = target.recovered()
    committables = staged(crashed, target.epoch(1), [[("a", 1), ("b", 2)]])

    def flush_and_crash(self: KafkaSink, producer: Any, epoch: SinkEpoch) -> None:
        assert producer.flush(60) == 0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "_write_marker", flush_and_crash)
        with pytest.raises(KeyboardInterrupt):
            crashed.commit(target.epoch(1), committables)
    assert target.numbers("read_committed") == []

    # The driver that crashed did not close its producer.
    target.sink().commit(target.epoch(1), committables)
    assert target.numbers("read_committed") == [1, 2]
    assert target.numbers("read_uncommitted") == [1, 1, 2, 2], "the broker hides the rows of the first transaction"


def test_an_answer_that_is_lost_after_the_commit_doubles_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = target.recovered()
    committables = staged(sink, target.epoch(1), [[("a", 1)]])
    opened = sink._opened

    class LostAnswer:
        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, timeout_s: float) -> None:
            self._producer.commit_transaction(timeout_s)
            raise KafkaException(pytest.importorskip("confluent_kafka").KafkaError(-185))

    with monkeypatch.context() as patch:
        patch.setattr(sink, "_opened", lambda lineage: LostAnswer(opened(lineage)))
        with pytest.raises(SinkError, match=r"cannot commit epoch 1 .*The rows are in the checkpoint"):
            sink.commit(target.epoch(1), committables)
    sink.commit(target.epoch(1), committables)

    assert target.numbers() == [1]


def test_a_driver_that_lost_the_leadership_is_fenced(target: Target) -> None:
    old = target.recovered()
    committables = staged(old, target.epoch(1), [[("a", 1)]])
    new = target.recovered()
    with pytest.raises(SinkError, match=r"cannot commit epoch 1 .*Another driver runs the job"):
        old.commit(target.epoch(1), committables)
    new.commit(target.epoch(1), committables)
    target.write(new, 2, [("a", 2)])

    assert target.numbers() == [1, 2]


def test_two_drivers_that_take_turns_write_each_epoch_once(target: Target) -> None:
    drivers = [target.sink(), target.sink()]
    for epoch_id in range(1, 5):
        committables = staged(drivers[0], target.epoch(epoch_id), [[("a", epoch_id)]])
        for driver in drivers:
            driver.close()
            driver.commit(target.epoch(epoch_id), committables)

    assert target.numbers() == [1, 2, 3, 4]


def test_recovery_waits_for_the_transaction_of_another_job(target: Target) -> None:
    sink = target.recovered()
    target.write(sink, 1, [("a", 1)])
    other = Producer({**target.server.settings, "transactional.id": f"other-{target.topic}"})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce("statebackend-epochs", b"{}", key=b"other/job", partition=0)
    assert other.flush(60) == 0
    target.write(sink, 2, [("a", 2)])
    with pytest.raises(SinkError, match=r"could be read up to offset \d+ of \d+ only: a transaction of another job"):
        target.sink(timeout_s=1.0).recover(target.lineage, 2)

    other.abort_transaction(60)
    again = target.recovered(2)
    again.commit(target.epoch(2), staged(again, target.epoch(2), [[("a", 2)]]))
    assert target.numbers() == [1, 2]


def test_recovery_rejects_epochs_that_the_job_has_not_completed(target: Target) -> None:
    sink = target.recovered()
    for epoch_id in (1, 2, 3):
        target.write(sink, epoch_id, [("a", epoch_id)])
    sink.recover(target.lineage, 3)
    with pytest.raises(SinkError, match=rf"contains epochs up to 3 of {target.lineage.name}, but the job starts after"):
        sink.recover(target.lineage, 2)
    with pytest.raises(SinkError, match="starts without a checkpoint"):
        sink.recover(target.lineage, None)
    with pytest.raises(SinkError, match="cannot roll back"):
        sink.roll_back(target.lineage, 2)


def test_a_job_from_a_savepoint_continues_the_lineage(target: Target) -> None:
    first = target.recovered()
    for epoch_id in (1, 2):
        target.write(first, epoch_id, [("a", epoch_id)])
    parent = target.lineage.job_id
    child = SinkLineage("alerts", f"{parent}-child", SavepointIdentity(parent, 2, 0))
    second = target.sink()
    second.recover(child, 2)
    epoch = SinkEpoch(child, 3, "run-1")
    second.commit(epoch, staged(second, epoch, [[("a", 3)]]))
    assert target.numbers() == [1, 2, 3]

    late = SinkLineage("alerts", f"{parent}-late", SavepointIdentity(parent, 1, 0))
    with pytest.raises(SinkError, match="contains epochs up to 2"):
        target.sink().recover(late, 1)


def test_rows_of_another_run_under_the_same_epoch_are_an_error(target: Target) -> None:
    sink = target.recovered()
    target.write(sink, 1, [("a", 1)])
    other = target.epoch(1, "run-2")
    with pytest.raises(SinkError, match="that run run-1 of the job wrote, but the checkpoint is of run run-2"):
        sink.commit(other, staged(sink, other, [[("a", 1)]]))


ROW = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(10, 2)),
        ("blob", pa.binary()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("trace", pa.map_(pa.string(), pa.binary())),
    ]
)
# The current time, because the broker may remove old records.
AT = datetime.datetime.now(UTC).replace(microsecond=123_456)
VALUES = (7, "é", AT, Decimal("1.10"), b"\x00\xff", [("k", "v")], [("h", b"\x01"), ("none", None)])


def test_json_has_the_fields_and_the_record_key_headers_and_timestamp(target: Target) -> None:
    sink = target.recovered(key="name", headers="trace", timestamp="at")
    target.write(sink, 1, [VALUES, (8, None, None, None, None, None, None)], schema=ROW)
    [first, second] = target.server.records(target.topic)

    assert (first.key(), second.key()) == ("é".encode(), None)
    assert first.headers() == [("h", b"\x01"), ("none", None)]
    assert (second.headers(), first.timestamp()[1]) == (None, int(AT.timestamp()) * 1000 + 123)
    assert json.loads(first.value()) == {
        "id": 7,
        "name": "é",
        "at": f"{AT:%Y-%m-%dT%H:%M:%S.%f}Z",
        "amount": "1.10",
        "blob": "00ff",
        "tags": {"k": "v"},
    }


def test_avro_is_read_with_its_schema(target: Target) -> None:
    schema = {
        "type": "record",
        "name": "payment",
        "fields": [
            {"name": "account", "type": ["null", "string"]},
            {"name": "n", "type": "long"},
        ],
    }
    sink = target.recovered(value="avro", avro_schema=schema, key="n")
    target.write(sink, 1, [("a", 1), (None, 2)])
    found = [fastavro.schemaless_reader(io.BytesIO(one.value()), schema) for one in target.server.records(target.topic)]

    assert found == [{"account": "a", "n": 1}, {"account": None, "n": 2}]
    assert [one.key() for one in target.server.records(target.topic)] == [b"1", b"2"]
    with pytest.raises(SinkError, match="cannot be encoded as avro"):
        staged(sink, target.epoch(2), [[("a", None)]])


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_bytes_are_written_as_they_are(target: Target, kind: pa.DataType) -> None:
    schema = pa.schema([("value", kind), ("key", kind), ("gone", pa.bool_())])
    rows = [(b"v", b"k", False), (b"x", b"k", True), (None, None, None)]
    if kind == pa.string():
        rows = [tuple(one.decode() if isinstance(one, bytes) else one for one in row) for row in rows]  # type: ignore[misc]
    sink = target.recovered(value="bytes", key="key", delete_field="gone")
    target.write(sink, 1, rows, schema=schema)

    found = [(one.key(), one.value()) for one in target.server.records(target.topic)]
    assert found == [(b"k", b"v"), (b"k", None), (None, None)]


def test_headers_may_be_a_list_of_structs(target: Target) -> None:
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema([("n", pa.int64()), ("headers", pairs)])
    target.write(target.recovered(headers="headers"), 1, [(1, [{"key": "a", "value": b"b"}])], schema=schema)
    [found] = target.server.records(target.topic)

    assert (json.loads(found.value()), found.headers()) == ({"n": 1}, [("a", b"b")])


def test_more_rows_than_the_queue_of_the_client_are_written(target: Target, tmp_path: Path) -> None:
    sink = KafkaSink(
        {**target.server.settings, "queue.buffering.max.messages": 100}, target.topic, staging=str(tmp_path)
    )
    sink.recover(target.lineage, None)
    rows = [(uuid.uuid4().hex, number) for number in range(5000)]
    [committable] = staged(sink, target.epoch(1), [rows])
    assert len(committable) < 1000, "the rows are in a file"
    sink.commit(target.epoch(1), [committable])
    sink.commit(target.epoch(1), [committable])

    assert target.numbers() == list(range(5000))
    assert not [one for one in tmp_path.rglob("*") if one.is_file()]


# The hashes are from the tests of Java's org.apache.kafka.common.utils.Utils.murmur2.
MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def test_a_key_has_the_partition_that_java_clients_choose(kafka_server: KafkaServer) -> None:
    target = Target(kafka_server, partitions=7)
    target.write(target.recovered(key="account"), 1, [(key, 1) for key in MURMUR2])

    found = {one.key().decode(): one.partition() for one in kafka_server.records(target.topic)}
    assert found == {key: (code & 0x7FFFFFFF) % 7 for key, code in MURMUR2.items()}


@pytest.mark.parametrize("time_ms", [0, -1, -(10**15)])
def test_an_invalid_timestamp_for_kafka_fails_the_epoch(time_ms: int) -> None:
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, "t", timestamp="n")
    epoch = SinkEpoch(SinkLineage("alerts", "job"), 1, "run")
    with pytest.raises(SinkError, match=f"'n' is {time_ms} ms, and Kafka stores 1 ms or later"):
        staged(sink, epoch, [[("a", 5), ("b", None), ("c", time_ms)]])


def test_a_record_that_is_too_large_fails_in_the_task(target: Target) -> None:
    with pytest.raises(SinkError, match=r"a record of \d+ bytes is larger than message.max.bytes, 1000000. Raise it"):
        staged(target.sink(), target.epoch(1), [[("a" * 1_000_000, 1)]])


def set_limit_of_records(target: Target, size_bytes: int) -> None:
    limit = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, target.topic, incremental_configs=[limit])
    admin = AdminClient(target.server.settings)
    admin.incremental_alter_configs([change])[change].result(60)


@pytest.mark.parametrize("later", [1, 100_000])
def test_a_record_that_is_too_large_for_the_broker_fails_the_epoch_until_the_limit_is_raised(
    target: Target, kafka_server: KafkaServer, later: int
) -> None:
    """The broker rejects the record when all later records are sent, or while the sink sends them."""
    set_limit_of_records(target, 100_000)
    sink = KafkaSink({**kafka_server.settings, "compression.type": "none"}, target.topic)
    sink.recover(target.lineage, None)
    committables = staged(
        sink, target.epoch(1), [[("a", 0), ("b" * 200_000, 1), *(("c", 2 + n) for n in range(later))]]
    )
    too_large = rf"{target.topic}'\) cannot commit epoch 1 .*size too large. Raise max.message.bytes of the topic"
    with pytest.raises(SinkError, match=too_large):
        sink.commit(target.epoch(1), committables)
    assert target.numbers() == []
    # An open transaction would block the start of other jobs.
    Target(kafka_server).recovered(timeout_s=10)

    set_limit_of_records(target, 1_000_000)
    sink.commit(target.epoch(1), committables)
    target.recovered(1).commit(target.epoch(1), committables)
    assert target.numbers() == list(range(2 + later))


def test_errors_name_target_and_fix(target: Target) -> None:
    nowhere = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, "t", timeout_s=0.2)
    with pytest.raises(SinkError, match=r"KafkaSink\('127.0.0.1:1', 't'\).*Start the broker"):
        nowhere.recover(target.lineage, None)
    with pytest.raises(SinkError, match=r"topic 'nothing' does not exist\. Create it, or correct its name$"):
        KafkaSink(target.server.settings, "nothing").recover(target.lineage, None)
    with pytest.raises(SinkError, match=r"No such configuration property.*Correct the settings of librdkafka"):
        KafkaSink({**target.server.settings, "no.such": "x"}, target.topic).recover(target.lineage, None)
    with pytest.raises(SinkError, match="a copy of a sink in a task has no credentials"):
        pickle.loads(pickle.dumps(target.sink())).recover(target.lineage, None)


def test_a_topic_that_was_deleted_fails_the_epoch_until_it_is_created_again(target: Target) -> None:
    sink, topic = target.recovered(timeout_s=2), target.topic
    target.write(sink, 1, [("a", 1)])
    target.server.delete_topic(topic)
    with pytest.raises(
        SinkError, match=rf"cannot commit epoch 2 .*: topic '{topic}' was deleted\. Create it again\. T"
    ):
        target.write(sink, 2, [("a", 2), ("b", 3)])
    with pytest.raises(SinkError, match=rf"topic '{topic}' does not exist\. Create it, or correct its name$"):
        target.recovered(1)
    target.server.new_topic(name=topic)
    again = target.recovered(1)
    for _ in range(2):
        target.write(again, 2, [("a", 2), ("b", 3)])
    assert target.numbers() == [2, 3]


def test_invalid_settings_are_rejected() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    for given, message in [
        ({"value": "xml"}, "pass 'json', 'avro' or 'bytes'"),
        ({"value": "avro"}, "avro_schema belongs to value='avro'"),
        ({"avro_schema": "long"}, "avro_schema belongs to value='avro'"),
        ({"delete_field": "gone"}, "delete_field needs key"),
    ]:
        with pytest.raises(ValueError, match=message):
            KafkaSink(settings, "t", **given)
    epoch = SinkEpoch(SinkLineage("a", "b"), 1, "r")
    for given, message in [
        ({"key": "id"}, "no field 'id', only account, n"),
        ({"value": "bytes"}, "no field 'value'"),
        ({"timestamp": "account"}, "timestamp 'account' is string"),
        ({"key": "n", "delete_field": "n"}, "delete_field 'n' must be a boolean"),
    ]:
        with pytest.raises(SinkError, match=message):
            staged(KafkaSink(settings, "t", **given), epoch, [[("a", 1)]])


def test_secrets_are_never_shown() -> None:
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1", "sasl.password": "s3cret"}, "t", timeout_s=0.1)
    epoch = SinkEpoch(SinkLineage("a", "b"), 1, "r")
    [committable] = staged(sink, epoch, [[("a", 1)]])
    with pytest.raises(SinkError) as raised:
        sink.recover(epoch.lineage, None)
    for text in (sink.identity, repr(sink), pickle.dumps(sink), committable, raised.value):
        assert "s3cret" not in str(text)


def test_a_password_of_one_letter_leaves_errors_readable() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "e"}
    with pytest.raises(SinkError, match="Start the broker") as raised:
        KafkaSink(settings, "t", timeout_s=0.1).recover(SinkLineage("a", "b"), None)
    assert "***" not in str(raised.value)


class Running(KeyedProcessFunction[str, Any, Any]):
    """Emits the record count of a key. The 30th record fails if the function is poisonous."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if value.n < 0:
            raise ValueError("poison")
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.account, count


def test_a_job_that_fails_writes_each_result_once(target: Target, tmp_path: Path) -> None:
    sink = target.sink(key="account")

    def run(number: int) -> None:
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=10, parallelism=2)
        elements = [(f"a{place % 3}", number if place == 45 else place) for place in range(60)]
        stream = environment.from_elements(elements, "account string, n bigint", uid="payments").key_by("account")
        counted = stream.process(Running(), uid="running", schema="account string, n bigint")
        counted.sink_to(sink, uid="alerts")
        environment.execute("job")

    with pytest.raises(UserFunctionError, match="poison"):
        run(-1)
    assert sink._producer is None, "the end of a run closes the producer"
    assert len(target.server.records(target.topic)) == 40
    run(1)

    # The source starts again from its first element, after the 40 committed records.
    found = [(one.key(), json.loads(one.value())["n"]) for one in target.server.records(target.topic)]
    assert (len(found), len(set(found))) == (100, 100)
