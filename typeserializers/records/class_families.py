"""The built-in record families: attrs classes, dataclasses, NamedTuples, pydantic models and msgspec structs.

Fields come from the library's own description of the class. Objects are created as follows:

* pydantic (2.11 or newer): by the model's validation. A validator may reject old data; the migration then reports
  state, path and value. Other input names of a field (``alias``, ``validation_alias``, ``AliasChoices``) count as
  former names, unless another field has such a name. Computed fields and cached properties are derived again, and
  ``model_fields_set`` contains every field after a read. A model is rejected if it would lose data or change types.
* msgspec: by the constructor, which checks no types and runs ``__post_init__``. The name of a field in messages
  (``rename``, ``field(name=...)``) counts as a former name, unless another field has it. Options of the message format
  (tags, ``array_like``, ``omit_defaults``, ``forbid_unknown_fields``) do not affect the stored form.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

import attrs
from attrs import evolve

from typeserializers.kernel.record_families import ABSENT, DeclaredField, RecordFamily, resolved_hints

__all__ = [
    "AttrsFamily",
    "DataclassFamily",
    "MsgspecFamily",
    "NamedTupleFamily",
    "PydanticDataclassFamily",
    "PydanticFamily",
]


_MARKS: Final = ("__attrs_attrs__", "__dataclass_fields__")
"""The attribute that a decorator adds to the class."""


class AttrsFamily(RecordFamily):
    """Classes of ``attrs.define``, ``attrs.frozen`` and similar decorators."""

    description = "attrs classes"

    def recognizes(self, candidate: type) -> bool:
        # A class that only inherits from an attrs class is not an attrs class itself.
        return "__attrs_attrs__" in candidate.__dict__

    def forgets_fields_of(self, candidate: type) -> bool:
        return attrs.has(candidate) and not _is_marked(candidate)

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        hints = resolved_hints(record_class)
        return [_attrs_field(one, hints.get(one.name, ABSENT)) for one in attrs.fields(record_class)]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(attrs.inspect(record_class).is_frozen)


class DataclassFamily(RecordFamily):
    """Classes of ``dataclasses.dataclass``."""

    description = "dataclasses"

    def recognizes(self, candidate: type) -> bool:
        return dataclasses.is_dataclass(candidate) and "__attrs_attrs__" not in candidate.__dict__

    def forgets_fields_of(self, candidate: type) -> bool:
        return dataclasses.is_dataclass(candidate) and not _is_marked(candidate)

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        hints = resolved_hints(record_class)
        return [_dataclass_field(one, hints.get(one.name, ABSENT)) for one in dataclasses.fields(record_class)]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(record_class.__dataclass_params__.frozen)


class NamedTupleFamily(RecordFamily):
    """Classes of ``typing.NamedTuple``."""

    description = "NamedTuples"

    def recognizes(self, candidate: type) -> bool:
        return issubclass(candidate, tuple) and hasattr(candidate, "_field_defaults")

    def forgets_fields_of(self, candidate: type) -> bool:
        is_other = "_field_defaults" not in candidate.__dict__
        return self.recognizes(candidate) and is_other and bool(inspect.get_annotations(candidate))

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        hints, defaults = resolved_hints(record_class), record_class._field_defaults
        return [
            DeclaredField(name, hints.get(name, ABSENT), defaults.get(name, ABSENT), argument=name)
            for name in record_class._fields
        ]

    def is_frozen(self, record_class: Any) -> bool:
        return True

    def rejection(self, record_class: Any) -> str | None:
        for base in record_class.__mro__:
            if "_field_defaults" in base.__dict__:
                break
            if "__new__" in base.__dict__:
                return (
                    f"{base.__name__} is a NamedTuple with a __new__ of its own, so that reading would change "
                    f"what was written; put what it does into a classmethod that makes the value"
                )
        return None


def _is_marked(candidate: type) -> bool:
    return any(mark in candidate.__dict__ for mark in _MARKS)


def _attrs_field(attribute: attrs.Attribute[Any], hint: Any) -> DeclaredField:
    default: Any = attribute.default
    factory = None
    needs_other_fields = False
    if default is attrs.NOTHING:
        default = ABSENT
    elif isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        # A factory that takes the instance cannot complete a record that does not exist yet.
        needs_other_fields = default.takes_self
        factory = None if needs_other_fields else default.factory
        default = ABSENT
    return DeclaredField(
        attribute.name,
        hint,
        default,
        factory,
        attribute.alias or attribute.name,
        bool(attribute.kw_only),
        attribute.metadata,
        is_given=bool(attribute.init),
        needs_other_fields=needs_other_fields,
    )


def _dataclass_field(item: dataclasses.Field[Any], hint: Any) -> DeclaredField:
    # A class of the main script is sent to workers by value, so its MISSING is a copy.
    missing = type(dataclasses.MISSING).__qualname__
    factory: Any = item.default_factory
    return DeclaredField(
        item.name,
        hint,
        ABSENT if type(item.default).__qualname__ == missing else item.default,
        None if type(factory).__qualname__ == missing else factory,
        item.name,
        bool(item.kw_only),
        item.metadata,
        is_given=bool(item.init),
    )


class MsgspecFamily(RecordFamily):
    """Subclasses of ``msgspec.Struct``. msgspec is only looked for, never imported."""

    description = "msgspec structs"

    def recognizes(self, candidate: type) -> bool:
        msgspec = _msgspec()
        return msgspec is not None and issubclass(candidate, msgspec.Struct)

    def rejection(self, record_class: Any) -> str | None:
        if record_class is _msgspec().Struct:
            return "any struct could be meant by Struct: name the class, or a union of those that may occur"
        return None

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        msgspec = _msgspec()
        declared = msgspec.structs.fields(record_class)
        names = {one.name for one in declared}
        # Keywords would cost five times as much as arguments by position.
        positional = record_class.__match_args__
        if record_class.__struct_fields__[: len(positional)] != positional:
            positional = ()
        return [
            DeclaredField(
                one.name,
                one.type,
                ABSENT if one.default is msgspec.NODEFAULT else one.default,
                None if one.default_factory is msgspec.NODEFAULT else one.default_factory,
                one.name,
                one.name not in positional,
                former_names=() if one.encode_name in names else (one.encode_name,),
            )
            for one in declared
        ]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(record_class.__struct_config__.frozen)

    def maker(self, record_class: Any) -> Callable[..., Any]:
        return _StructMaker(record_class)


class _StructMaker(functools.partial[Any]):
    """Creates structs; explains the error if the class arrived in another process without its fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        struct: Any = self.func
        return _arrived, (struct, struct.__struct_fields__)


