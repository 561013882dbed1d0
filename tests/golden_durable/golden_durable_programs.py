"""The job of the files in `tests/golden/durable`: its records, and its function in two versions.

All types in the state have stable names (``golden.Visit`` and so on), so this module may move. The stored type of a
name must not change, because the files are never rewritten. Classes ending in ``V1`` are the stored ones. Those ending
in ``V2`` are the next version of the same program.

A record of the stream is ``{"key": str, "number": int}``. A number of at least 0 is stored in every state of the key.
-1 clears every state of the key. -2 removes a part of each state: the map entry ``"1"``, the first element of the list,
the record. The reading functions change nothing. They emit the state of the keys in their records.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator
from typing import Annotated, Any

import attrs

from statebackend import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ReducingStateDescriptor,
    RuntimeContext,
    SplitListStateDescriptor,
    StateTtlConfig,
    UnionListStateDescriptor,
    ValueStateDescriptor,
)
from typeserializers import (
    AttrsSerializer,
    EnumSerializer,
    IntSerializer,
    LongSerializer,
    PojoSerializer,
    StringSerializer,
    UnionSerializer,
    former_names,
)

CLEAR = -1
TAKE_AWAY = -2
TTL = StateTtlConfig(10_000)

Int = Annotated[int, IntSerializer()]


class ColourV1(enum.Enum):
    RED = "red"
    BLUE = "blue"


class ColourV2(enum.Enum):
    """Other order, and one more constant."""

    GREEN = "green"
    BLUE = "blue"
    RED = "red"


@attrs.frozen
class BerthV1:
    quay: str
    depth: int


@attrs.frozen
class BerthV2:
    """One field removed, and one widened to float."""

    depth: float


@attrs.frozen
class VisitV1:
    port: str
    tons: int
    colour: Annotated[ColourV1, EnumSerializer(ColourV1, name="golden.Colour")]
    berth: Annotated[BerthV1, AttrsSerializer(BerthV1, name="golden.Berth")]
    tags: list[str]
    note: str | None


@attrs.frozen
class VisitV2:
    """One field renamed, one widened, one removed, one added, and changes in nested records and enums."""

    harbour: str = attrs.field(metadata=former_names("port"))
    colour: Annotated[ColourV2, EnumSerializer(ColourV2, name="golden.Colour")]
    tons: float
    berth: Annotated[BerthV2, AttrsSerializer(BerthV2, name="golden.Berth")]
    tags: list[str]
    pilot: str = "nobody"


@attrs.define
class MeanV1:
    total: int = 0
    count: int = 0


@attrs.define
class MeanV2:
    count: int = 0
    sum: float = attrs.field(default=0.0, metadata=former_names("total"))


@attrs.define
class PlaceV1:
    __pojo_class__ = "golden.Place"
    id: Int


@attrs.define
class TownV1(PlaceV1):
    """An unregistered subclass."""

    __pojo_class__ = "golden.Town"
    area: Int = 0
    people: Int = 0


@attrs.define
class PlaceV2:
    __pojo_class__ = "golden.Place"
    id: Int


@attrs.define
class TownV2(PlaceV2):
    """One field removed, and one added."""

    __pojo_class__ = "golden.Town"
    people: Int = 0
    zone: Int = 7


VISIT_V1 = AttrsSerializer(VisitV1, name="golden.Visit")
VISIT_V2 = AttrsSerializer(VisitV2, name="golden.Visit")


def visit_v1(key: str, number: int) -> VisitV1:
    """The record to store for a number."""
    return VisitV1(
        port=f"port of {key}",
        tons=number,
        colour=ColourV1.BLUE if number % 2 else ColourV1.RED,
        berth=BerthV1(f"quay {number}", number + 3),
        tags=[key] * (number % 3),
        note=None if number % 2 else f"note {number}",
    )


class _Average(AggregateFunction[int, Any, float]):
    """The average of the added numbers. It also reads the accumulator of the next version."""

    def get_result(self, accumulator: Any) -> float:
        total: float = accumulator.total if isinstance(accumulator, MeanV1) else accumulator.sum
        return total / accumulator.count

    def merge(self, left: Any, right: Any) -> Any:
        return self.create_accumulator().__class__(*map(operator.add, attrs.astuple(left), attrs.astuple(right)))


class AverageV1(_Average):
    def create_accumulator(self) -> MeanV1:
        return MeanV1()

    def add(self, value: int, accumulator: MeanV1) -> MeanV1:
        return MeanV1(accumulator.total + value, accumulator.count + 1)


class AverageV2(_Average):
    def create_accumulator(self) -> MeanV2:
        return MeanV2()

    def add(self, value: int, accumulator: MeanV2) -> MeanV2:
        return MeanV2(accumulator.count + 1, accumulator.sum + value)


@attrs.frozen
class Schemas:
    """What differs between the versions of the program."""

    visit: Any
    place: Any
    average: Any
    mean: Any


# A state that is registered twice needs the same function object.
_AVERAGES = {1: AverageV1(), 2: AverageV2()}


def schemas_of(version: int) -> Schemas:
    """The serializers that wrote the golden files (version 1), or those of the next version of the program (2).

    The POJO serializer is a new one in each call, because it learns subclasses from the values that it writes.
    """
    if version == 1:
        mean: Any = AttrsSerializer(MeanV1, name="golden.Mean")
        return Schemas(VISIT_V1, PojoSerializer(PlaceV1), _AVERAGES[1], mean)
    mean = AttrsSerializer(MeanV2, name="golden.Mean")
    return Schemas(VISIT_V2, PojoSerializer(PlaceV2), _AVERAGES[2], mean)


class _WithEveryState(KeyedProcessFunction[str, Any, Any]):
    """Registers every kind of state with the schemas of one version of the program."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def open(self, context: RuntimeContext) -> None:
        self.register(context)

    def register(self, context: RuntimeContext) -> None:
        schemas = schemas_of(self.version)
        union = UnionSerializer([LongSerializer(), StringSerializer(), schemas.visit])
        self.value = context.get_state(ValueStateDescriptor("value", int))
        self.record = context.get_state(ValueStateDescriptor("record", schemas.visit))
        self.pojo = context.get_state(ValueStateDescriptor("pojo", schemas.place))
        self.union = context.get_state(ValueStateDescriptor("union", union))
        self.visits = context.get_list_state(ListStateDescriptor("list", schemas.visit))
        self.map = context.get_map_state(MapStateDescriptor("map", str, float))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("reducing", operator.add, int))
        self.mean = context.get_aggregating_state(
            AggregatingStateDescriptor("aggregating", schemas.average, schemas.mean)
        )
        self.ttl_value = context.get_state(ValueStateDescriptor("value with ttl", schemas.visit, ttl=TTL))
        self.ttl_list = context.get_list_state(ListStateDescriptor("list with ttl", int, ttl=TTL))
        self.ttl_map = context.get_map_state(MapStateDescriptor("map with ttl", str, float, ttl=TTL))
        self.ttl_sum = context.get_reducing_state(
            ReducingStateDescriptor("reducing with ttl", operator.add, int, ttl=TTL)
        )
        self.ttl_mean = context.get_aggregating_state(
            AggregatingStateDescriptor("aggregating with ttl", schemas.average, schemas.mean, ttl=TTL)
        )
        store = context.operator_state
        self.split = store.get_list_state(SplitListStateDescriptor("split", schemas.visit))
        self.all_keys = store.get_union_list_state(UnionListStateDescriptor("union list", str))
        self.broadcast = store.get_broadcast_state(BroadcastStateDescriptor("broadcast", str, int))

    @property
    def _keyed(self) -> tuple[Any, ...]:
        return (
            *(self.value, self.record, self.pojo, self.union, self.visits, self.map, self.sum, self.mean),
            *(self.ttl_value, self.ttl_list, self.ttl_map, self.ttl_sum, self.ttl_mean),
        )


