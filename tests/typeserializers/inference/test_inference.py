"""The serializer of each type hint, and recursive records."""

from __future__ import annotations

import array
import collections
import collections.abc
import datetime
import decimal
import enum
import re
import threading
import typing
import uuid
from typing import Annotated, Any, NewType

import attrs
import pytest

import typeserializers as ts
from snapshots import (
    MalformedDataError,
    SerializationError,
    StateFormatError,
    UnresolvableSerializerError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from typeserializers.kernel.known_serializers import restored_with


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


T = typing.TypeVar("T")


@attrs.frozen
class Generic(typing.Generic[T]):
    item: T


UserId = NewType("UserId", int)
LONG, STRING = ts.LongSerializer(), ts.StringSerializer()


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (None, ts.VoidSerializer()),
        (type(None), ts.VoidSerializer()),
        (datetime.date, ts.PythonDateSerializer()),
        (datetime.time, ts.PythonTimeSerializer()),
        (datetime.datetime, ts.PythonDateTimeSerializer()),
        (datetime.timedelta, ts.TimedeltaSerializer()),
        (decimal.Decimal, ts.BigDecSerializer()),
        (uuid.UUID, ts.UuidSerializer()),
        (ts.Instant, ts.InstantSerializer()),
        (ts.LocalDate, ts.LocalDateSerializer()),
        (ts.TimeWindow, ts.TimeWindowSerializer()),
        (Colour, ts.EnumSerializer(Colour)),
        (UserId, LONG),
        (set[str], ts.SetSerializer(STRING)),
        (set[int | None], ts.SetSerializer(LONG)),
        (frozenset[Colour], ts.FrozenSetSerializer(ts.EnumSerializer(Colour))),
        (tuple[()], ts.Tuple0Serializer()),
        (int | str, ts.UnionSerializer([LONG, STRING])),
        (typing.Union[int, str, bytes], ts.UnionSerializer([ts.BytesSerializer(), LONG, STRING])),  # noqa: UP007
        (int | str | None, ts.NullableSerializer(ts.UnionSerializer([LONG, STRING]))),
        (list[int] | dict[str, int], ts.UnionSerializer([ts.MapSerializer(STRING, LONG), ts.ListSerializer(LONG)])),
        (ts.Left[int] | ts.Right[str], ts.EitherSerializer(LONG, STRING)),
        (ts.Right[str] | ts.Left[int], ts.EitherSerializer(LONG, STRING)),
        (datetime.date | None, ts.NullableSerializer(ts.PythonDateSerializer())),
        (Annotated[datetime.date, ts.LocalDateSerializer()], ts.LocalDateSerializer()),
        (Annotated[array.array, ts.LongPrimitiveArraySerializer()], ts.LongPrimitiveArraySerializer()),
        (Annotated[int, "a note"], LONG),
        (typing.Literal["a", "b"], ts.LiteralSerializer(STRING, ["a", "b"])),
        (
            typing.Literal[1, "a", None],
            ts.NullableSerializer(
                ts.UnionSerializer([ts.LiteralSerializer(LONG, [1]), ts.LiteralSerializer(STRING, ["a"])])
            ),
        ),
        (typing.Literal[Colour.RED], ts.LiteralSerializer(ts.EnumSerializer(Colour), [Colour.RED])),
        (typing.Final[int], LONG),
        (typing.List[int], ts.ListSerializer(LONG)),  # noqa: UP006
        (typing.Dict[str, int], ts.MapSerializer(STRING, LONG)),  # noqa: UP006
        (typing.Tuple[int, str], ts.TupleSerializer([LONG, STRING])),  # noqa: UP006
        (typing.Optional[int], ts.NullableSerializer(LONG)),  # noqa: UP045
    ],
)
def test_a_hint_has_a_serializer(hint: Any, expected: ts.TypeSerializer[Any]) -> None:
    assert ts.serializer_for(hint) == expected


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (dict[str, list[Any]], r"\{value\}\[\]: no serializer is known"),
        (set[complex], r"\{element\}: no serializer is known for complex"),
        (int | complex, r"\{member complex\}: no serializer is known for complex"),
        (list[list[int] | list[str]], r"\[\]: two members of the union are of the class list"),
        (list[array.array], r"\[\]: array.array has no element type"),
        (tuple[int, typing.ForwardRef("Nowhere")], r"\[1\]: the name 'Nowhere' cannot be resolved"),
        (ts.Left[int] | ts.Right[complex], r"\.right: no serializer"),
        (list, r"no serializer is known for list. .*write for example list\[int\]"),
        (typing.List, "known for List. It does not say of what"),  # noqa: UP006
        (typing.Dict, r"known for Dict. .*dict\[str, int\]"),  # noqa: UP006
        (typing.Set, r"known for Set. .*set\[str\]"),  # noqa: UP006
        (typing.Tuple, r"known for Tuple. .*tuple\[int, str\]"),  # noqa: UP006
        (frozenset, r"known for frozenset. .*frozenset\[str\]"),
        (list[tuple[int, ...]], r"\[\]: no serializer is known for tuple\[int, \.\.\.\].*write list\[int\]"),
        (collections.abc.Sequence[int], r"Sequence\[int\].*write list"),
        (collections.abc.Mapping[str, int], r"Mapping\[str, int\].*write dict"),
        (collections.deque[int], r"deque\[int\].*write list"),
        (bytearray, "known for bytearray.*write bytes"),
        (Generic[int], r"known for Generic\[int\]\. .*write a subclass of Generic\[int\], and use that"),
        (Generic, r"\.item: no serializer is known for T.*type variable"),
        (typing.TypedDict("Loose", {"a": int}), "known for Loose.*NamedTuple"),
        (list[Any], r"\[\]: no serializer is known for Any.*int \| str"),
        (object, "known for object.*int | str"),
        (typing.Literal["a", 1.5j], "complex"),
    ],
)
def test_an_unknown_hint_is_an_error_with_its_path(hint: Any, message: str) -> None:
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.serializer_for(hint)


