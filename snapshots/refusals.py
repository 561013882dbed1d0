"""The refusal that every family has to give: the state was written by a serializer of another class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snapshots.compatibility import FieldVerdict, Finding

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer


def names_apart(old_type: str, old_class: str, new_serializer: TypeSerializer[Any]) -> tuple[str, str]:
    """What to call the old and the new type in a finding: as people write them; if alike, with the serializers."""
    new_type = new_serializer.type_name
    if old_type != new_type:
        return old_type, new_type
    return f"{old_type} ({old_class})", f"{new_type} ({type(new_serializer).__name__})"


def another_serializer(old_type: str, old_class: str, new_serializer: TypeSerializer[Any]) -> Finding:
    """The finding that ``new_serializer`` stands where one of another class, ``old_class``, wrote the state."""
    old_name, new_name = names_apart(old_type, old_class, new_serializer)
    return Finding(
        path="",
        verdict=FieldVerdict.REFUSE,
        rule="serializer-class",
        reason=f"the state holds {old_name}, and {new_name} cannot take it over",
        fix=(
            f"Keep {old_name}; or convert the values: ConvertingSerializer(<the new serializer>, {{<the old one>: "
            f"function}}); or let the snapshot of the new one adopt the old one"
        ),
    )
