"""Programs for Spark's ``transformWithState``, as users write them. Several run in one query.

A query that runs all of them takes as long as a query for one. So one processor (`Programs`) contains them all. The
first column of the key names the program of a record, and each program has its own state names.

The first four are like PySpark's documentation and tests for the kinds of state and timers. The others are typical
programs of users: a rate limit, deduplication, a moving average.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

INPUT = "program string, k string, n int, t bigint"
OUTPUT = "program string, k string, what string, n bigint"


def struct(**types: Any) -> StructType:
    """A schema. With a DDL string, Spark would call the JVM for each state and batch."""
    return StructType([StructField(name, of()) for name, of in types.items()])


class Violations(StatefulProcessor):
    """Counts the readings of a sensor, and how many of them were above 100."""

    def init(self, handle: Any) -> None:
        self.above = handle.getValueState("above", struct(count=IntegerType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        readings = [row.n for row in rows]
        above = sum(reading > 100 for reading in readings)
        if self.above.exists():
            above += self.above.get()[0]
        self.above.update((above,))
        yield Row(what="readings", n=len(readings), k=key[0])
        yield Row(k=key[0], what="above", n=above)

    def close(self) -> None: ...


class Largest(StatefulProcessor):
    """Stores the three largest numbers of a key in a list."""

    def init(self, handle: Any) -> None:
        self.largest = handle.getListState("largest", struct(n=IntegerType, k=StringType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        known = list(self.largest.get())
        known += [(row.n, row["k"]) for row in rows]
        self.largest.put(sorted(known, reverse=True)[:3])
        for n, k in self.largest.get():
            yield Row(k=k, what="largest", n=n)


class CountedNumbers(StatefulProcessor):
    """Counts each number in a map. A negative number removes its counterpart."""

    def init(self, handle: Any) -> None:
        self.times = handle.getMapState("times", struct(n=IntegerType), struct(times=LongType, last=LongType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            if row.n < 0:
                self.times.removeKey((-row.n,))
                continue
            before = self.times.getValue((row.n,))
            self.times.updateValue((row.n,), (1 if before is None else before.times + 1, row.t))
        if not self.times.exists():
            yield Row(k=key[0], what="none", n=None)
        for (n,), (times, last) in self.times.iterator():
            yield Row(k=key[0], what=f"{n} at {last}", n=times)


class RateLimiter(StatefulProcessor):
    """Passes two records per minute. A map has the count of each minute, and older minutes are removed."""

    def init(self, handle: Any) -> None:
        self.passed = handle.getMapState("passed", struct(minute=LongType), struct(count=IntegerType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in sorted(rows, key=lambda one: (one.t, one.n)):
            minute = (row.t // 60_000,)
            for old in list(self.passed.keys()):
                if old < minute:
                    self.passed.removeKey(old)
            count = self.passed.getValue(minute)["count"] if self.passed.containsKey(minute) else 0
            if count < 2:
                self.passed.updateValue(minute, (count + 1,))
                yield Row(k=key[0], what="passed", n=row.n)
            else:
                yield Row(k=key[0], what="held back", n=row.n)


class MovingAverage(StatefulProcessor):
    """Emits the average of the last three numbers of a key, which are in a list."""

    def init(self, handle: Any) -> None:
        self.last = handle.getListState("last", struct(n=IntegerType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in sorted(rows, key=lambda one: one.t):
            self.last.appendValue((row.n,))
            last = [n for (n,) in self.last.get()][-3:]
            self.last.put([(n,) for n in last])
            yield Row(k=key[0], what=f"average of {len(last)}", n=sum(last) * 100 // len(last))


class Balance(StatefulProcessor):
    """Sums numbers, starting from the initial state of a key. A key may have several initial amounts."""

    def init(self, handle: Any) -> None:
        self.balance = handle.getValueState("balance", struct(amount=LongType))

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        before = self.balance.get()
        self.balance.update(((before[0] if before else 0) + initialState.amount,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self.balance.get()
        after = (before[0] if before else 0) + sum(row.n for row in rows)
        self.balance.update((after,))
        yield Row(k=key[0], what=f"was {before}", n=after)


class Fresh(StatefulProcessor):
    """Passes each number of a key once an hour, and emits in the same batch that it was new."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getMapState("seen", struct(n=IntegerType), struct(t=LongType), 3_600_000)
        self.first = handle.getValueState("first", struct(n=IntegerType), 3_600_000)
        self.all = handle.getListState("all", struct(n=IntegerType), 3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in sorted(rows, key=lambda one: one.t):
            if not self.first.exists():
                self.first.update((row.n,))
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
            if self.seen.containsKey((row.n,)):
                continue
            self.seen.updateValue((row.n,), (row.t,))
            self.all.appendValue((row.n,))
            yield Row(k=key[0], what="fresh", n=row.n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], what=f"timer {len(list(self.handle.listTimers()))}, late {late}", n=self.first.get()[0])
        yield Row(k=key[0], what="all", n=sum(n for (n,) in self.all.get()))


