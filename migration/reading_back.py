"""Whether new bytes must be read before they count: only where reading them could find something.

Bytes that the built-in rules put together from parts that were read are what their serializers read; reading them once
more would double the cost of a migration for nothing. What may be found is what runs when a record is made (a
validator, a hook, a constructor of one's own), what a converter returned, and whatever a serializer or a rule does
that is not of this library.
"""

from __future__ import annotations

from typing import Any, Final

from migration.conversion import Conversion, classes_of_foreign_rules
from typeserializers.arrow.arrow_serializer import ArrowIpcSerializer
from typeserializers.containers.converting import ConvertingSerializer
from typeserializers.kernel.held_parts import all_inside
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojos import PojoSerializer
from typeserializers.records.record_construction import settable_twin
from typeserializers.records.records import AttrsSerializer

_OWN_PACKAGE: Final = TypeSerializer.__module__.partition(".")[0]


def must_be_read_back(conversion: Conversion) -> bool:
    """Whether something about the new serializer, or how its bytes are made, is not known to be harmless."""
    new = list(all_inside(conversion.new))
    return any(map(_may_refuse, new)) or not classes_of_foreign_rules().isdisjoint(map(type, new))


def _may_refuse(serializer: TypeSerializer[Any]) -> bool:
    if type(serializer).__module__.partition(".")[0] != _OWN_PACKAGE:
        return True
    if isinstance(serializer, AttrsSerializer):
        has_converter = bool(serializer.shape.converters) or any(part.converter for part in serializer.fields)
        return has_converter or settable_twin(serializer.record_class) is None
    if isinstance(serializer, PojoSerializer):
        return settable_twin(serializer.record_class) is None
    return isinstance(serializer, (ConvertingSerializer, ArrowIpcSerializer))
