"""Lets the tests below import the modules of this directory, and the contract tests' values of every serializer.

The Spark session that they take is the fixture `spark` of `tests/conftest.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "testing"))