class Heartbeat(StatefulProcessor):
    """Emits a row when a key has no record for ten seconds of event time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.records = handle.getValueState("records", struct(count=LongType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        last = max(row.t for row in rows)
        before = self.records.get()
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + 10_000)
        self.records.update(((before[0] if before else 0) + 1,))
        yield Row(k=key[0], what=f"heard at {timerValues.getCurrentWatermarkInMs()}", n=last)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        (times,) = self.records.get()
        self.records.clear()
        yield Row(
            k=key[0],
            what=f"silent after {times}, {timerValues.getCurrentWatermarkInMs()}",
            n=expiredTimerInfo.getExpiryTimeInMs(),
        )


class LatestEvent(StatefulProcessor):
    """PySpark's own example of event time: a maximum, which a timer at its event time clears."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.latest = handle.getValueState("latest", struct(t=LongType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        latest = max([row.t for row in rows] + list(self.latest.get() or ()))
        self.latest.update((latest,))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())
        yield Row(k=key[0], what="latest", n=latest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        self.latest.clear()
        self.handle.deleteTimer(expiredTimerInfo.getExpiryTimeInMs())
        yield Row(k=key[0], what="expired", n=expiredTimerInfo.getExpiryTimeInMs())


class Reminders(StatefulProcessor):
    """Registers a timer for each number of a record. A timer registers two more, and one is already due."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            self.handle.registerTimer(row.n)
            self.handle.registerTimer(row.n)
        yield Row(k=key[0], what=str(sorted(self.handle.listTimers())), n=0)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        if expiry % 1000 == 7:
            self.handle.registerTimer(expiry - 1)
            self.handle.registerTimer(expiry + 20_000)
        yield Row(k=key[0], what=f"timer {sorted(self.handle.listTimers())}", n=expiry)


STATE_PROGRAMS = (Violations, Largest, CountedNumbers, RateLimiter, MovingAverage, Balance)


class Programs(StatefulProcessor):
    """A processor that runs several programs in one query."""

    def __init__(self, *programs: type[StatefulProcessor]) -> None:
        self.programs = {program.__name__: program() for program in programs}

    def init(self, handle: Any) -> None:
        for name, program in self.programs.items():
            program.init(_Named(handle, name))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        program = self.programs[key[0]]
        for row in program.handleInputRows((key[1],), rows, timerValues):
            yield Row(program=key[0], **row.asDict())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        program = self.programs[key[0]]
        for row in program.handleExpiredTimer((key[1],), timerValues, expiredTimerInfo):
            yield Row(program=key[0], **row.asDict())

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: N802, N803
        self.programs[key[0]].handleInitialState((key[1],), initialState, timerValues)

    def close(self) -> None:
        for program in self.programs.values():
            program.close()


class _Named:
    """A handle that adds the name of the program to each state name."""

    def __init__(self, handle: Any, program: str) -> None:
        self._handle = handle
        self._program = program

    def __getattr__(self, method: str) -> Any:
        given = getattr(self._handle, method)
        if not method.startswith("get"):
            return given
        return lambda name, *arguments, **options: given(f"{self._program} {name}", *arguments, **options)
