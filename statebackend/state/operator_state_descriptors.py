"""Descriptors of operator state: state that belongs to a subtask instead of a key.

Each descriptor class has one mode of redistribution. In Flink one descriptor is passed to ``getListState``,
``getUnionListState`` or ``getBroadcastState``. Here the states of a job can be checked from their descriptors alone.

Operator state has no time-to-live, as in Flink. Store the time in the elements, and skip expired ones on a read.

Serializers are passed by role: ``element`` of a list, ``key`` and ``value`` of a broadcast state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.state.descriptors import (
    OnClass,
    as_key_serializer,
    as_serializer,
    character_problem,
    check_elements,
    check_state_name,
)
from statebackend.state.states import BroadcastState, ListState
from typeserializers.kernel.type_serializer import TypeSerializer

MAX_UID_CHARACTERS: Final = 200
"""The limit of characters of a uid."""


def uid_problem(uid: str) -> str | None:
    """Return what follows "the uid" in the error for an invalid uid, None for a valid one."""
    if not uid.strip():
        return "is blank"
    if len(uid) > MAX_UID_CHARACTERS:
        return f"has {len(uid)} characters, and {MAX_UID_CHARACTERS} are the most: {format_value(uid)}"
    problem = character_problem(uid)
    return None if problem is None else f"{format_value(uid)} {problem}"


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

ELEMENT_ROLE: Final = "element"
KEY_ROLE: Final = "key"
VALUE_ROLE: Final = "value"


class OperatorStateMode(enum.Enum):
    """How state is redistributed at a restore; the values are written to disk and frozen."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"


ROLES: Final[Mapping[OperatorStateMode, tuple[str, ...]]] = {
    OperatorStateMode.SPLIT: (ELEMENT_ROLE,),
    OperatorStateMode.UNION: (ELEMENT_ROLE,),
    OperatorStateMode.BROADCAST: (KEY_ROLE, VALUE_ROLE),
}
"""The roles of the serializers of each mode, in the order in which they are written."""


def _check_name(instance: Any, attribute: Any, name: Any) -> None:
    check_state_name("an operator state", name)


@frozen
class OperatorStateDescriptor:
    """The base of all modes; use one of the subclasses."""

    name: str = field(validator=_check_name)

    mode: ClassVar[OperatorStateMode]

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        """The serializers by role."""
        raise TypeError(f"{type(self).__name__} is not a mode of operator state")


@frozen
class SplitListStateDescriptor(OperatorStateDescriptor, OnClass[ListState[T]]):
    """A list whose elements are distributed evenly when the parallelism changes, and stay in place otherwise."""

    element_serializer: TypeSerializer[T] = field(converter=as_serializer, validator=check_elements)

    mode = OperatorStateMode.SPLIT

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}


@frozen
class UnionListStateDescriptor(OperatorStateDescriptor, OnClass[ListState[T]]):
    """A list; every restored subtask gets the elements of all subtasks, in the order of the subtasks.

    A subtask that keeps all of them, instead of choosing its own, writes all into the next snapshot, as in Flink.
    """

    element_serializer: TypeSerializer[T] = field(converter=as_serializer, validator=check_elements)

    mode = OperatorStateMode.UNION

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}


@frozen
class BroadcastStateDescriptor(OperatorStateDescriptor, OnClass[BroadcastState[K, V]]):
    """A map that is the same in all subtasks; every restored subtask gets one whole copy."""

    key_serializer: TypeSerializer[K] = field(converter=as_key_serializer)
    value_serializer: TypeSerializer[V] = field(converter=as_serializer)

    mode = OperatorStateMode.BROADCAST

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {KEY_ROLE: self.key_serializer, VALUE_ROLE: self.value_serializer}
