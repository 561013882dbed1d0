"""Operations that rewrite a savepoint, and the same operations of bare pyarrow on the raw bytes of the same rows.

Both sort by key group and key, write Parquet, and call the function that converts the keys. Ours also hashes the keys,
checks for duplicate keys, and writes a savepoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.savepoints.looking import OPERATOR, STATES, LookedAt, Operation, per_second
from statebackend.savepoint.rewrite import Plan, SavepointWriter

__all__ = ["WRITING_OPERATIONS"]


def _written(of: LookedAt, plan: Plan) -> None:
    for state in STATES:
        if state != of.state:
            plan = plan.remove_state(OPERATOR, state)
    SavepointWriter.copy_of(of.path, of.scratch / uuid.uuid4().hex).write(plan)


def _sorted_by_pyarrow(of: LookedAt) -> None:
    _write_sorted(of, _rows_of(of))


def _migrated_by_pyarrow(of: LookedAt) -> None:
    rows = _rows_of(of)
    # An ASCII string is stored as its length and its bytes.
    keys = pa.array([_number_of(key[1:].decode()) for key in rows.column("key").to_pylist()], pa.int64())
    _write_sorted(of, rows.set_column(rows.schema.get_field_index("key"), "key", keys))


def _rows_of(of: LookedAt) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in of.files])


def _write_sorted(of: LookedAt, rows: pa.Table) -> None:
    ordered = rows.sort_by([("key_group", "ascending"), ("key", "ascending")])
    pq.write_table(ordered, of.scratch / f"{uuid.uuid4().hex}.parquet", compression="zstd")


def _number_of(key: str) -> int:
    return int(key[4:])


def _operation(plan_of: Callable[[], Plan], by_pyarrow: Callable[[LookedAt], None], peer_name: str) -> Operation:
    return Operation(
        lambda of: per_second(of, lambda: _written(of, plan_of())),
        lambda of: per_second(of, lambda: by_pyarrow(of)),
        peer_name,
        "entries/s",
    )


WRITING_OPERATIONS: Final[dict[str, Operation]] = {
    "rewrite": _operation(lambda: Plan().change_max_parallelism(256), _sorted_by_pyarrow, "sorted by bare pyarrow"),
    "key migration": _operation(
        lambda: Plan().change_keys(OPERATOR, _number_of, "bigint"), _migrated_by_pyarrow, "keys by bare pyarrow"
    ),
}
"""A change of the number of key groups, and a change of the keys from strings to whole numbers."""
