"""Operations that read a savepoint, and the same operations of bare pyarrow on the raw bytes of the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from statebackend import Savepoint, ValueStateDescriptor
from statebackend.cli.export_command import export_state
from statebackend.savepoint.rewrite import Plan, SavepointWriter

__all__ = ["OPERATIONS", "OPERATOR", "STATES", "LookedAt", "Operation", "per_second", "write_savepoint"]

OPERATOR: Final = "per key"
LOOK_UPS: Final = 20
OPENINGS: Final = 20


@attrs.frozen
class Totals:
    """A record of numbers."""

    sales: int
    turnover: float


@attrs.frozen
class Note:
    """A record with text and optional fields."""

    sales: int
    text: str
    former: str | None = None


STATES: Final[Mapping[str, tuple[Any, Callable[[int], Any]]]] = {
    "numbers": (int, lambda number: number),
    "texts": (str, lambda number: f"value {number}"),
    "records of numbers": (Totals, lambda number: Totals(number, number / 2)),
    "records with text": (Note, lambda number: Note(number, f"note {number}", None if number % 2 else "former")),
}
"""The type of each state, and a function that returns the value of a number."""


def key_of(number: int) -> str:
    """Return the key of an entry."""
    return f"key {number:09d}"


def write_savepoint(path: Path, entries: int) -> None:
    """Write a savepoint of one operator with all the states."""
    plan = Plan().add_operator(OPERATOR, "string")
    for name, (kind, value_of) in STATES.items():
        plan = plan.add_state(OPERATOR, ValueStateDescriptor(name, kind), _entries(entries, value_of))
    SavepointWriter.new(path, max_parallelism=128).write(plan)


def _entries(count: int, value_of: Callable[[int], Any]) -> Iterator[tuple[str, Any]]:
    for number in range(count):
        yield key_of(number), value_of(number)


class LookedAt:
    """One state of the savepoint, and its files. ``clock`` returns seconds."""

    def __init__(self, path: Path, state: str, entries: int, scratch: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self.state = state
        self.entries = entries
        self.scratch = scratch
        self.clock = clock
        self.savepoint = Savepoint.open(path)
        [part] = {one for one in path.rglob(f"{state.replace(' ', '%20')}") if one.is_dir()}
        self.files = sorted(part.iterdir())
        self.file_count = sum(1 for one in path.rglob("*.parquet"))

    @property
    def read(self) -> Any:
        """The entries."""
        return self.savepoint.read(OPERATOR, self.state)


@attrs.frozen
class Operation:
    """An operation of ours and of the peer, in one unit; ``has_aim`` is whether the required ratio applies to it."""

    ours: Callable[[LookedAt], float]
    peer: Callable[[LookedAt], float]
    peer_name: str
    unit: str
    has_aim: bool = True


def per_second(of: LookedAt, work: Callable[[], Any]) -> float:
    """Do the work on all entries once, and return entries per second."""
    began = of.clock()
    work()
    return of.entries / (of.clock() - began)


def _each_ms(of: LookedAt, times: int, work: Callable[[int], Any]) -> float:
    began = of.clock()
    for number in range(times):
        work(number)
    return 1000 * (of.clock() - began) / times


def _tables(of: LookedAt) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in of.files])


def _count_by_pyarrow(of: LookedAt) -> None:
    table = _tables(of)
    pc.sum(pc.add(pc.binary_length(table["key"]), pc.binary_length(table["value"]))).as_py()
    pc.value_counts(table["key_group"])


def _look_up_by_pyarrow(of: LookedAt, number: int) -> None:
    wanted = key_of(number * (of.entries // LOOK_UPS)).encode()
    key = bytes([len(wanted) + 1]) + wanted
    for path in of.files:
        if pq.read_table(path, filters=[("key", "==", key)]).num_rows:
            return
    raise LookupError(wanted)


def _look_up(of: LookedAt, number: int) -> None:
    [_] = of.savepoint.read(OPERATOR, of.state, key=key_of(number * (of.entries // LOOK_UPS)))


def _export_by_pyarrow(of: LookedAt) -> None:
    pq.write_table(_tables(of), of.scratch / "bare.parquet", compression="zstd")


def _open_by_pyarrow(of: LookedAt) -> None:
    for path in of.path.rglob("*.parquet"):
        pq.read_metadata(path)


OPERATIONS: Final[dict[str, Operation]] = {
    "open": Operation(
        lambda of: _each_ms(of, OPENINGS, lambda number: Savepoint.open(of.path).states),
        lambda of: _each_ms(of, OPENINGS, lambda number: _open_by_pyarrow(of)),
        "footers of all files",
        "ms",
        has_aim=False,
    ),
    "count": Operation(
        lambda of: per_second(of, lambda: of.savepoint.statistics(OPERATOR, of.state)),
        lambda of: per_second(of, lambda: _count_by_pyarrow(of)),
        "bare pyarrow",
        "entries/s",
    ),
    "look up a key": Operation(
        lambda of: _each_ms(of, LOOK_UPS, lambda number: _look_up(of, number)),
        lambda of: _each_ms(of, LOOK_UPS, lambda number: _look_up_by_pyarrow(of, number)),
        "read_table with a filter",
        "ms",
    ),
    "to_arrow": Operation(
        lambda of: per_second(of, lambda: of.read.to_arrow()),
        lambda of: per_second(of, lambda: _tables(of)),
        "bare pyarrow",
        "entries/s",
    ),
    "export to Parquet": Operation(
        lambda of: per_second(
            of, lambda: export_state(of.read, "parquet", of.scratch / "ours.parquet", overwrite=True)
        ),
        lambda of: per_second(of, lambda: _export_by_pyarrow(of)),
        "bare pyarrow",
        "entries/s",
    ),
    "entries one by one": Operation(
        lambda of: per_second(of, lambda: sum(1 for _ in of.read)),
        lambda of: per_second(of, lambda: _tables(of).to_pylist()),
        "to_pylist of the bytes",
        "entries/s",
        has_aim=False,
    ),
}
