"""Whether the columns that strategies of event time name are there, and of a type that can be a timestamp.

What is not known before its records come, since a source has no schema or a step lies in between, is found at them.
"""

from __future__ import annotations

from streamjobs.api.stream_graph import SourceNode
from streamjobs.runtime.event_time import EventTime
from streamjobs.runtime.timestamp_columns import TIMESTAMP_TYPES, unfit_column, unfit_type

__all__ = ["check_timestamp_columns"]


def check_timestamp_columns(event_time: EventTime | None) -> None:
    """Raises `JobDefinitionError` for a column that the schema of its source has not, or of another type."""
    nodes = {} if event_time is None else event_time.nodes
    for name, node in nodes.items():
        place = node.inputs[0].node
        schema = getattr(place.source, "schema", None) if isinstance(place, SourceNode) else None
        if schema is None:
            continue
        given = {"with_timestamps": node.strategy.timestamps, "with_channel": node.strategy.channel}
        for method, column in given.items():
            if isinstance(column, str) and schema.type_of(column) is None:
                raise unfit_column(name, method, column, schema.names)
        timestamps = node.strategy.timestamps
        type_name = schema.type_of(timestamps) if isinstance(timestamps, str) else None
        if type_name is not None and type_name not in TIMESTAMP_TYPES:
            raise unfit_type(name, type_name)
