"""Skips values that nobody needs: reads past their bytes without creating an object.

A migration may drop a value whose class no longer exists, whose pickle must not be loaded, or that its class would
reject now. A serializer that only skips the bytes takes its place and returns an object without meaning.
`TypeSerializer.stepping_over` creates it; this file has the classes that it may return, and the walk over the parts.
Enclosing serializers are rebuilt around the skipping parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from snapshots.data_views import DataInputView
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.kernel.compiled import ReadingSerializer
from typeserializers.kernel.references import ReferenceSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import is_own_word


def stepping_over(serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Returns a serializer that skips a value; the serializer itself if reading cannot fail."""
    return _Walk().stepping_over(serializer)


class SteppedOverSerializer(ReadingSerializer):
    """Reads as many bytes as another serializer; its result is hashable and equal only to itself.

    ``step`` moves a view from the start of a value to its end and raises as a read would if bytes are missing. Its
    result is ignored.
    """

    def __init__(self, skipped: TypeSerializer[Any], step: Callable[[DataInputView], object]) -> None:
        self.skipped = skipped
        self._step = step

    @property
    def length(self) -> int:
        return self.skipped.length

    @property
    def minimum_length(self) -> int:
        return self.skipped.minimum_length

    def create_instance(self) -> object:
        return object()

    def read_from(self, source: DataInputView) -> object:
        self._step(source)
        return object()

    def emit_read(self, emitter: ReadEmitter) -> str:
        emitter.line(f"pos = {emitter.function.bind('step_over', self._end_of)}(data, pos)")
        return f"{emitter.function.bind('nothing', object)}()"

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:  # type: ignore[override]
        return self.skipped.snapshot_configuration()

    def __repr__(self) -> str:
        return repr(self.skipped)

    def _end_of(self, data: bytes, position: int) -> int:
        source = DataInputView(data, position)
        self._step(source)
        return source.position


class SteppedOverParts(SteppedOverSerializer):
    """Skips values that consist of a sequence of parts, such as the fields of a record."""

    def __init__(self, skipped: TypeSerializer[Any], parts: Sequence[TypeSerializer[Any]]) -> None:
        super().__init__(skipped, self._step_over_parts)
        self._parts = tuple(parts)

    def emit_read(self, emitter: ReadEmitter) -> str:
        for part in self._parts:
            part.emit_read(emitter)
        return f"{emitter.function.bind('nothing', object)}()"

    def _step_over_parts(self, source: DataInputView) -> None:
        for part in self._parts:
            part.deserialize(source)


class _Walk:
    """Tracks the enclosing serializers, because a record may contain itself."""

    def __init__(self) -> None:
        self._around: dict[int, ReferenceSerializer] = {}

    def stepping_over(self, serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
        reference = self._around.get(id(serializer))
        if reference is not None:
            return reference
        reference = self._around[id(serializer)] = ReferenceSerializer(type(serializer).__name__)
        if is_own_word(type(serializer), "stepping_over"):
            stepping = serializer.stepping_over(self.stepping_over)
        else:
            stepping = TypeSerializer.stepping_over(serializer, self.stepping_over)
        reference.bind(reference.name, stepping)
        del self._around[id(serializer)]
        return stepping
