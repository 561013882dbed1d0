"""Side outputs: what an operator emits beside its output, each under a tag (Flink's ``OutputTag``)."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from attrs import Attribute, field, frozen

from streamjobs.errors import JobDefinitionError
from streamjobs.user_errors import cited

T = TypeVar("T")

MAX_TAG_CHARACTERS: Final = 200
"""Most characters of the name of a tag."""


def _check_name(tag: OutputTag[Any], attribute: Attribute[Any], name: object) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MAX_TAG_CHARACTERS:
        raise JobDefinitionError(
            f"the name of an OutputTag is {cited(name, 40)}; it is a printable text of 1 to {MAX_TAG_CHARACTERS} "
            f"characters"
        )


@frozen
class OutputTag(Generic[T]):
    """The name of a side output, and the schema of its records, as that of `process`: DDL or, on Spark, a StructType.

    Tags are equal by their names. Raises `JobDefinitionError` for a name that is no printable text.
    """

    name: str = field(validator=_check_name)
    schema: Any = field(default=None, eq=False)
