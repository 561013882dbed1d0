"""Side outputs (Flink's ``OutputTag``), and the uids by which checkpoints identify parts of a job."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar, overload

from attrs import Attribute, field, frozen

from snapshots.errors import format_value
from statebackend.state.operator_state_descriptors import uid_problem
from statebackend.streaming.errors import JobDefinitionError

T = TypeVar("T")

MAX_TAG_CHARACTERS: Final = 200
"""The maximum length of a tag's name."""


def _check_name(tag: OutputTag[Any], attribute: Attribute[Any], name: object) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MAX_TAG_CHARACTERS:
        raise JobDefinitionError(
            f"the name of an OutputTag is {format_value(name, 40)}; pass a printable text of 1 to "
            f"{MAX_TAG_CHARACTERS} characters"
        )


@frozen(init=False)
class OutputTag(Generic[T]):
    """The name of a side output and the schema of its records, as for `KeyedStream.process`.

    Tags are equal by name. Raises `JobDefinitionError` if the name is not a printable text.

    Example:
        ```python
        late = OutputTag("late", Payment)
        context.output(late, payment)
        ```
    """

    name: str = field(validator=_check_name)
    schema: Any = field(default=None, eq=False)

    @overload
    def __init__(self, name: str, schema: type[T]) -> None: ...
    @overload
    def __init__(self: OutputTag[Any], name: str, schema: Any = None) -> None: ...

    def __init__(self, name: str, schema: Any = None) -> None:
        self.__attrs_init__(name, schema)


def check_uid(who: str, method: str, what: str, uid: object) -> None:
    """Raise `JobDefinitionError` for a uid that is missing, too long or not storable.

    Args:
        who: What has the uid, such as "operator count".
        method: The method that takes the uid.
        what: What checkpoints store under the uid.
        uid: The uid.
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
