"""``statebackend report`` shows the metadata of checkpoints in a process without the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from page_reader import PageReader

from statebackend import KeyedProcessFunction, Savepoint, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.sizes import format_bytes
from statebackend.savepoint.statistics import checkpoint_sizes
from statebackend.state.metrics import skew_of

pytestmark = pytest.mark.slow

NAME = "</title><script>\n\"'&"
STATE = NAME.replace("\n", "")


class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor(STATE, int, 0))

    def process_element(self, value, context):
        self.count.update((self.count.value() or 0) + value.n)
        yield context.current_key, value.n


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", parallelism=2, epoch_size=4)
    rows = [{"k": key, "n": number} for number, key in enumerate("abcdefghijkl")]
    stream = environment.from_elements(rows, "k string, n bigint").key_by("k")
    stream.process(Count(), uid="count", schema="k string, n bigint").sink_to([])
    environment.execute(NAME).savepoint(tmp_path / "savepoint")
    return tmp_path / "job"


def reported(path: Path, target: Path) -> PageReader:
    command = [sys.executable, "-m", "statebackend", "report", str(path), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{target}: ")
    return PageReader(target.read_text("utf-8"))


def test_a_job_directory_is_reported_by_another_process_with_all_checkpoints(job_dir: Path, tmp_path: Path) -> None:
    read = reported(job_dir, tmp_path / "report.html")
    figures = checkpoint_sizes(Savepoint.open(job_dir).metadata)
    [operator] = figures.operators
    for shown in (
        NAME.replace("\n", "\\n"),
        "stored",
        format_bytes(figures.size_bytes),
        *map(format_bytes, operator.bytes_by_subtask),
        *map(format_bytes, operator.bytes_by_state.values()),
        "Growth by state",
        "0",
        "1",
        "2",
    ):
        assert shown in read.texts, shown


def test_a_savepoint_and_a_single_checkpoint_are_reported(job_dir: Path, tmp_path: Path) -> None:
    read = reported(tmp_path / "savepoint", tmp_path / "savepoint.html")
    assert "Savepoint" in read.texts
    [newest] = sorted((job_dir / "checkpoints").iterdir())[-1:]
    assert f"State in checkpoint {int(newest.name[4:])}" in reported(newest, tmp_path / "checkpoint.html").texts


def test_a_report_is_available_as_json(job_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "report.html")
    assert main(["report", str(job_dir), target, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "path": target,
        "size_bytes": Path(target).stat().st_size,
        "kind": "checkpoint",
        "checkpoints": [0, 1, 2],
    }
    assert main(["report", str(job_dir), target, "--overwrite"]) == 0
    assert (
        capsys.readouterr().out
        == f"{target}: 3 checkpoints, {format_bytes(found['size_bytes'])}; open it in a browser\n"
    )


def test_unreadable_input_and_failed_writes_are_reported_and_leave_no_file(job_dir: Path, tmp_path: Path) -> None:
    for path, target in ((tmp_path / "nothing", tmp_path / "out.html"), (job_dir, tmp_path / "no" / "out.html")):
        command = [sys.executable, "-m", "statebackend", "report", str(path), str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 3
        assert done.stderr.startswith("error: ")
        assert not list(tmp_path.glob("*.html*"))


def test_skew_is_maximum_over_mean() -> None:
    sizes = ([], [0, 0], [5], [1, 1], [3, 1], [4, 0, 0, 0])
    assert [skew_of(one) for one in sizes] == [1.0, 1.0, 1.0, 1.0, 1.5, 4.0]
