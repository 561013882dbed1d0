"""Makes the values of every serializer from its contract tests available to this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "testing"))
