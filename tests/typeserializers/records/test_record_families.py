"""Records of every family under the contracts: stored equally, and each adopts the state of all others."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import record_families as families
from hypothesis import strategies as st

import typeserializers as ts
from snapshots import CompatibilityKind, SerializationError
from snapshots.envelope import snapshot_to_bytes
from statebackend.testing.serializers import SerializerContract
from statebackend.testing.upgrades import UpgradeContract
from typeserializers.kernel.serializer_inference import DEFAULT_RULES, InferenceRules
from typeserializers.records.class_families import NamedTupleFamily

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]
LONGS = st.integers(-(2**63), 2**63 - 1)


class RecordContract(SerializerContract):
    """The contract of a record class; a subclass has the class and its example objects."""

    record_class: type
    examples: Sequence[Any]

    def serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(self.record_class)

    def values(self) -> Sequence[Any]:
        return self.examples

    def different_serializers(self) -> Sequence[ts.TypeSerializer[Any]]:
        return [ts.AttrsSerializer(self.record_class, name="Other")]


class TestPydanticModels(RecordContract):
    record_class = families.OfPydantic.Flight
    examples = families.flights(families.OfPydantic)

    def strategy(self) -> st.SearchStrategy[Any]:
        return st.builds(self.record_class, number=LONGS, either=LONGS | st.text(max_size=3))


class TestFrozenPydanticModels(RecordContract):
    record_class = families.OfPydantic.Stop
    examples = (families.OfPydantic.Stop(name="JFK", minutes=3), families.OfPydantic.Stop(name=""))


class TestPydanticModelsInsideThemselves(RecordContract):
    record_class = families.PydanticTree
    examples = (families.PydanticTree(name="a", children=[families.PydanticTree(name="b")]),)


class TestRootModels(RecordContract):
    record_class = families.Words
    examples = (families.Words([]), families.Words(["a", "é"]))


class TestMsgspecStructs(RecordContract):
    record_class = families.OfMsgspec.Flight
    examples = families.flights(families.OfMsgspec)

    def strategy(self) -> st.SearchStrategy[Any]:
        return st.builds(self.record_class, number=LONGS, either=LONGS | st.text(max_size=3))


class TestFrozenMsgspecStructs(RecordContract):
    record_class = families.OfMsgspec.Stop
    examples = (families.OfMsgspec.Stop("JFK", 3), families.OfMsgspec.Stop(""))


class TestMsgspecStructsInsideThemselves(RecordContract):
    record_class = families.MsgspecTree
    examples = (families.MsgspecTree("a", [families.MsgspecTree("b")]),)


class TestTaggedStructs(RecordContract):
    record_class = families.Owner
    examples = (
        families.Owner(first_name="Ann"),
        families.Owner(first_name="Bo", pets=[families.Cat(), families.Dog("Rex"), families.Cat(3)]),
    )


@pytest.mark.parametrize("name", families.FAMILIES)
def test_every_family_has_the_same_bytes_and_schema(name: str) -> None:
    first, other = families.serializer_of(families.OfAttrs), families.serializer_of(families.FAMILIES[name])
    written = [first.to_bytes(value) for value in families.flights(families.OfAttrs)]
    assert [other.to_bytes(value) for value in families.flights(families.FAMILIES[name])] == written
    if name != "named tuples":
        # Named tuples have no default factories, and a snapshot distinguishes them from default values.
        assert snapshot_to_bytes(other.snapshot_configuration()) == snapshot_to_bytes(first.snapshot_configuration())


def takes_over(old: Any, new: Any) -> type[UpgradeContract]:
    class TakesOver(UpgradeContract):
        expected = CompatibilityKind.AS_IS

        def old_serializer(self) -> ts.TypeSerializer[Any]:
            return families.serializer_of(old)

        def new_serializer(self) -> ts.TypeSerializer[Any]:
            return families.serializer_of(new)

        def values(self) -> Sequence[tuple[Any, Any]]:
            return list(zip(families.flights(old), families.flights(new), strict=True))

    return TakesOver


# All families store the same bytes, so each is tested with one other family, in both directions.
for _old, _new in (
    *(pair for name in families.FAMILIES if name != "attrs" for pair in ((name, "attrs"), ("attrs", name))),
    ("pydantic", "msgspec"),
    ("msgspec", "pydantic"),
):
    _class = takes_over(families.FAMILIES[_old], families.FAMILIES[_new])
    _class.__name__ = f"Test{_old.title().replace(' ', '')}TakenOverBy{_new.title().replace(' ', '')}"
    globals()[_class.__name__] = _class


@attrs.frozen
class Older:
    place: str
    flightNumber: int  # noqa: N815  (as a field of another program)
    gone: float = 0.0


@attrs.frozen
class OlderStill:
    flight_number: int
    last_airport: str


class EvolvesIntoAnotherFamily(UpgradeContract):
    expected = CompatibilityKind.AFTER_MIGRATION
    make: Callable[..., Any]

    def old_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(Older, name="Flight")

    def new_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(type(self).record_class, name="Flight")  # type: ignore[attr-defined]


class TestAliasesOfStructsAreFormerNames(EvolvesIntoAnotherFamily):
    record_class = families.Renamed

    def values(self) -> Sequence[tuple[Any, Any]]:
        return [(Older("JFK", 7), families.Renamed(7, "JFK"))]


class TestAliasesOfModelsAreFormerNames(EvolvesIntoAnotherFamily):
    record_class = families.Aliased

    def old_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(OlderStill, name="Flight")

    def values(self) -> Sequence[tuple[Any, Any]]:
        return [(OlderStill(7, "JFK"), families.Aliased.model_validate({"flight-number": 7, "last_airport": "JFK"}))]


def test_field_names_precede_their_other_names() -> None:
    fields = {part.name: part.former_names for part in ts.AttrsSerializer(families.Aliased).fields}
    assert fields == {"flight_number": ("flight-number",), "airport": ("place", "last_airport"), "swapped": ()}


class Slotted:
    """A third-party record class: slots with their types in a table."""

    types: dict[str, Any] = {}  # noqa: RUF012  (a table of each class)
    __slots__ = ()

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, one) == getattr(other, one) for one in self.types)

    __hash__ = None  # type: ignore[assignment]


class SlottedFamily(ts.RecordFamily):
    description = "classes with a table of slots"

    def recognizes(self, candidate: type) -> bool:
        return issubclass(candidate, Slotted)

    def fields(self, record_class: Any) -> Sequence[ts.DeclaredField]:
        return [ts.DeclaredField(name, hint, keyword_only=True) for name, hint in record_class.types.items()]

    def is_frozen(self, record_class: Any) -> bool:
        return False

    def maker(self, record_class: Any) -> Callable[..., Any]:
        return record_class


class Flight(Slotted):
    types = {"number": int, "colour": families.Colour | None}  # noqa: RUF012
    __slots__ = ("colour", "number")


SLOTTED = InferenceRules(DEFAULT_RULES)
SLOTTED.register_family(SlottedFamily())


class TestAFamilyOfAThirdParty(RecordContract):
    record_class = Flight
    examples = (Flight(number=1, colour=None), Flight(number=2, colour=families.Colour.RED))

    def serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(Flight, rules=SLOTTED)

    def different_serializers(self) -> Sequence[ts.TypeSerializer[Any]]:
        return [ts.AttrsSerializer(Flight, rules=SLOTTED, name="Other")]


def test_a_family_is_known_to_its_rules_only() -> None:
    assert ts.serializer_for(list[Flight], SLOTTED).to_bytes([]) == b"\0\0\0\0"
    with pytest.raises(ts.UnknownTypeError, match="no serializer is known for Flight"):
        ts.serializer_for(list[Flight])
    with pytest.raises(ts.UnknownTypeError, match="records are NamedTuples, attrs classes, pydantic dataclasses"):
        ts.AttrsSerializer(Flight)


def test_the_family_of_the_guide_works(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (REPOSITORY / "docs" / "record-families.md").read_text()
    [block] = [one for one in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class TableFamily" in one]
    rules = InferenceRules(DEFAULT_RULES)
    monkeypatch.setattr(ts, "register_record_family", rules.register_family)
    exec(block, {"Table": Slotted})
    serializer = ts.AttrsSerializer(Flight, rules=rules)
    value = Flight(number=1, colour=None)
    assert serializer.from_bytes(serializer.to_bytes(value)) == value


def test_records_of_attrs_need_neither_pydantic_nor_msgspec() -> None:
    program = (
        "import sys, attrs\n"
        "sys.modules['pydantic'] = sys.modules['msgspec'] = None\n"
        "import typeserializers as ts, statebackend.streaming.data_stream, statebackend.savepoint.savepoint\n"
        "made = attrs.make_class('Point', {'x': attrs.field(type=int)})\n"
        "assert ts.serializer_for(list[made]).to_bytes([made(1)])\n"
        "del sys.modules['pydantic'], sys.modules['msgspec']\n"
        "ts.serializer_for(made | None)\n"
        "assert 'pydantic' not in sys.modules and 'msgspec' not in sys.modules\n"
    )
    command, environment = [sys.executable, "-c", program], {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


BY_VALUE = """
import sys, msgspec, pydantic
from pyspark import cloudpickle
import typeserializers as ts

