"""Serializers that only read: what stands in the place of one whose values go no further than a migration."""

from __future__ import annotations

from typing import Any, NoReturn

from snapshots.data_views import DataOutputView
from typeserializers.kernel.code_generation import WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer


class ReadingSerializer(CompiledTypeSerializer[Any]):
    """The base: it is never asked to write and never persisted."""

    def write_to(self, value: Any, out: DataOutputView) -> NoReturn:
        raise NotImplementedError("a part of a migration only reads")

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        # What is around it is compiled as a whole, for reading and writing, and then only reads.
        emitter.append(f"{emitter.function.bind('refuse', self.write_to)}({value}, None)")

    def snapshot_configuration(self) -> NoReturn:
        raise NotImplementedError("a part of a migration is never persisted")