def _arrived(struct: Any, fields: tuple[str, ...]) -> _StructMaker:
    if struct.__struct_fields__ != fields:
        # Pickling by value sets attributes after class creation, but msgspec needs the fields at creation.
        raise TypeError(
            f"the struct {struct.__qualname__} arrived in this process without its fields, since structs of a main "
            f"script or a notebook cannot be sent to workers: define it in a module that the workers import"
        )
    return _StructMaker(struct)


def _msgspec() -> Any:
    return sys.modules.get("msgspec")


_NEEDED: Final = (2, 11)


class PydanticFamily(RecordFamily):
    """Subclasses of ``pydantic.BaseModel``, ``RootModel`` among them. pydantic is only looked for, never imported."""

    description = "pydantic models"

    def recognizes(self, candidate: type) -> bool:
        pydantic = _pydantic()
        return pydantic is not None and issubclass(candidate, pydantic.BaseModel)

    def rejection(self, record_class: Any) -> str | None:
        return next(_rejections(record_class), None)

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        if not record_class.__pydantic_complete__:
            # pydantic does the same at the first use of a model with undefined names.
            record_class.model_rebuild(_parent_namespace_depth=0)
        declared = record_class.model_fields
        return [_declared(name, one, declared) for name, one in declared.items()]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(record_class.model_config.get("frozen"))

    def maker(self, record_class: Any) -> Callable[..., Any]:
        made = _root if _is_root(record_class) else _validated
        return functools.partial(made, record_class)


