"""The registry of suites: a name, and the module that holds the suite.

A suite's module gives `DESCRIPTION` (one line), `add_arguments(parser)` for its own options, and
`run(arguments)`, which yields `Result`s as they come and says on standard error how it is going.  Every suite's
module is imported to build the command line, so it must be light: what it needs beyond the standard library it
imports in `run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Protocol, cast

from benchmarks.result import Result


class Suite(Protocol):
    """What a suite's module provides."""

    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the suite's own options."""

    def run(self, arguments: argparse.Namespace) -> Iterator[Result]:
        """Measure, and yield results as they are there."""


SUITE_MODULES = {
    "backends": "benchmarks.backends.suite",
    "inprocess": "benchmarks.inprocess.suite",
    "payments": "benchmarks.payments.suite",
    "savepoints": "benchmarks.savepoints.suite",
    "scale": "benchmarks.scale.suite",
    "serializers": "benchmarks.serializers.suite",
    "spark_stateful": "benchmarks.spark_stateful.suite",
    "time": "benchmarks.time.suite",
}


def load_suite(name: str) -> Suite:
    """The suite called `name`.  Raises `KeyError` for an unknown name."""
    return cast(Suite, import_module(SUITE_MODULES[name]))
