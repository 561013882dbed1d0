"""The harness of one operator: its calls, its state and its timers, over a real backend."""

from testkit.operators.operator_test_harness import EmittedRow, OperatorTestHarness

__all__ = ["EmittedRow", "OperatorTestHarness"]
