"""Columns by their names, whatever characters a name has.

Spark reads a name as a path: ``a.b`` is the field ``b`` of the column ``a``. A column that is itself called ``a.b`` is
meant only by a quoted name, and a backtick inside quotes is doubled. A name that a program gives us means the column of
exactly that name if there is one, and otherwise what Spark makes of it: a field of a struct, or a column whose name is
written in other letter case.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

__all__ = ["column_meant_by", "column_named"]


def column_named(name: str) -> Column:
    """The column of exactly this name."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def column_meant_by(name: str, columns: Collection[str]) -> Column:
    """The column that a program means by ``name``, over an input of these columns."""
    return column_named(name) if name in columns else F.col(name)
