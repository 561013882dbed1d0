"""The contract of sinks, as a pytest class to derive from.

    class TestMySink(SinkContract):
        def new_sink(self, target): return MySink(target)
        def rows_in(self, target): return read_everything(target)

Each test drives a sink as a runtime does: tasks stage with pickled copies, a dictionary is the checkpoint, and a new
driver has a new sink object. A target is a directory of the test unless the fixture `target` is overridden.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pyarrow as pa
import pytest
from attrs import define, field, frozen

from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.streaming.runtime.job_sinks import StagedEpoch, decode_committables, encode_committables
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

__all__ = ["SCHEMA", "Row", "SinkContract", "SinkDriver"]

Row = tuple[str, int]

SCHEMA: Final = pa.schema([("k", pa.string()), ("n", pa.int64())])
"""The columns of all rows that the contract writes."""


class KilledError(Exception):
    """The driver was killed."""


@frozen
class Checkpoint:
    """The newest checkpoint of a job: its epoch, and the committables of the sink."""

    epoch_id: int
    committable: bytes


@define
class SinkDriver:
    """One run of a job with one sink. The driver is killed after ``kill_at`` calls of the sink and the checkpoint."""

    sink: Sink
    lineage: SinkLineage
    run_id: str
    checkpoint: Checkpoint | None = None
    kill_at: int | None = None
    steps: int = field(init=False, default=0)

    def start(self, last_epoch_id: int | None = None) -> None:
        """Recover, and commit the checkpoint again."""
        last = self.checkpoint
        self.sink.recover(self.lineage, last_epoch_id if last is None else last.epoch_id)
        self._step()
        if last is not None:
            self.commit()

    def epoch(self, epoch_id: int) -> SinkEpoch:
        return SinkEpoch(self.lineage, epoch_id, self.run_id)

    def stage(self, epoch_id: int, subtask_index: int, rows: Sequence[Row]) -> bytes:
        """Stage rows in a task, which has a copy of the sink."""
        copy: Sink = pickle.loads(pickle.dumps(self.sink))
        halves = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
        batches = [pa.RecordBatch.from_pylist([{"k": k, "n": n} for k, n in half], SCHEMA) for half in halves]
        committable = copy.stage(
            self.epoch(epoch_id), subtask_index, pa.RecordBatchReader.from_batches(SCHEMA, iter(batches))
        )
        assert type(committable) is bytes
        self._step()
        return committable

    def store(self, epoch_id: int, committables: Sequence[bytes]) -> None:
        """Complete the checkpoint."""
        staged = StagedEpoch(epoch_id, self.run_id, [one for one in committables if one])
        self.checkpoint = Checkpoint(epoch_id, encode_committables([staged]))
        self._step()

    def commit(self) -> None:
        """Commit the newest checkpoint."""
        assert self.checkpoint is not None
        for one in decode_committables(self.checkpoint.committable):
            if one.committables:
                self.sink.commit(SinkEpoch(self.lineage, one.epoch_id, one.run_id), one.committables)
        self._step()

    def run(self, epoch_id: int, rows: Sequence[Row] | None = None) -> None:
        """Run an epoch with two subtasks."""
        given = rows_of_epoch(epoch_id) if rows is None else rows
        parts = given[::2], given[1::2]
        staged = [self.stage(epoch_id, index, part) for index, part in enumerate(parts) if part]
        self.store(epoch_id, staged)
        self.commit()

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            raise KilledError(f"after step {self.steps}")


class LineKill:
    """A context that raises `KilledError` once, before the nth line of a class that this thread reaches first."""

    def __init__(self, sink: Sink, kill_at: int) -> None:
        functions = [one for kind in type(sink).__mro__ if kind is not Sink for one in vars(kind).values()]
        self._codes = {code for one in functions for code in _codes_of(getattr(one, "__code__", None))}
        self._kill_at = kill_at
        self._reached: set[tuple[str, int]] = set()
        self.killed = ""
        """The line, empty if there is none."""

    def __enter__(self) -> None:
        self._former = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._former)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in self._codes:
            return None
        if event == "line" and not self.killed:
            line = (frame.f_code.co_filename, frame.f_lineno)
            self._reached.add(line)
            if len(self._reached) == self._kill_at:
                self.killed = f"{line[0]}:{line[1]}"
                raise KilledError(f"before {self.killed}")
        return self._trace


def _codes_of(code: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions in it."""
    if isinstance(code, CodeType):
        yield code
        for one in code.co_consts:
            yield from _codes_of(one)


