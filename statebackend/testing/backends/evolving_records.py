"""Records that change, and aggregate functions, for the contracts of migration and folding.

They are attrs classes, and Flink POJOs with unregistered subclasses. The bytes of a POJO contain the names of its
subclasses; only the snapshot contains their fields. A backend that does not store what a `PojoSerializer` has learned
reads wrong values, or fails.

The aggregate functions are sums, with accumulators of an immutable and of a mutable type.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any

import attrs

from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.states import AggregateFunction
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.record_families import former_names
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_serializer import PojoSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.fixed_width import IntSerializer


class ImmutableSum(AggregateFunction[int, int, str]):
    """The accumulator is a number, the result its string."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> str:
        return str(accumulator)

    def merge(self, left: int, right: int) -> int:
        return left + right


@attrs.define
class Tally:
    """A mutable accumulator."""

    total: int = 0


class MutableSum(AggregateFunction[int, Tally, str]):
    """Modifies all accumulators that are passed to it."""

    def create_accumulator(self) -> Tally:
        return Tally()

    def add(self, value: int, accumulator: Tally) -> Tally:
        accumulator.total += value
        return accumulator

    def get_result(self, accumulator: Tally) -> str:
        result = str(accumulator.total)
        accumulator.total = -1
        return result

    def merge(self, left: Tally, right: Tally) -> Tally:
        left.total += right.total
        right.total = -1
        return left


SUM: ReducingStateDescriptor[int] = ReducingStateDescriptor("sum", operator.add, int)
IMMUTABLE_SUM: AggregatingStateDescriptor[int, int, str] = AggregatingStateDescriptor(
    "immutable sum", ImmutableSum(), int
)
MUTABLE_SUM: AggregatingStateDescriptor[int, Tally, str] = AggregatingStateDescriptor(
    "mutable sum", MutableSum(), AttrsSerializer(Tally, name="statebackend.contract.Tally")
)


RECORD_NAME = "statebackend.contract.Flight"


@attrs.frozen
class DelayV1:
    """Nested in `FlightV1`."""

    minutes: int
    cause: str


@attrs.frozen
class DelayV2:
    """One field widened, one added."""

    minutes: float
    cause: str
    excused: bool = False


@attrs.frozen
class FlightV1:
    """An immutable record."""

    number: int
    late: int
    carrier: str
    delay: DelayV1 | None = None


@attrs.frozen
class FlightV2:
    """One field renamed and widened, one removed, one added, and the nested record changed."""

    number: int
    minutes_late: float = attrs.field(metadata=former_names("late"))
    delay: DelayV2 | None = None
    seats: int = 100


@attrs.frozen
class FlightV3:
    """Incompatible: a field has become another type."""

    number: str
    late: int
    carrier: str
    delay: DelayV1 | None = None


@attrs.define
class LegV1:
    """A mutable record."""

    airport: str
    minutes: int


@attrs.define
class LegV2:
    """One field widened, one with a factory added."""

    airport: str
    minutes: float
    tags: list[str] = attrs.field(factory=list)


def flight_v1() -> AttrsSerializer[FlightV1]:
    """The serializer of the first version."""
    return AttrsSerializer(FlightV1, name=RECORD_NAME, field_serializers=_delay(DelayV1))


def flight_v2() -> AttrsSerializer[FlightV2]:
    """The serializer of the second version."""
    return AttrsSerializer(FlightV2, name=RECORD_NAME, field_serializers=_delay(DelayV2))


def flight_v3() -> AttrsSerializer[FlightV3]:
    """The serializer of an incompatible version."""
    return AttrsSerializer(FlightV3, name=RECORD_NAME, field_serializers=_delay(DelayV1))


def leg_v1() -> AttrsSerializer[LegV1]:
    """The serializer of the first version."""
    return AttrsSerializer(LegV1, name=RECORD_NAME + "Leg")


def leg_v2() -> AttrsSerializer[LegV2]:
    """The serializer of the second version."""
    return AttrsSerializer(LegV2, name=RECORD_NAME + "Leg")


def migrated_flight(old: FlightV1) -> FlightV2:
    """Return the expected result of migrating a flight."""
    delay = None if old.delay is None else DelayV2(float(old.delay.minutes), old.delay.cause)
    return FlightV2(old.number, float(old.late), delay)


def migrated_leg(old: LegV1) -> LegV2:
    """Return the expected result of migrating a leg."""
    return LegV2(old.airport, float(old.minutes))


def _delay(record_class: type) -> dict[str, TypeSerializer[Any]]:
    return {"delay": NullableSerializer(AttrsSerializer(record_class, name=RECORD_NAME + "Delay"))}


Int = Annotated[int, IntSerializer()]

BASE_NAME = "statebackend.contract.Place"
TOWN_NAME = "statebackend.contract.Town"
PORT_NAME = "statebackend.contract.Port"


@attrs.define
class PlaceV1:
    """The declared class."""

    __pojo_class__ = BASE_NAME
    id: Int


@attrs.define
class TownV1(PlaceV1):
    """An unregistered subclass."""

    __pojo_class__ = TOWN_NAME
    area: Int = 0
    extra: Int = 0


@attrs.define
class PortV1(PlaceV1):
    """Another unregistered subclass."""

    __pojo_class__ = PORT_NAME
    berths: Int = 0
    depth: Int = 0


@attrs.define
class PlaceV2:
    """The declared class in the next version of the program."""

    __pojo_class__ = BASE_NAME
    id: Int


@attrs.define
class TownV2(PlaceV2):
    """One field removed, one added. The number of bytes is the same, but the bytes differ."""

    __pojo_class__ = TOWN_NAME
    extra: Int = 0
    zone: Int = 0


@attrs.define
class PortV2(PlaceV2):
    """Changed as `TownV2`, with another alphabetical order of fields."""

    __pojo_class__ = PORT_NAME
    anchorages: Int = 0
    berths: Int = 0


@attrs.define
class PlaceV3:
    """The declared class with changed fields. Its subclasses are as in version 1."""

    __pojo_class__ = BASE_NAME
    id: Int
    name: str | None = None


@attrs.define
class TownV3(PlaceV3):
    """A subclass of version 3."""

    __pojo_class__ = TOWN_NAME
    area: Int = 0
    extra: Int = 0


@attrs.define
class PlaceV4:
    """The declared class of version 4."""

    __pojo_class__ = BASE_NAME
    id: Int
    name: str | None = None


@attrs.define
class TownV4(PlaceV4):
    """Changed as in version 2."""

    __pojo_class__ = TOWN_NAME
    extra: Int = 0
    zone: Int = 0


def places_v1() -> PojoSerializer[Any]:
    """Return the serializer of version 1."""
    return PojoSerializer(PlaceV1)


def places_v2() -> PojoSerializer[Any]:
    """Return the serializer of version 2."""
    return PojoSerializer(PlaceV2)


def places_v3() -> PojoSerializer[Any]:
    """Return the serializer of version 3, which changes the declared class but no subclass."""
    return PojoSerializer(PlaceV3)


def places_v4() -> PojoSerializer[Any]:
    """Return the serializer of version 4, which changes a subclass."""
    return PojoSerializer(PlaceV4)
