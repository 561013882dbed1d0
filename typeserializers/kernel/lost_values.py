"""What of a value does not come back from the bytes that another library has written for it.

Libraries that are handed a value and a type make the one fit the other: they round whole numbers to doubles, cut off
microseconds where milliseconds are stored, take the zone of the host for a time without one, make infinity of what is
too large. State would then hold another value than the one it was given, and nobody would be told. So a serializer that
leaves the writing to a library compares what comes back, and refuses what is not equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from snapshots.value_text import shown


def _as_given(value: Any, read: Any) -> Any:
    return value


def lost_values(value: Any, read: Any, path: str, meant: Callable[[Any, Any], Any] = _as_given) -> Iterator[str]:
    """The parts of a value that would come back as others, each with its path; none if all that is stored is equal.

    A tuple may come back as a list, and a Python float rounded to fewer bits, as long as it stays finite: types of
    fewer bits are for that. ``meant`` gives the value proper of one that also says how it is to be written.
    """
    value = meant(value, read)
    if value == read or _is_rounded(value, read):
        return
    if isinstance(value, Mapping) and isinstance(read, dict) and value.keys() == read.keys():
        for name, part in value.items():
            yield from lost_values(part, read[name], f"{path}.{name}", meant)
    elif isinstance(value, (list, tuple)) and isinstance(read, (list, tuple)) and len(value) == len(read):
        for place, part in enumerate(value):
            yield from lost_values(part, read[place], f"{path}[{place}]", meant)
    else:
        yield f"{path or 'value'}: {shown(value)} would come back as {shown(read)}"


def _is_rounded(value: Any, read: Any) -> bool:
    if not isinstance(value, float) or not isinstance(read, float):
        return False
    return math.isnan(value) if math.isnan(read) else math.isfinite(read)
