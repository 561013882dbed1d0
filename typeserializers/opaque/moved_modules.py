"""Where serializers that have moved are today: a pickle names the module that a class was in when it was written.

Only pickles need this: snapshots name classes by frozen names. The table lists the modules of version 0.1 that defined
serializers or their value classes, and those that moved since, each with the module it is now; names of anything else
are looked up as they stand. An entry is never removed while pickles of that version may exist.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final

_ROOMS_OF_VERSION_0_1: Final = {
    "arrow": "arrow.arrow_serializer",
    "avro": "avro.avro_serializer",
    "big_numbers": "scalars.big_numbers",
    "byte_arrays": "scalars.byte_arrays",
    "calendar_values": "times.calendar_values",
    "characters": "scalars.characters",
    "compiled": "kernel.compiled",
    "converting": "containers.converting",
    "eithers": "containers.eithers",
    "enums": "scalars.enums",
    "epoch_times": "times.moments",
    "epoch_values": "times.moment_values",
    "fixed_fields": "kernel.fixed_fields",
    "fixed_width": "scalars.fixed_width",
    "legacy": "opaque.legacy",
    "lists": "containers.lists",
    "local_times": "times.local_times",
    "maps": "containers.maps",
    "nullable": "containers.nullable",
    "object_arrays": "containers.object_arrays",
    "optional_maps": "containers.optional_maps",
    "pickles": "opaque.pickles",
    "pojos": "pojos.pojos",
    "primitive_arrays": "containers.primitive_arrays",
    "python_times": "times.python_times",
    "record_shape": "records.record_shape",
    "records": "records.records",
    "references": "kernel.references",
    "row_values": "containers.row_values",
    "rows": "containers.rows",
    "sets": "containers.sets",
    "single_values": "kernel.single_values",
    "string_encoding": "scalars.string_encoding",
    "string_lanes": "scalars.string_lanes",
    "strings": "scalars.strings",
    "timers": "times.timers",
    "ttl": "containers.ttl",
    "tuples": "containers.tuples",
    "type_serializer": "kernel.type_serializer",
    "unions": "containers.unions",
    "unsupported": "opaque.unsupported",
    "uuids": "scalars.uuids",
    "value_types": "scalars.value_types",
    "void": "scalars.void",
    "windows": "times.windows",
}
_MOVED_SINCE: Final = {"times.epoch_times": "times.moments", "times.epoch_values": "times.moment_values"}

MOVED_MODULES: Final = {
    f"typeserializers.{module}": f"typeserializers.{place}"
    for module, place in (_ROOMS_OF_VERSION_0_1 | _MOVED_SINCE).items()
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        return super().find_class(MOVED_MODULES.get(module_name, module_name), global_name)


def unpickled(data: bytes) -> Any:
    """What a pickle holds; raises whatever unpickling raises. It runs what the bytes say: trust them first."""
    return _Unpickler(io.BytesIO(data)).load()
