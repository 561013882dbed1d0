"""Which texts can be uids of operators: they stand in file names, in messages of one line and in metadata, as UTF-8."""

from __future__ import annotations

import unicodedata
from typing import Final

from snapshots.value_text import shown

__all__ = ["MAX_UID_CHARACTERS", "uid_problem"]

MAX_UID_CHARACTERS: Final = 200
"""Most characters of a uid."""


def uid_problem(uid: str) -> str | None:
    """What is wrong with a uid, as it goes on behind "the uid"; None if it can be one."""
    if not uid.strip():
        return "is blank"
    if len(uid) > MAX_UID_CHARACTERS:
        return f"has {len(uid)} characters, and {MAX_UID_CHARACTERS} are the most: {shown(uid)}"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in uid):
        return (
            f"has control characters, such as NUL or a line break, or half of a surrogate pair; leave them out: "
            f"{shown(uid)}"
        )
    return None