class Model(pydantic.BaseModel):
    x: int
    inside: "list[Model]" = []

class Struct(msgspec.Struct):
    x: int

for made in (Model, Struct):
    with open(made.__name__, "wb") as file:
        cloudpickle.dump((ts.AttrsSerializer(made), ts.AttrsSerializer(made).to_bytes(made(x=7))), file)
"""


def test_classes_of_a_main_script_are_pickled_by_value_or_reported(tmp_path: Path) -> None:
    command, environment = [sys.executable, "-c", BY_VALUE], {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    serializer, data = pickle.loads((tmp_path / "Model").read_bytes())
    assert serializer.from_bytes(data).model_dump() == {"x": 7, "inside": []}
    with pytest.raises(TypeError, match=r"Struct arrived in this process without its fields.*define it in a module"):
        pickle.loads((tmp_path / "Struct").read_bytes())


def test_a_named_tuple_is_distinct_from_tuples_and_similar_classes() -> None:
    class Pair(tuple):
        pass

    class Imitation:
        _field_defaults: ClassVar = {}
        _fields = ()

    family = NamedTupleFamily()
    assert family.recognizes(families.OfNamedTuples.Flight)
    assert not family.recognizes(Pair)
    assert not family.recognizes(Imitation)


def test_only_an_attrs_serializer_has_that_name() -> None:
    @dataclasses.dataclass
    class OfDataclass:
        x: int = 0

    @attrs.frozen
    class OfAttrs:
        x: int = 0

    for record_class, name in ((OfDataclass, "RecordSerializer"), (OfAttrs, "AttrsSerializer")):
        serializer: Any = ts.serializer_for(record_class)
        assert repr(serializer).startswith(f"{name}(")
        with pytest.raises(SerializationError, match=rf"^{name}\("):
            serializer.to_bytes(record_class("text"))  # type: ignore[arg-type]
