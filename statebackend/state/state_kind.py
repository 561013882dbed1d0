"""What a kind of keyed state declares, and what it needs from a store.

State with a time-to-live is stored as the same kind of state over `TtlValue`s: values with the time of their last
access, in the serializer of ``timed_role``. A store gets a descriptor of that form, without a time-to-live, and stores
it like any other. The serializers' snapshots distinguish the two forms at a restore. The *expiring part* is what
expires by itself: a value, an element, a map entry (whose value may be null), or an accumulator.
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
from snapshots.errors import shown
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
"""From the value of a row to the value to write: itself, a list chunk with fewer elements, or None for no row."""

_TIMESTAMP: Final = struct.Struct(">q")


class TableForm(enum.Enum):
    """What a store keeps under a key and namespace: all there is to tell apart for it."""

    VALUE = "one value"
    LIST = "a list that grows at its end"
    MAP = "a map whose entries are read and written one by one"


class HandleSource(Protocol):
    """What a kind makes its handle from: a table of the kind's form, which gives the handle of that form."""

    def value_state(self, context: Any, serializer: TypeSerializer[Any], default: Any) -> Any:
        """The handle of a table of values; None is the default of a state that has none."""

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
    """Where in the stored entry of a single value the time of its last access is."""

    @abstractmethod
    def create_handle(self, table: HandleSource, context: Any, descriptor: Any) -> InternalState:
        """The handle over a table of the kind's form."""

    @abstractmethod
    def timed_descriptor(
        self, descriptor: Any, serializers: Mapping[str, TypeSerializer[Any]], lifetime: Lifetime
    ) -> StateDescriptor:
        """The descriptor of what is stored for one with a time-to-live, by the serializers of the stored form."""

    def descriptor_in_use(self, descriptor: Any, serializers: Mapping[str, TypeSerializer[Any]]) -> Any:
        """The user's descriptor of state with a time-to-live, if the serializers of its stored form matter to it."""
        return descriptor

    @abstractmethod
    def timed_handle(self, stored: Any, lifetime: Lifetime, descriptor: Any) -> TtlState:
        """The handle that looks at the times, over the one of what is stored."""

    def row_plan(self, part: Plan) -> Plan:
        """How the value of a row is migrated, from how what expires by itself is, with its time if it has one."""
        return part

    def expiring_part(self, serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
        """The serializer of what has a time of its own, from the user's."""
        return serializer

    def expiring_part_snapshot(self, snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[Any]:
        """The snapshot of `expiring_part`, from that of the timed role with or without time-to-live."""
        return snapshot.value_snapshot if isinstance(snapshot, TtlSerializerSnapshot) else snapshot

    def expiring_part_plan(self, values: Plan, old: TypeSerializerSnapshot[Any], new: TypeSerializer[Any]) -> Plan:
        """The plan of `expiring_part`, from that of the user's values, whose snapshot and serializer these are."""
        return values

    def timed_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> dict[str, TypeSerializer[Any]]:
        """The serializers of the stored form of state with a time-to-live, from the user's."""
        role = self.timed_role
        return {**serializers, role: TtlSerializer(self.expiring_part(serializers[role]))}

    def expired_rows(self, serializer: TtlSerializer[Any], last_expired_ms: int) -> RowFilter:
        """A filter by time, of rows of this serializer of the timed role; may raise anything for malformed ones."""
        read, offset = _TIMESTAMP.unpack_from, self.timestamp_offset
        return lambda value: value if read(value, offset)[0] > last_expired_ms else None


def _check_ttl(instance: Any, attribute: Any, ttl: Any) -> None:
    if ttl is not None and not isinstance(ttl, StateTtlConfig):
        raise StateRegistrationError(f"state {instance.name!r}: ttl must be a StateTtlConfig, not {shown(ttl)}")


@frozen
class StateDescriptor(Descriptor):
    """What the descriptors of all kinds of keyed state share; use that of a kind.

    With ``ttl``, values, list elements and map entries expire each by themselves (`StateTtlConfig`).
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
