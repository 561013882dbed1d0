"""Settings for all tests.

Hypothesis draws new examples in every run, and prints how to repeat one that fails. Where ``CI`` is set it draws the
same ones each time: whether a change may land must not hang on a coin.
"""

from __future__ import annotations

import os

from hypothesis import settings

# A test's JVM lives for seconds: compiling its hot code twice, and collecting garbage on all cores, costs more than it
# brings. Programs that tests start inherit this; whoever sets it otherwise is heard.
for _variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_variable, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
