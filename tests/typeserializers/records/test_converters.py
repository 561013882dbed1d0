"""Converters for fields, for records over versions, and for other values."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import attrs
import pytest
from record_versions import compatibility_of, migrated, rules, written

import typeserializers as ts
from migration import MigrationError, SchemaMigration
from snapshots import FieldCompatibility, snapshot_to_bytes
from statebackend.testing.upgrades import migration_between
from typeserializers import converted_by, former_names


def first() -> Any:
    @attrs.frozen
    class Delay:
        seconds: int
        route: str
        carrier: str

    return Delay


def second(**options: Any) -> ts.AttrsSerializer[Any]:
    @attrs.frozen
    class Delay:
        minutes: float
        route: str
        carrier: str

    return ts.AttrsSerializer(Delay, schema_version=2, **options)


def third(**options: Any) -> ts.AttrsSerializer[Any]:
    @attrs.frozen
    class Delay:
        minutes: float
        origin: str
        dest: str
        airline: bytes = attrs.field(metadata=former_names("carrier"))
        flights: int = 1

    return ts.AttrsSerializer(Delay, schema_version=3, **options)


def seconds_to_minutes(values: dict[str, Any]) -> dict[str, Any]:
    values["minutes"] = values.pop("seconds") / 60
    return values


def split_route(values: dict[str, Any]) -> dict[str, Any]:
    origin, dest = values["route"].split("-")
    return {"minutes": values["minutes"], "carrier": values["carrier"], "origin": origin, "dest": dest}


STEPS = {1: seconds_to_minutes, 2: split_route}


def test_converters_are_chained_from_the_version_of_the_state() -> None:
    old, new = ts.AttrsSerializer(first()), third(converters=STEPS)
    compatibility = compatibility_of(old, new)
    assert compatibility.is_after_migration
    (root,) = [issue for issue in compatibility.issues if not issue.path]
    assert root.rule == "record-converted"
    assert root.reason == "schema versions 1 -> 2 by seconds_to_minutes, 2 -> 3 by split_route"
    delay = old.record_class
    assert migrated(old, new, delay(90, "JFK-LAX", "é")) == new.record_class(1.5, "JFK", "LAX", "é".encode(), 1)


def test_a_state_of_a_middle_version_uses_the_rest_of_the_chain() -> None:
    old, new = second(), third(converters=STEPS)
    assert migrated(old, new, old.record_class(1.5, "JFK-LAX", "AA")) == new.record_class(1.5, "JFK", "LAX", b"AA", 1)


def test_a_state_of_the_current_version_needs_no_converter() -> None:
    compatibility = compatibility_of(third(), third(converters=STEPS))
    assert compatibility.is_as_is
    assert compatibility.issues == ()


def test_the_schema_version_is_in_the_snapshot() -> None:
    restored = written(second()).restore_serializer()
    assert restored.shape.schema_version == 2
    assert snapshot_to_bytes(restored.snapshot_configuration()) == snapshot_to_bytes(second().snapshot_configuration())


def test_a_state_of_a_later_version_is_rejected() -> None:
    compatibility = compatibility_of(third(), second(converters={1: seconds_to_minutes}))
    assert compatibility.is_incompatible
    assert rules(compatibility)[""] == "schema-version-older"


def test_a_version_without_a_converter_is_left_to_the_rules() -> None:
    compatibility = compatibility_of(ts.AttrsSerializer(first()), second())
    assert compatibility.is_incompatible
    assert rules(compatibility)[".minutes"] == "field-added-without-default"


def test_the_report_says_that_a_converter_may_return_an_added_field() -> None:
    old, new = second(), third(converters={2: lambda values: {**split_route(values), "flights": 7}})
    reasons = {issue.path: issue.reason for issue in compatibility_of(old, new).issues}
    assert reasons[".flights"] == "default 1, unless a converter returns it"
    assert migrated(old, new, old.record_class(1.5, "x-y", "z")).flights == 7


def test_the_report_does_not_say_so_of_a_field_of_a_nested_record() -> None:
    def outer(version: int, **fields: Any) -> ts.AttrsSerializer[Any]:
        inner = attrs.make_class("Inner", {name: attrs.field(type=int, **how) for name, how in fields.items()})
        record = attrs.make_class("Outer", {"inner": attrs.field(type=inner)})
        return ts.AttrsSerializer(record, schema_version=version, converters={1: dict} if version > 1 else {})

    issues = compatibility_of(outer(1, a={}), outer(2, a={}, b={"default": 0})).issues
    assert {issue.path: issue.reason for issue in issues}[".inner.b"] == "default 0"


def test_the_class_may_declare_version_and_converters_itself() -> None:
    class Delay(NamedTuple):
        minutes: float
        route: str
        carrier: str

        __schema_version__ = 2
        __converters__ = {1: seconds_to_minutes}  # noqa: RUF012

    old, new = ts.AttrsSerializer(first()), ts.serializer_for(list[Delay])
    listed = ts.ListSerializer(old)
    assert compatibility_of(listed, new).is_after_migration
    assert migrated(listed, new, [old.record_class(90, "x", "y")]) == [Delay(1.5, "x", "y")]


def test_untouched_nested_records_evolve_by_the_rules() -> None:
    @attrs.frozen
    class Stop:
        airport: str

    old_stop: Any = Stop

    @attrs.frozen
    class Stop:  # type: ignore[no-redef]
        airport: str
        gate: str = "?"

    new_stop: Any = Stop

    def flight(stop: Any, **options: Any) -> ts.AttrsSerializer[Any]:
        cls = attrs.make_class("Flight", ["stops", "number"], frozen=True)
        number = ts.StringSerializer() if options else ts.LongSerializer()
        serializers = {"stops": ts.ListSerializer(ts.serializer_for(stop)), "number": number}
        return ts.AttrsSerializer(cls, field_serializers=serializers, **options)

    def number_to_text(values: dict[str, Any]) -> dict[str, Any]:
        assert values["stops"][0].airport == "JFK"
        return {**values, "number": str(values["number"])}

    old, new = flight(old_stop), flight(new_stop, schema_version=2, converters={1: number_to_text})
    value = old.record_class([old_stop("JFK")], 7)
    assert migrated(old, new, value) == new.record_class([new_stop("JFK", "?")], "7")


def test_a_converter_may_return_none_for_optional_fields_only() -> None:
    @attrs.frozen
    class Delay:
        minutes: float | None
        route: str
        carrier: str

    new = ts.AttrsSerializer(Delay, schema_version=2, converters={1: lambda values: {**values, "minutes": None}})
    old = ts.AttrsSerializer(first())
    assert migrated(old, new, old.record_class(90, "x", "y")) == Delay(None, "x", "y")


@pytest.mark.parametrize(
    ("converter", "message"),
    [
        (lambda values: None, "by name, not NoneType"),
        (lambda values: {**values, "minuts": 1.0}, "minuts"),
        (lambda values: values, ".minutes: the converters return no value"),
        (lambda values: {**values, "minutes": "soon"}, ".minutes"),
        (lambda values: {**values, "minutes": None}, ".minutes: the converters return None"),
        (lambda values: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_failing_converter_stops_the_migration_with_its_path(converter: Any, message: str) -> None:
    old, new = ts.AttrsSerializer(first()), second(converters={1: converter})
    migration: SchemaMigration[Any] = migration_between(written(old), new)
    data = old.to_bytes(old.record_class(90, "x", "y"))
    with pytest.raises(MigrationError, match=message):
        migration.to_value(data)
    with pytest.raises(MigrationError, match=message):
        migration.to_bytes(data)


@pytest.mark.parametrize("options", [{"converters": {2: split_route}}, {"converters": {0: split_route}}])
def test_a_converter_that_is_never_used_is_rejected(options: Any) -> None:
    with pytest.raises(ValueError, match="never used"):
        second(**options)


def test_a_schema_version_below_one_is_rejected() -> None:
    with pytest.raises(ValueError, match="an integer of 1 or more"):
        ts.AttrsSerializer(first(), schema_version=0)


def field_version(hint: Any, metadata: Any = None) -> ts.AttrsSerializer[Any]:
    cls = attrs.make_class("Flight", {"time": attrs.field(type=hint, metadata=metadata), "n": attrs.field(type=int)})
    return ts.AttrsSerializer(cls)


def minutes_of(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def test_a_field_may_have_its_own_converter() -> None:
    old, new = field_version(str), field_version(int, converted_by(minutes_of))
    assert rules(compatibility_of(old, field_version(int))) == {".time": "field-type-changed"}
    compatibility = compatibility_of(old, new)
    assert compatibility.is_after_migration
    assert [str(issue) for issue in compatibility.issues] == [
        ".time: converted [field-converted] each old value goes through minutes_of"
    ]
    assert migrated(old, new, old.record_class("10:05", 3)) == new.record_class(605, 3)
    assert compatibility_of(new, new).is_as_is


def test_a_field_may_be_renamed_and_converted_at_once() -> None:
    @attrs.frozen
    class Before:
        late: str = ""

    @attrs.frozen
    class After:
        minutes: int = attrs.field(default=0, metadata=ts.former_names("late") | ts.converted_by(int))

    old, new = ts.AttrsSerializer(Before, name="Departure"), ts.AttrsSerializer(After, name="Departure")
    assert migrated(old, new, Before("90")) == After(90)


def test_a_field_is_converted_only_where_no_rule_applies() -> None:
    def never(value: Any) -> Any:
        raise AssertionError("the rules cover this")

    old, new = field_version(int), field_version(float, converted_by(never))
    assert migrated(old, new, old.record_class(3, 4)) == new.record_class(3.0, 4)


def test_the_result_of_a_field_converter_is_checked() -> None:
    old, new = field_version(str), field_version(int, converted_by(lambda text: text))
    with pytest.raises(MigrationError, match="not an integer"):
        migration_between(old, new).to_value(old.to_bytes(old.record_class("x", 1)))


def test_another_value_is_converted_by_a_wrapper() -> None:
    new = ts.ConvertingSerializer(ts.StringSerializer(), {ts.LongSerializer(): str, ts.DoubleSerializer(): repr})
    assert rules(compatibility_of(ts.LongSerializer(), new)) == {"": "value-converted"}
    assert migrated(ts.LongSerializer(), new, 5) == "5"
    assert migrated(ts.DoubleSerializer(), new, 0.5) == "0.5"
    assert compatibility_of(ts.IntSerializer(), new).is_incompatible


def test_a_value_of_another_type_is_rejected_with_the_needed_wrapper() -> None:
    old = ts.IntSerializer()
    compatibility = compatibility_of(old, ts.StringSerializer())
    assert compatibility.is_incompatible
    assert (
        "Keep int; or write a function from the old value to the new one and the type "
        "Annotated[str, ConvertingSerializer(StringSerializer(), {IntSerializer(): function})]"
    ) in str(compatibility)


class Colour(enum.Enum):
    RED = 1


@attrs.frozen
class Reading:
    value: int


@dataclasses.dataclass(frozen=True)
class Note:
    text: str


@pytest.mark.parametrize(
    ("old", "new", "value", "function", "expected"),
    [
        (int, str, 7, str, "7"),
        (str, list[int], "12", lambda text: [len(text)], [2]),
        (list[int], set[int], [1, 1], set, {1}),
        (tuple[int, str], Note, (1, "x"), lambda pair: Note(pair[1]), Note("x")),
        (int | str, int | None, "12", int, 12),
        (Colour, Literal["red", "blue"], Colour.RED, lambda one: "red", "red"),
        (Reading, dict[str, int], Reading(3), lambda one: {"value": one.value}, {"value": 3}),
        (int, Note, 3, lambda number: Note(str(number)), Note("3")),
        (dict[str, int], list[Reading], {"a": 1}, lambda one: [Reading(n) for n in one.values()], [Reading(1)]),
        (bytes | int | str, bytes | int, "12", lambda one: int(one) if isinstance(one, str) else one, 12),
        (int | Note, int | Reading, Note("abc"), lambda one: Reading(len(one.text)), Reading(3)),
    ],
)
def test_the_advised_type_can_be_pasted(
    old: Any, new: Any, value: Any, function: Callable[[Any], Any], expected: Any
) -> None:
    before = ts.serializer_for(old)
    issue = compatibility_of(before, ts.serializer_for(new)).issues[0]
    advised = issue.fix[issue.fix.index("Annotated[") : issue.fix.index("function})]") + len("function})]")]
    names = {**vars(ts), "Annotated": Annotated, "Any": Any, "function": function}
    after = ts.serializer_for(eval(advised, {**names, "Colour": Colour, "Reading": Reading, "Note": Note}))
    assert migrated(before, after, value) == expected


def test_two_states_of_one_type_keep_their_own_converters() -> None:
    def doubled_by(factor: float) -> Callable[[int], str]:
        return lambda number: str(factor * number)

    of_integers = [str, doubled_by(2), doubled_by(3), doubled_by(2.0)]
    for old, value, function in ((float, 7.0, repr), *((int, 7, one) for one in of_integers)):
        source: Any = ts.serializer_for(old)
        hint = Annotated[str, ts.ConvertingSerializer(ts.StringSerializer(), {source: function})]
        assert migrated(source, ts.serializer_for(hint), value) == function(value)
    before, record = first(), second().record_class
    for field in ("carrier", "route"):
        steps = {1: lambda old, name=field: {**old, "minutes": old["seconds"] / 60, name: "?"}}
        hint = Annotated[record, ts.AttrsSerializer(record, schema_version=2, converters=steps)]
        after = migrated(ts.AttrsSerializer(before), ts.serializer_for(hint), before(60, "a", "b"))
        assert getattr(after, field) == "?"
    first_one, again = (ts.ConvertingSerializer(source, {source: doubled_by(2)}) for _ in range(2))
    assert first_one == again


def test_the_wrapper_is_added_and_removed_without_a_migration() -> None:
    plain, wrapped = ts.StringSerializer(), ts.ConvertingSerializer(ts.StringSerializer(), {ts.LongSerializer(): str})
    assert compatibility_of(plain, wrapped).is_as_is
    assert compatibility_of(wrapped, wrapped).is_as_is
    assert compatibility_of(wrapped, plain).is_as_is
    assert written(wrapped).restore_serializer() == plain


def test_the_source_of_a_wrapper_may_evolve() -> None:
    old_class, new_class = (
        first(),
        attrs.make_class(
            "Delay", {"seconds": attrs.field(type=float), "extra": attrs.field(type=int, default=7)}, frozen=True
        ),
    )
    old, source = ts.AttrsSerializer(old_class), ts.AttrsSerializer(new_class)
    new = ts.ListSerializer(ts.ConvertingSerializer(ts.DoubleSerializer(), {source: lambda it: it.seconds + it.extra}))
    assert compatibility_of(ts.ListSerializer(old), new).is_after_migration
    assert migrated(ts.ListSerializer(old), new, [old_class(90, "x", "y")]) == [97.0]


def test_a_wrapper_keeps_working_with_an_evolving_serializer() -> None:
    old, new = field_version(int), field_version(float)
    wrapped = ts.ConvertingSerializer(new, {ts.LongSerializer(): lambda number: new.record_class(float(number), 0)})
    assert migrated(ts.LongSerializer(), wrapped, 3) == new.record_class(3.0, 0)
    assert migrated(old, wrapped, old.record_class(1, 2)) == new.record_class(1.0, 2)


def test_the_result_of_a_wrapper_is_checked() -> None:
    new = ts.ConvertingSerializer(ts.IntSerializer(), {ts.LongSerializer(): lambda value: value})
    migration: SchemaMigration[Any] = migration_between(ts.LongSerializer(), new)
    assert migration.to_value(ts.LongSerializer().to_bytes(5)) == 5
    with pytest.raises(MigrationError, match=r"2\*\*31"):
        migration.to_value(ts.LongSerializer().to_bytes(2**40))


@pytest.mark.parametrize("name", ["Delay", "another.Delay"])
def test_another_class_is_rejected_even_with_a_higher_version(name: str) -> None:
    old = ts.AttrsSerializer(first(), name="the.Delay")
    converters = {1: seconds_to_minutes}
    compatibility = compatibility_of(old, second(name=name, converters=converters))
    assert compatibility.is_incompatible
    rejections = [issue.rule for issue in compatibility.issues if issue.compatibility is FieldCompatibility.REJECT]
    assert rejections == ["record-renamed"]
    declared = compatibility_of(old, second(name=name, former_names=("the.Delay",), converters=converters))
    assert declared.is_after_migration
    assert compatibility_of(old, second(name="the.Delay", converters=converters)).is_after_migration


def lossy_fields(compatibility: Any) -> list[str]:
    return [issue.path for issue in compatibility.with_compatibility(FieldCompatibility.LOSSY)]


def test_a_removed_field_is_lost_unless_a_converter_declares_to_read_it() -> None:
    old = ts.AttrsSerializer(first())
    undeclared = compatibility_of(old, third(converters=STEPS))
    assert lossy_fields(undeclared) == [".seconds", ".route"]
    assert 'reads_fields("route")(converter)' in str(undeclared)
    declared = {1: ts.reads_fields("seconds")(seconds_to_minutes), 2: ts.reads_fields("route")(split_route)}
    new = third(converters=declared)
    assert lossy_fields(compatibility_of(old, new)) == []
    assert "1 -> 2 by seconds_to_minutes, 2 -> 3 by split_route" in str(compatibility_of(old, new))
    assert "its values are lost, except to the converter that reads them" in str(compatibility_of(old, new))
    assert migrated(old, new, old.record_class(90, "JFK-LAX", "é")).origin == "JFK"
    assert lossy_fields(compatibility_of(old, third(converters={1: declared[1], 2: split_route}))) == [".route"]
    # A converter of an earlier version does not run, so its declaration does not count.
    assert lossy_fields(compatibility_of(second(), third(converters={1: declared[2], 2: split_route}))) == [".route"]


def test_a_loss_inside_a_field_is_reported_with_converters() -> None:
    stop, smaller = (attrs.make_class("Stop", dict.fromkeys(names, int_field())) for names in (["a", "b"], ["a"]))

    def flight(stop_class: type, **options: Any) -> ts.AttrsSerializer[Any]:
        made = attrs.make_class("Flight", {"stops": attrs.field(type=list[stop_class])})  # type: ignore[valid-type]
        return ts.AttrsSerializer(made, **options)

    new = flight(smaller, schema_version=2, converters={1: dict})
    assert lossy_fields(compatibility_of(flight(stop), new)) == [".stops[].b"]
    new = flight(smaller, schema_version=2, converters={1: ts.reads_fields("stops")(dict)})
    assert lossy_fields(compatibility_of(flight(stop), new)) == []


def test_a_loss_in_the_source_of_a_converting_serializer_is_reported() -> None:
    wide, narrow = (attrs.make_class("Point", dict.fromkeys(names, int_field())) for names in (["x", "y"], ["x"]))
    new = ts.ConvertingSerializer(ts.StringSerializer(), {ts.AttrsSerializer(narrow): lambda point: str(point.x)})
    old = ts.AttrsSerializer(wide)
    assert lossy_fields(compatibility_of(old, new)) == [".y"]
    assert migrated(old, new, wide(3, 4)) == "3"


def int_field() -> Any:
    return attrs.field(type=int)
