"""Uids: the names that a program gives what checkpoints and savepoints find again, and that never change.

They stand in file names, in messages of one line and in metadata, as UTF-8.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from streamjobs.errors import JobDefinitionError
from streamjobs.user_errors import cited

__all__ = ["MAX_UID_CHARACTERS", "check_uid", "is_uid_of_place", "uid_of_place"]

MAX_UID_CHARACTERS: Final = 200
"""Most characters of a uid."""

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
    if len(uid) > MAX_UID_CHARACTERS:
        raise JobDefinitionError(
            f"the uid of the {who} has {len(uid)} characters, and {MAX_UID_CHARACTERS} are the most: {cited(uid, 40)}"
        )
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in uid):
        raise JobDefinitionError(
            f"the uid {uid!r} of the {who} has control characters, such as NUL or a line break, or half of a "
            f"surrogate pair; leave them out"
        )


def uid_of_place(place: int) -> str:
    """What a source is called that was given no uid, the first of them at place 0."""
    return f"source-{place}"


def is_uid_of_place(uid: str) -> bool:
    """Whether a source may be called so because it was given no uid."""
    return _PLACE.fullmatch(uid) is not None
