"""The names of Flink's snapshot classes, used as our stable names wherever the layout is Flink's.

They are written to disk in every snapshot: do not change them.
"""

from __future__ import annotations

from typing import Final

BASE: Final = "org.apache.flink.api.common.typeutils.base."
ARRAY: Final = BASE + "array."
RUNTIME: Final = "org.apache.flink.api.java.typeutils.runtime."


def nested_snapshot(package: str, serializer: str) -> str:
    """The usual form: a class ``XSerializerSnapshot`` inside ``XSerializer``."""
    return f"{package}{serializer}${serializer}Snapshot"
