"""A local job rolls back with its output: sinks remove later output, even after crashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from test_run_steps import RECORD, Count
from test_staged_sinks import Files

from statebackend import JobRestoreError
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.store import completed_checkpoint_store as default_checkpoint_store
from statebackend.checkpoint.store.job_files import ROLL_BACK_FILE_NAME
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.sink import SinkError


class Hiding(Files):
    """Hides the files of later epochs. It may fail before or after it hides any."""

    def __init__(self, directory: Path, fails: Exception | None = None, hides_first: bool = True) -> None:
        super().__init__(directory)
        self._place, self._fails, self._hides_first = directory, fails, hides_first
        self.job_ids: list[str] = []

    def roll_back(self, last_epoch_id: int, job_id: str) -> Sequence[str]:
        self.job_ids.append(job_id)
        if self._fails is not None and not self._hides_first:
            raise self._fails
        later = [path for path in self._place.glob("[0-9]*") if int(path.name) > last_epoch_id]
        hidden = [path.rename(self._place / f"hidden {path.name}") for path in later]
        if self._fails is not None:
            raise self._fails
        return [str(path) for path in hidden]


def run(directory: Path, sinks: Sequence[Any], **options: Any) -> Any:
    environment = LocalStreamEnvironment(job_dir=directory / "job", parallelism=2)
    counted = environment.from_elements([("a", 0)], RECORD).key_by("k").process(Count(), uid="count", schema=RECORD)
    for number, sink in enumerate(sinks):
        counted.sink_to(sink, uid=f"sink {number}")
    return environment.execute("job", **options)


def started(directory: Path) -> bool:
    return (directory / "job" / ROLL_BACK_FILE_NAME).exists()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for _ in range(3):
        run(tmp_path, [Hiding(tmp_path / "out")])
    assert Files(tmp_path / "out").committed() == [("a", 1), ("a", 2), ("a", 3)]
    return tmp_path


def test_output_of_later_epochs_is_rolled_back(directory: Path) -> None:
    sink = Hiding(directory / "out")
    run(directory, [sink], roll_back_to=0)
    assert sink.committed() == [("a", 1), ("a", 2)]
    assert len(sink.job_ids) == 1
    assert not started(directory)
    run(directory, [sink])
    assert sink.committed() == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.parametrize("crashing", ["sink", "store"])
@pytest.mark.parametrize("again", [0, "previous"])
def test_a_crash_while_rolling_back_is_finished_before_any_other_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch, crashing: str, again: int | str
) -> None:
    sink = Hiding(directory / "out", StorageError("dead") if crashing == "sink" else None)
    with monkeypatch.context() as patched:
        if crashing == "store":
            recover = mock.Mock(side_effect=StorageError("dead"))
            patched.setattr(default_checkpoint_store.CompletedCheckpointStore, "recover", recover)
        with pytest.raises(StorageError, match="dead"):
            run(directory, [sink], roll_back_to=0)
    for options in ({}, {"roll_back_to": 1}):
        with pytest.raises(JobRestoreError, match=r"checkpoint 0 .* is not finished: .* roll_back_to=0"):
            run(directory, [Hiding(directory / "out")], **options)
    sink = Hiding(directory / "out")
    run(directory, [sink], roll_back_to=again)
    assert sink.committed() == [("a", 1), ("a", 2)]
    assert not started(directory)


def test_a_sink_that_cannot_roll_back_leaves_the_job_unchanged(directory: Path) -> None:
    sink = Hiding(directory / "out", SinkError("an epoch is another job's"), hides_first=False)
    with pytest.raises(SinkError, match="another job's"):
        run(directory, [sink], roll_back_to=0)
    assert not started(directory)
    run(directory, [sink])
    assert sink.committed() == [("a", 1), ("a", 2), ("a", 3), ("a", 4)]


def test_a_failing_sink_after_a_successful_one_does_not_undo_that_roll_back(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "other"]
    for _ in range(2):
        run(tmp_path, [Hiding(place) for place in places])
    failing = Hiding(places[1], SinkError("an epoch is another job's"), hides_first=False)
    with pytest.raises(SinkError):
        run(tmp_path, [Hiding(places[0]), failing], roll_back_to=0)
    with pytest.raises(JobRestoreError, match="start the job again with roll_back_to=0"):
        run(tmp_path, [Hiding(place) for place in places])
    run(tmp_path, [Hiding(place) for place in places], roll_back_to=0)
    assert [Files(place).committed() for place in places] == [[("a", 1), ("a", 2)]] * 2


def test_a_sink_that_fails_later_does_not_undo_the_start_of_the_roll_back(directory: Path) -> None:
    with pytest.raises(StorageError, match="dead"):
        run(directory, [Hiding(directory / "out", StorageError("dead"))], roll_back_to=0)
    with pytest.raises(SinkError):
        run(directory, [Hiding(directory / "out", SinkError("not now"), hides_first=False)], roll_back_to=0)
    assert started(directory)
    with pytest.raises(JobRestoreError, match="start the job again with roll_back_to=0"):
        run(directory, [Hiding(directory / "out")])
