"""Uids: the names that a program gives what checkpoints and savepoints find again, and that never change.

What one may look like says `statebackend.api.operator_uids`.
"""

from __future__ import annotations

import re
from typing import Final

from statebackend.api.operator_uids import uid_problem
from streamjobs.errors import JobDefinitionError

__all__ = ["check_uid", "is_uid_of_place", "uid_of_place"]

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
