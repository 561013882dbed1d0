"""`KafkaSource` against a real broker: its start, its continuation after a failure, and its errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from statebackend import JobDefinitionError, KeyedProcessFunction, ValueStateDescriptor, WatermarkStrategy
from statebackend.connectors.kafka_clients import fix_of, partition_ids, without_secrets
from statebackend.connectors.kafka_sink import KafkaSink
from statebackend.connectors.kafka_source import KAFKA_RECORD, KafkaRecord, KafkaSource
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.errors import JobRestoreError, StreamJobError, UserFunctionError
from statebackend.streaming.sink import SinkError, SinkLineage

if TYPE_CHECKING:
    from kafka_server import KafkaServer

RECORD = "k string, n bigint"
POISON = -1


class Count(KeyedProcessFunction[str, Any, Any]):
    """Emits the record with its key and the record count of the key so far."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if value.n == POISON:
            raise ValueError("poison")
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.k, count


def decoded(record: KafkaRecord) -> Any:
    return json.loads(record.value or b"")


def run(source: KafkaSource, job_dir: Path, sink: list[Any], **options: Any) -> Any:
    execute = {name: options.pop(name) for name in ("from_savepoint", "allow_non_restored_state") if name in options}
    environment = LocalStreamEnvironment(job_dir=job_dir, **options)
    stream = environment.from_source(source, RECORD, uid="kafka").key_by("k")
    stream.process(Count(), uid="count", schema="k string, count bigint").sink_to(sink, uid="out")
    return environment.execute("job", **execute)


def values(*numbers: int, key: str = "a") -> list[bytes]:
    return [json.dumps({"k": key, "n": one}).encode() for one in numbers]


def read_all(source: KafkaSource) -> dict[str, list[Any]]:
    """The records of a bounded source."""
    positions, found = dict(source.splits()), dict[str, list[Any]]()
    for split, position in positions.items():
        is_at_end = False
        while not is_at_end:
            got = source.read(split, position, 100)
            found.setdefault(split, []).extend(got.records)
            position, is_at_end = got.position, got.is_at_end
    source.close()
    return found


def numbers_of(found: Mapping[str, list[Any]]) -> dict[str, list[int]]:
    return {split: [int(one["value"]) for one in records] for split, records in found.items()}


# The current time, because the broker may remove old records.
NOW = datetime.now(timezone.utc).replace(microsecond=123_000)
NOW_MS = int(NOW.timestamp()) * 1000 + 123


def test_records_have_the_columns_of_spark(kafka_server: KafkaServer) -> None:
    topic = kafka_server.new_topic()
    headers = [("trace", b"\x01"), ("trace", None)]
    kafka_server.produce(topic, [b"v", None], key=b"k", headers=headers, timestamp=NOW_MS)
    [first, second] = read_all(KafkaSource(kafka_server.settings, topic, until="latest"))[f"{topic}-0"]

    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": NOW,
        "headers": [{"key": "trace", "value": b"\x01"}, {"key": "trace", "value": None}],
    }
    assert (second["value"], second["offset"]) == (None, 1)


