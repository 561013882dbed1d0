"""Lets this folder use the contract tests' values of every serializer."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "testing"))
