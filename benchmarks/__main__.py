"""`python -m benchmarks SUITE [--json] [options of the suite]`; `all` runs every suite with its defaults."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from benchmarks.result import Result, print_json, print_table
from benchmarks.suites import SUITE_MODULES, load_suite


def build_parser() -> argparse.ArgumentParser:
    """Return a parser with one subcommand per registered suite, each with the suite's options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare this project with its peers.")
    subcommands = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    every = subcommands.add_parser("all", help="run every suite with its defaults")
    every.add_argument("--json", action="store_true", help="print one JSON object per line")
    for name in SUITE_MODULES:
        suite = load_suite(name)
        subcommand = subcommands.add_parser(name, help=suite.DESCRIPTION, description=suite.DESCRIPTION)
        subcommand.add_argument("--json", action="store_true", help="print one JSON object per line")
        suite.add_arguments(subcommand)
    return parser


def run_suites(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Iterator[Result]:
    """Yield the results of the requested suite, or of all suites."""
    if arguments.suite != "all":
        yield from load_suite(arguments.suite).run(arguments)
        return
    for name in SUITE_MODULES:
        yield from load_suite(name).run(parser.parse_args([name]))


def main() -> None:
    """Run the suite named on the command line, and print its results."""
    parser = build_parser()
    arguments = parser.parse_args()
    results = run_suites(parser, arguments)
    if arguments.json:
        print_json(results, sys.stdout)
    else:
        print_table(results, sys.stdout)


if __name__ == "__main__":
    main()
