"""The records of one side of an interval join that wait for partners, by key and timestamp.

Each record is an entry of its own in a map state, under its timestamp and its number among those of that time:

    map  (timestamp in ms, number from 0) -> record

So to add one writes one entry, whatever waits there already, and what waits at one time is removed together. How many
there are at a time, a few looks at numbers tell: those of one time have no gaps. To find partners the buffer knows, of
the keys in use, which timestamps there are, in order: a look-up costs a binary search, and reads the records that it
gives and no others.

The timestamps of a key are read from state at its first look-up, in one pass over what waits under the key, and go on
being known, as long as no more than `MOST_TIMES` are for all keys together. Beyond that all are forgotten and read
again where they are needed: a pass per key and batch at most, unless one batch goes to and fro between such keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from statebackend import MapState, MapStateDescriptor
from streamjobs.operators.element_form import ElementForm
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.scalars.fixed_width import IntSerializer, LongSerializer

__all__ = ["JoinBuffer"]

MOST_TIMES: Final = 200_000
"""The most timestamps of one side that are known at a time: about 30 MB."""

_WORTH_A_COMPACTION: Final = 64


class _Times:
    """The timestamps of one key: how many records wait at each, and the order.

    A timestamp that is gone stays in the order until many are: they go from the front, each time moving all others.
    """

    __slots__ = ("counts", "order")

    def __init__(self, times: Iterable[int]) -> None:
        self.counts: dict[int, int] = Counter(times)
        self.order: list[int] = sorted(self.counts)

    def add(self, time: int) -> int:
        """Takes one more record of that time; returns how many there were."""
        counts = self.counts
        count = counts.get(time, 0)
        counts[time] = count + 1
        if not count:
            order = self.order
            at = bisect_left(order, time)
            if at == len(order) or order[at] != time:
                order.insert(at, time)
        return count

    def remove(self, time: int) -> int:
        """Forgets a time; returns how many records there were."""
        count = self.counts.pop(time, 0)
        gone = len(self.order) - len(self.counts)
        if gone > _WORTH_A_COMPACTION and gone > len(self.counts):
            self.order = [one for one in self.order if one in self.counts]
        return count


class JoinBuffer:
    """See the module; ``register`` registers state without namespaces. The key of each call must be current."""

    def __init__(self, name: str, form: ElementForm, register: Callable[[MapStateDescriptor[Any, Any]], Any]) -> None:
        place: TupleSerializer = TupleSerializer([LongSerializer(), IntSerializer()])
        self._state: MapState[tuple[int, int], Any] = register(MapStateDescriptor(name, place, form.serializer))
        self._form = form
        self._known: dict[Any, _Times] = {}
        self._held = 0

    def add(self, key: Any, record: Any, time: int) -> None:
        """Adds a record."""
        times = self._known.get(key)
        if times is None:
            number = self._count_at(time)
        else:
            number = times.add(time)
            self._held += 1
        self._state.put((time, number), self._form.stored(record))

    def between(self, key: Any, lowest: int, highest: int) -> Iterator[tuple[int, Any]]:
        """The records from one time to another, both inclusive, each with its time, in order of time and arrival."""
        times = self._times(key)
        order, counts, get, given = times.order, times.counts, self._state.get, self._form.given
        for index in range(bisect_left(order, lowest), len(order)):
            time = order[index]
            if time > highest:
                break
            for number in range(counts.get(time, 0)):
                yield time, given(get((time, number)))

    def remove(self, key: Any, time: int) -> None:
        """Removes the records of a time."""
        times = self._known.get(key)
        for number in range(self._count_at(time) if times is None else times.remove(time)):
            self._state.remove((time, number))

    def _count_at(self, time: int) -> int:
        """How many records of a time there are, in as many looks as their number has digits in binary, twice."""
        contains = self._state.contains
        above = 1
        while contains((time, above - 1)):
            above *= 2
        # There is none of the number `above` - 1, and all below half of that are there.
        return bisect_left(range(above - 1), True, lo=above // 2, key=lambda number: not contains((time, number)))

    def _times(self, key: Any) -> _Times:
        times = self._known.get(key)
        if times is None:
            if self._held > MOST_TIMES:
                self._known.clear()
                self._held = 0
            times = self._known[key] = _Times(time for (time, _), _ in self._state.items())
            # A key is worth something, though nothing waits under it.
            self._held += 1 + len(times.order)
        return times
