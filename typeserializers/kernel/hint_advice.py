"""What to write instead of a type hint that means no serializer, or could mean several."""

from __future__ import annotations

import collections
import collections.abc
import typing
from collections.abc import Callable
from typing import Any, Final

_BARE: Final[dict[Any, str]] = {
    list: "list[int]",
    dict: "dict[str, int]",
    set: "set[str]",
    frozenset: "frozenset[str]",
    tuple: "tuple[int, str]",
}

_CONCRETE: Final[dict[Any, str]] = {
    collections.abc.Sequence: "list[...]",
    collections.abc.MutableSequence: "list[...]",
    collections.abc.Iterable: "list[...]",
    collections.abc.Collection: "list[...]",
    collections.deque: "list[...]",
    collections.abc.Mapping: "dict[..., ...]",
    collections.abc.MutableMapping: "dict[..., ...]",
    collections.defaultdict: "dict[..., ...]",
    collections.OrderedDict: "dict[..., ...]",
    collections.Counter: "dict[..., int]",
    collections.abc.Set: "set[...] or frozenset[...]",
    collections.abc.MutableSet: "set[...]",
    bytearray: "bytes",
    memoryview: "bytes",
}


def described(hint: Any) -> str:
    """The whole hint, as it is written in a program."""
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__qualname__
    return str(hint).replace("typing.", "")


def advice_for(hint: Any, family_of: Callable[[Any], object]) -> str:
    """A sentence about what to write instead, with a space before it; empty if there is nothing to say.

    ``family_of`` gives the family of a class of records, which can be given the types of its fields.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    outer = origin or hint
    try:
        bare, concrete = _BARE.get(outer), _CONCRETE.get(outer)
    except TypeError:
        return ""
    if outer is tuple and Ellipsis in arguments:
        element = described(arguments[0])
        return f" A tuple of any length has no layout here: write list[{element}], or name each of its elements."
    if bare is not None and not arguments:
        return f" It does not say of what: write for example {bare}."
    if concrete is not None:
        return f" Values come back as one type: write {concrete}."
    if isinstance(hint, typing.TypeVar):
        return " It stands for any type: pass field_serializers, or write a class in which it is a type."
    if origin is not None and arguments and family_of(origin) is not None:
        return (
            f" A generic class is written under its own name, whatever its parameters: give this one a name with "
            f"Annotated[{described(hint)}, AttrsSerializer({origin.__qualname__}, name=..., field_serializers=...)]."
        )
    if typing.is_typeddict(hint):
        return " A TypedDict is a dict that forgets its type: write an attrs class, a dataclass or a NamedTuple."
    if hint is Any or hint is object:
        return " It could be anything: write the types that it may have, as in int | str, or choose a PickleSerializer."
    return ""
