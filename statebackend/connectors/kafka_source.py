"""A source of Kafka topics for both runtimes. Each partition is a split; positions are offsets.

Offsets are state of the job, so the source joins no consumer group and commits no offset. In the local runtime, one
consumer reads all partitions. It adds records to a queue per partition, and pauses partitions with long queues. On
Spark, the driver asks for the ends of the partitions, and each task reads one partition up to a planned offset.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, NamedTuple

from attrs import Factory, define

from snapshots.errors import format_value
from statebackend.connectors.kafka_clients import fix_of, kafka_module, kafka_name, partition_ids, without_secrets
from statebackend.streaming.errors import JobDefinitionError, StreamJobError, describe_exception
from statebackend.streaming.stream_graph import SplitRead

__all__ = ["KAFKA_RECORD", "KafkaRecord", "KafkaSource", "Start"]

KAFKA_RECORD: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The schema of records without a ``decode`` function, as of Spark's Kafka source with headers."""

Start = Literal["earliest", "latest"] | datetime | Mapping[str, int]
"""The start or end of the topic, the first record at or after a time, or an offset for each ``<topic>-<number>``."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

_MOST_QUEUED: Final = 20_000
"""The number of records in the queue of a partition at which it is paused."""

_POLLED: Final = 2_000
"""The maximum number of records of one call of the consumer."""

_WAIT_S: Final = 0.1
"""How long a task waits for records before it checks the broker."""

_MOST_REPORTED: Final = 100
"""The number of stored errors of connections."""

_AFTER_DELETION: Final = (
    ". If it was deleted, its records that were not read are lost; create it again only with another uid of the "
    "source, because old positions are wrong"
)
"""The advice of an error of a missing topic."""

_WITH_ANOTHER_UID: Final = (
    "start with another uid and allow_non_restored_state=True, on Spark with allow_dropped_sources=[<old uid>]"
)
"""How to start without the positions in the checkpoint."""

_IDENTITY_S: Final = 5.0
"""How long a run waits for the ids of the topics, in seconds."""


class KafkaRecord(NamedTuple):
    """A record of a topic. ``timestamp_ms`` is its creation time or append time, as configured for the topic."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    headers: list[tuple[str, bytes | None]] | None

    @property
    def timestamp(self) -> datetime | None:
        """The timestamp in UTC. Raises `ValueError` if it is not in the years 1 to 9999."""
        return _utc(self.timestamp_ms)


@define
class _Partition:
    """A partition that is read. ``position`` is the offset of the first queued record, or else the next one to read."""

    topic: str
    number: int
    position: int
    queue: deque[Any] = Factory(deque)
    end: int | None = None
    """The offset at which the consumer last found no more records."""
    is_paused: bool = False


