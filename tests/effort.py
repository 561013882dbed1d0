"""How many examples of each property this run draws.

``make test`` sets ``STATEBACKEND_FUZZ`` to ``few``. Without it all tests run with all their examples.
"""

from __future__ import annotations

import os

FUZZ = os.environ.get("STATEBACKEND_FUZZ", "")


def examples(number: int) -> int:
    """The number of examples in this run: a third of `number` with ``few``, else `number`."""
    return -(-number // 3) if FUZZ == "few" else number