def test_a_job_takes_the_records_as_rows_with_timestamps(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topic, out = kafka_server.new_topic(2), []
    kafka_server.produce(topic, [b"v"], partition=1, timestamp=NOW_MS)
    environment = LocalStreamEnvironment(job_dir=tmp_path)
    source = KafkaSource(kafka_server.settings, topic, until="latest")
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("timestamp")
    stream = environment.from_source(source, KAFKA_RECORD, uid="kafka")
    timed = stream.assign_timestamps_and_watermarks(strategy)

    class Times(KeyedProcessFunction[str, Any, Any]):
        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            yield value.topic, context.timestamp

    timed.key_by("topic").process(Times(), uid="times", schema="topic string, at bigint").sink_to(out)
    environment.execute()

    assert out == [(topic, NOW_MS)]


@pytest.mark.parametrize("how", [{"epoch_size": 500}, {"checkpoint_interval": 1}], ids=["by records", "by the clock"])
def test_a_failed_job_continues_after_its_checkpoint(
    kafka_server: KafkaServer, tmp_path: Path, how: dict[str, Any]
) -> None:
    topic, out = kafka_server.new_topic(3), []
    for partition in range(3):
        kafka_server.produce(topic, values(*range(3000), key=f"k{partition}"), partition=partition)
    kafka_server.produce(topic, values(POISON, key="k1"), partition=1)

    def source(decode: Callable[[KafkaRecord], Any] = decoded) -> KafkaSource:
        return KafkaSource(kafka_server.settings, topic, until="latest", decode=decode)

    with pytest.raises(UserFunctionError, match="poison"):
        run(source(), tmp_path, out, **how)
    run(source(lambda record: {**decoded(record), "n": 0}), tmp_path, out, **how)

    assert Counter(key for key, _ in out) == {"k0": 3000, "k1": 3001, "k2": 3000}
    assert len(set(out)) == 9001, "each count was emitted once: state and offsets belong together"


def test_a_job_continues_from_a_savepoint(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topic, out = kafka_server.new_topic(2), []
    source = KafkaSource(kafka_server.settings, topic, until="latest", decode=decoded)
    kafka_server.produce(topic, values(1, 2))
    run(source, tmp_path / "first", out).savepoint(tmp_path / "savepoint")
    kafka_server.produce(topic, values(3))
    kafka_server.produce(topic, values(4, key="b"), partition=1)
    run(source, tmp_path / "second", out, from_savepoint=str(tmp_path / "savepoint"))

    assert sorted(out) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_a_new_partition_is_read_from_its_first_record(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topic, out = kafka_server.new_topic(), []
    kafka_server.produce(topic, values(1))
    source = KafkaSource(kafka_server.settings, topic, start="latest", until="latest", decode=decoded)
    run(source, tmp_path, out)
    kafka_server.add_partitions(topic, 2)
    kafka_server.produce(topic, values(2, key="new"), partition=1)
    kafka_server.produce(topic, values(3, key="old"))
    run(source, tmp_path, out)

    assert sorted(out) == [("new", 1), ("old", 1)]


def test_it_starts_at_the_chosen_offsets(kafka_server: KafkaServer) -> None:
    topic = kafka_server.new_topic(2)
    now_s = int(datetime.now(timezone.utc).timestamp())
    for partition in range(2):
        for number in range(5):
            kafka_server.produce(topic, [b"%d" % number], partition=partition, timestamp=(now_s + number) * 1000)

    def read_from(start: Any) -> Any:
        return numbers_of(read_all(KafkaSource(kafka_server.settings, topic, start=start, until="latest")))

    every = [0, 1, 2, 3, 4]
    assert read_from("earliest") == {f"{topic}-0": every, f"{topic}-1": every}
    assert read_from("latest") == {f"{topic}-0": [], f"{topic}-1": []}
    assert read_from({f"{topic}-0": 1, f"{topic}-1": 4}) == {f"{topic}-0": every[1:], f"{topic}-1": [4]}
    third = datetime.fromtimestamp(now_s + 2, timezone.utc)
    assert read_from(third) == {f"{topic}-0": every[2:], f"{topic}-1": every[2:]}
    assert read_from(datetime(2100, 1, 1, tzinfo=timezone.utc)) == {f"{topic}-0": [], f"{topic}-1": []}
    assert read_from({f"{topic}-0": 5, f"{topic}-1": 0}) == {f"{topic}-0": [], f"{topic}-1": every}
    with pytest.raises(JobDefinitionError, match=f"start has offset 6 for '{topic}-0', which has offsets 0 to 5"):
        read_from({f"{topic}-0": 6, f"{topic}-1": 0})


def test_several_topics_are_one_source(kafka_server: KafkaServer) -> None:
    topics = [kafka_server.new_topic(name=name) for name in ("with-dash-1", "plain")]
    for number, topic in enumerate(topics):
        kafka_server.produce(topic, [b"%d" % number])

    found = numbers_of(read_all(KafkaSource(kafka_server.settings, topics, until="latest")))
    assert found == {"with-dash-1-0": [0], "plain-0": [1]}


def test_aborted_and_open_transactions_are_not_read(kafka_server: KafkaServer) -> None:
    from confluent_kafka import Producer

    topic = kafka_server.new_topic()
    producer = Producer({**kafka_server.settings, "transactional.id": topic})
    producer.init_transactions(60)
    for value in (b"1", b"2", b"3"):
        producer.begin_transaction()
        producer.produce(topic, value=value, partition=0)
        producer.flush(60)
        (producer.abort_transaction if value == b"2" else producer.commit_transaction)(60)
    producer.begin_transaction()
    producer.produce(topic, value=b"4", partition=0)
    producer.flush(60)
    # The last offset is that of a transaction marker, and the record before it was aborted.
    producer.abort_transaction(60)

    assert numbers_of(read_all(KafkaSource(kafka_server.settings, topic, until="latest"))) == {f"{topic}-0": [1, 3]}


def test_a_position_can_be_read_again(kafka_server: KafkaServer) -> None:
    topic = kafka_server.new_topic()
    kafka_server.produce(topic, [b"%d" % number for number in range(50)])
    source = KafkaSource(kafka_server.settings, topic, until="latest")
    [split] = source.splits()

    def read(position: int, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            got = source.read(split, position, count - len(found))
            found += [int(one["value"]) for one in got.records]
            position = got.position
        return found

    assert read(0, 10) == list(range(10))
    assert read(10, 5) == list(range(10, 15))
    assert read(3, 5) == list(range(3, 8))
    assert read(40, 10) == list(range(40, 50))
    source.close()


def test_long_queues_pause_their_partition_and_lose_nothing(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statebackend.connectors.kafka_source._MOST_QUEUED", 10)
    monkeypatch.setattr("statebackend.connectors.kafka_source._POLLED", 7)
    topic = kafka_server.new_topic(3)
    for partition in range(3):
        kafka_server.produce(topic, [b"%d" % number for number in range(200)], partition=partition)
    source = KafkaSource(kafka_server.settings, topic, until="latest")
    positions, found = dict(source.splits()), {f"{topic}-{number}": list[int]() for number in range(3)}
    while positions:
        for split in list(positions):
            got = source.read(split, positions[split], 3)
            found[split] += [int(one["value"]) for one in got.records]
            positions[split] = got.position
            if got.is_at_end:
                del positions[split]
    source.close()

    assert found == {split: list(range(200)) for split in found}


def test_a_topic_that_does_not_exist_is_an_error(kafka_server: KafkaServer) -> None:
    with pytest.raises(StreamJobError, match=r"KafkaSource\('127.*, 'nothing'\): topic 'nothing' does not exist"):
        KafkaSource(kafka_server.settings, "nothing").splits()


def test_a_topic_that_was_deleted_is_an_error(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topic, other, out = kafka_server.new_topic(), kafka_server.new_topic(), []
    kafka_server.produce(topic, values(1))
    kafka_server.produce(other, values(2))
    run(KafkaSource(kafka_server.settings, [topic, other], until="latest", decode=decoded), tmp_path, out)
    kafka_server.delete_topic(topic)
    with pytest.raises(StreamJobError, match=r"does not exist.*If it was deleted, its records that were not read are"):
        run(KafkaSource(kafka_server.settings, [topic, other], until="latest", decode=decoded), tmp_path, out)
    with pytest.raises(JobRestoreError, match=f"split '{topic}-0', which was read up to position 1, no longer exists"):
        run(KafkaSource(kafka_server.settings, other, until="latest", decode=decoded), tmp_path, out)


def test_a_missing_offset_is_an_error(kafka_server: KafkaServer) -> None:
    """The topic was deleted and created again, and now has fewer records than were read."""
    topic = kafka_server.new_topic()
    kafka_server.produce(topic, [b"0"])
    source = KafkaSource(kafka_server.settings, topic)
    source.splits()

    def read_on() -> None:
        while True:
            source.read(f"{topic}-0", 17, 10)

    with pytest.raises(
        StreamJobError, match=f"'{topic}-0' has no offset 17, only 0 to 1: retention .* on Spark with allow_dr"
    ):
        read_on()
    source.close()


def test_a_broker_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, "t", timeout_s=0.2)
    with pytest.raises(StreamJobError, match=r"no metadata of topic 't': .*Start the broker, or correct bootstrap"):
        source.splits()

    # Between two records, librdkafka reports the error by its callback.
    def read_on() -> None:
        while True:
            source.read("t-0", 0, 1)

    with pytest.raises(StreamJobError, match=r"no metadata of topic 't'"):
        read_on()
    source.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "SSL"}, r"connecting to a PLAINTEXT broker listener\?.*Correct security\.protocol"),
        (
            {"bootstrap.servers": "a.invalid:9092"},
            r"Failed to resolve 'a.invalid:9092'.*Correct the host names in boot",
        ),
    ],
)
def test_a_wrong_connection_is_an_error_with_its_cause(
    kafka_server: KafkaServer, settings: dict[str, str], message: str
) -> None:
    given = {**kafka_server.settings, **settings}
    with pytest.raises(StreamJobError, match=message):
        KafkaSource(given, "t", timeout_s=1).splits()
    with pytest.raises(SinkError, match=message):
        KafkaSink(given, "t", timeout_s=1).recover(SinkLineage("alerts", "job"), None)


def test_the_cause_of_a_connection_error_is_what_names_it_best() -> None:
    from confluent_kafka import KafkaError, KafkaException

    reported = [
        KafkaError(KafkaError._TRANSPORT, "Connection refused"),
        KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error of s3cret"),
        KafkaError(KafkaError._TRANSPORT, "SSL handshake failed: connecting to a PLAINTEXT broker listener?"),
        KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"),
    ]
    client = SimpleNamespace(
        list_topics=mock.Mock(side_effect=KafkaException(KafkaError(KafkaError._TRANSPORT))), poll=lambda _: None
    )

    def text(*given: KafkaError) -> str:
        with pytest.raises(StreamJobError) as raised:
            partition_ids(client, "t", "KafkaSource", 1.0, {"sasl.password": "s3cret"}, given)
        return str(raised.value)

    assert text(*reported).endswith(
        ": SASL authentication error of ***. Correct the user, the password or sasl.mechanism"
    )
    assert "PLAINTEXT broker listener?. Correct security.protocol or the ssl settings" in text(
        reported[0], reported[2], reported[3]
    )
    assert "Broker transport failure. Start the broker" in text(reported[3])


def test_a_decoder_that_fails_names_the_record(kafka_server: KafkaServer) -> None:
    topic = kafka_server.new_topic()
    kafka_server.produce(topic, [*values(1), b"{"])
    with pytest.raises(StreamJobError, match=f"{topic}-0 at offset 1: decode raised JSONDecodeError"):
        read_all(KafkaSource(kafka_server.settings, topic, until="latest", decode=decoded))


def test_timestamps_outside_of_the_years_of_python_are_read_as_numbers(kafka_server: KafkaServer) -> None:
    topic, year_10000 = kafka_server.new_topic(), 253_402_300_800_000
    kafka_server.produce(topic, [b"1"], timestamp=year_10000)
    with pytest.raises(
        StreamJobError, match=rf"{topic}-0 at offset 0: ValueError: timestamp {year_10000} ms is not in"
    ):
        read_all(KafkaSource(kafka_server.settings, topic, until="latest"))

    def time_of(record: KafkaRecord) -> int | None:
        return record.timestamp_ms

    found = read_all(KafkaSource(kafka_server.settings, topic, until="latest", decode=time_of))
    assert found == {f"{topic}-0": [year_10000]}


@pytest.mark.parametrize("time_ms", [-62_135_596_800_000, -1, 0, 1, 253_402_300_799_999])
def test_the_timestamp_of_a_record_has_every_millisecond(time_ms: int) -> None:
    at = KafkaRecord(None, None, "t", 0, 0, time_ms, None).timestamp
    assert at is not None
    assert (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1) == time_ms


def test_invalid_settings_are_rejected(kafka_server: KafkaServer) -> None:
    topic = kafka_server.new_topic(2)
    settings = kafka_server.settings
    for kwargs, message in [
        ({"start": "first"}, "start is 'first'; pass 'earliest'"),
        ({"start": datetime(2020, 1, 1)}, "start needs a time zone"),
        ({"until": "now"}, "until is 'now'"),
    ]:
        with pytest.raises(JobDefinitionError, match=message):
            KafkaSource(settings, topic, **kwargs)
    with pytest.raises(JobDefinitionError, match="topics is "):
        KafkaSource(settings, [])
    with pytest.raises(ValueError, match=r"need bootstrap\.servers"):
        KafkaSource({}, topic)
    with pytest.raises(
        JobDefinitionError, match=rf"start has offsets for {topic}-0, but the partitions are {topic}-0, "
    ):
        KafkaSource(settings, topic, start={f"{topic}-0": 0}).splits()
    with pytest.raises(JobDefinitionError, match=r"No such configuration property.*Correct the settings of librdkafka"):
        KafkaSource({**settings, "no.such": "x"}, topic).splits()


@pytest.mark.parametrize("offset", [-1, -2, 1.0, True, "latest"])
def test_a_start_that_is_not_an_offset_is_rejected(offset: Any) -> None:
    with pytest.raises(JobDefinitionError, match="offsets are integers of 0 or more"):
        KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, "t", start={"t-0": offset})


