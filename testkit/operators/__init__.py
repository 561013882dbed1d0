"""The harness of one operator: its calls, its state and its timers, over a real backend.

Graphs, channels and checkpoints of jobs are not here: `testkit.jobs` has those.
"""

from testkit.operators.operator_test_harness import EmittedRow, OperatorTestHarness

__all__ = ["EmittedRow", "OperatorTestHarness"]
