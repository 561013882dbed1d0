"""A job whose key has a column of every type, because hashes and bytes of keys must not change.

Each record is a row of `ROWS`, and the state of its key is the number of that row. A key with another key group or
other bytes would not be found.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from typing import Any

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment

SCHEMA = (
    "text string, wide bigint, plain int, short smallint, tiny tinyint, flag boolean, raw binary, day date, "
    "moment timestamp"
)
_UTC = datetime.timezone.utc
_LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, _UTC)
_EARLY = datetime.datetime(1900, 1, 1, 0, 0, 0, 1, _UTC)
# The numbers count from 0.
ROWS: list[tuple[Any, ...]] = [
    ("", 0, 0, 0, 0, False, b"", datetime.date(1970, 1, 1), datetime.datetime(1970, 1, 1, tzinfo=_UTC)),
    ("a", -1, -1, -1, -1, True, b"\0", datetime.date(1969, 12, 31), datetime.datetime(1969, 12, 31, tzinfo=_UTC)),
    ("b", 1, 2, 3, 4, True, b"\xff", datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 4, _UTC)),
    ("é", 2**63 - 1, 2**31 - 1, 32767, 127, False, b"raw" * 20, datetime.date.max, _LAST),
    ("😀", -(2**63), -(2**31), -32768, -128, True, b"a", datetime.date(1900, 1, 1), _EARLY),
    ("long " * 50, 7, 7, 7, 7, False, b"7", datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, tzinfo=_UTC)),
    ("long " * 50, 7, 7, 7, 7, True, b"7", datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, tzinfo=_UTC)),
    ("long " * 50, 8, 7, 7, 7, True, b"7", datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, tzinfo=_UTC)),
    ("long " * 50, 8, 8, 7, 7, True, b"7", datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, tzinfo=_UTC)),
    ("long " * 50, 8, 8, 7, 7, True, b"7", datetime.date(2000, 1, 2), datetime.datetime(2000, 1, 1, tzinfo=_UTC)),
]
COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]


class Remember(KeyedProcessFunction[Any, Any, Any]):
    """Stores the number of each key in the writing version. Emits the number of the record and the stored one."""

    def __init__(self, writes: bool) -> None:
        self.writes = writes

    def open(self, context: RuntimeContext) -> None:
        self.number = context.get_state(ValueStateDescriptor("number", int))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield value["number"], self.number.value()
        if self.writes:
            self.number.update(value["number"])


def run(
    job_dir: str | os.PathLike[str], backend: str, parallelism: int, *, writes: bool = False, **execute: Any
) -> tuple[Any, dict[int, int | None]]:
    """Run the job over all rows. Also return the stored number of each row."""
    environment = LocalStreamEnvironment(job_dir=job_dir, backend=backend, parallelism=parallelism, max_parallelism=16)
    found: list[Any] = []
    records = [dict(zip(COLUMNS, row, strict=True), number=number) for number, row in enumerate(ROWS)]
    stream = environment.from_elements(records, f"{SCHEMA}, number bigint").key_by(*COLUMNS)
    stream.process(Remember(writes), uid="keys", name="keys", schema="number bigint, stored bigint").sink_to(found)
    return environment.execute("golden keys", **execute), dict(found)
