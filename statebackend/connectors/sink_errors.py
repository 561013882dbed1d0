"""Errors of sinks: they name the target, the cause and the fix, and no secret."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from snapshots.errors import one_line
from statebackend.checkpoint.errors import fix_of
from statebackend.checkpoint.fs.store_uri import redacted
from statebackend.streaming.sink import SinkError, SinkLineage

_VALUE_ERRORS: Final = (pa.ArrowInvalid, NotImplementedError, TypeError)
"""What pyarrow and encoders raise for a value or a type that the target cannot store."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


def checked_columns(given: Sequence[str], sink_name: str, argument: str) -> tuple[str, ...]:
    """Return an argument of a sink that is a list of columns.

    Raises `TypeError` for a text, because its letters would count as columns.
    """
    if isinstance(given, str):
        raise TypeError(f"{sink_name}: {argument} is a list of columns, such as [{given!r}]")
    return tuple(given)


@contextlib.contextmanager
def reported(what: str, fix: str, secrets: Callable[[], Sequence[str]] = tuple) -> Iterator[None]:
    """Raise all errors of a context as `SinkError`.

    Args:
        what: What failed, with the target.
        fix: The fix of errors that are neither of a disk or a permission, nor of a value or a type.
        secrets: Returns what no error may contain, when there is an error.
    """
    try:
        yield
    except SinkError:
        raise
    except Exception as error:
        # deltalake colours its causes, and appends a stack trace.
        text = one_line(_COLOUR.sub("", str(error).partition("\n   0: ")[0])) or type(error).__name__
        found = fix_of(text)
        if isinstance(error, _VALUE_ERRORS):
            found = found or "Convert the values, or change the type of the column"
        fix = "" if found and found in text else found or fix
        hidden = secrets()
        text = redacted(text, hidden)
        # The message of the original error may contain secrets.
        raise SinkError(f"{what}: {text}{fix and '. '}{fix}") from (None if hidden else error)


def retry_conflicts(
    act: Callable[[], None], conflict: type[Exception], attempts: int, forget: Callable[[], None] = lambda: None
) -> None:
    """Call a function again, if another writer was faster, or an earlier driver of this job has committed the epoch.

    ``forget`` is called before each repetition.
    """
    for _ in range(attempts - 1):
        with contextlib.suppress(conflict):
            return act()
        forget()
    return act()


def check_names(target: str, schema: pa.Schema) -> None:
    """Raise `SinkError` for two columns of one name. SQL can select such rows, but no target stores them."""
    doubled = [name for name, count in Counter(schema.names).items() if count > 1]
    if doubled:
        raise SinkError(f"{target}: the rows have two columns {doubled[0]!r}. Rename one of them")


def check_parent(target: str, lineage: SinkLineage, newest_of: Callable[[SinkLineage], int], fix: str) -> None:
    """Raise `SinkError` if the job starts from a savepoint, and the target has later epochs of the job before it.

    ``newest_of`` returns the newest epoch of a lineage in the target, -1 without one.
    """
    if lineage.parent is None or newest_of(lineage) >= 0:
        return
    parent = SinkLineage(lineage.sink_uid, lineage.parent.job_id)
    newest = newest_of(parent)
    if newest > lineage.parent.checkpoint_id:
        raise SinkError(
            f"{target} has epoch {newest} of {parent.name}, but the savepoint was taken after epoch "
            f"{lineage.parent.checkpoint_id}: this job would write the rows since then a second time. {fix}"
        )