class PydanticDataclassFamily(RecordFamily):
    """Classes of ``pydantic.dataclasses.dataclass``: their constructor validates."""

    description = "pydantic dataclasses"

    def recognizes(self, candidate: type) -> bool:
        own = candidate.__dict__
        return "__dataclass_fields__" in own and "__pydantic_validator__" in own and _pydantic() is not None

    def rejection(self, record_class: Any) -> str | None:
        return _EXTRA if record_class.__pydantic_config__.get("extra") == "allow" else None

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        declared = record_class.__pydantic_fields__
        return [
            evolve(
                _declared(name, one, declared),
                argument=next(_aliases(one), name),
                is_given=one.init is not False,
                # pydantic drops the metadata of a `dataclasses.field`.
                metadata=record_class.__dataclass_fields__[name].metadata,
            )
            for name, one in declared.items()
        ]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(record_class.__dataclass_params__.frozen)


_EXTRA: Final = "with extra='allow' what is not a field would be lost: declare a field for it, such as a dict"


def _pydantic() -> Any:
    return sys.modules.get("pydantic")


def _is_root(record_class: Any) -> bool:
    return bool(getattr(record_class, "__pydantic_root_model__", False))


def _validated(model: Any, /, **values: Any) -> Any:
    return model.model_validate(values, by_alias=False, by_name=True)


def _root(model: Any, /, root: Any) -> Any:
    return model.model_validate(root)


def _declared(name: str, info: Any, declared: Any) -> DeclaredField:
    default: Any = ABSENT
    factory: Callable[[], Any] | None = None
    # A factory that takes the validated data cannot complete a record that does not exist yet.
    needs_other_fields = bool(info.default_factory_takes_validated_data)
    if info.default_factory is not None:
        factory = None if needs_other_fields else info.default_factory
    elif not info.is_required():
        default = info.default
        if type(default).__hash__ is None:
            # pydantic also copies defaults, so that two models never share a mutable value.
            default, factory = ABSENT, functools.partial(copy.deepcopy, default)
    hint = info.annotation
    if info.metadata:
        annotated: Any = Annotated
        with_metadata = (hint, *info.metadata)
        hint = annotated[with_metadata]
    names = dict.fromkeys(alias for alias in _aliases(info) if alias not in declared)
    return DeclaredField(
        name,
        hint,
        default,
        factory,
        name,
        True,
        former_names=tuple(names),
        needs_other_fields=needs_other_fields,
    )


def _aliases(info: Any) -> Iterator[str]:
    """Returns the names of a field in the input, without paths into a value."""
    validation_alias = info.validation_alias
    choices = getattr(validation_alias, "choices", [validation_alias])
    for alias in (*choices, info.alias):
        if isinstance(alias, str):
            yield alias


def _rejections(model: Any) -> Iterator[str]:
    """Yields why a model cannot be stored, each with a fix."""
    pydantic: Any = _pydantic()
    version = tuple(int(part) for part in pydantic.VERSION.split(".")[:2])
    if version < _NEEDED:
        yield f"pydantic {pydantic.VERSION} is installed, and models as records need 2.11: upgrade it"
    if model in (pydantic.BaseModel, pydantic.RootModel):
        yield f"any model could be meant by {model.__name__}: name the model, or a union of those that may occur"
    generic = model.__pydantic_generic_metadata__
    if generic["parameters"]:
        yield "its type parameters are unbound: name a subclass that binds them"
    if generic["origin"] is not None:
        yield (
            f"a generic model has no name of its own for each of its types: write a subclass, as in "
            f"class {generic['origin'].__name__}OfThese({model.__name__}): ..., and use that"
        )
    if model.__private_attributes__:
        yield (
            f"its private attributes ({', '.join(model.__private_attributes__)}) would be lost: make them fields, with "
            f"exclude=True if they are not for output, or derive them in a functools.cached_property"
        )
    if model.model_config.get("extra") == "allow":
        yield _EXTRA
    if model.model_config.get("use_enum_values"):
        yield (
            "with use_enum_values its values are not of the types of its fields: leave it out, or declare the fields "
            "as what the constants stand for"
        )
    own_init = pydantic.RootModel.__init__ if _is_root(model) else pydantic.BaseModel.__init__
    if model.__init__ is not own_init:
        yield (
            "its __init__ of its own need not take the fields, and nothing else, by their names: put what it does into "
            "a model validator, or into a classmethod that makes the value"
        )
