"""Making records faster than their own ``__init__`` does, where that cannot be told apart.

The generated ``__init__`` of a frozen class sets every field through ``object.__setattr__``, which costs more than
reading the whole record. If it does nothing else (no validators, no converters, no hooks before or after), the fields
can be set directly: on the object itself if the class allows it, else on an instance of a *twin*, a subclass without
fields of its own whose only difference is that it can be set, and which then becomes an instance of the class. Where
any condition fails, the class is called as ever.
"""

from __future__ import annotations

import dataclasses
import keyword
import unicodedata
from collections.abc import Sequence, Set
from typing import Any

import attrs

from snapshots.errors import SnapshotFormatError
from typeserializers.kernel.code_generation import ReadEmitter

_HOOKS = ("__attrs_pre_init__", "__attrs_post_init__", "__post_init__", "__attrs_init__")
_CACHED_HASH = "_attrs_cached_hash"


def settable_twin(record_class: type) -> type | None:
    """What to make and set the fields of: the class itself, a twin of it, or None if only a call will do."""
    plain: Any = object
    made_by, set_by = getattr(record_class, "__new__", None), getattr(record_class, "__setattr__", None)
    if type(record_class) is not type or made_by is not plain.__new__:
        return None
    if any("__init_subclass__" in base.__dict__ for base in record_class.__mro__[:-1]):
        return None
    if any(hasattr(record_class, name) for name in (*_HOOKS, _CACHED_HASH)) or not _only_sets_fields(record_class):
        return None
    if set_by is plain.__setattr__:
        return record_class
    twin = type(
        record_class.__name__,
        (record_class,),
        {
            "__slots__": (),
            "__module__": record_class.__module__,
            # Both, because one slot of the type serves both, and one of them written in Python would make it slow.
            "__setattr__": object.__setattr__,
            "__delattr__": object.__delattr__,
        },
    )
    try:
        made: Any = object.__new__(twin)
        made.__class__ = record_class
    except TypeError:
        return None
    return twin


class StandIn:
    """What a record of a class that is not there is an instance of: equal by its fields, and shown with them.

    The methods that attrs would generate take time to compile that grows with the square of the number of fields.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _values_of(self) == _values_of(other)

    def __hash__(self) -> int:
        return hash((type(self), _values_of(self)))

    def __repr__(self) -> str:
        names = [part.name for part in attrs.fields(type(self))]  # type: ignore[arg-type]
        values = zip(names, _values_of(self), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"


def _values_of(record: object) -> tuple[Any, ...]:
    return tuple([getattr(record, part.name) for part in attrs.fields(type(record))])  # type: ignore[arg-type]


def stand_in_class(record_name: str, field_names: Sequence[str], default: Any = attrs.NOTHING) -> type:
    """A frozen attrs class of these fields, for reading records whose own class is not there.

    Raises `SnapshotFormatError` for names that one class cannot have.
    """
    class_name = record_name.rpartition(".")[2]
    # Python takes two spellings of a name for one if they differ in compatible characters only.
    names = {unicodedata.normalize("NFKC", name) for name in field_names}
    if len(names) != len(field_names) or any(_is_reserved(name) for name in names):
        raise SnapshotFormatError(
            f"the record {record_name} has fields that no class can have: {', '.join(field_names):.300}; "
            f"the bytes are damaged"
        )
    return attrs.make_class(
        class_name if class_name.isidentifier() and not keyword.iskeyword(class_name) else "Record",
        {name: attrs.field(alias=_argument(name, names), default=default) for name in field_names},
        bases=(StandIn,),
        frozen=True,
        eq=False,
        repr=False,
    )


def arguments_of(stand_in: type) -> tuple[str, ...]:
    """The names of the arguments of a stand-in, in the order of its fields."""
    return tuple(part.alias or part.name for part in attrs.fields(stand_in))


def _argument(name: str, names: Set[str]) -> str:
    """The field's own name, except that a constructor has a ``self`` already."""
    if name == "self":
        while name in names:
            name += "_"
    return name


def _is_reserved(name: str) -> bool:
    """Whether a field of this name would take the place of something that a class needs."""
    return (name.startswith("__") and name.endswith("__")) or keyword.iskeyword(name)


def emit_fields(emitter: ReadEmitter, twin: type, record_class: type, items: list[tuple[str, str]]) -> str:
    """Emits the making of a record from (attribute, expression) pairs; returns the variable that holds it."""
    function = emitter.function
    made = function.fresh("r")
    emitter.line(f"{made} = {function.bind('new', object.__new__)}({function.bind('twin', twin)})")
    for attribute, expression in items:
        emitter.line(f"{made}.{attribute} = {expression}")
    if twin is not record_class:
        emitter.line(f"{made}.__class__ = {function.bind('record_class', record_class)}")
    return made


def _only_sets_fields(record_class: type) -> bool:
    init: Any = record_class.__dict__.get("__init__")
    source = getattr(getattr(init, "__code__", None), "co_filename", "")
    if "__attrs_attrs__" in record_class.__dict__:
        fields = attrs.fields(record_class)
        plain = all(part.validator is None and part.converter is None and part.init for part in fields)
        return plain and source.startswith("<attrs generated") and not issubclass(record_class, BaseException)
    if dataclasses.is_dataclass(record_class):
        # An init-only variable is no field, but an argument of the generated function.
        names = {part.name for part in dataclasses.fields(record_class)}
        arguments = init.__code__.co_varnames[1 : init.__code__.co_argcount + init.__code__.co_kwonlyargcount]
        return source == "<string>" and set(arguments) == names
    return False
