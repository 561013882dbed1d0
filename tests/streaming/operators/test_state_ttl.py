"""State with TTL in jobs: an epoch has one time, upgrades turn it on and off, savepoints drop expired state."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from json_source import add_file

from snapshots.compatibility import CompatibilityKind
from statebackend import (
    IncrementalCleanup,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ReducingStateDescriptor,
    RuntimeContext,
    StateRegistrationError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.testing.backends.harness import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

BACKENDS = ("heap", "rocksdb")

HOUR_MS = 3_600_000


@attrs.frozen
class Click:
    user: str
    page: str


class Visits(KeyedProcessFunction[str, Any, tuple[str, int, int, int, int]]):
    """Emits the user with the click count of each kind of state."""

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.ttl = ttl

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0, ttl=self.ttl))
        self.pages = context.get_list_state(ListStateDescriptor("pages", str, ttl=self.ttl))
        self.by_page = context.get_map_state(MapStateDescriptor("by page", str, int, ttl=self.ttl))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", add, int, ttl=self.ttl))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int, int, int]]:
        self.count.update((self.count.value() or 0) + 1)
        self.pages.add(value.page)
        self.by_page.put(value.page, (self.by_page.get(value.page) or 0) + 1)
        self.sum.add(1)
        total = sum(times or 0 for times in self.by_page.values())
        yield value.user, self.count.value() or 0, len(self.pages.get()), total, self.sum.get() or 0


def add(left: int, right: int) -> int:
    return left + right


def run(
    function: Visits, clicks: list[Click], backend: str, job_dir: Path, clock: Any, **options: Any
) -> tuple[list[Any], Any]:
    environment = LocalStreamEnvironment(backend=backend, job_dir=job_dir, epoch_size=2, clock=clock)
    rows: list[Any] = []
    environment.from_elements(clicks).key_by("user").process(
        function, uid="visits", schema="user string, a int, b int, c int, d int"
    ).sink_to(rows)
    return rows, environment.execute("visits", **options)


class EpochClock:
    """A clock that advances at every call."""

    def __init__(self, *times_ms: int) -> None:
        self.times_ms = list(times_ms)

    def __call__(self) -> int:
        return self.times_ms.pop(0) if len(self.times_ms) > 1 else self.times_ms[0]


def same(user: str, times: int) -> tuple[str, int, int, int, int]:
    return user, times, times, times, times


CLICKS = [Click("ann", "/a"), Click("ann", "/b")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_epoch_has_one_time_and_the_next_one_another(tmp_path: Path, backend: str) -> None:
    clock = EpochClock(0, 100, 199)
    rows, _ = run(Visits(StateTtlConfig(100)), CLICKS * 3, backend, tmp_path / "job", clock)
    assert rows == [same("ann", times) for times in (1, 2, 1, 2, 3, 4)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ttl_uses_the_clock_of_this_machine(tmp_path: Path, backend: str) -> None:
    environment = LocalStreamEnvironment(backend=backend, job_dir=tmp_path / "job", epoch_size=2)
    rows: list[Any] = []
    environment.from_elements(CLICKS * 2).key_by("user").process(
        Visits(StateTtlConfig(HOUR_MS)), uid="v", schema="user string, a int, b int, c int, d int"
    ).sink_to(rows)
    environment.execute("visits")
    assert rows == [same("ann", times) for times in (1, 2, 3, 4)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_upgrade_turns_it_on_and_off(tmp_path: Path, backend: str) -> None:
    clock, job = ManualClock(0), tmp_path / "job"
    run(Visits(None), CLICKS, backend, job, clock)
    clock.now_ms = 1000
    rows, upgraded = run(Visits(StateTtlConfig(100)), CLICKS, backend, job, clock)
    assert rows == [same("ann", times) for times in (3, 4)]
    compatibilities = upgraded.schema_reports["visits"].compatibilities
    assert {compatibility.kind for compatibility in compatibilities} == {CompatibilityKind.AFTER_MIGRATION}
    assert {issue.rule for compatibility in compatibilities for issue in compatibility.issues} == {"ttl-enabled"}
    clock.now_ms = 1100
    rows, same_ttl = run(Visits(StateTtlConfig(10_000)), CLICKS[:1], backend, job, clock)
    assert rows == [same("ann", 5)]
    assert {compatibility.kind for compatibility in same_ttl.schema_reports["visits"].compatibilities} == {
        CompatibilityKind.AS_IS
    }
    rows, downgraded = run(Visits(None), CLICKS[:1], backend, job, clock)
    assert rows == [same("ann", 6)]
    rules = {
        one.rule
        for compatibility in downgraded.schema_reports["visits"].compatibilities
        for one in compatibility.issues
    }
    assert rules == {"ttl-disabled"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_savepoint_drops_expired_state(tmp_path: Path, backend: str) -> None:
    clock = EpochClock(0, 50, 120)
    ttl = StateTtlConfig(100, incremental_cleanup=None)
    clicks = [Click("ann", "/a"), Click("ann", "/b"), Click("bob", "/a"), Click("bob", "/a")]
    _, job = run(Visits(ttl), clicks, backend, tmp_path / "job", clock)
    report = job.savepoint(tmp_path / "savepoint")
    assert set(report.rows["visits"].values()) == {1}
    rows, _ = run(
        Visits(ttl),
        [*clicks[:1], *clicks[2:3]],
        backend,
        tmp_path / "next",
        ManualClock(0),
        from_savepoint=tmp_path / "savepoint",
    )
    assert sorted(rows) == [same("ann", 1), same("bob", 3)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_record_cleans_up_if_configured(tmp_path: Path, backend: str) -> None:
    class Sparse(KeyedProcessFunction[str, Click, Any]):
        """Uses its state for some users only."""

        def open(self, context: RuntimeContext) -> None:
            ttl = StateTtlConfig(100, cleanup_full_snapshot=False, incremental_cleanup=IncrementalCleanup(3, True))
            self.seen = context.get_state(ValueStateDescriptor("seen", str, ttl=ttl))

        def process_element(self, value: Click, context: ProcessContext[str]) -> None:
            if value.page == "/write":
                self.seen.update(value.user)

    clicks = [Click(f"user {number}", "/write") for number in range(20)]
    clicks += [Click(f"guest {number}", "/read") for number in range(20)]
    environment = LocalStreamEnvironment(backend=backend, job_dir=tmp_path, epoch_size=20, clock=EpochClock(0, 100))
    environment.from_elements(clicks).key_by("user").process(Sparse(), uid="sparse", schema="user string").sink_to([])
    job = environment.execute("sparse")
    assert job.savepoint(tmp_path / "savepoint").rows == {"sparse": {"seen": 0}}


@pytest.mark.extended_after(1)
@pytest.mark.spark
@pytest.mark.parametrize("backend", BACKENDS)
def test_state_expires_from_one_micro_batch_to_the_next(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    from statebackend.spark import ParquetSink, SparkStreamEnvironment

    class Count(KeyedProcessFunction[str, Any, Any]):
        def open(self, context: RuntimeContext) -> None:
            self.short = context.get_state(ValueStateDescriptor("short", int, 0, ttl=StateTtlConfig(1)))
            self.long = context.get_state(ValueStateDescriptor("long", int, 0, ttl=StateTtlConfig(HOUR_MS)))

        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
            self.short.update((self.short.value() or 0) + 1)
            self.long.update((self.long.value() or 0) + 1)
            yield value.user, self.short.value() or 0, self.long.value() or 0

    source = tmp_path / "source"
    for number in range(2):
        add_file(source, number, ({"user": user} for user in ("ann", "bob", "ann")))
    stream = spark.readStream.schema("user string").option("maxFilesPerTrigger", 1).json(str(source))
    environment = SparkStreamEnvironment(
        spark,
        job_dir=tmp_path / "job",
        local_state_directory=tmp_path / "local",
        backend=backend,
        parallelism=2,
        max_parallelism=16,
    )
    environment.from_dataframe(stream).key_by("user").process(
        Count(), uid="count", schema="user string, short bigint, long bigint"
    ).sink_to(ParquetSink(tmp_path / "rows"))
    environment.execute("count", trigger={"availableNow": True}).await_termination()
    rows = spark.read.parquet(str(tmp_path / "rows")).select("epoch", "user", "short", "long").collect()
    # Time does not advance within a micro-batch, so even a TTL of one millisecond lasts until its end.
    assert sorted(tuple(row) for row in rows) == [
        (0, "ann", 1, 1),
        (0, "ann", 2, 2),
        (0, "bob", 1, 1),
        (1, "ann", 1, 3),
        (1, "ann", 2, 4),
        (1, "bob", 1, 2),
    ]


@pytest.mark.parametrize(
    ("time_to_live", "advice"),
    [
        (0, "time-to-live is 0; it must be at least 1 ms. State that never expires has no StateTtlConfig"),
        (1.5, "time-to-live is 1.5, which is not a duration"),
        (datetime.timedelta(microseconds=1), "is not a whole number of milliseconds"),
    ],
)
def test_a_ttl_that_is_not_a_number_of_milliseconds_is_rejected(time_to_live: Any, advice: str) -> None:
    with pytest.raises(StateRegistrationError, match=advice):
        StateTtlConfig(time_to_live)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_clock_that_goes_back_does_not_extend_ttl(tmp_path: Path, backend: str) -> None:
    job = tmp_path / "job"
    run(Visits(StateTtlConfig(100)), CLICKS, backend, job, ManualClock(1000))
    run(Visits(StateTtlConfig(100)), CLICKS, backend, job, ManualClock(0))
    # Entries written while the clock was behind live as long as with a correct clock.
    rows, _ = run(Visits(StateTtlConfig(100)), CLICKS, backend, job, ManualClock(1099))
    assert rows == [same("ann", times) for times in (5, 6)]