def test_a_union_distinguishes_its_members_by_class() -> None:
    serializer = ts.serializer_for(bool | int | str)
    for value in (True, 1, 0, "x"):
        read = serializer.from_bytes(serializer.to_bytes(value))
        assert (type(read), read) == (type(value), value)
    two = ts.serializer_for(str | int)
    either = ts.EitherSerializer(LONG, STRING)
    assert two.to_bytes(5) == either.to_bytes(ts.Left(5))
    assert two.to_bytes("a") == either.to_bytes(ts.Right("a"))
    with pytest.raises(SerializationError, match="not one of int, str"):
        two.to_bytes(1.5)
    with pytest.raises(SerializationError, match="an integer from"):
        two.to_bytes(1 << 80)
    with pytest.raises(ValueError, match="at least two"):
        ts.UnionSerializer([LONG])
    with pytest.raises(ValueError, match="cannot be distinguished"):
        ts.UnionSerializer([ts.SetSerializer(LONG), ts.SetSerializer(STRING)])


@attrs.frozen
class Node:
    value: int
    next: Node | None = None
    children: list[Node] = attrs.field(factory=list)


@attrs.frozen
class Person:
    name: str
    employer: Company | None = None


@attrs.frozen
class Company:
    name: str
    staff: dict[str, Person] = attrs.field(factory=dict)


def test_a_record_may_contain_itself() -> None:
    serializer = ts.serializer_for(Node)
    tree = Node(1, Node(2), [Node(3, None, [Node(4, Node(5))]), Node(6)])
    assert serializer.from_bytes(serializer.to_bytes(tree)) == tree
    assert serializer.copy(tree) == tree
    assert serializer == ts.AttrsSerializer(Node)
    with pytest.raises(SerializationError, match=r"\.children\[0\]\.next\.value: 'x'"):
        serializer.to_bytes(Node(1, None, [Node(2, Node("x"))]))


def test_records_may_contain_each_other() -> None:
    serializer = ts.serializer_for(Company)
    company = Company("A", {"x": Person("x", Company("B", {"y": Person("y")}))})
    assert serializer.from_bytes(serializer.to_bytes(company)) == company


def test_a_record_in_a_function_may_contain_itself() -> None:
    @attrs.frozen
    class Local:
        value: int
        next: Local | None = None

    serializer = ts.serializer_for(list[Local])
    assert serializer.from_bytes(serializer.to_bytes([Local(1, Local(2))])) == [Local(1, Local(2))]


def test_the_snapshot_of_a_recursive_record_restores_it() -> None:
    for hint, value in ((Node, Node(1, Node(2), [Node(3)])), (Company, Company("A", {"x": Person("x", Company("B"))}))):
        serializer = ts.serializer_for(hint)
        data = snapshot_to_bytes(serializer.snapshot_configuration())
        snapshot = snapshot_from_bytes(data)
        assert snapshot_to_bytes(snapshot) == data
        restored = restored_with(snapshot, serializer)
        assert restored.from_bytes(serializer.to_bytes(value)) == value
        assert resolve_compatibility(snapshot, serializer).is_as_is
    # The other name is unknown in this process, so a stand-in replaces the class.
    data = snapshot_to_bytes(ts.AttrsSerializer(Node, name="Gone").snapshot_configuration())
    stranger = snapshot_from_bytes(data.replace(b"\0\4Gone", b"\0\4Lost")).restore_serializer()
    read = stranger.from_bytes(ts.serializer_for(Node).to_bytes(Node(1, Node(2), [Node(3, Node(4))])))
    assert read.children[0].next.value == 4
    assert type(read.next) is type(read)


