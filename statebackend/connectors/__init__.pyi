from statebackend.connectors.json_lines_source import JsonLinesSource as JsonLinesSource
from statebackend.connectors.file_sink import FileSink as FileSink, ParquetSink as ParquetSink
from statebackend.connectors.iceberg_sink import IcebergSink as IcebergSink
from statebackend.connectors.kafka_sink import KafkaSink as KafkaSink
from statebackend.connectors.kafka_source import (
    KAFKA_RECORD as KAFKA_RECORD,
    KafkaRecord as KafkaRecord,
    KafkaSource as KafkaSource,
)
from statebackend.connectors.postgres import PostgresSink as PostgresSink
from statebackend.connectors.delta_sink import DeltaSink as DeltaSink
from statebackend.streaming.sink import (
    Sink as Sink,
    SinkEpoch as SinkEpoch,
    SinkError as SinkError,
    SinkLineage as SinkLineage,
)
