"""What is told, in every runtime alike, of a strategy of event time that does not fit the records of its source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from streamjobs.errors import JobDefinitionError
from streamjobs.user_errors import cited

__all__ = ["TIMESTAMP_TYPES", "unfit_column", "unfit_type"]

TIMESTAMP_TYPES: Final = ("timestamp", "bigint", "int")
"""The types that a column of timestamps may have, by Spark's names."""


def unfit_column(
    source_name: str, method: str, given: Any, columns: Iterable[str], why: str = ""
) -> JobDefinitionError:
    """Of a column that the records have not; ``method`` is that of the strategy, ``why`` says more if there is more."""
    return JobDefinitionError(
        f"source {source_name!r}: {method}({cited(given, 80)}) does not fit its records, which have the columns "
        f"{', '.join(columns)}{f': {why}' if why else ''}"
    )


def unfit_type(source_name: str, type_name: str) -> JobDefinitionError:
    """Of a column of timestamps that has none of `TIMESTAMP_TYPES`."""
    return JobDefinitionError(
        f"source {source_name!r}: with_timestamps is of the type {type_name}; it must be a timestamp, or a bigint of "
        f"milliseconds since 1970: cast it"
    )
