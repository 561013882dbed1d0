"""Lets the tests of this folder have the values of every serializer, which lie beside the tests of their contract."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "testing"))
