"""A sink that writes each epoch to a Kafka topic in one transaction, together with a marker of the epoch.

The tasks encode their rows and stage them (`statebackend.connectors.staged_content`), so the rows of a completed epoch
are durable before they are written to Kafka. `KafkaSink.commit` runs on the driver:

1. The first commit of a run calls ``init_transactions``, with a ``transactional.id`` of the lineage. This ends an open
   transaction of an earlier driver, and fences that driver.
2. It reads the newest committed marker of the lineage. Because of the fencing no other driver can write a later marker.
   If the epoch is not newer than the marker, Kafka has its rows already.
3. One transaction writes the rows and then the marker.

After an error it is unknown whether the transaction is committed. So the producer is closed, and the next commit starts
with step 1 and finds out.

    marker      key <job id>/<sink uid>, value {"epoch": 7, "run": "..."}

Markers are in partition 0 of the topic of epochs, which is compacted.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii as encode_basestring
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from statebackend.connectors.kafka_clients import (
    MISSING_TOPIC,
    fix_of,
    kafka_module,
    kafka_name,
    partition_ids,
    without_secrets,
)
from statebackend.connectors.sink_errors import check_names
from statebackend.connectors.staged_content import StagingArea, json_text
from statebackend.streaming.errors import StreamJobError, describe_exception
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

__all__ = ["KafkaSink"]

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_STAGED: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("timestamp_ms", pa.int64()), ("headers", _HEADERS)]
)
_OVERHEAD_BYTES: Final = 512
"""An upper bound for the size of a record without its key, value and headers."""

_MESSAGE_MAX_BYTES: Final = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""

_BEST_EFFORT_S: Final = 5.0
"""How long a failed commit waits for the metadata of its topics, and to abort its transaction, in seconds."""

_FLUSH_S: Final = 0.1
"""How long a commit waits for records before it checks whether one of them has failed, in seconds."""

_TIMED_OUT: Final = -185
"""librdkafka's code of an operation that takes too long."""

_NOTHING_LOST: Final = "The rows are in the checkpoint: the next start of the job commits them"

ValueFormat = Literal["json", "avro", "bytes"]


@frozen
class _Marker:
    epoch_id: int
    run_id: str


