"""Uids: the names that a program gives what checkpoints and savepoints find again, and that never change.

What one may look like says `statebackend.state.operator_state_descriptors`.

Side outputs: what an operator emits beside its output, each under a tag (Flink's ``OutputTag``).
"""

from __future__ import annotations

import re
from typing import Any, Final, Generic, TypeVar

from attrs import Attribute, field, frozen

from statebackend.state.operator_state_descriptors import uid_problem
from statebackend.streaming.errors import JobDefinitionError, format_value

__all__ = ["check_uid", "is_uid_of_place", "uid_of_place"]


T = TypeVar("T")

MAX_TAG_CHARACTERS: Final = 200
"""Most characters of the name of a tag."""


def _check_name(tag: OutputTag[Any], attribute: Attribute[Any], name: object) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MAX_TAG_CHARACTERS:
        raise JobDefinitionError(
            f"the name of an OutputTag is {format_value(name, 40)}; it is "
            f"a printable text of 1 to {MAX_TAG_CHARACTERS} "
            f"characters"
        )


@frozen
class OutputTag(Generic[T]):
    """The name of a side output, and the schema of its records, as that of `process`: DDL or, on Spark, a StructType.

    Tags are equal by their names. Raises `JobDefinitionError` for a name that is no printable text.
    """

    name: str = field(validator=_check_name)
    schema: Any = field(default=None, eq=False)


_PLACE: Final = re.compile("source-(0|[1-9][0-9]*)")


def check_uid(who: str, method: str, what: str, uid: object) -> None:
    """Raises `JobDefinitionError` for a uid that is missing, too long or cannot be written.

    ``who`` is given it, by ``method``, so that ``what`` is found again.
    """
    if not isinstance(uid, str) or not uid.strip():
        where = "" if method == "sink_to" else " in savepoints"
        raise JobDefinitionError(
            f"the {who} has no uid: pass {method}(..., uid='a-name-that-never-changes'), "
            f"under which {what} is found again{where}"
        )
    problem = uid_problem(uid)
    if problem is not None:
        raise JobDefinitionError(f"the uid of the {who} {problem}")


def uid_of_place(place: int) -> str:
    """What a source is called that was given no uid, the first of them at place 0."""
    return f"source-{place}"


def is_uid_of_place(uid: str) -> bool:
    """Whether a source may be called so because it was given no uid."""
    return _PLACE.fullmatch(uid) is not None
