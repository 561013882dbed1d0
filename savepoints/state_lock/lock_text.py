"""The lines of a lock that a person reads: one for an operator, its key, each state, type, field and constant.

A line says all about one thing, so that the difference of two locks is a list of what changed. The lines are made of
the snapshots alone, and are no way back to them: what is judged are the bytes beneath. Names are JSON texts. What
cannot be printed is escaped, so that no line of a lock looks like another or like none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from savepoints.reading.type_descriptions import FieldDescription, RecordDescription, TypeDescription, describe_type
from savepoints.state_lock.locked_state import LockedOperator
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.scalars.void import VoidNamespaceSerializerSnapshot

__all__ = ["operator_line", "operator_lines", "printable"]


def operator_line(uid: str) -> str:
    """The line that an operator begins with."""
    return f"operator {_name(uid)}"


def operator_lines(operator: LockedOperator) -> list[str]:
    """All lines of an operator."""
    lines = [operator_line(operator.uid)]
    lines += _type_lines("  key", describe_type(operator.keyed.key_snapshot))
    for state in operator.keyed.states:
        lines.append(f"  state {_name(state.name)} {state.kind.name}")
        if not isinstance(state.namespace_snapshot, VoidNamespaceSerializerSnapshot):
            lines += _type_lines("    namespace", describe_type(state.namespace_snapshot))
        lines += _role_lines(state.role_snapshots)
    for operator_state in operator.operator_states:
        lines.append(f"  operator state {_name(operator_state.name)} {operator_state.mode.value}")
        part = operator_state.parts[-1]
        lines += _role_lines({role: part.snapshot(operator_state.name, role) for role in part.envelopes})
    return [printable(line) for line in lines]


def printable(text: str) -> str:
    """The text in one line, with escapes for what is not printed as itself."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _role_lines(snapshots: Mapping[str, TypeSerializerSnapshot[object]]) -> Iterator[str]:
    for role, snapshot in snapshots.items():
        yield from _type_lines(f"    {role}", describe_type(snapshot))


def _type_lines(place: str, described: TypeDescription) -> Iterator[str]:
    # Why a type is unknown is said in words that may change from release to release, and the same state must give the
    # same lock.
    yield f"{place}: {'(known to its program only)' if described.unknown else described.name}"
    for record in described.records:
        yield from _record_lines(record)


def _record_lines(record: RecordDescription) -> Iterator[str]:
    version = "" if record.schema_version is None else f" version {record.schema_version}"
    yield f"      record {record.name}{version}" if not record.constants else f"      enum {record.name}"
    for constant in record.constants:
        yield f"        {record.name}.{constant}"
    for field in record.fields:
        yield f"        {record.name}.{_field(field)}"


def _field(field: FieldDescription) -> str:
    default = "" if field.default is None else f" = {field.default}"
    former = "".join(f", formerly {name}" for name in field.former_names)
    return f"{field.name}: {field.type_name}{default}{former}"


def _name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _escaped(character: str) -> str:
    # The escapes of JSON, so that a name with one is still the JSON text of that name.
    return json.dumps(character)[1:-1]