def test_a_reconfigured_record_applies_inside_itself() -> None:
    old_enum, new_enum = enum.Enum("Kind", ["A", "B"]), enum.Enum("Kind", ["B", "A"])

    @attrs.frozen
    class Tagged:
        kind: Any
        rest: list[Tagged] = attrs.field(factory=list)

    before = ts.AttrsSerializer(Tagged, field_serializers={"kind": ts.EnumSerializer(old_enum)})
    data = before.to_bytes(Tagged(old_enum["A"], [Tagged(old_enum["B"])]))
    after = ts.AttrsSerializer(Tagged, field_serializers={"kind": ts.EnumSerializer(new_enum)})
    compatibility = resolve_compatibility(before.snapshot_configuration(), after)
    assert compatibility.is_with_reconfigured_serializer
    expected = Tagged(new_enum["A"], [Tagged(new_enum["B"])])
    assert compatibility.reconfigured_serializer.from_bytes(data) == expected
    assert compatibility.reconfigured_serializer.to_bytes(expected) == data


def test_a_renamed_recursive_record_declares_its_former_name() -> None:
    @attrs.frozen
    class Before:
        rest: list[Before] = attrs.field(factory=list)

    @attrs.frozen
    class After:
        __former_names__ = ("Before",)
        rest: list[After] = attrs.field(factory=list)

    old = ts.serializer_for(Before)
    assert resolve_compatibility(old.snapshot_configuration(), ts.serializer_for(After)).is_as_is
    undeclared = ts.AttrsSerializer(After, name="Other", former_names=("Nothing",))
    assert resolve_compatibility(old.snapshot_configuration(), undeclared).is_incompatible


def test_nesting_beyond_the_recursion_limit_is_an_error_both_ways() -> None:
    serializer = ts.serializer_for(Node)
    deep = Node(0)
    for number in range(100_000):
        deep = Node(number, deep)
    with pytest.raises(SerializationError):
        serializer.to_bytes(deep)
    level = bytes(8) + b"\0"
    with pytest.raises(StateFormatError):
        serializer.from_bytes(level * 100_000)
    # Release the chain level by level, because releasing it at once would recurse too deeply.
    while deep is not None:
        deep = deep.next


def test_a_reference_outside_of_its_record_is_invalid() -> None:
    reference = ts.ReferenceSerializer("Node")
    for use in (reference.create_instance, lambda: reference.copy(1), lambda: reference.to_bytes(1)):
        with pytest.raises(StateFormatError, match="outside the record"):
            use()
    snapshot = snapshot_from_bytes(snapshot_to_bytes(reference.snapshot_configuration()))
    with pytest.raises(UnresolvableSerializerError):
        snapshot.restore_serializer().from_bytes(b"")
    assert snapshot.restore_serializer() == reference
    assert resolve_compatibility(snapshot, LONG).is_incompatible


def test_serializers_work_in_many_threads() -> None:
    serializer = ts.serializer_for(dict[str, set[int] | Node])
    values = [{"a": {1, 2, number}, "b": Node(number, Node(number))} for number in range(50)]
    barrier, failures = threading.Barrier(4), []

    def work() -> None:
        own = serializer.duplicate()
        barrier.wait()
        failures.extend(value for value in values * 5 if own.from_bytes(own.to_bytes(value)) != value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_every_public_name_exists_and_every_snapshot_is_registered() -> None:
    from snapshots import registered_names, snapshot_class_name

    assert len(set(ts.__all__)) == len(ts.__all__)
    classes = [getattr(ts, name) for name in ts.__all__]
    made = {snapshot_class_name(found) for found in registered_names().values()}
    for found in classes:
        if isinstance(found, type) and issubclass(found, ts.TypeSerializer) and "snapshot_configuration" in vars(found):
            returned = typing.get_type_hints(found.snapshot_configuration).get("return", Any)
            assert "Snapshot" in str(returned)
    assert all("<locals>" not in name for name in made)


def test_a_null_in_a_union_without_none_is_rejected() -> None:
    with pytest.raises(MalformedDataError, match="union without None"):
        ts.serializer_for(str | int).from_bytes(b"\x00\x00")


@pytest.mark.parametrize(
    "hint", [type[int], collections.abc.Callable[[int], str], collections.abc.Iterator[int], re.Pattern[str]]
)
def test_only_a_class_with_fields_can_be_a_record(hint: Any) -> None:
    with pytest.raises(ts.UnknownTypeError) as rejected:
        ts.serializer_for(hint)
    assert "AttrsSerializer" not in str(rejected.value)
