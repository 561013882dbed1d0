"""A driver whose epochs write nothing. It reports them like a `supervised_sink`."""

from __future__ import annotations

import sys

from examples.demonstration.driver_process import WRITTEN

for epoch_id in range(int(sys.argv[1])):
    sys.stdout.write(f"{WRITTEN} {epoch_id}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(f"epoch {epoch_id}\n")
    sys.stdout.flush()
