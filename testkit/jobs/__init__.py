"""The harness of whole jobs: a job in this process whose sources a test plays event by event, and whose output it sees.

What Flink's ``KeyedOneInputStreamOperatorTestHarness`` is for one operator, for a job as it is written.
The runtime is that of this process: no Spark is needed, and nothing of it is simulated.
"""

from testkit.jobs.emitted import Emitted, EmittedElement, EmittedStatus, EmittedWatermark
from testkit.jobs.job_test_harness import HarnessJob, JobTestHarness, ScriptedSource

__all__ = [
    "Emitted",
    "EmittedElement",
    "EmittedStatus",
    "EmittedWatermark",
    "HarnessJob",
    "JobTestHarness",
    "ScriptedSource",
]