class KafkaSource:
    """Reads Kafka topics, without jars: ``environment.from_source(KafkaSource(...), KAFKA_RECORD, uid=...)``.

    Args:
        settings: Settings of librdkafka, with ``bootstrap.servers``.
        topics: A topic, or several.
        start: The start of the first run of a job. Later runs continue at the offsets in the checkpoint, and read new
            partitions from their first record.
        until: ``"latest"`` ends the source at the latest offsets at the start of the run. None: the source never ends.
            On Spark, the trigger decides when the job ends.
        decode: Converts a `KafkaRecord` to a record of the schema of the source. Without it, the schema is
            `KAFKA_RECORD`.
        timeout_s: The maximum time without a broker, or for its answer, in seconds.

    Example:
        >>> source = KafkaSource({"bootstrap.servers": "broker:9092"}, "payments", start="latest")  # doctest: +SKIP
        >>> payments = environment.from_source(source, KAFKA_RECORD, uid="payments")  # doctest: +SKIP
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: str | Sequence[str],
        *,
        start: Start = "earliest",
        until: Literal["latest"] | None = None,
        decode: Callable[[KafkaRecord], Any] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._kafka = kafka_module("KafkaSource")
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._topics or not all(isinstance(one, str) and one for one in self._topics):
            raise JobDefinitionError(f"KafkaSource: topics is {format_value(topics, 100)}; pass the names of topics")
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise JobDefinitionError(
                f"KafkaSource: start is {start!r}; pass 'earliest', 'latest', a datetime with time zone, or offsets, "
                f"such as {{'payments-0': 17}}"
            )
        if isinstance(start, datetime) and start.tzinfo is None:
            raise JobDefinitionError("KafkaSource: start needs a time zone, such as datetime(..., tzinfo=timezone.utc)")
        if isinstance(start, Mapping) and not all(type(one) is int and one >= 0 for one in start.values()):
            raise JobDefinitionError(
                f"KafkaSource: start is {format_value(start, 100)}; offsets are integers of 0 or more, since -1 and -2 "
                f"would be other records after a restart"
            )
        if until not in (None, "latest"):
            raise JobDefinitionError(f"KafkaSource: until is {until!r}; pass 'latest' or None")
        self._name = f"KafkaSource({kafka_name(settings)!r}, {', '.join(map(repr, self._topics))})"
        self._settings = {
            "group.id": "statebackend",
            **settings,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # An offset that the broker has deleted is an error, because records would be lost.
            "auto.offset.reset": "error",
            "error_cb": self._on_error,
        }
        self._start, self._until, self._decode, self._timeout_s = start, until, decode, timeout_s
        self._consumer: Any = None
        self._admin: Any = None
        self._partitions: dict[str, _Partition] = {}
        self._ends: dict[str, int] = {}
        self._problem: Any = None
        self._reported: deque[Any] = deque(maxlen=_MOST_REPORTED)
        self._down_since_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what a run has opened. Spark's tasks open a consumer of their own."""
        closed: dict[str, Any] = {
            "_consumer": None,
            "_admin": None,
            "_partitions": {},
            "_ends": {},
            "_problem": None,
            "_reported": deque(maxlen=_MOST_REPORTED),
            "_down_since_s": None,
        }
        return {**vars(self), **closed}

    def __repr__(self) -> str:
        return self._name

    def splits(self) -> Mapping[str, int]:
        """Return the existing partitions, ``<topic>-<number>``, with their start offsets."""
        self.close()
        self._consumer = self._opened()
        found = self._places()
        ends = {name: self._offsets(one) for name, one in found.items()}
        if self._until is not None:
            self._ends = {name: high for name, (_, high) in ends.items()}
        return self._starts(found, ends)

    def position_of_new_split(self, split: str) -> int:
        """Return the first offset of a partition that is new for a restored job."""
        self._consumer = self._consumer or self._opened()
        topic, number = _parts(split)
        return self._offsets(self._kafka.TopicPartition(topic, number))[0]

    def split_identities(self) -> Mapping[str, str]:
        """Return the id of the topic of each partition. A topic without an answer of the broker has none."""
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            # Without this level, it warns of each setting of a consumer.
            settings = {name: value for name, value in self._settings.items() if name != "error_cb"}
            self._admin = AdminClient({**settings, "log_level": 3})
        found: dict[str, str] = {}
        topics = self._kafka.TopicCollection(self._topics)
        for topic, answer in self._admin.describe_topics(topics, request_timeout=_IDENTITY_S).items():
            try:
                description = answer.result()
            except self._kafka.KafkaException:
                # The consumer reports the error.
                continue
            topic_id = description.topic_id
            if topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits():
                found.update({f"{topic}-{one.id}": str(topic_id) for one in description.partitions})
        return found

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        """Return records from an offset on, up to a number. Does not wait for new records."""
        partition = self._partition(split, position)
        if not partition.queue:
            self._poll()
        queue, ends_at = partition.queue, self._ends.get(split)
        records: list[Any] = []
        while queue and len(records) < max_records and (ends_at is None or queue[0].offset() < ends_at):
            message = queue.popleft()
            records.append(self._record(message, split))
            partition.position = position = message.offset() + 1
        if not queue and partition.end is not None and partition.end > position:
            # Offsets of transaction markers have no records, so skip them.
            partition.position = position = partition.end
        if partition.is_paused and len(queue) < _MOST_QUEUED // 2:
            self._consumer.resume([self._kafka.TopicPartition(partition.topic, partition.number)])
            partition.is_paused = False
        is_at_end = ends_at is not None and (position >= ends_at or bool(queue and queue[0].offset() >= ends_at))
        return SplitRead(records, position, is_at_end)

    def end_positions(self) -> Mapping[str, int]:
        """Return the offset after the last committed record of each partition. Raises `StreamJobError`."""
        self._consumer = self._consumer or self._opened()
        ends = self._ends or {name: self._offsets(one)[1] for name, one in self._places().items()}
        if self._until is not None:
            self._ends = ends
        return ends

    def read_range(self, split: str, start: int, end: int) -> Iterator[list[Any]]:
        """Yield the records of a partition from an offset up to another one. Raises `StreamJobError`."""
        self.close()
        self._consumer, self._ends = self._opened(), {split: end}
        position, is_at_end, heard_s = start, False, time.monotonic()
        try:
            while not is_at_end:
                got = self.read(split, position, _POLLED)
                if got.position > position:
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > self._timeout_s:
                    raise StreamJobError(
                        f"{self._name}: {split!r} has no records after offset {position}, although it ends at {end}. "
                        f"Look at the log of the broker that leads the partition, or raise timeout_s"
                    )
                else:
                    self._poll(_WAIT_S)
                position, is_at_end = got.position, got.is_at_end
                if got.records:
                    yield list(got.records)
        finally:
            self.close()

    def close(self) -> None:
        """Close the consumer. The next run opens a new one."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._admin, self._partitions, self._ends = None, None, {}, {}
        self._problem = self._down_since_s = None

    def _places(self) -> dict[str, Any]:
        return {
            f"{topic}-{number}": self._kafka.TopicPartition(topic, number)
            for topic in self._topics
            for number in self._numbers(topic)
        }

    def _numbers(self, topic: str) -> list[int]:
        self._reported.clear()
        where, settings = self._name, self._settings
        return partition_ids(self._consumer, topic, where, self._timeout_s, settings, self._reported, _AFTER_DELETION)

    def _opened(self) -> Any:
        try:
            return self._kafka.Consumer(self._settings)
        except self._kafka.KafkaException as error:
            raise JobDefinitionError(self._described(error.args[0], "cannot be opened")) from None

    def _partition(self, split: str, position: int) -> _Partition:
        known = self._partitions.get(split)
        if known is not None and known.position == position:
            return known
        topic, number = _parts(split)
        place = self._kafka.TopicPartition(topic, number, position)
        try:
            if known is not None:
                self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])
        except self._kafka.KafkaException as error:
            raise StreamJobError(self._described(error.args[0], f"cannot read {split!r}")) from None
        self._partitions[split] = partition = _Partition(topic, number, position)
        return partition

    def _poll(self, wait_s: float = 0) -> None:
        """Move received records to the queues of their partitions."""
        self._check_broker()
        messages = self._consumer.consume(1, wait_s) if wait_s else []
        for message in [*messages, *self._consumer.consume(_POLLED, 0)]:
            split = f"{message.topic()}-{message.partition()}"
            partition, problem = self._partitions.get(split), message.error()
            if problem is not None and problem.name() == "_PARTITION_EOF":
                if partition is not None:
                    partition.end = message.offset()
            elif problem is not None:
                raise self._failed(split, partition, problem)
            # Skip records that were requested before the position changed.
            elif partition is not None and message.offset() >= partition.position:
                partition.queue.append(message)
                partition.end = None
            self._down_since_s = None
        for partition in self._partitions.values():
            if len(partition.queue) >= _MOST_QUEUED and not partition.is_paused:
                self._consumer.pause([self._kafka.TopicPartition(partition.topic, partition.number)])
                partition.is_paused = True

    def _record(self, message: Any, split: str) -> Any:
        kind, time_ms = message.timestamp()
        if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE:
            time_ms = None
        what = ""
        try:
            if self._decode is None:
                return _columns(message, time_ms)
            record = KafkaRecord(
                message.key(),
                message.value(),
                message.topic(),
                message.partition(),
                message.offset(),
                time_ms,
                # The name of a header may not be UTF-8.
                message.headers(),
            )
            what = "decode raised "
            return self._decode(record)
        except Exception as error:
            raise StreamJobError(
                f"{self._name}, {split} at offset {message.offset()}: {what}{describe_exception(error)}"
            ) from error

    def _offsets(self, place: Any) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset after its last record."""
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
        except self._kafka.KafkaException as error:
            raise StreamJobError(self._described(error.args[0], f"{place.topic}-{place.partition}")) from None
        return low, high

    def _starts(self, found: Mapping[str, Any], ends: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        start = self._start
        if isinstance(start, datetime):
            time_ms = round(start.timestamp() * 1000)
            asked = [self._kafka.TopicPartition(one.topic, one.partition, time_ms) for one in found.values()]
            try:
                answered = self._consumer.offsets_for_times(asked, timeout=self._timeout_s)
            except self._kafka.KafkaException as error:
                raise StreamJobError(self._described(error.args[0], "no offsets for a time")) from None
            for one in answered:
                if one.error is not None:
                    # Its offset is the time that was asked for, or -1.
                    where = f"no offset for a time in '{one.topic}-{one.partition}'"
                    raise StreamJobError(self._described(one.error, where))
            offsets = {f"{one.topic}-{one.partition}": one.offset for one in answered}
            # A negative offset means that no record is at or after the time.
            return {name: high if offsets[name] < 0 else offsets[name] for name, (_, high) in ends.items()}
        if isinstance(start, Mapping):
            unknown = sorted(start.keys() - found.keys())
            missing = sorted(found.keys() - start.keys())
            if unknown or missing:
                raise JobDefinitionError(
                    f"{self._name}: start has offsets for {', '.join(sorted(start)) or 'nothing'}, but the partitions "
                    f"are {', '.join(found)}. Pass an offset for each of them"
                )
            for name, (low, high) in ends.items():
                if not low <= start[name] <= high:
                    raise JobDefinitionError(
                        f"{self._name}: start has offset {start[name]} for {name!r}, which has offsets {low} to "
                        f"{high}. Pass one of them"
                    )
            return dict(start)
        return {name: high if start == "latest" else low for name, (low, high) in ends.items()}

    def _on_error(self, problem: Any) -> None:
        """Store an error. librdkafka calls it on the thread of the run."""
        self._reported.append(problem)
        if problem.fatal() or problem.name() in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"):
            self._problem = problem
        elif problem.name() == "_ALL_BROKERS_DOWN":
            self._down_since_s = self._down_since_s or time.monotonic()

    def _check_broker(self) -> None:
        if self._problem is not None:
            raise StreamJobError(self._described(self._problem, "cannot read"))
        if self._down_since_s is not None and time.monotonic() - self._down_since_s > self._timeout_s:
            self._down_since_s = None
            for topic in self._topics:
                self._numbers(topic)

    def _failed(self, split: str, partition: _Partition | None, problem: Any) -> StreamJobError:
        name = problem.name()
        if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
            return StreamJobError(
                f"{self._name}: {split!r} no longer exists: its topic was deleted. Its records that were not read are "
                f"lost. Remove the topic from the source, and {_WITH_ANOTHER_UID}"
            )
        if name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE") and partition is not None:
            low, high = self._offsets(self._kafka.TopicPartition(partition.topic, partition.number))
            return StreamJobError(
                f"{self._name}: {split!r} has no offset {partition.position}, only {low} to {high}: retention removed "
                f"records that were not read, or the topic was created again. To go on without them, "
                f"{_WITH_ANOTHER_UID}"
            )
        return StreamJobError(self._described(problem, f"cannot read {split!r}"))

    def _described(self, problem: Any, what: str) -> str:
        return f"{self._name} {what}: {without_secrets(self._settings, problem.str())}. {fix_of(problem)}"


def _columns(message: Any, time_ms: int | None) -> dict[str, Any]:
    """Return a record of `KAFKA_RECORD`."""
    headers = message.headers()
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": _utc(time_ms),
        "headers": None if headers is None else [{"key": name, "value": value} for name, value in headers],
    }


def _utc(time_ms: int | None) -> datetime | None:
    if time_ms is None:
        return None
    try:
        # Arguments without names: with names, it takes twice as long.
        return _EPOCH + timedelta(0, 0, 0, time_ms)
    except OverflowError:
        raise ValueError(
            f"timestamp {time_ms} ms is not in the years 1 to 9999. Pass decode, and use timestamp_ms"
        ) from None


def _parts(split: str) -> tuple[str, int]:
    topic, _, number = split.rpartition("-")
    return topic, int(number)
