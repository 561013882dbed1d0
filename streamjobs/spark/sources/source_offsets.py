"""The content of a file of Spark's `offsets`: a line for each source, by position or by name (pure).

    v1                                       v2
    {"batchTimestampMs":...,"conf":{...}}    the same
    {"logOffset":4}                          0:{"logOffset":4}
    -                                        (a source without an offset has no line)

In v1 a line belongs to the source of its position, and a source that has no offset yet has "-". In v2 it starts with
the name of the source's own log: its number, or the name that it was given by Spark's own source evolution.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from streamjobs.user_errors import cited

__all__ = ["NO_OFFSET", "OffsetLines", "is_json_object", "number_of_offsets"]

NO_OFFSET: Final = "-"
"""The line of a source that has no offset yet."""


@frozen
class OffsetLines:
    """The lines of one file. ``version`` is its first line, ``batch`` the second, about the batch itself."""

    version: str
    batch: str
    lines: tuple[str, ...]

    @property
    def damage(self) -> str | None:
        """Why Spark cannot read the file, None if it can or if the format is unknown."""
        if not self.version:
            return "it is empty"
        if not re.fullmatch("v[0-9]+", self.version):
            return f"its first line is {cited(self.version, 20)} and no version"
        if self.version not in ("v1", "v2"):
            return None
        if not is_json_object(self.batch):
            return "its second line is not a whole JSON object"
        if self.version == "v1" and not self.lines:
            return "it has no offsets"
        offsets = self.lines if self.version == "v1" else [line.partition(":")[2] for line in self.lines]
        is_cut = any(one.startswith("{") and not is_json_object(one) for one in offsets)
        return "one of its offsets is not whole" if is_cut else None

    @classmethod
    def of(cls, content: bytes) -> OffsetLines:
        """Those of a file, damaged or not."""
        version, _, rest = content.decode("utf-8", "surrogateescape").partition("\n")
        batch, *lines = rest.split("\n")
        return cls(version, batch, tuple(lines))

    def by_log(self, logs: Sequence[str]) -> tuple[str, ...]:
        """The offset of each source, whose logs have these names in the order of their positions."""
        if self.version == "v1":
            return self.lines
        named = dict(line.split(":", 1) for line in self.lines if ":" in line)
        return tuple(named.get(log, NO_OFFSET) for log in logs)

    def with_offsets(self, offsets: Sequence[str], logs: Sequence[str]) -> bytes:
        """The file with these offsets for sources whose logs have these names."""
        lines: Sequence[str] = offsets
        if self.version != "v1":
            named = {log: offset for log, offset in zip(logs, offsets, strict=True) if offset != NO_OFFSET}
            lines = [f"{log}:{offset}" for log, offset in named.items()]
        return "\n".join((self.version, self.batch, *lines)).encode("utf-8", "surrogateescape")


def number_of_offsets(content: bytes) -> int | None:
    """How many sources a file has lines of; None where lines do not stand for sources.

    A DataFrame that is used twice has two lines in v1, as the query has two sources; in v2 lines are of names.
    """
    found = OffsetLines.of(content)
    return len(found.lines) if found.version == "v1" and found.lines else None


def is_json_object(text: str) -> bool:
    """Whether a line is one JSON object, whole."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
