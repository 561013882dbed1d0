"""List state: a list of elements per key and namespace, in the order in which they were added.

    stored entry                       list(element), a *chunk*: a list may take several, in order
    stored entry with a time-to-live   list(ttl value(element)): each element expires by itself

A rewrite of a list drops its expired elements. A merge of namespaces keeps the times of the elements.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import Any, Final, TypeVar

from attrs import evolve, field, frozen

from snapshots.compatibility import PartsPlan, Plan
from statebackend.state.descriptors import ELEMENT_ROLE, OnClass, as_serializer, check_elements
from statebackend.state.entry_keys import checked_elements
from statebackend.state.errors import StateRestoreError
from statebackend.state.internal_states import (
    InternalState,
    Lifetime,
    MergingState,
    Timed,
    TtlState,
    fold_namespaces,
)
from statebackend.state.key_batch import KeyBatch
from statebackend.state.state_kind import HandleSource, RowFilter, StateDescriptor, StateKind, TableForm
from statebackend.state.states import ListState
from statebackend.state.timed_access import TimedLines, set_timed_methods
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

_TIMESTAMP: Final = struct.Struct(">q")
_COUNT: Final = struct.Struct(">i")


class InternalListState(MergingState, ListState[T]):
    """List state with namespaces: merging appends the lists of the sources to that of the target."""

    __slots__ = ()

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["stored = self.get()"]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["self.update(stored)"]

    @classmethod
    def emit_read_fresh(cls, oldest_ms: str) -> list[str]:
        """Lines that set ``values`` to a new list of the values if all have a later time, else to None.

        Empty if `emit_read_stored` is as fast.
        """
        return []

    @classmethod
    def emit_write_values(cls, function: GeneratedFunction) -> list[str]:
        """Lines that replace the list by the list ``values`` with the time ``now_ms``."""
        return ["stored = [(value, now_ms) for value in values]", *cls.emit_write_stored(function)]

    @property
    def row_serializer(self) -> TypeSerializer[T] | None:
        """The serializer of the elements for `get_rows` and `add_rows`; None if the handle lacks these methods."""
        return None

    def get_rows(self, keys: KeyBatch) -> list[bytes]:
        """Return the list of each key as bytes of a `ListSerializer`."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")

    def add_rows(self, keys: KeyBatch, elements: Sequence[bytes]) -> None:
        """Append an element, as bytes of `row_serializer`, to the list of each key, in order."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")

    def append_stored(self, element: T) -> None:
        """Append an element; of a handle with `exact_value`, a checked one."""
        self.add(element)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        fold_namespaces(self, target, sources, self._get_or_none, self._add_lists)

    def get_many(self, keys: KeyBatch) -> list[list[T]]:
        """Return the list of each key, as `get` does. Afterwards any key may be current."""
        self.read_ahead(keys.keys, keys.key_groups)
        return [self.get() for _ in keys.each()]

    def add_many(self, keys: KeyBatch, elements: Sequence[T]) -> None:
        """Append an element to the list of each key, in order, as `add` does."""
        for _, element in zip(keys.each(), elements, strict=True):
            self.add(element)

    def put_many(self, keys: KeyBatch, lists: Sequence[Iterable[T] | None]) -> None:
        """Replace the list of each key, as `update` does. None clears."""
        for _, elements in zip(keys.each(), lists, strict=True):
            self.update(() if elements is None else elements)

    def _get_or_none(self) -> list[T] | None:
        return self.get() or None

    def _add_lists(self, lists: list[list[T]]) -> None:
        self.add_all(itertools.chain.from_iterable(lists))


class ListKind(StateKind):
    """List state: an ordered list of elements per key."""

    name = "list"
    getter = "get_list_state"
    form = TableForm.LIST
    handle_class = InternalListState
    timed_role = ELEMENT_ROLE
    reads = MappingProxyType({"get": ""})
    writes = MappingProxyType(
        {
            "add": "element",
            "add_all": "elements",
            "update": "elements",
            "clear": "",
            "merge_namespaces": "target, sources",
        }
    )

    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return ListSerializer(serializers[ELEMENT_ROLE])

    def create_handle(self, table: HandleSource, context: Any, descriptor: ListStateDescriptor[Any]) -> InternalState:
        state: InternalState = table.list_state(context, descriptor.element_serializer)
        return state

    def row_plan(self, part: Plan) -> Plan:
        return PartsPlan((part,))

    def timed_descriptor(
        self, descriptor: ListStateDescriptor[Any], serializers: Mapping[str, TypeSerializer[Any]], lifetime: Lifetime
    ) -> StateDescriptor:
        return evolve(descriptor, element_serializer=serializers[ELEMENT_ROLE], ttl=None)

    def timed_handle(
        self, stored: InternalListState[Timed[Any]], lifetime: Lifetime, descriptor: ListStateDescriptor[Any]
    ) -> TtlState:
        return TtlListState(stored, lifetime, descriptor)

    def expired_rows(self, serializer: TtlSerializer[Any], last_expired_ms: int) -> RowFilter:
        read_timestamp, read_value = _TIMESTAMP.unpack_from, serializer.value_serializer.codec.read

        def filter_chunk(chunk: bytes) -> bytes | None:
            count, position, kept = _COUNT.unpack_from(chunk)[0], _COUNT.size, []
            for _ in range(count):
                start = position
                position = read_value(chunk, start + _TIMESTAMP.size)[1]
                if read_timestamp(chunk, start)[0] > last_expired_ms:
                    kept.append(chunk[start:position])
            if position != len(chunk):
                raise StateRestoreError(f"the elements end at byte {position} of {len(chunk)}")
            if len(kept) == count:
                return chunk
            return _COUNT.pack(len(kept)) + b"".join(kept) if kept else None

        return filter_chunk


LIST: Final = ListKind()


@frozen
class ListStateDescriptor(StateDescriptor, OnClass[ListState[T]]):
    """A list of elements per key. Elements are never None."""

    element_serializer: TypeSerializer[T] = field(converter=as_serializer, validator=check_elements)

    kind = LIST

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ListStateDescriptor[T]:
        return evolve(self, element_serializer=serializers[ELEMENT_ROLE])


def _timed_methods(lines: TimedLines) -> dict[str, tuple[str, list[str]]]:
    # Elements that this handle returned last were checked before. Mostly all but the last one of an update are these.
    known = ["nonlocal known"] if lines.kept else []
    returned = [*(["known = [*values]"] if lines.kept else []), "return values"]
    fresh = lines.handle.emit_read_fresh("now_ms - 1" if lines.renews else "expired_ms")
    if fresh:
        fresh += ["if values is not None:", *indented(returned)]
    changed = "len(values) != len(stored)"
    if lines.renews:
        changed += " or any(one[1] < now_ms for one in stored)"
    kept = "(one[0], now_ms) if one[1] < now_ms else one" if lines.renews else "one"
    get = [
        *known,
        *lines.start,
        *fresh,
        *lines.read,
        "values = [value for value, time in stored if time > expired_ms]",
        f"if {changed}:",
        "    every = stored",
        f"    stored = [{kept} for one in stored if one[1] > expired_ms]",
        *indented(lines.write),
        "    return [one[0] for one in every]" if lines.returns_expired else "    return values",
        *returned,
    ]
    checked = ["values = check(name, elements)"]
    if lines.kept:
        checked = [
            "values = [*elements]",
            "last = len(values) - 1",
            "start = len(known) - last",
            "if last > 0 <= start and values[0] is known[start] and all(map(is_, known[start:], values)):",
            "    value = values[last]",
            "    if value is None: check(name, values)",
            *indented(lines.kept),
            "    values[last] = value",
            "else:",
            "    given, values = check(name, values), []",
            "    for value in given:",
            *indented(indented([*lines.kept, "values.append(value)"])),
        ]
    return {
        "get": ("", get),
        "add": (
            "element",
            [
                *lines.start,
                "value = element",
                "if value is None: check(name, (None,))",
                *lines.kept,
                "self.append_stored((value, now_ms))",
            ],
        ),
        "update": ("elements", [*lines.start, *checked, *lines.handle.emit_write_values(lines.function)]),
    }


class TtlListState(TtlState, InternalListState[T]):
    """List state with a time-to-live. Each element expires separately. Most accessors are generated."""

    __slots__ = ("_name", "_serializer", "add", "get", "update")

    get: Any
    add: Any
    update: Any

    def __init__(
        self, stored: InternalListState[Timed[T]], lifetime: Lifetime, descriptor: ListStateDescriptor[T]
    ) -> None:
        super().__init__(stored, lifetime)
        self._name = descriptor.name
        self._serializer = descriptor.element_serializer
        self.set_methods()

    def add_all(self, elements: Iterable[T]) -> None:
        self._clean_up()
        now_ms = self.lifetime.clock()
        self._stored.add_all([(element, now_ms) for element in checked_elements(self._name, elements)])

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        self._clean_up()
        # Expired elements of a source are removed when the source is read.
        fold_namespaces(self, target, sources, self._fresh_or_none, self._add_stored)

    def remove_expired(self) -> None:
        last_expired_ms = self.lifetime.clock() - self.lifetime.ttl_ms
        stored = self._stored.get()
        fresh = [element for element in stored if element[1] > last_expired_ms]
        if len(fresh) < len(stored):
            self._stored.update(fresh)

    def _fresh_or_none(self) -> list[Timed[T]] | None:
        self.remove_expired()
        return self._stored.get() or None

    def _add_stored(self, lists: list[list[Timed[T]]]) -> None:
        self.remove_expired()
        self._stored.add_all([element for elements in lists for element in elements])

    def set_methods(self) -> None:
        given = {"name": self._name, "check": checked_elements, "is_": is_, "known": ()}
        set_timed_methods(self, self._stored, self._serializer, _timed_methods, **given)
