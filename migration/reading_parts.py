"""What conversions put in the place of an old serializer: it reads as that one did, and is stricter."""

from __future__ import annotations

from typing import Any

from snapshots.data_views import DataInputView
from snapshots.errors import MalformedDataError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.kernel.reading_only import ReadingSerializer
from typeserializers.kernel.type_serializer import TypeSerializer


class RequiredPartSerializer(ReadingSerializer):
    """The old serializer of a record field that is not optional, though the serializer itself would read a null."""

    def __init__(self, inner: TypeSerializer[Any], name: str) -> None:
        self.inner = inner
        self.name = name

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def minimum_length(self) -> int:
        return self.inner.minimum_length

    def create_instance(self) -> Any:
        return self.inner.create_instance()

    def read_from(self, source: DataInputView) -> Any:
        return self._present(self.inner.deserialize(source))

    def emit_read(self, emitter: ReadEmitter) -> str:
        value = self.inner.emit_read(emitter)
        present = emitter.function.bind("present", self._present)
        emitter.line(f"if {value} is None: {present}(None)")
        return value

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:  # type: ignore[override]
        # A converter is chosen by what the old serializer was; nobody keeps this.
        return self.inner.snapshot_configuration()

    def _present(self, value: Any) -> Any:
        if value is None:
            raise MalformedDataError(f".{self.name} is null, but was not optional: the bytes are damaged")
        return value
