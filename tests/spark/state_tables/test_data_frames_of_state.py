"""State of any type passes through a frame with the same bits."""

from __future__ import annotations

import datetime
import pickle
import tempfile
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from tables_read import parts_of, reader_of

from statebackend import ListStateDescriptor, MapStateDescriptor, Savepoint, StateTtlConfig, ValueStateDescriptor
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.spark.state_tables.source import StateTableSource
from statebackend.state.state_kind import StateDescriptor

UTC = datetime.timezone.utc


@attrs.frozen
class Sale:
    amount: float
    note: str | None
    tags: list[str]
    at: datetime.datetime | None = None


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
MOMENTS = st.datetimes(datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 29), timezones=st.just(UTC))
DAYS = st.dates()
SALES = st.builds(Sale, st.floats(), st.none() | TEXTS, st.lists(TEXTS, max_size=2), st.none() | MOMENTS)
# A decimal column has 18 digits after the point. So the numbers stay equal but lose their trailing zeros.
DECIMALS = st.decimals(-(10**6), 10**6, places=18)
DURATIONS = st.timedeltas(datetime.timedelta(days=-(10**6)), datetime.timedelta(days=10**6))

VALUES: list[tuple[Any, Any]] = [
    (int, LONGS),
    (float, st.floats()),
    (str, TEXTS),
    (bytes, st.binary(max_size=9)),
    (bool, st.booleans()),
    (datetime.date, DAYS),
    (datetime.datetime, MOMENTS),
    (datetime.timedelta, DURATIONS),
    (Decimal, DECIMALS),
    (uuid.UUID, st.uuids()),
    (list[int], st.lists(LONGS, max_size=3)),
    (dict[str, float], st.dictionaries(TEXTS, st.floats(), max_size=3)),
    (tuple[int, str], st.tuples(LONGS, TEXTS)),
    (set[int], st.sets(LONGS, max_size=3)),
    (list[Sale], st.lists(SALES, max_size=2)),
    (Sale, SALES),
    (Sale | None, SALES),
]

KEYS: list[tuple[Any, Any]] = [
    ("string", TEXTS),
    ("bigint", LONGS),
    ("tinyint", st.integers(-128, 127)),
    ("boolean", st.booleans()),
    ("binary", st.binary(max_size=5)),
    ("date", DAYS),
    ("timestamp", MOMENTS),
    (("string", "int"), st.tuples(TEXTS, st.integers(-(1 << 31), (1 << 31) - 1))),
    (("timestamp", "bigint"), st.tuples(MOMENTS, LONGS)),
]


@st.composite
def states(draw: st.DrawFn) -> tuple[Any, StateDescriptor, list[tuple[Any, ...]]]:
    """The key columns, a descriptor, and entries for a plan."""
    key, keys = draw(st.sampled_from(KEYS))
    hint, values = draw(st.sampled_from(VALUES))
    ttl = draw(st.sampled_from([None, StateTtlConfig(1000)]))
    kind = draw(st.sampled_from(["value", "list", "map"]))
    if kind == "value":
        entries = st.dictionaries(keys, values, max_size=5).map(lambda found: list(found.items()))
        return key, ValueStateDescriptor("state", hint, ttl=ttl), draw(entries)
    if kind == "list":
        hint = Sale if hint == Sale | None else hint  # A list state cannot have None as an element.
        lists = st.lists(values, min_size=1, max_size=3)
        entries = st.dictionaries(keys, lists, max_size=5).map(lambda found: list(found.items()))
        return key, ListStateDescriptor("state", hint, ttl=ttl), draw(entries)
    entries = st.dictionaries(st.tuples(keys, TEXTS), values, max_size=5)
    rows = entries.map(lambda found: [(one, user_key, value) for (one, user_key), value in found.items()])
    return key, MapStateDescriptor("state", str, hint, ttl=ttl), draw(rows)


def through_a_frame(source: Path, target: Path) -> None:
    """Read the state and write it again as tasks do, in another order and in other partitions."""
    reader = reader_of(source, operator="o", state="state")
    batches = [batch for part in parts_of(reader) for batch in reader.read(part)]
    options = {"path": str(target), "source": str(source), "operator": "o", "state": "state"}
    schema = batches[0].schema if batches else pa.schema([])
    writer = pickle.loads(pickle.dumps(StateTableSource(options).writer(from_arrow_schema(schema), overwrite=False)))
    parts = [batch.slice(start, 2) for batch in reversed(batches) for start in range(0, batch.num_rows, 2)]
    writer.commit(
        [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter([part])))) for part in parts]
    )


def stored_rows(path: Path) -> Counter[str]:
    """Stored rows as texts, because NaN does not equal itself."""
    return Counter(
        repr((entry.key_group, plain_value(entry.key), entry.user_key, plain_value(entry.value), entry.last_access_ms))
        for entry in Savepoint.open(path).read("o", "state")
    )


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states())
def test_state_passes_through_a_frame_unchanged(state: tuple[Any, StateDescriptor, list[tuple[Any, ...]]]) -> None:
    key, descriptor, entries = state
    with tempfile.TemporaryDirectory() as name:
        old, new = Path(name, "old"), Path(name, "new")
        plan = Plan().add_operator("o", key).add_state("o", descriptor, entries, last_access_ms=7)
        SavepointWriter.new(old, max_parallelism=16).write(plan)
        if not entries:
            return
        through_a_frame(old, new)
        assert stored_rows(new) == stored_rows(old)
        assert Savepoint.open(new).schema("o", "state") == Savepoint.open(old).schema("o", "state")
