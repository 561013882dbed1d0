from statebackend.streaming.sink import (
    Sink as Sink,
    SinkEpoch as SinkEpoch,
    SinkError as SinkError,
    SinkLineage as SinkLineage,
)
