"""A user's converter inside a migration: what it raises and what it returns is told with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migration.conversion import passed_through
from snapshots.errors import MalformedDataError
from snapshots.value_text import shown
from typeserializers.kernel.field_metadata import name_of
from typeserializers.kernel.type_serializer import TypeSerializer


def fitted_by(
    converter: Callable[[Any], Any], serializer: TypeSerializer[Any], *, is_required: bool = False
) -> Callable[[Any], Any]:
    """The converter, followed by the serializer that its result must fit.

    With ``is_required`` None does not fit, although the serializer would write it. Raises `MalformedDataError` with the
    name of the converter, the old value, and what it returned or raised.
    """
    fitted = passed_through(serializer)

    def convert(value: Any) -> Any:
        try:
            converted = converter(value)
        except Exception as error:
            raise MalformedDataError(
                f"the converter {name_of(converter)} raised {type(error).__name__}: {error}"
            ) from error
        if converted is None and is_required:
            raise MalformedDataError(f"the converter {name_of(converter)} returned None, but it is not optional")
        try:
            return fitted(converted)
        except Exception as error:
            raise MalformedDataError(
                f"the converter {name_of(converter)} returned {shown(converted)}, which does not fit: {error}"
            ) from error

    return convert