def test_secrets_are_not_in_errors() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "s3cret", "ssl.key.password": "an0ther"}
    assert without_secrets(settings, "wrong s3cret for an0ther") == "wrong *** for ***"
    source = KafkaSource(settings, "t", timeout_s=0.1)
    assert "s3cret" not in repr(source)
    with pytest.raises(StreamJobError) as raised:
        source.splits()
    assert not any(one in str(raised.value) for one in ("s3cret", "an0ther"))


def test_a_partition_without_an_offset_for_a_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the leader of a partition did not answer, librdkafka returns the requested time as the offset."""
    from confluent_kafka import KafkaError

    class Consumer:
        def list_topics(self, topic: str, timeout: float) -> Any:
            partitions = {0: None, 1: None}
            return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=partitions)})

        def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
            return 0, 7

        def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
            problem = KafkaError(KafkaError._TIMED_OUT)
            return [SimpleNamespace(topic="t", partition=0, offset=5, error=None)] + [
                SimpleNamespace(topic=one.topic, partition=one.partition, offset=one.offset, error=problem)
                for one in asked[1:]
            ]

    source = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, "t", start=NOW)
    monkeypatch.setattr(source, "_opened", Consumer)
    with pytest.raises(StreamJobError, match=r"no offset for a time in 't-1': .*Start the broker"):
        source.splits()


class ScriptedConsumer:
    """A consumer of the partition ``t-0``: `messages` are offsets, or an offset and the name of an error."""

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)
        self.calls: list[str] = []

    def incremental_assign(self, places: list[Any]) -> None:
        self.calls.append("assign")

    def pause(self, places: list[Any]) -> None:
        self.calls.append("pause")

    def resume(self, places: list[Any]) -> None:
        self.calls.append("resume")

    def consume(self, most: int, wait_s: float) -> list[Any]:
        messages, self.messages = self.messages, []
        return [self.message(*(one if isinstance(one, tuple) else (one, None))) for one in messages]

    def message(self, offset: int, problem: str | None) -> Any:
        content = {"topic": "t", "partition": 0, "offset": offset, "timestamp": (0, 0), "key": None, "value": b"v"}
        error = None if problem is None else SimpleNamespace(name=lambda: problem)
        values = {**content, "headers": None, "error": error}
        return SimpleNamespace(**{name: partial(lambda value: value, one) for name, one in values.items()})


def scripted_source(monkeypatch: pytest.MonkeyPatch, *messages: Any) -> tuple[KafkaSource, ScriptedConsumer]:
    source = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, "t", decode=lambda record: record.offset)
    consumer = ScriptedConsumer(*messages)
    monkeypatch.setattr(source, "_consumer", consumer)
    return source, consumer


def test_offsets_without_records_at_the_end_of_a_partition_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = scripted_source(monkeypatch, (1, "_PARTITION_EOF"))
    assert source.read("t-0", 0, 10).position == 1


def test_records_before_the_position_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = scripted_source(monkeypatch, 3, 4, 5, 6)
    assert source.read("t-0", 5, 10).records == [5, 6]


def test_a_partition_continues_when_half_of_its_queue_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebackend.connectors.kafka_source._MOST_QUEUED", 4)
    source, consumer = scripted_source(monkeypatch, 0, 1, 2, 3)
    source.read("t-0", 0, 2)
    assert consumer.calls == ["assign", "pause"]
    source.read("t-0", 2, 1)
    assert consumer.calls == ["assign", "pause", "resume"]


def test_a_record_shows_that_a_broker_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = scripted_source(monkeypatch, 0)
    source._on_error(SimpleNamespace(name=lambda: "_ALL_BROKERS_DOWN", fatal=lambda: False))
    assert source._down_since_s is not None
    source.read("t-0", 0, 1)
    assert source._down_since_s is None


def test_topic_ids_identify_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError, KafkaException, Uuid

    def answered(topic_id: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(topic_id=topic_id, partitions=[SimpleNamespace(id=0), SimpleNamespace(id=1)]))
        return future

    deleted: Future[Any] = Future()
    deleted.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    answers = {"t": answered(Uuid(1, 2)), "old": answered(Uuid(0, 0)), "deleted": deleted}

    class Admin:
        def __init__(self, settings: Mapping[str, Any]) -> None:
            assert "error_cb" not in settings

        def describe_topics(self, topics: Any, request_timeout: float) -> Mapping[str, Future[Any]]:
            return answers

    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Admin)
    source = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, list(answers))
    name = str(Uuid(1, 2))
    assert source.split_identities() == {"t-0": name, "t-1": name}, "version 2 of the metadata has ids of zeros"


def test_a_topic_that_was_created_again_is_an_error(kafka_with_topic_ids: KafkaServer, tmp_path: Path) -> None:
    server, out = kafka_with_topic_ids, []
    topic = server.new_topic()
    source = KafkaSource(server.settings, topic, until="latest", decode=decoded)
    server.produce_each(topic, values(1, 2))
    run(source, tmp_path / "job", out).savepoint(tmp_path / "savepoint")
    server.produce_each(topic, values(3))
    run(source, tmp_path / "job", out)
    server.delete_topic(topic)
    server.new_topic(name=topic)
    # The new topic has more records than were read.
    server.produce_each(topic, values(*range(9), key="b"))
    error = f"split '{topic}-0', which was read up to position %d, was deleted and created again"
    with pytest.raises(StreamJobError, match=error % 3):
        run(source, tmp_path / "job", out)
    with pytest.raises(StreamJobError, match=error % 2):
        run(source, tmp_path / "second", out, from_savepoint=str(tmp_path / "savepoint"))

    assert out == [("a", 1), ("a", 2), ("a", 3)]


def test_a_record_that_cannot_be_read_is_named() -> None:
    class Message:
        def __getattr__(self, name: str) -> Any:
            return lambda: (1, 2) if name == "timestamp" else b"\xff".decode() if name == "headers" else 3

    source = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, "t")
    with pytest.raises(StreamJobError, match="t-0 at offset 3: UnicodeDecodeError"):
        source._record(Message(), "t-0")


@pytest.mark.parametrize("name", ["_AUTHENTICATION", "TOPIC_AUTHORIZATION_FAILED", "_ALL_BROKERS_DOWN", "_FENCED"])
def test_errors_that_the_test_broker_cannot_report_have_a_fix(name: str) -> None:
    from confluent_kafka import KafkaError

    problem = KafkaError(getattr(KafkaError, name))
    assert problem.name() == name
    assert fix_of(problem)
