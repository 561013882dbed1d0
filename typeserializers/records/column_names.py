"""Names of columns as attributes of stored records, and back as they are displayed.

A record of a stream is stored as a record class with one attribute per column. If no attribute can have the name of a
column, the stored name is ``column_`` and the UTF-8 bytes of the name in hexadecimal. Tables, conditions and reports
show the name of the column. The stored names are part of the format and do not change.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Final


def attribute_of_column(column: str) -> str:
    """Return a valid attribute name for a column: its own name, or ``column_`` and its UTF-8 bytes in hexadecimal."""
    is_plain = column.isidentifier() and not keyword.iskeyword(column) and not column.startswith(("__", "column_"))
    if is_plain and unicodedata.normalize("NFKC", column) == column:
        return column
    return f"column_{column.encode('utf-8', 'surrogatepass').hex()}"


def attribute_of_row(column: str, base: type) -> str:
    """Return the attribute of a row for a column, also if its name is a method of the row, such as ``count``.

    ``count`` has the attribute of a column ``column_count``, which has that of ``column_column_count``, and so on: no
    two columns share one.
    """
    return attribute_of_column(f"column_{column}" if hasattr(base, _without_prefix(column)) else column)


def displayed_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a record's fields as they are displayed: the names of columns where attributes replace them.

    Two displayed names are never equal. A name that another field has too is displayed as it is stored. Only rows store
    ``count`` as if it were ``column_count``; a column ``column_count`` of another record is displayed as ``count``.
    """
    return _displayed_names(tuple(names))


@lru_cache(maxsize=256)
def _displayed_names(names: tuple[str, ...]) -> tuple[str, ...]:
    columns = [_column_of_attribute(name) for name in names]
    times = Counter([*columns, *(name for name, column in zip(names, columns, strict=True) if name != column)])
    return tuple(column if times[column] == 1 else name for name, column in zip(names, columns, strict=True))


def _column_of_attribute(name: str) -> str:
    stored = _STORED.fullmatch(name)
    if stored is None:
        return name
    try:
        column = bytes.fromhex(stored[1]).decode()
    except UnicodeDecodeError:
        return name
    # Another record class may have a field of such a name.
    if attribute_of_column(column) != name:
        return name
    return column.removeprefix("column_") if _is_method_of_rows(_without_prefix(column)) else column


def _is_method_of_rows(name: str) -> bool:
    return hasattr(tuple, name) or name == "asDict"


def _without_prefix(column: str) -> str:
    while column.startswith("column_"):
        column = column.removeprefix("column_")
    return column


_STORED: Final = re.compile(r"column_((?:[0-9a-f]{2})+)")
