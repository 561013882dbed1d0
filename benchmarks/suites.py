"""The registry of suites: the name of each suite and its module.

A suite's module has `DESCRIPTION` (one line), `add_arguments(parser)` for its options, and `run(arguments)`, which
yields `Result`s as they are measured and prints its progress to standard error. The command line imports the module of
every suite, so a module imports everything beyond the standard library in `run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Protocol, cast

from benchmarks.result import Result


class Suite(Protocol):
    """The interface of a suite's module."""

    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the suite."""

    def run(self, arguments: argparse.Namespace) -> Iterator[Result]:
        """Measure, and yield each result when it is available."""


SUITE_MODULES = {
    "backends": "benchmarks.backends.suite",
    "connectors": "benchmarks.connectors.suite",
    "inprocess": "benchmarks.inprocess.suite",
    "payments": "benchmarks.payments.suite",
    "savepoints": "benchmarks.savepoints.suite",
    "scale": "benchmarks.scale.suite",
    "serializers": "benchmarks.serializers.suite",
    "spark_stateful": "benchmarks.spark_stateful.suite",
    "time": "benchmarks.time.suite",
}


def load_suite(name: str) -> Suite:
    """Return the suite called `name`. Raises `KeyError` for an unknown name."""
    return cast(Suite, import_module(SUITE_MODULES[name]))
