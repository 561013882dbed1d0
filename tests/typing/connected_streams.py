"""Typing of connected streams; `make lint` checks it, and an unused ignore is an error too.

Nothing here is run. Each function shows one thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statebackend import (
    BroadcastConnectedStream,
    BroadcastStateDescriptor,
    ConnectedStreams,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from statebackend.streaming.data_stream import DataStream, KeyedStream, ProcessedStream

if TYPE_CHECKING:
    from typing_extensions import assert_type


def what_is_connected_says_what_comes_of_it(stream: DataStream, keyed: KeyedStream) -> None:
    rules = stream.broadcast(BroadcastStateDescriptor("rules", str, int))
    assert_type(keyed.connect(keyed), ConnectedStreams[ProcessedStream])
    assert_type(keyed.connect(rules), BroadcastConnectedStream[ProcessedStream])
    assert_type(stream.connect(stream).key_by("a", ["b"]), ConnectedStreams[ProcessedStream])
    assert_type(stream.connect(rules), BroadcastConnectedStream[ProcessedStream])


def a_function_of_one_input_does_not_fit_two(
    keyed: KeyedStream, one: KeyedProcessFunction[str, Any, Any], two: KeyedCoProcessFunction[str, Any, Any, Any]
) -> None:
    assert_type(keyed.connect(keyed).process(two, uid="two", schema="a int"), ProcessedStream)
    keyed.connect(keyed).process(one, uid="one")  # type: ignore[arg-type]


def a_stream_without_keys_does_not_go_with_a_keyed_one(stream: DataStream, keyed: KeyedStream) -> None:
    keyed.connect(stream)  # type: ignore[call-overload]
    stream.connect(keyed)  # type: ignore[call-overload]
