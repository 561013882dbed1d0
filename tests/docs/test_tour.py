"""The tour in examples/tour.ipynb runs, and its stored outputs are correct."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOK = REPOSITORY / "examples" / "tour.ipynb"
# A fresh interpreter, like a new kernel. It reads the sources of the cells and prints the output of each.
RUN = """
import contextlib, io, json, sys
outputs = []
for source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(source, "cell", "exec", dont_inherit=True), globals())
    outputs.append(output.getvalue())
print(json.dumps(outputs))
"""


def test_the_cells_of_the_tour_print_what_it_shows(tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    shown = ["".join(text for output in cell["outputs"] for text in output["text"]) for cell in cells]
    sources = ["".join(cell["source"]) for cell in cells]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(sources),
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == shown
    assert sum(map(bool, shown)) > 6