def rows_of_epoch(epoch_id: int, tag: str = "") -> list[Row]:
    """Return four rows of an epoch. Rows of other epochs or tags are different."""
    return [(f"{tag}k{index % 2}", epoch_id * 10 + index) for index in range(4)]


def rows_of_epochs(*epoch_ids: int) -> list[Row]:
    return sorted(row for epoch_id in epoch_ids for row in rows_of_epoch(epoch_id))


class SinkContract:
    """The tests of a sink. Override `new_sink` and `rows_in`, and the attributes that differ."""

    can_roll_back = True
    """Whether `roll_back` hides output. Otherwise it must raise `SinkError`."""

    secrets: Sequence[str] = ()
    """Strings that must not appear, such as passwords and keys that `new_sink` passes."""

    def new_sink(self, target: Any) -> Sink:
        """Return a new object of the sink for a target."""
        raise NotImplementedError

    def rows_in(self, target: Any) -> list[Row]:
        """Return the rows that readers of the target see, in any order."""
        raise NotImplementedError

    def broken_sink(self, target: Any) -> Sink:
        """Return a sink with an unreachable target. Its errors must not contain secrets."""
        pytest.skip("broken_sink() is not implemented")

    def faults(self) -> Sequence[Callable[[], AbstractContextManager[Any]]]:
        """Return contexts within which a commit fails: before, within and after the target's own transaction."""
        return ()

    @pytest.fixture
    def target(self, tmp_path: Path) -> Any:
        """Return a new, empty target."""
        return tmp_path / "target"

    @pytest.fixture
    def second_target(self, tmp_path: Path) -> Any:
        """Return another new, empty target."""
        return tmp_path / "second"

    def driver(self, target: Any, run_id: str = "run-1", job_id: str = "job", **options: Any) -> SinkDriver:
        lineage = SinkLineage("sink", job_id, options.pop("parent", None))
        return SinkDriver(self.new_sink(target), lineage, run_id, **options)

    def visible(self, target: Any) -> list[Row]:
        return sorted((str(k), int(n)) for k, n in self.rows_in(target))

    def test_rows_are_visible_when_their_epoch_is_committed_and_not_before(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        driver.run(0)
        staged = [driver.stage(1, index, rows_of_epoch(1)[index::2]) for index in (0, 1)]
        driver.store(1, staged)
        assert self.visible(target) == rows_of_epochs(0)
        driver.commit()
        assert self.visible(target) == rows_of_epochs(0, 1)

    def test_a_kill_after_any_step_loses_and_duplicates_no_rows(self, target_of: Callable[[], Any]) -> None:
        for kill_at in range(1, 100):
            target = target_of()
            first = self.driver(target, kill_at=kill_at)
            with contextlib.suppress(KilledError):
                first.start()
                for epoch_id in range(3):
                    first.run(epoch_id)
                assert self.visible(target) == rows_of_epochs(0, 1, 2)
                return
            second = self.driver(target, "run-2", checkpoint=first.checkpoint)
            second.start()
            for epoch_id in range(0 if first.checkpoint is None else first.checkpoint.epoch_id + 1, 3):
                second.run(epoch_id)
            assert self.visible(target) == rows_of_epochs(0, 1, 2), f"killed after step {kill_at}"
        pytest.fail("the sink was called more than 99 times in three epochs")

    @pytest.fixture
    def target_of(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
        """Return a function that returns a new target at each call."""
        count = iter(range(1000))
        return lambda: tmp_path / f"target-{next(count)}"

    def test_a_lost_response_of_the_target_duplicates_no_rows(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        driver.run(0)
        driver.commit()
        again = self.driver(target, "run-2", checkpoint=driver.checkpoint)
        again.start()
        again.commit()
        again.run(1)
        again.commit()
        assert self.visible(target) == rows_of_epochs(0, 1)

    def test_a_kill_before_any_line_of_a_commit_loses_and_duplicates_no_rows(
        self, target_of: Callable[[], Any]
    ) -> None:
        for kill_at in range(1, 200):
            target = target_of()
            driver = self.driver(target)
            driver.start()
            driver.run(0)
            driver.store(1, [driver.stage(1, 0, rows_of_epoch(1))])
            kill = LineKill(driver.sink, kill_at)
            with contextlib.suppress(Exception), kill:
                driver.commit()
            again = self.driver(target, "run-2", checkpoint=driver.checkpoint)
            again.start()
            again.run(2)
            assert self.visible(target) == rows_of_epochs(0, 1, 2), f"killed before {kill.killed}"
            if not kill.killed:
                return
        pytest.fail("a commit ran more than 199 lines")

    def test_a_commit_that_fails_inside_the_target_is_repeated(self, target_of: Callable[[], Any]) -> None:
        faults = self.faults()
        if not faults:
            pytest.skip("faults() returns no faults")
        for fault in faults:
            target = target_of()
            driver = self.driver(target)
            driver.start()
            driver.run(0)
            driver.store(1, [driver.stage(1, 0, rows_of_epoch(1))])
            with pytest.raises(Exception), fault():  # noqa: B017, PT011 - any error
                driver.commit()
            again = self.driver(target, "run-2", checkpoint=driver.checkpoint)
            again.start()
            again.run(2)
            assert self.visible(target) == rows_of_epochs(0, 1, 2)

    def test_duplicate_tasks_write_their_rows_once(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        rows = rows_of_epoch(0)
        driver.stage(0, 0, rows[:2])
        staged = [driver.stage(0, index, rows[index * 2 : index * 2 + 2]) for index in (0, 1)]
        driver.stage(0, 1, rows[2:])
        driver.store(0, staged)
        driver.commit()
        driver.run(1)
        assert self.visible(target) == rows_of_epochs(0, 1)

    def test_a_driver_that_lost_the_leadership_changes_nothing(self, target: Any) -> None:
        former = self.driver(target)
        former.start()
        former.run(0)
        former.stage(1, 0, rows_of_epoch(1, "former"))
        leader = self.driver(target, "run-2", checkpoint=former.checkpoint)
        leader.start()
        # A late task of the earlier driver.
        former.stage(1, 1, rows_of_epoch(1, "late"))
        staged = [leader.stage(1, 0, rows_of_epoch(1))]
        former.sink.abort(former.epoch(1))
        leader.store(1, staged)
        leader.commit()
        # A late commit of the earlier driver.
        former.commit()
        leader.run(2)
        assert self.visible(target) == rows_of_epochs(0, 1, 2)

    def test_two_drivers_that_commit_an_epoch_at_the_same_time_write_it_once(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        driver.run(0)
        driver.store(1, [driver.stage(1, 0, rows_of_epoch(1))])
        barrier = threading.Barrier(2)
        errors: list[Exception] = []

        def commit(run_id: str) -> None:
            one = self.driver(target, run_id, checkpoint=driver.checkpoint)
            barrier.wait()
            try:
                one.commit()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=commit, args=(name,)) for name in ("run-2", "run-3")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) < 2, errors
        assert self.visible(target) == rows_of_epochs(0, 1)

    def test_rows_of_an_aborted_epoch_never_appear(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        driver.run(0)
        driver.stage(1, 0, rows_of_epoch(1, "aborted"))
        driver.sink.abort(driver.epoch(1))
        # An epoch without staged output can also be aborted.
        driver.sink.abort(driver.epoch(7))
        again = self.driver(target, "run-2", checkpoint=driver.checkpoint)
        again.start()
        again.run(1)
        assert self.visible(target) == rows_of_epochs(0, 1)

    def test_a_rollback_hides_later_epochs_or_is_an_error(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        driver.run(0)
        older = driver.checkpoint
        driver.run(1)
        driver.run(2)
        again = self.driver(target, "run-2", checkpoint=older)
        if not self.can_roll_back:
            with pytest.raises(SinkError):
                again.sink.roll_back(again.lineage, 0)
            assert self.visible(target) == rows_of_epochs(0, 1, 2)
            return
        hidden = again.sink.roll_back(again.lineage, 0)
        assert [one for one in hidden or () if type(one) is not str] == [], "roll_back() returns texts, for the report"
        assert self.visible(target) == rows_of_epochs(0)
        # A crash repeats the call.
        again.sink.roll_back(again.lineage, 0)
        again.start()
        other = rows_of_epoch(1, "other")
        again.run(1, other)
        again.run(2)
        assert self.visible(target) == sorted([*rows_of_epochs(0, 2), *other])
        twice = self.driver(target, "run-3", checkpoint=older)
        twice.sink.roll_back(twice.lineage, 0)
        assert self.visible(target) == rows_of_epochs(0)

    def test_a_new_job_from_a_savepoint_continues(self, target: Any) -> None:
        before = self.driver(target, job_id="before")
        before.start()
        before.run(0)
        before.run(1)
        parent = SavepointIdentity("before", 1, 1)
        for run_id in ("run-2", "run-3"):
            job = self.driver(target, run_id, "new", parent=parent)
            job.start(last_epoch_id=1)
        job.run(2)
        job.run(3)
        assert self.visible(target) == rows_of_epochs(0, 1, 2, 3)

    def test_a_job_from_a_savepoint_restarts_after_its_parent_ran_on(self, target: Any) -> None:
        before = self.driver(target, job_id="before")
        before.start()
        before.run(0)
        job = self.driver(target, "run-2", "new", parent=SavepointIdentity("before", 0, 1))
        job.start(last_epoch_id=0)
        job.run(1)
        rows = [*rows_of_epochs(0, 1)]
        other = rows_of_epoch(1, "other")
        try:
            before.run(1, other)
            before.run(2)
        except SinkError:
            # A target with one place per epoch must raise an error.
            pass
        else:
            rows += [*other, *rows_of_epochs(2)]
        again = self.driver(target, "run-3", "new", parent=SavepointIdentity("before", 0, 1))
        again.start(last_epoch_id=1)
        assert self.visible(target) == sorted(rows)

    def test_two_jobs_from_one_savepoint_skip_no_rows(self, target: Any) -> None:
        before = self.driver(target, job_id="before")
        before.start()
        before.run(0)
        first, second = (
            self.driver(target, job_id=job_id, parent=SavepointIdentity("before", 0, 1)) for job_id in ("a", "b")
        )
        first.start(last_epoch_id=0)
        first.run(1)
        rows = rows_of_epoch(1, "second")
        try:
            second.start(last_epoch_id=0)
            second.run(1, rows)
        except SinkError:
            # A target with one place per epoch must raise an error.
            assert self.visible(target) == rows_of_epochs(0, 1)
        else:
            assert self.visible(target) == sorted([*rows_of_epochs(0, 1), *rows])

    def test_two_jobs_that_write_at_the_same_time_lose_and_duplicate_no_rows(self, target: Any) -> None:
        barrier = threading.Barrier(2)
        written: list[Row] = []
        errors: list[Exception] = []

        def run(job_id: str) -> None:
            driver = self.driver(target, job_id=job_id)
            barrier.wait()
            try:
                driver.start()
                for epoch_id in range(5):
                    rows = rows_of_epoch(epoch_id, job_id)
                    driver.run(epoch_id, rows)
                    written.extend(rows)
            except SinkError:
                # A target with one place per epoch must raise an error.
                pass
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(job_id,)) for job_id in ("one", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(written) >= 20, "neither job could write its five epochs"
        assert self.visible(target) == sorted(written)

    def test_a_start_leaves_what_other_jobs_have_staged(self, target: Any) -> None:
        one = self.driver(target, job_id="one")
        one.start()
        one.store(0, [one.stage(0, 0, rows_of_epoch(0))])
        other = self.driver(target, job_id="other")
        other.start()
        one.commit()
        assert self.visible(target) == rows_of_epochs(0)

    def test_two_sinks_of_a_job_commit_one_by_one(self, target: Any, second_target: Any) -> None:
        first, second = self.driver(target), self.driver(second_target)
        second.lineage = SinkLineage("second", "job")
        for one in (first, second):
            one.start()
            one.run(0)
            one.store(1, [one.stage(1, 0, rows_of_epoch(1))])
        # The driver crashes between the two commits.
        first.commit()
        for one, place in ((first, target), (second, second_target)):
            again = SinkDriver(self.new_sink(place), one.lineage, "run-2", one.checkpoint)
            again.start()
            again.run(2)
            assert self.visible(place) == rows_of_epochs(0, 1, 2)

    def test_an_epoch_without_rows_can_be_committed(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        driver.store(0, [driver.stage(0, 0, [])])
        driver.commit()
        driver.run(1)
        assert self.visible(target) == rows_of_epochs(1)

    def test_values_come_back_as_they_are(self, target: Any) -> None:
        """Separators, quotes, escapes, words for null, other scripts, and the largest numbers."""
        texts = [
            "a \"b\", 'c';\td",
            "one\ntwo\r\nthree",
            "\\N",
            "\\.",
            "NULL",
            "null",
            "nan",
            " a ",
            "é€😀",
            "../a=b/%2F?#",
        ]
        rows = [(text, number) for number, text in enumerate([*texts, "x" * 200])]
        rows += [("min", -(2**63)), ("max", 2**63 - 1)]
        driver = self.driver(target)
        driver.start()
        driver.run(0, rows)
        assert self.visible(target) == sorted(rows)

    def test_two_columns_of_one_name_are_stored_or_a_sink_error(self, target: Any) -> None:
        """SQL can select two columns of one name. The error must come before the epoch is in a checkpoint."""
        driver = self.driver(target)
        driver.start()
        schema = pa.schema([*SCHEMA, SCHEMA.field("n")])
        batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], schema=schema)
        staged = None
        with contextlib.suppress(SinkError):
            staged = driver.sink.stage(driver.epoch(0), 0, pa.RecordBatchReader.from_batches(schema, iter([batch])))
        if staged is not None:
            driver.store(0, [staged])
            driver.commit()

    def test_a_closed_sink_is_used_by_the_next_run(self, target: Any) -> None:
        first = self.driver(target)
        first.start()
        first.run(0)
        first.sink.close()
        first.sink.close()
        second = self.driver(target, "run-2", checkpoint=first.checkpoint)
        second.sink = first.sink
        second.start()
        second.run(1)
        assert self.visible(target) == rows_of_epochs(0, 1)

    def test_the_identity_is_the_same_for_two_objects(self, target: Any, second_target: Any) -> None:
        assert self.new_sink(target).identity == self.new_sink(target).identity
        assert self.new_sink(target).identity != self.new_sink(second_target).identity

    def test_secrets_appear_neither_in_committables_nor_in_names(self, target: Any) -> None:
        driver = self.driver(target)
        driver.start()
        driver.run(0)
        assert driver.checkpoint is not None
        texts = [driver.sink.identity, repr(driver.sink), repr(driver.checkpoint.committable)]
        assert [secret for secret in self.secrets for text in texts if secret in text] == []

    def test_secrets_do_not_appear_in_errors(
        self, target: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        sink = self.broken_sink(target)
        driver = SinkDriver(sink, SinkLineage("sink", "job"), "run-1")
        with contextlib.suppress(SinkError):
            driver.start()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - any error
            driver.run(0)
        errors = list(_chain(caught.value))
        texts = [*map(str, errors), *map(repr, errors), caplog.text, *capfd.readouterr()]
        assert [secret for secret in self.secrets for text in texts if secret in text] == []


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
