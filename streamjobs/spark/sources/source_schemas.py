"""Whether a job reads each source with columns that go on from those it was read with (pure).

How far a source was read says nothing about its columns. Yet what is read from now on may lie there since before the
columns changed: files that no epoch has read, records of the batch that is replayed. So a change of columns is judged
before the start, by what would become of those:

    of a column                               what is not read yet          verdict
    ----------------------------------------  ----------------------------  -------------------------------------------
    is as it was, whatever its place          is read as it was             goes on
    is new                                    has nulls in it               goes on
    is gone                                   is not asked for it           goes on: the program does not name it
    is wider: an integer or a decimal of      is read as the wider type     goes on
      more digits, a double of a float
    has another type                          fails, or has nulls           refused
    some are gone and some are new            a column that was renamed     refused: which it is cannot be told
                                                has nulls in it

The same holds for the fields of a struct, and inside of arrays and maps. Whether a column may be null is not looked at,
and what of the columns concerns the state is judged with the state. A source whose schema nobody has noted goes on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from streamjobs.errors import JobRestoreError
from streamjobs.spark.sources.source_matching import lines_of
from streamjobs.spark.sources.source_order_file import SourceOrder
from streamjobs.user_errors import cited

__all__ = ["check_schemas"]

_WIDER: Final = {"byte": ("short", "integer", "long"), "short": ("integer", "long"), "integer": ("long",)}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")
_SHOWN_CHARACTERS: Final = 60


def check_schemas(former: SourceOrder, now: SourceOrder, where: str, begun_anew: Collection[str | None] = ()) -> None:
    """Raises `JobRestoreError` unless each source that goes on, from what ``where`` has of it, has such columns.

    ``begun_anew`` are the uids of sources that do not go on.
    """
    for source, schema, line in zip(now.sources, now.schemas, lines_of(former.sources, now.sources), strict=True):
        was = None if line is None else former.schemas[line]
        if was is None or schema is None or source.uid in begun_anew:
            continue
        problem = next(_problems(was, schema, ""), None)
        if problem is not None:
            anew = "False" if len({one.uid for one in now.sources}) == 1 else f"{{{source.uid!r}: False}}"
            raise JobRestoreError(
                f"the source {source.uid!r} of the job, {source.name}, has other columns than {where} has read of it: "
                f"{problem}; or begin a new job directory from a savepoint with restore_source_progress={anew}, which "
                f"reads the source from its beginning"
            )


def _problems(was: Any, now: Any, path: str) -> Iterator[str]:
    if was == now or _is_wider(was, now):
        return
    if isinstance(was, Mapping) and isinstance(now, Mapping) and was.get("type") == now.get("type"):
        parts = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(str(was.get("type")))
        if was.get("type") == "struct":
            yield from _column_problems(_columns(was), _columns(now), path)
            return
        if parts is not None:
            for part in parts:
                yield from _problems(was.get(part), now.get(part), f"{path}[]")
            return
    yield (
        f"{path} was {_shown_type(was)} and is {_shown_type(now)}, as which what is not read yet might be lost. Read "
        f"it with its former type and cast it in the program"
    )


def _column_problems(was: Mapping[str, Any], now: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in filter(now.__contains__, was):
        yield from _problems(was[name], now[name], f"{path}.{name}" if path else name)
    gone, new = ([name for name in one if name not in other] for one, other in ((was, now), (now, was)))
    if gone and new:
        inside = f" inside of {path}" if path else ""
        yield (
            f"{_listed(gone)} gone{inside} and {_listed(new)} new: whether that is a change of names cannot be told, "
            f"and of what is not read yet the new ones would be null. Keep the former columns beside the new ones "
            f"until all of it is read, and leave them out then"
        )


def _columns(struct: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = struct.get("fields")
    return {one.get("name"): one.get("type") for one in fields} if isinstance(fields, list) else {}


def _is_wider(was: Any, now: Any) -> bool:
    if not isinstance(was, str) or not isinstance(now, str):
        return False
    if now in _WIDER.get(was, ()) or (was, now) == ("float", "double"):
        return True
    digits, more = _DECIMAL.fullmatch(was), _DECIMAL.fullmatch(now)
    if digits is None or more is None:
        return False
    (precision, scale), (new_precision, new_scale) = (map(int, found.groups()) for found in (digits, more))
    return new_scale >= scale and new_precision - new_scale >= precision - scale


def _shown_type(schema: Any) -> str:
    name = schema.get("type") if isinstance(schema, Mapping) else schema
    return name if isinstance(name, str) else cited(name, _SHOWN_CHARACTERS)


def _listed(names: list[str]) -> str:
    return f"{', '.join(map(repr, names[:5]))}{', ...' if len(names) > 5 else ''} {'is' if len(names) == 1 else 'are'}"