class Write(_WithEveryState):
    """Writes the golden files."""

    def open(self, context: RuntimeContext) -> None:
        self.register(context)
        self.broadcast.put(f"epoch {context.epoch_id}", context.epoch_id)
        self.broadcast.put("nothing", None)
        if context.is_restored:
            # Each subtask was given all keys and continues with its share, like a subtask of a source.
            mine = list(self.all_keys.get())[context.subtask_index :: context.parallelism]
            self.all_keys.update(mine)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        key, number = context.current_key, value["number"]
        if number == CLEAR:
            for state in self._keyed:
                state.clear()
        elif number == TAKE_AWAY:
            self.record.clear()
            self.map.remove("1")
            self.ttl_map.remove("1")
            self.visits.update(list(self.visits.get())[1:])
        else:
            self._store(key, number)
        yield from ()

    def _store(self, key: str, number: int) -> None:
        visit = visit_v1(key, number)
        self.value.update(number)
        self.record.update(visit)
        self.pojo.update(TownV1(number, 10 * number, 100 * number) if number % 2 else PlaceV1(number))
        self.union.update((number, f"text {number}", visit)[number % 3])
        self.visits.add(visit)
        self.sum.add(number)
        self.mean.add(number)
        self.ttl_value.update(visit)
        self.ttl_list.add(number)
        self.ttl_sum.add(number)
        self.ttl_mean.add(number)
        for entries in (self.map, self.ttl_map):
            entries.put(str(number), None if number == 2 else number / 2)
        self.split.add(visit)
        self.all_keys.add(f"{key} {number}")


class Collected:
    """Collects the results of all subtasks. All copies of the function share it."""

    def __init__(self) -> None:
        self.operator_state: dict[int, dict[str, Any]] = {}

    def __deepcopy__(self, memo: object) -> Collected:
        return self


class Read(_WithEveryState):
    """Emits ``(key, {state: content})`` for each record, and collects the restored operator state by subtask."""

    def __init__(self, version: int = 1) -> None:
        super().__init__(version)
        self.collected = Collected()

    def open(self, context: RuntimeContext) -> None:
        self.register(context)
        if context.is_restored:
            self.collected.operator_state[context.subtask_index] = {
                "split": plain(list(self.split.get())),
                "union list": list(self.all_keys.get()),
                "broadcast": dict(self.broadcast.items()),
            }

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        found = {
            "value": self.value.value(),
            "record": self.record.value(),
            "pojo": self.pojo.value(),
            "union": self.union.value(),
            "list": list(self.visits.get()),
            "map": dict(self.map.items()),
            "reducing": self.sum.get(),
            "aggregating": self.mean.get(),
            "value with ttl": self.ttl_value.value(),
            "list with ttl": list(self.ttl_list.get()),
            "map with ttl": dict(self.ttl_map.items()),
            "reducing with ttl": self.ttl_sum.get(),
            "aggregating with ttl": self.ttl_mean.get(),
        }
        yield context.current_key, {name: plain(content) for name, content in found.items()}


def plain(value: Any) -> Any:
    """A value as plain data: a record as a tuple of class name and fields, a constant by its name."""
    if attrs.has(value.__class__):
        return (value.__class__.__name__, *(plain(getattr(value, one.name)) for one in attrs.fields(value.__class__)))
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in sorted(value.items())}
    return value