class KafkaSink(Sink):
    """Writes rows to a Kafka topic, each epoch exactly once for readers of committed records.

    Args:
        settings: Settings of librdkafka for producers, with ``bootstrap.servers``. They stay on the driver.
        topic: The topic, which must exist.
        value: The encoding of values. ``"json"``: an object of the fields; ``"avro"``: a record of ``avro_schema``,
            without the header of a schema registry; ``"bytes"``: the field ``value``, a string or bytes.
        key: The field of the key. Strings and bytes are written unchanged, other values as JSON.
        headers: A field with the headers: a map, or a list of structs of ``key`` and ``value``. It is not in the value.
        timestamp: A field with the timestamp. Without it, a record has the time at which it is committed.
        delete_field: A boolean field that is not in the value. If it is true, the record has no value (a tombstone), so
            a compacted topic removes its key.
        avro_schema: The Avro schema, as the object that its JSON describes.
        epochs_topic: The topic of epochs, which the sink creates if it does not exist.
        staging: A directory or URI for rows that do not fit into the checkpoint (16 MiB per subtask and epoch).
        timeout_s: The maximum time for an answer of a broker, in seconds.

    Example:
        >>> alerts.sink_to(  # doctest: +SKIP
        ...     KafkaSink({"bootstrap.servers": "broker:9092"}, "alerts", key="account"), uid="alerts")
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        *,
        value: ValueFormat = "json",
        key: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        delete_field: str | None = None,
        avro_schema: Any = None,
        epochs_topic: str = "statebackend-epochs",
        staging: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        kafka_module("KafkaSink")
        if value not in ("json", "avro", "bytes"):
            raise ValueError(f"KafkaSink: value is {value!r}; pass 'json', 'avro' or 'bytes'")
        if (value == "avro") != (avro_schema is not None):
            raise ValueError("KafkaSink: avro_schema belongs to value='avro'; pass both or neither")
        if delete_field is not None and key is None:
            raise ValueError("KafkaSink: delete_field needs key: a record without key and value deletes nothing")
        self._identity = f"KafkaSink({kafka_name(settings)!r}, {topic!r})"
        self._settings: dict[str, Any] | None = dict(settings)
        self._topic, self._epochs_topic, self._timeout_s = topic, epochs_topic, timeout_s
        self._format, self._avro_schema = value, avro_schema
        self._key, self._headers, self._timestamp, self._delete_field = key, headers, timestamp, delete_field
        self._max_bytes = int(settings.get("message.max.bytes", _MESSAGE_MAX_BYTES))
        self._staging = StagingArea(self._identity, staging)
        self._producer: Any = None
        self._failed: list[Any] = []
        self._newest: _Marker | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without secrets, because the tasks do not connect."""
        return {**vars(self), "_settings": None, "_producer": None, "_failed": [], "_newest": None}

    def __repr__(self) -> str:
        return self._identity

    @property
    def identity(self) -> str:
        return self._identity

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        self._check_fields(rows.schema)
        encoder = _Encoder(self._format, self._avro_schema)
        content, count = pa.BufferOutputStream(), 0
        with pa.ipc.new_stream(content, _STAGED) as writer:
            for batch in rows:
                if batch.num_rows:
                    writer.write_batch(self._encoded(batch, encoder))
                    count += batch.num_rows
        if not count:
            return b""
        return self._staging.stage(epoch, subtask_index, {"rows": count}, content.getvalue().to_pybytes())

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        kafka = kafka_module("KafkaSink")
        try:
            producer = self._opened(epoch.lineage)
            if not self._is_committed(epoch):
                # Read before the transaction begins: missing or damaged content must not leave it open.
                staged = [one.content for one in self._staging.read(epoch, committables)]
                producer.begin_transaction()
                for content in staged:
                    self._write(producer, content)
                self._write_marker(producer, epoch)
                self._flush(producer)
                producer.commit_transaction(self._timeout_s)
                self._newest = _Marker(epoch.epoch_id, epoch.run_id)
        except kafka.KafkaException as error:
            what, missing = f"cannot commit {epoch}", self._missing_topic()
            problem = self._cause(error)
            self._abort_transaction()
            if missing is None:
                text = self._described(problem, what)
            else:
                text = f"{self._identity} {what}: topic {missing!r} was deleted. Create it again"
            raise SinkError(f"{text}. {_NOTHING_LOST}") from None
        except Exception:
            self._abort_transaction()
            raise
        self._staging.discard(epoch)

    def abort(self, epoch: SinkEpoch) -> None:
        self._staging.discard(epoch)

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        kafka = kafka_module("KafkaSink")
        try:
            self._opened(lineage)
            newest = self._newest
            self._check_epoch(lineage.name, newest, last_epoch_id)
            if lineage.parent is not None and newest is None:
                parent = SinkLineage(lineage.sink_uid, lineage.parent.job_id).name
                self._check_epoch(parent, self._newest_marker(parent), lineage.parent.checkpoint_id)
        except kafka.KafkaException as error:
            self.close()
            raise SinkError(self._described(error.args[0], "cannot recover")) from None
        self._staging.recover(lineage, last_epoch_id, None if newest is None else newest.epoch_id)

    def close(self) -> None:
        """Close the producer. The next commit opens a new producer, which ends an open transaction."""
        if self._producer is not None:
            self._producer.purge()
        self._producer, self._newest = None, None

    def _cause(self, error: Any) -> Any:
        """Return the problem of the first failed record, which is the cause of other errors of its transaction."""
        if self._producer is not None:
            # This calls on_delivery.
            self._producer.poll(0)
        return next(iter(self._failed), error.args[0])

    def _abort_transaction(self) -> None:
        """Abort an open transaction, because it blocks readers of committed records, and close the producer.

        librdkafka does not abort a transaction that may be committed.
        """
        if self._producer is not None:
            with contextlib.suppress(kafka_module("KafkaSink").KafkaException):
                self._producer.abort_transaction(min(_BEST_EFFORT_S, self._timeout_s))
        self.close()

    def _check_fields(self, schema: pa.Schema) -> None:
        check_names(self._identity, schema)
        value = "value" if self._format == "bytes" else None
        for name in (self._key, self._headers, self._timestamp, self._delete_field, value):
            if name is not None and name not in schema.names:
                raise SinkError(
                    f"{self._identity}: the rows have no field {name!r}, only {', '.join(schema.names)}. Add it to the "
                    f"rows, or correct the settings of the sink"
                )
        if self._delete_field is not None and not pa.types.is_boolean(schema.field(self._delete_field).type):
            raise SinkError(f"{self._identity}: delete_field {self._delete_field!r} must be a boolean")
        if self._timestamp is not None:
            kind = schema.field(self._timestamp).type
            if not pa.types.is_timestamp(kind) and not pa.types.is_integer(kind):
                raise SinkError(
                    f"{self._identity}: timestamp {self._timestamp!r} is {kind}; pass a timestamp or milliseconds"
                )

    def _encoded(self, batch: pa.RecordBatch, encoder: _Encoder) -> pa.RecordBatch:
        outside = {self._headers, self._delete_field}
        in_value = batch.select([name for name in batch.schema.names if name not in outside])
        try:
            keys = pa.nulls(batch.num_rows, pa.binary()) if self._key is None else _bytes_column(batch[self._key])
            values = encoder.encoded(in_value)
            headers = pa.nulls(batch.num_rows, _HEADERS) if self._headers is None else _headers(batch[self._headers])
            times = _milliseconds(batch, self._timestamp)
        except Exception as error:
            raise SinkError(
                f"{self._identity}: rows cannot be encoded as {self._format}: {describe_exception(error)}"
            ) from error
        if self._delete_field is not None:
            values = pc.if_else(batch[self._delete_field].fill_null(False), pa.scalar(None, pa.binary()), values)
        sizes = [pc.binary_length(one).fill_null(0) for one in (keys, values)]
        if self._headers is not None:
            sizes.append(pa.array([len(str(one)) for one in headers.to_pylist()], pa.int32()))
        largest = max(map(sum, zip(*(one.to_pylist() for one in sizes), strict=True))) + _OVERHEAD_BYTES
        if largest > self._max_bytes:
            raise SinkError(
                f"{self._identity}: a record of {largest} bytes is larger than message.max.bytes, {self._max_bytes}. "
                f"Raise it, and max.message.bytes of the topic"
            )
        return pa.RecordBatch.from_arrays([keys, values, times, headers], schema=_STAGED)

    def _opened(self, lineage: SinkLineage) -> Any:
        if self._producer is None:
            kafka = kafka_module("KafkaSink")
            reported: deque[Any] = deque(maxlen=100)
            failed: list[Any] = []
            self._failed = failed

            def keep_first(problem: Any, _message: Any) -> None:
                # After an error of the transaction, librdkafka purges the records that wait.
                if not failed and problem.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
                    failed.append(problem)

            producer = kafka.Producer(
                {
                    "linger.ms": 20,
                    "compression.type": "lz4",
                    # As Java clients: murmur2 of the key.
                    "partitioner": "murmur2_random",
                    "transaction.timeout.ms": 600_000,
                    "error_cb": reported.append,
                    **self._known_settings(),
                    "transactional.id": f"statebackend/{lineage.name}",
                    # A topic that was deleted is an error. The broker would create it with its own settings.
                    "allow.auto.create.topics": False,
                    "delivery.report.only.error": True,
                    "on_delivery": keep_first,
                }
            )
            self._check_topic(producer, reported)
            self._create_epochs_topic(producer)
            producer.init_transactions(self._timeout_s)
            self._newest = self._newest_marker(lineage.name)
            self._producer = producer
        return self._producer

    def _known_settings(self) -> dict[str, Any]:
        if self._settings is None:
            raise SinkError(f"{self._identity} cannot connect: a copy of a sink in a task has no credentials")
        return self._settings

    def _check_topic(self, producer: Any, reported: Collection[Any]) -> None:
        try:
            partition_ids(producer, self._topic, self._identity, self._timeout_s, self._known_settings(), reported)
        except StreamJobError as error:
            raise SinkError(str(error)) from None

    def _missing_topic(self) -> str | None:
        """Return a topic that was deleted. librdkafka reports a timeout or a wrong sequence of records for it."""
        kafka, timeout_s = kafka_module("KafkaSink"), min(_BEST_EFFORT_S, self._timeout_s)
        for topic in (self._topic, self._epochs_topic) if self._producer is not None else ():
            with contextlib.suppress(kafka.KafkaException):
                problem = self._producer.list_topics(topic, timeout=timeout_s).topics[topic].error
                if problem is not None and problem.name() in MISSING_TOPIC:
                    return topic
        return None

    def _consumer(self, isolation_level: str) -> Any:
        return kafka_module("KafkaSink").Consumer(
            {
                **self._known_settings(),
                "group.id": "statebackend",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation_level,
            }
        )

    def _create_epochs_topic(self, producer: Any) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        name = self._epochs_topic
        if name in producer.list_topics(timeout=self._timeout_s).topics:
            return
        kafka, admin = kafka_module("KafkaSink"), AdminClient(self._known_settings())
        topic = NewTopic(name, num_partitions=1, replication_factor=-1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([topic])[name].result(self._timeout_s)
        except kafka.KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise SinkError(
                    f"{self._described(error.args[0], f'cannot create the topic {name!r}')}. Create it with "
                    f"cleanup.policy=compact, or grant the user CREATE on it"
                ) from None
        ends_s = time.monotonic() + self._timeout_s
        while name not in producer.list_topics(timeout=self._timeout_s).topics:
            if time.monotonic() > ends_s:
                raise SinkError(f"{self._identity}: the topic {name!r} was created, but no broker has it yet")

    def _is_committed(self, epoch: SinkEpoch) -> bool:
        known = self._newest
        if known is None or known.epoch_id < epoch.epoch_id:
            return False
        if known.epoch_id == epoch.epoch_id and known.run_id != epoch.run_id:
            raise SinkError(
                f"{self._identity} has rows of {epoch} that run {known.run_id} of the job wrote, but the checkpoint is "
                f"of run {epoch.run_id}: the job directory was replaced by an older one. Write to another topic with "
                f"another uid"
            )
        return True

    def _check_epoch(self, name: str, known: _Marker | None, last_epoch_id: int | None) -> None:
        if known is not None and (last_epoch_id is None or known.epoch_id > last_epoch_id):
            start = "without a checkpoint" if last_epoch_id is None else f"after epoch {last_epoch_id}"
            raise SinkError(
                f"{self._identity} contains epochs up to {known.epoch_id} of {name}, but the job starts {start}, and "
                f"would write their rows twice. Start from a later checkpoint or savepoint, or write to another topic "
                f"with another uid"
            )

    def _write(self, producer: Any, content: bytes) -> None:
        with pa.ipc.open_stream(content) as batches:
            for batch in batches:
                keys, values, times, headers = (column.to_pylist() for column in batch.columns)
                if self._timestamp is None and self._headers is None:
                    for key, value in zip(keys, values, strict=True):
                        _produce(producer, self._topic, value, key=key)
                else:
                    for key, value, time_ms, pairs in zip(keys, values, times, headers, strict=True):
                        given = {} if time_ms is None else {"timestamp": time_ms}
                        if pairs is not None:
                            given["headers"] = [(one["key"], one["value"]) for one in pairs]
                        _produce(producer, self._topic, value, key=key, **given)
                producer.poll(0)

    def _write_marker(self, producer: Any, epoch: SinkEpoch) -> None:
        name = epoch.lineage.name
        value = json.dumps({"epoch": epoch.epoch_id, "run": epoch.run_id})
        _produce(producer, self._epochs_topic, value.encode(), key=name.encode(), partition=0)

    def _flush(self, producer: Any) -> None:
        """Wait until the records are delivered. During a commit that waits for them, librdkafka does not abort."""
        kafka, ends_s = kafka_module("KafkaSink"), time.monotonic() + self._timeout_s
        # After a failed record, librdkafka may keep later records until the transaction is aborted.
        while (left := producer.flush(_FLUSH_S)) and not self._failed:
            if time.monotonic() > ends_s:
                text = f"{left} records were not delivered within {self._timeout_s} s"
                raise kafka.KafkaException(kafka.KafkaError(_TIMED_OUT, text))
        if self._failed:
            raise kafka.KafkaException(self._failed[0])

    def _newest_marker(self, name: str) -> _Marker | None:
        """Return the newest committed marker of a lineage. Waits until open transactions of other lineages end."""
        newest: _Marker | None = None
        for key, value in self._markers():
            if key == name.encode():
                fields = json.loads(value)
                newest = _Marker(fields["epoch"], fields["run"])
        return newest

    def _markers(self) -> Iterator[tuple[bytes, bytes]]:
        kafka = kafka_module("KafkaSink")
        all_records, committed = self._consumer("read_uncommitted"), self._consumer("read_committed")
        try:
            place = kafka.TopicPartition(self._epochs_topic, 0)
            low, end = all_records.get_watermark_offsets(place, timeout=self._timeout_s)
            place.offset = position = low
            committed.assign([place])
            ends_s = time.monotonic() + self._timeout_s
            while position < end:
                if time.monotonic() > ends_s:
                    raise SinkError(
                        f"{self._identity}: the topic {self._epochs_topic!r} could be read up to offset {position} of "
                        f"{end} only: a transaction of another job is open. Start again when it has ended"
                    )
                for message in committed.consume(1000, 0.1):
                    problem = message.error()
                    if problem is None:
                        position = message.offset() + 1
                        yield message.key() or b"", message.value() or b"{}"
                    elif problem.name() == "_PARTITION_EOF":
                        position = message.offset()
                    else:
                        raise kafka.KafkaException(problem)
        finally:
            committed.close()
            all_records.close()

    def _described(self, problem: Any, what: str) -> str:
        text = without_secrets(self._known_settings(), problem.str())
        return ". ".join(filter(None, [f"{self._identity} {what}: {text}", fix_of(problem)]))


class _Encoder:
    """Encodes rows as values."""

    def __init__(self, value_format: ValueFormat, avro_schema: Any) -> None:
        self._format = value_format
        if avro_schema is not None:
            import fastavro

            self._write = fastavro.schemaless_writer
            self._schema = fastavro.parse_schema(avro_schema)

    def encoded(self, batch: pa.RecordBatch) -> pa.Array:
        if self._format == "json":
            return _json_objects(batch)
        if self._format == "bytes":
            return _bytes_column(batch["value"])
        return pa.array(map(self._avro, batch.to_pylist(maps_as_pydicts="strict")), pa.binary())

    def _avro(self, row: Mapping[str, Any]) -> bytes:
        stream = io.BytesIO()
        self._write(stream, self._schema, row, strict=True)
        return stream.getvalue()


def _json_objects(batch: pa.RecordBatch) -> pa.Array:
    """Return rows as JSON objects. Arrow joins the columns, because `json` is slow for single rows."""
    parts: list[Any] = []
    for index, name in enumerate(batch.schema.names):
        parts += [("{" if index == 0 else ", ") + json.dumps(name) + ": ", _json_column(batch.column(index))]
    joined = pc.binary_join_element_wise(*parts, "}", "") if parts else pa.array(["{}"] * batch.num_rows)
    return joined.cast(pa.binary())


def _json_column(column: pa.Array) -> pa.Array:
    kind, types = column.type, pa.types
    if (
        types.is_floating(kind)
        and not pc.all(pc.is_finite(column), skip_nulls=True).as_py()
        and column.null_count < len(column)
    ):
        raise ValueError("NaN and infinity are not values of JSON")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return column.cast(pa.string()).fill_null("null")
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_decimal(kind):
        text = pc.replace_substring(column.cast(pa.string()), " ", "T")
        return pc.binary_join_element_wise('"', text, '"', "").fill_null("null")
    if types.is_string(kind):
        return pa.array(["null" if one is None else encode_basestring(one) for one in column.to_pylist()], pa.string())
    return pa.array(map(json_text, column.to_pylist(maps_as_pydicts="strict")), pa.string())


def _bytes_column(column: pa.Array) -> pa.Array:
    """Return strings and bytes unchanged, other values as JSON."""
    kind, types = column.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return column.cast(pa.binary())
    return pc.if_else(column.is_valid(), _json_column(column), pa.scalar(None, pa.string())).cast(pa.binary())


def _headers(column: pa.Array) -> pa.Array:
    rows = column.to_pylist()
    return pa.array([None if one is None else [_header(header) for header in one] for one in rows], _HEADERS)


def _header(header: Any) -> dict[str, Any]:
    """Return a header, which is a pair in a map, and a dict in a list of structs."""
    name, value = (header["key"], header["value"]) if isinstance(header, dict) else header
    return {"key": name, "value": value.encode() if isinstance(value, str) else value}


def _milliseconds(batch: pa.RecordBatch, name: str | None) -> pa.Array:
    if name is None:
        return pa.nulls(batch.num_rows, pa.int64())
    column = batch[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    times = column.cast(pa.int64())
    earliest = pc.min(times).as_py()
    if earliest is not None and earliest < 1:
        raise ValueError(
            f"timestamp {name!r} is {earliest} ms, and Kafka stores 1 ms or later. Use null for no timestamp"
        )
    return times


def _produce(producer: Any, topic: str, value: bytes | None, **fields: Any) -> None:
    while not _has_queued(producer, topic, value, **fields):
        producer.poll(0.1)


def _has_queued(producer: Any, topic: str, value: bytes | None, **fields: Any) -> bool:
    try:
        producer.produce(topic, value, **fields)
    except BufferError:
        # The queue of librdkafka is full.
        return False
    return True
