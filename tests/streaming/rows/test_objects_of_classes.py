"""Objects of `as_records` equal those of the constructor, for classes of every shape."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Optional, Union

import attrs
import msgspec
import pydantic
import pyspark.cloudpickle as cloudpickle
import pytest

from statebackend import KeyedProcessFunction, ProcessContext
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.rows.record_schema import record_type
from statebackend.streaming.rows.row_reader import UnreadableRowError
from typeserializers.kernel.serializer_inference import DEFAULT_RULES


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Frozen:
    id: int
    level: Level | None


@attrs.frozen
class Private:
    _id: int
    level: Optional[Level] = attrs.field(default=None, alias="grade")  # noqa: UP045


@attrs.frozen(kw_only=True)
class Keywords:
    level: Union[Level, None] = None  # noqa: UP007
    id: int


@attrs.frozen
class Inherited(Frozen):
    tags: list[str] = attrs.field(factory=list)


@attrs.frozen(slots=False)
class WithDict:
    id: int
    level: Level | None

    @functools.cached_property
    def double(self) -> int:
        return self.id * 2


@attrs.frozen
class Cached:
    id: int
    level: Level | None

    @functools.cached_property
    def double(self) -> int:
        return self.id * 2


@attrs.frozen(cache_hash=True)
class Hashed:
    id: int
    level: Level | None


@attrs.frozen
class Converted:
    id: int = attrs.field(converter=lambda value: value + 100)
    level: Level | None = None


@attrs.frozen
class Completed:
    id: int
    level: Level | None

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "id", self.id + 100)


@attrs.frozen
class OwnNew:
    id: int
    level: Level | None
    made: ClassVar[int] = 0

    def __new__(cls, *arguments: Any) -> OwnNew:
        cls.made += 1
        return object.__new__(cls)


@attrs.frozen
class Abstract(abc.ABC):
    id: int

    @abc.abstractmethod
    def __call__(self) -> int: ...


@attrs.frozen
class Concrete(Abstract):
    level: Level | None

    def __call__(self) -> int:
        return self.id


@attrs.frozen(init=False)
class OwnInit:
    id: int
    level: Level | None

    def __init__(self, id: int, level: Level | None) -> None:  # noqa: A002
        self.__attrs_init__(id + 100, level)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class FrozenData:
    id: int
    level: Level | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class SlottedData:
    id: int
    level: Level | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WiderData(SlottedData):
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class DictOverSlots(SlottedData):
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class CompletedData:
    id: int
    level: Level | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.id + 100)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeywordData:
    level: Level | None = None
    id: int


@dataclasses.dataclass
class Plain:
    id: int
    level: Level | None = None


class Tuple(NamedTuple):
    id: int
    level: Level | None = None


class Struct(msgspec.Struct):
    id: int
    level: Level | None = None


class FrozenStruct(msgspec.Struct, frozen=True, rename="camel"):
    id: int
    level: Level | None = None


class KeywordStruct(msgspec.Struct, kw_only=True):
    level: Level | None = None
    id: int


class MixedStruct(KeywordStruct):
    tags: list[str] = msgspec.field(default_factory=list)


class MatchedStruct(msgspec.Struct):
    id: int
    level: Level | None = None
    __match_args__: ClassVar[tuple[str, ...]] = ("level",)


class Model(pydantic.BaseModel):
    id: int
    level: Level | None = None


CLASSES: list[Any] = [
    Frozen,
    Private,
    Keywords,
    Inherited,
    WithDict,
    Cached,
    Hashed,
    Converted,
    Completed,
    OwnNew,
    Concrete,
    OwnInit,
    FrozenData,
    SlottedData,
    WiderData,
    DictOverSlots,
    CompletedData,
    KeywordData,
    Plain,
    Tuple,
    Struct,
    FrozenStruct,
    KeywordStruct,
    MixedStruct,
    MatchedStruct,
    Model,
]
VALUES: dict[str, list[Any]] = {"id": [1, 2], "_id": [1, 2], "level": [None, 2], "tags": [[], ["x"]]}


def constructed(record_class: Any, index: int) -> Any:
    names = record_type(record_class, "here").schema.names
    values = {name: VALUES[name][index] for name in names}
    if values["level"] is not None:
        values["level"] = Level(values["level"])
    if record_class is Private:
        return Private(id=values["_id"], grade=values["level"])
    return record_class(**values) if record_class is not OwnNew else OwnNew(values["id"], values["level"])


@pytest.mark.parametrize("record_class", CLASSES)
def test_objects_equal_those_of_the_constructor(record_class: Any) -> None:
    kind = record_type(record_class, "here")
    made = kind.make_all([VALUES[name] for name in kind.schema.names])
    expected = [constructed(record_class, index) for index in range(2)]
    assert made == expected
    assert list(map(type, made)) == [record_class] * 2
    assert list(map(repr, made)) == list(map(repr, expected))
    assert [type(one.level) for one in made] == [type(None), Level]
    family = DEFAULT_RULES.family_of(record_class)
    if family is not None and family.is_frozen(record_class) and "tags" not in kind.schema.names:
        assert list(map(hash, made)) == list(map(hash, expected))
    assert pickle.loads(pickle.dumps(made)) == expected


def test_a_constructor_with_side_effects_is_called() -> None:
    assert [one.id for one in record_type(Completed, "here").make_all([[1], [None]])] == [101]
    assert [one.id for one in record_type(CompletedData, "here").make_all([[1], [None]])] == [101]
    assert [one.id for one in record_type(Converted, "here").make_all([[1], [None]])] == [101]
    assert [one.id for one in record_type(OwnInit, "here").make_all([[1], [None]])] == [101]
    before = OwnNew.made
    record_type(OwnNew, "here").make_all([[1, 2], [None, None]])
    assert OwnNew.made == before + 2


def test_properties_are_computed_from_the_fields() -> None:
    for record_class in (WithDict, Cached):
        assert [one.double for one in record_type(record_class, "here").make_all(VALUES_OF_TWO)] == [2, 4]


VALUES_OF_TWO: list[list[Any]] = [[1, 2], [None, 2]]


@pytest.mark.parametrize(
    "record_class", [one for one in CLASSES if not issubclass(one, (msgspec.Struct, pydantic.BaseModel))]
)
def test_the_function_that_creates_objects_is_pickled_to_workers(record_class: Any) -> None:
    kind = record_type(record_class, "here")
    arrived = pickle.loads(cloudpickle.dumps(kind.make_all))
    assert arrived([VALUES[name] for name in kind.schema.names]) == [
        constructed(record_class, 0),
        constructed(record_class, 1),
    ]


def class_of_a_main_script(decorator: Any) -> Any:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class Local:\n    id: int\n    note: str | None = None", namespace)
    return decorator(namespace["Local"])


@pytest.mark.extended_after(1)
@pytest.mark.parametrize(
    "decorator", [attrs.frozen, dataclasses.dataclass(frozen=True), dataclasses.dataclass(frozen=True, slots=True)]
)
def test_a_class_of_a_main_script_is_created_on_workers(decorator: Any) -> None:
    make_all = record_type(class_of_a_main_script(decorator), "here").make_all
    program = (
        "import pickle, sys\n"
        "for one in pickle.load(sys.stdin.buffer)([[1, 2], ['n', None]]): print(type(one).__name__, one.id, one.note)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=cloudpickle.dumps(make_all), capture_output=True, check=True)
    assert done.stdout.decode().splitlines() == ["Local 1 n", "Local 2 None"]


class Ids(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield (value.id,)


def test_a_wrong_value_names_its_row() -> None:
    environment = LocalStreamEnvironment()
    stream = environment.from_elements([(1, 1), (2, 7)], "id bigint, level bigint").as_records(Frozen)
    stream.key_by("id").process(Ids(), uid="ids", schema="id bigint").sink_to([])
    with pytest.raises(
        UnreadableRowError, match=r"a row cannot be read as Frozen: .* 7 is not a constant of Level.*id=2"
    ):
        environment.execute()
