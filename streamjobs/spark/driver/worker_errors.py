"""What made a Python task fail, out of what Spark says of it.

Spark reports the failure of a task as one text: its own message, the Python traceback of the worker, and the stack of
the JVM. What a person needs is the exception that the Python traceback ends with.
"""

from __future__ import annotations

import re
from typing import Final

from streamjobs.runtime.epoch import REPEATABLE_ADVICE

_RECOMPUTED_OTHERWISE: Final = "indeterminate output"

_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception): ", re.MULTILINE)
_TRACEBACK_END = re.compile(r"\n\s*(?:at |The above exception|During handling)|\n\n", re.MULTILINE)


def python_cause(error: Exception) -> str:
    """The exception that a task's Python traceback ends with, or all of Spark's message if there is none."""
    text = str(error)
    if _RECOMPUTED_OTHERWISE in text and "Traceback" not in text:
        return (
            f"rows that an operator had sent on were lost and computed again, and came out otherwise, when a part of "
            f"them had been used already. {REPEATABLE_ADVICE}; the epoch is then replayed by executing the job again"
        )
    raised = list(_RAISED.finditer(text))
    if "Traceback" not in text or not raised:
        return text
    cause = text[raised[-1].start() :]
    end = _TRACEBACK_END.search(cause)
    return (cause[: end.start()] if end else cause).strip()
