"""Settings for all tests.

Hypothesis draws new examples in every run, and prints how to repeat one that fails. Where ``CI`` is set it draws the
same ones each time: whether a change may land must not hang on a coin.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
