"""Writes the golden files of a release, once only: ``python tests/testing/generate_golden.py 0.2.0``."""

from __future__ import annotations

import sys
from pathlib import Path

import contract_cases

from statebackend.testing.serializers import GoldenFiles

GOLDEN = Path(__file__).parent.parent / "golden" / "serializers"


def generate(version: str) -> None:
    """Write the files of every serializer without files of this version."""
    for name, case in contract_cases.CASES.items():
        if not (GOLDEN / name / version).exists():
            GoldenFiles(GOLDEN / name).generate(version, case.make(), case.values)


if __name__ == "__main__":
    generate(sys.argv[1])
