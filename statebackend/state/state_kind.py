"""The interface of a kind of keyed state, and its requirements for a store.

State with a time-to-live is stored as the same kind of state over `TtlValue`s: values with the time of their last
access, in the serializer of ``timed_role``. A store gets a descriptor of that form, without a time-to-live, and stores
it like any other. The serializers' snapshots distinguish the two forms at a restore. The *expiring part* is the part
that expires separately: a value, an element, a map entry (whose value may be null), or an accumulator.
"""

from __future__ import annotations

import copy
import enum
import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from attrs import field, frozen

from snapshots.compatibility import Plan
from snapshots.errors import format_value
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.state.descriptors import Descriptor, StoredKind
from statebackend.state.errors import StateRegistrationError
from statebackend.state.internal_states import InternalState, Lifetime, TtlState
from statebackend.state.ttl_config import StateTtlConfig
from typeserializers.containers.ttl import TtlSerializer, TtlSerializerSnapshot
from typeserializers.kernel.type_serializer import TypeSerializer

if TYPE_CHECKING:
    from typing_extensions import Self

RowFilter = Callable[[bytes], "bytes | None"]
"""Maps the value of a row to the value to write: unchanged, a list chunk with fewer elements, or None for no row."""

_TIMESTAMP: Final = struct.Struct(">q")


class TableForm(enum.Enum):
    """The form of the content under a key and namespace; a store needs no other distinction."""

    VALUE = "one value"
    LIST = "a list that grows at its end"
    MAP = "a map whose entries are read and written one by one"


class HandleSource(Protocol):
    """A table of the kind's form, which creates the inner handle of that form."""

    def value_state(self, context: Any, serializer: TypeSerializer[Any], default: Any) -> Any:
        """The handle of a table of values; ``default`` is None for a state without a default."""

    def list_state(self, context: Any, element_serializer: TypeSerializer[Any]) -> Any:
        """The handle of a table of lists."""

    def map_state(
        self, context: Any, key_serializer: TypeSerializer[Any], value_serializer: TypeSerializer[Any]
    ) -> Any:
        """The handle of a table of maps, whose values may be None."""


class StateKind(StoredKind):
    """A kind of keyed state. ``reads`` and ``writes`` are the counted methods of a handle, with their parameters."""

    form: ClassVar[TableForm]
    handle_class: ClassVar[type[InternalState]]
    timed_role: ClassVar[str]
    reads: ClassVar[Mapping[str, str]]
    writes: ClassVar[Mapping[str, str]]
    timestamp_offset: ClassVar[int] = 0
    """The position of the last access time in the stored entry of a single value."""

    @abstractmethod
    def create_handle(self, table: HandleSource, context: Any, descriptor: Any) -> InternalState:
        """Create the handle over a table of the kind's form."""

    @abstractmethod
    def timed_descriptor(
        self, descriptor: Any, serializers: Mapping[str, TypeSerializer[Any]], lifetime: Lifetime
    ) -> StateDescriptor:
        """The descriptor of the stored form of state with a time-to-live, with the serializers of that form."""

    def descriptor_in_use(self, descriptor: Any, serializers: Mapping[str, TypeSerializer[Any]]) -> Any:
        """The user's descriptor of state with a time-to-live, adapted to the serializers of the stored form."""
        return descriptor

    @abstractmethod
    def timed_handle(self, stored: Any, lifetime: Lifetime, descriptor: Any) -> TtlState:
        """Create the handle that checks times, over the handle of the stored form."""

    def row_plan(self, part: Plan) -> Plan:
        """The plan for the value of a row, from the plan of its expiring part, with its time if it has one."""
        return part

    def expiring_part(self, serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
        """The serializer of the expiring part, from the user's serializer."""
        return serializer

    def expiring_part_snapshot(self, snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[Any]:
        """The snapshot of `expiring_part`, from the snapshot of the timed role, with or without time-to-live."""
        return snapshot.value_snapshot if isinstance(snapshot, TtlSerializerSnapshot) else snapshot

    def expiring_part_plan(self, values: Plan, old: TypeSerializerSnapshot[Any], new: TypeSerializer[Any]) -> Plan:
        """The plan of `expiring_part`, from the plan, old snapshot and new serializer of the user's values."""
        return values

    def timed_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> dict[str, TypeSerializer[Any]]:
        """The serializers of the stored form of state with a time-to-live, from the user's serializers."""
        role = self.timed_role
        return {**serializers, role: TtlSerializer(self.expiring_part(serializers[role]))}

    def expired_rows(self, serializer: TtlSerializer[Any], last_expired_ms: int) -> RowFilter:
        """A filter of expired rows; ``serializer`` is that of the timed role. May raise anything for damaged rows."""
        read, offset = _TIMESTAMP.unpack_from, self.timestamp_offset
        return lambda value: value if read(value, offset)[0] > last_expired_ms else None


def _check_ttl(instance: Any, attribute: Any, ttl: Any) -> None:
    if ttl is not None and not isinstance(ttl, StateTtlConfig):
        raise StateRegistrationError(f"state {instance.name!r}: ttl must be a StateTtlConfig, not {format_value(ttl)}")


@frozen
class StateDescriptor(Descriptor):
    """The base of the descriptors of all kinds of keyed state.

    With ``ttl``, each value, list element and map entry expires separately (`StateTtlConfig`).
    """

    ttl: StateTtlConfig | None = field(default=None, validator=_check_ttl, kw_only=True)

    is_per_window: bool = field(default=False, init=False, eq=False, repr=False)
    """Whether the state of a class body belongs to key and window (`per_window`)."""

    kind: ClassVar[StateKind]

    def per_window(self) -> Self:
        """Return the descriptor of a state per key and window, for the class body of a `ProcessWindowFunction`.

        `ProcessWindowFunction.clear` must clear it. The windows may not merge.
        """
        descriptor = copy.copy(self)
        object.__setattr__(descriptor, "is_per_window", True)
        return descriptor
