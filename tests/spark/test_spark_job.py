"""Jobs on a real Spark session: epochs, replays, restarts, savepoints, and rejected definitions."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from emitted_objects import OBJECT, collecting, emitting_objects
from spark_job_fixture import (
    BACKENDS,
    CountWords,
    CountWordsIncompatible,
    CountWordsUpgraded,
    WordCount,
    crashing_once,
    memory_sink,
    pickled_by_value,
    rows_of,
)

from statebackend import (
    BroadcastStateDescriptor,
    EpochError,
    JobDefinitionError,
    JobRestoreError,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    SourceProgressMismatchError,
    SplitListStateDescriptor,
    StateMigrationException,
    UnionListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.checkpoint import (
    CorruptFileError,
    CorruptMetadataError,
    JobDirectoryLockedError,
    JobDirectoryMismatchError,
    MissingFileError,
    SavepointError,
)
from statebackend.connectors import JsonLinesSource
from statebackend.local import LocalStreamEnvironment
from statebackend.state.private_directory import PrivateDirectoryError
from typeserializers import AttrsSerializer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


FIRST, SECOND, THIRD = [("a", 1), ("b", 2), ("a", 3)], [("c", 5), ("a", 7)], [("b", 11), ("b", 13)]


@pytest.fixture
def word_count(spark: SparkSession, tmp_path: Path, _by_value: None) -> WordCount:
    """A job directory whose source has one file, for tests that need a job with state."""
    place = WordCount(spark, tmp_path)
    place.add_batch([*FIRST, *SECOND, *THIRD])
    return place


@pytest.fixture
def word_count_of_three(spark: SparkSession, tmp_path: Path, _by_value: None) -> WordCount:
    """A job directory with the same rows in three files, for a job of three epochs."""
    place = WordCount(spark, tmp_path)
    for rows in (FIRST, SECOND, THIRD):
        place.add_batch(rows)
    return place


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_state_is_kept_across_epochs_and_runs(word_count_of_three: WordCount, backend: str) -> None:
    first = memory_sink()
    job = word_count_of_three.run(first, backend=backend)
    assert rows_of(first) == word_count_of_three.expected()
    assert job.last_completed_epoch == 2
    assert [epoch.epoch_id for epoch in job.epochs] == [0, 1, 2]
    word_count_of_three.add_batch([("a", 100), ("d", 1)])
    second = memory_sink()
    again = word_count_of_three.run(second, backend=backend)
    assert rows_of(second) == [("a", 4, 111), ("d", 1, 1)]
    opens = [(epoch.local_opens + epoch.restores, epoch.worker_cache_bytes) for epoch in (*job.epochs, *again.epochs)]
    assert [count for count, _ in opens] == [0, 2, 2, 2]
    if backend == "rocksdb":
        assert [epoch.local_share for epoch in (*job.epochs, *again.epochs)] == [1.0] * 4
    assert [kept_bytes > 0 for _, kept_bytes in opens] == [backend == "heap"] * 4


def test_parallelism_may_change_between_runs(word_count: WordCount) -> None:
    word_count.run(memory_sink(), parallelism=2)
    word_count.add_batch([("a", 1), ("b", 1), ("c", 1)])
    sink = memory_sink()
    word_count.run(sink, parallelism=5)
    assert rows_of(sink) == [("a", 4, 12), ("b", 4, 27), ("c", 2, 6)]


@pytest.mark.parametrize(("moment", "backend"), [("stage", "heap"), ("stage", "rocksdb"), ("commit", "rocksdb")])
@pytest.mark.extended
def test_a_driver_that_dies_around_the_checkpoint_loses_and_duplicates_nothing(
    word_count_of_three: WordCount, backend: str, moment: str
) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count_of_three.directory / "out")
    with pytest.raises((EpochError, KeyboardInterrupt)):
        word_count_of_three.run(crashing_once(output, moment, 1), backend=backend)
    job = word_count_of_three.run(output, backend=backend)
    assert job.last_completed_epoch == 2
    # Before the checkpoint, the epoch is processed again. After it, the replay is recognised and skipped.
    assert [epoch.epoch_id for epoch in job.epochs] == ([1, 2] if moment == "stage" else [2])
    written = word_count_of_three.spark.read.parquet(str(word_count_of_three.directory / "out"))
    assert sorted((row.word, row.times, row.total) for row in written.collect()) == word_count_of_three.expected()
    assert not list((word_count_of_three.directory / "out" / "_staging").iterdir())


@pytest.mark.extended_after(1)
@pytest.mark.parametrize(("old", "new"), [("rocksdb", "heap"), ("heap", "rocksdb")])
def test_a_savepoint_starts_a_new_job_with_another_schema_backend_and_parallelism(
    word_count: WordCount, old: str, new: str
) -> None:
    job = word_count.start(memory_sink(), backend=old)
    job.process_all_available()
    report = job.stop_with_savepoint(word_count.directory / "savepoint")
    assert report.epoch_id == 0
    assert report.rows["words"]["seen"] == 3
    word_count.add_batch([("a", 100), ("d", 1)])
    sink = memory_sink()
    upgraded = word_count.run(
        sink,
        CountWordsUpgraded(),
        job="upgraded",
        backend=new,
        parallelism=3,
        execute={"from_savepoint": word_count.directory / "savepoint"},
    )
    # Only the new file is read, because the savepoint has the position of the source.
    assert rows_of(sink) == [("a", 4, 111), ("d", 1, 1)]
    states = {state.state_name: state for state in upgraded.restore_report()}
    assert states["seen"].entries_migrated == 3
    shown = str(upgraded.restore_report())
    assert "operator 'words', state 'seen': compatible after migration\n  .sum_of_numbers: " in shown
    assert "StateCompatibility(" not in shown
    assert str(job.restore_report()) == "no state was restored"
    rules = {(issue.path, issue.rule) for issue in states["seen"].compatibility.issues}
    assert {(".sum_of_numbers", "field-renamed"), (".label", "field-added")} <= rules
    # The job directory can be continued with the same arguments, as a supervisor would do.
    word_count.add_batch([("a", 1)])
    again = memory_sink()
    word_count.run(
        again,
        CountWordsUpgraded(),
        job="upgraded",
        backend=new,
        parallelism=3,
        execute={"from_savepoint": word_count.directory / "savepoint"},
    )
    assert rows_of(again) == [("a", 5, 112)]


def test_a_savepoint_moves_to_the_local_environment(word_count: WordCount) -> None:
    job = word_count.run(memory_sink())
    job.savepoint(word_count.directory / "savepoint")

    @attrs.frozen
    class Word:
        word: str
        number: int

    environment = LocalStreamEnvironment(max_parallelism=16)
    results: list[Any] = []
    words = environment.from_elements([Word("a", 1), Word("z", 9)]).key_by("word")
    words.process(CountWords(), uid="words", schema="word string, times bigint, total bigint").sink_to(results)
    environment.execute("local", from_savepoint=word_count.directory / "savepoint")
    assert sorted(results) == [("a", 4, 12), ("z", 1, 9)]


def test_an_incompatible_upgrade_is_rejected_before_anything_changes(word_count: WordCount) -> None:
    job = word_count.run(memory_sink())
    job.savepoint(word_count.directory / "savepoint")
    before = sorted(str(path) for path in word_count.directory.rglob("*"))
    with pytest.raises(StateMigrationException, match=r"state 'seen':\n.*incompatible \[serializer-class\]"):
        word_count.run(
            memory_sink(),
            CountWordsIncompatible(),
            job="rejected",
            execute={"from_savepoint": word_count.directory / "savepoint"},
        )
    assert sorted(str(path) for path in word_count.directory.rglob("*")) == before
    report = word_count.environment("rejected")
    words = report.from_dataframe(word_count.stream()).key_by("word")
    words.process(CountWordsIncompatible(), uid="words", schema="word string, times bigint, total bigint").sink_to(
        memory_sink()
    )
    assert not report.check(from_savepoint=word_count.directory / "savepoint")["words"].is_compatible


def test_a_source_log_that_does_not_match_the_state_is_rejected_with_both_ids(
    word_count_of_three: WordCount,
) -> None:
    word_count_of_three.run(memory_sink())
    shutil.rmtree(word_count_of_three.directory / "job" / "spark")
    word_count_of_three.add_batch([("a", 1)])
    with pytest.raises(SourceProgressMismatchError, match=r"at batch 0, the state log at epoch 2.*must be 3"):
        word_count_of_three.run(memory_sink())


@pytest.mark.extended
@pytest.mark.parametrize("is_only_one", [True, False])
@pytest.mark.parametrize("with_directory", [True, False])
def test_a_deleted_metadata_file_is_named_before_anything_changes(
    word_count_of_three: WordCount, is_only_one: bool, with_directory: bool
) -> None:
    word_count_of_three.run(memory_sink(), retained_checkpoints=1 if is_only_one else 3)
    job = word_count_of_three.directory / "job"
    metadata = job / "checkpoints" / "chk-000000000002" / "_metadata"
    content = metadata.read_bytes()
    metadata.unlink()
    if with_directory:
        metadata.parent.rmdir()
    before = sorted(path for path in job.rglob("*"))
    word_count_of_three.add_batch([("a", 1)])
    if with_directory:
        kind: type[Exception] = SourceProgressMismatchError
        advice = "no checkpoint at all" if is_only_one else "the newest checkpoint is 1"
    else:
        kind = CorruptMetadataError
        advice = "No other checkpoint is readable" if is_only_one else "start with roll_back_to=1"
    with pytest.raises(kind, match=rf"chk-000000000002/_metadata is missing.*{advice}"):
        word_count_of_three.run(memory_sink())
    assert sorted(path for path in job.rglob("*")) == before
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_bytes(content)
    sink = memory_sink()
    word_count_of_three.run(sink)
    assert rows_of(sink) == [("a", 4, 12)]


@pytest.mark.extended
def test_wrong_directories_are_rejected(word_count: WordCount) -> None:
    job = word_count.run(memory_sink())
    job.savepoint(word_count.directory / "savepoint")
    with pytest.raises(JobDirectoryMismatchError, match="another name"):
        word_count.run(memory_sink(), name="another name")
    with pytest.raises((JobDirectoryMismatchError, JobRestoreError), match="max_parallelism"):
        word_count.run(memory_sink(), max_parallelism=32)
    with pytest.raises(JobRestoreError, match="operators that the job does not have: 'words'"):
        word_count.run(memory_sink(), uid="renamed")
    with pytest.raises(JobRestoreError, match=r"written by the backend 'rocksdb'.*Take a savepoint"):
        word_count.run(memory_sink(), backend="heap")
    with pytest.raises(JobRestoreError, match="has checkpoints of its own"):
        word_count.run(memory_sink(), execute={"from_savepoint": word_count.directory / "savepoint"})


def test_two_drivers_on_one_directory_are_rejected(word_count: WordCount) -> None:
    from statebackend.checkpoint import JobDirectory

    with (
        JobDirectory.open(str(word_count.directory / "job"), "count words", 16),
        pytest.raises(JobDirectoryLockedError, match=str(os.getpid())),
    ):
        word_count.run(memory_sink())
    sink = memory_sink()
    word_count.run(sink)
    assert rows_of(sink) == word_count.expected()


def test_an_unreadable_checkpoint_is_named(word_count: WordCount) -> None:
    word_count.run(memory_sink())
    newest = word_count.directory / "job" / "checkpoints" / "chk-000000000000" / "_metadata"
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.raises(CorruptMetadataError, match="chk-000000000000/_metadata"):
        word_count.run(memory_sink())


@pytest.mark.extended
def test_a_missing_truncated_or_changed_state_file_is_named_and_nothing_is_lost(word_count: WordCount) -> None:
    word_count.run(memory_sink())
    file = next((word_count.directory / "job" / "shared").rglob("*.sst"))
    content = file.read_bytes()
    word_count.add_batch([("a", 1), ("b", 1), ("c", 1)])
    # The local copy of the state would be enough, but the next checkpoint builds on this one.
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        word_count.run(memory_sink())
    file.write_bytes(content[:-5])
    with pytest.raises(CorruptFileError, match=file.name):
        word_count.run(memory_sink())
    shutil.rmtree(word_count.directory / "local")
    file.write_bytes(content[:-5] + b"-----")
    with pytest.raises(EpochError, match=file.name):
        word_count.run(memory_sink())
    file.write_bytes(content)
    sink = memory_sink()
    word_count.run(sink)
    assert rows_of(sink) == [("a", 4, 12), ("b", 4, 27), ("c", 2, 6)]


@pytest.mark.extended
def test_a_savepoint_over_a_missing_or_changed_state_file_names_it_and_succeeds_once_it_is_restored(
    word_count: WordCount,
) -> None:
    job = word_count.run(memory_sink())
    file = next((word_count.directory / "job" / "shared").rglob("*.sst"))
    content = file.read_bytes()
    savepoint = word_count.directory / "savepoint"
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        job.savepoint(savepoint)
    file.write_bytes(content[:-5] + b"-----")
    with pytest.raises(SavepointError, match=file.name) as failure:
        job.savepoint(word_count.directory / "incomplete")
    assert "Traceback" not in str(failure.value)
    file.write_bytes(content)
    assert job.savepoint(savepoint).rows["words"]["seen"] == 3


def test_a_failure_in_the_function_names_operator_key_and_record(word_count: WordCount) -> None:
    word_count.add_batch([("poison", 1)])
    with pytest.raises(EpochError) as failure:
        word_count.run(memory_sink())
    message = str(failure.value)
    assert "epoch 1" in message
    assert "operator 'words', key 'poison', record Row(word='poison', number=1)" in message
    assert "ArithmeticError: this word is poison" in message


def test_a_function_that_exits_fails_the_epoch_and_names_the_operator(word_count: WordCount) -> None:
    class Exiting(CountWords):
        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
            sys.exit(3)

    with pytest.raises(EpochError, match=r"epoch 0 failed: \S*UserFunctionError: operator 'words': .* sys.exit\(3\)"):
        word_count.run(memory_sink(), Exiting())
    sink = memory_sink()
    word_count.run(sink)
    assert rows_of(sink) == word_count.expected()


@pytest.mark.extended
def test_a_null_key_is_rejected(word_count: WordCount) -> None:
    word_count.add_batch([(None, 1)])
    with pytest.raises(EpochError, match="operator 'words': a record has a null key"):
        word_count.run(memory_sink())


def test_chained_operators_keep_separate_state(word_count: WordCount) -> None:
    class HowOften(KeyedProcessFunction[int, Any, Any]):
        def open(self, context: RuntimeContext) -> None:
            self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

        def process_element(self, value: Any, context: ProcessContext[int]) -> Iterator[tuple[int, int]]:
            count = (self.count.value() or 0) + 1
            self.count.update(count)
            yield context.current_key, count

    from pyspark.sql import functions as F  # noqa: N812

    environment = word_count.environment()
    sink = memory_sink()
    counted = environment.from_dataframe(word_count.stream()).key_by("word")
    words = counted.process(CountWords(), uid="words", schema="word string, times bigint, total bigint")
    even = words.transform_dataframe(lambda frame: frame.where(F.col("times") < 4))
    even.key_by(F.col("times") * 10).process(HowOften(), uid="how often", schema="times bigint, count bigint").sink_to(
        sink
    )
    environment.execute("chain", trigger={"availableNow": True}).await_termination()
    # Three words occurred for the first time, two for the second time, two for the third time.
    assert Counter(row.times for row in sink.rows) == {10: 3, 20: 2, 30: 2}
    assert max(row["count"] for row in sink.rows if row.times == 20) == 2


def test_wrong_definitions_are_rejected(word_count: WordCount) -> None:
    environment = word_count.environment()
    with pytest.raises(JobDefinitionError, match="streaming DataFrame"):
        environment.from_dataframe(word_count.spark.range(3))
    words = environment.from_dataframe(word_count.stream()).key_by("word")
    with pytest.raises(JobDefinitionError, match="no sink"):
        environment.execute("nothing")
    words.process(CountWords(), uid="words").sink_to(memory_sink())
    with pytest.raises(JobDefinitionError, match="schema"):
        environment.execute("no schema")
    for key, order_by, message in (
        ("wrod", (), r"operator 'words': key_by does not fit the operator's input, .*columns word, number: .*wrod"),
        ("word", "nubmer", r"operator 'words': order_by does not fit the operator's input, .*columns word, number: "),
        (7, (), r"operator 'words': key_by takes column names, functions or expressions, not int"),
    ):
        environment = word_count.environment()
        stream = environment.from_dataframe(word_count.stream()).key_by(key)
        stream.process(CountWords(), uid="words", schema="word string", order_by=order_by).sink_to(memory_sink())
        with pytest.raises(JobDefinitionError, match=message):
            environment.execute("misspelt")
    assert not (word_count.directory / "job").exists()


def test_an_epoch_with_few_keys_uploads_few_bytes(word_count: WordCount) -> None:
    for path in word_count.source.iterdir():
        path.unlink()
    word_count.add_batch([(f"word-{number}", number) for number in range(5000)])
    word_count.add_batch([(f"word-{number}", number) for number in range(50)])
    job = word_count.run(memory_sink())
    first, second = job.epochs
    assert second.entries_written == first.entries_written // 100
    assert second.bytes_written < first.bytes_written / 10


@pytest.mark.extended
def test_a_continued_directory_is_checked_against_its_own_checkpoint_and_not_its_savepoint(
    word_count: WordCount,
) -> None:
    savepoint = word_count.directory / "savepoint"
    word_count.run(memory_sink()).savepoint(savepoint)
    again = {"from_savepoint": savepoint}
    word_count.add_batch([("a", 1)])
    word_count.run(memory_sink(), CountWordsUpgraded(), job="new", execute=again)
    # The first version is compatible with the savepoint, but not with the state that the second version wrote.
    with pytest.raises(StateMigrationException, match=r"operator 'words'.*nothing was changed"):
        word_count.run(memory_sink(), job="new", execute=again)
    with pytest.raises(JobRestoreError, match="written by the backend 'rocksdb'"):
        word_count.run(memory_sink(), CountWordsUpgraded(), job="new", backend="heap", execute=again)
    word_count.add_batch([("a", 1)])
    sink = memory_sink()
    job = word_count.run(sink, CountWordsUpgraded(), job="new", execute=again)
    assert rows_of(sink) == [("a", 5, 13)]
    assert not any(state.lost or state.entries_migrated for state in job.restore_report())


def test_a_savepoint_of_another_runtime_is_rejected_until_its_missing_source_progress_is_accepted(
    word_count: WordCount,
) -> None:
    @attrs.frozen
    class Word:
        word: str
        number: int

    environment = LocalStreamEnvironment(max_parallelism=16)
    words = environment.from_elements([Word("a", 10)]).key_by("word")
    words.process(CountWords(), uid="words", schema="word string, times bigint, total bigint").sink_to([])
    environment.execute("local").savepoint(word_count.directory / "savepoint")
    execute = {"from_savepoint": word_count.directory / "savepoint"}
    with pytest.raises(JobRestoreError, match="restore_source_progress=False"):
        word_count.run(memory_sink(), execute=execute)
    checked = word_count.environment()
    checked.from_dataframe(word_count.stream()).key_by("word").process(
        CountWords(), uid="words", schema="word string, times bigint, total bigint"
    ).sink_to(memory_sink())
    with pytest.raises(JobRestoreError, match="restore_source_progress=False"):
        checked.check(**execute)
    assert checked.check(**execute, restore_source_progress=False)["words"].is_compatible
    assert not (word_count.directory / "job").exists()
    sink = memory_sink()
    job = word_count.run(sink, execute={**execute, "restore_source_progress": False})
    assert ("a", 4, 21) in rows_of(sink)

    # And back: files that Spark has read are read again only on request.
    job.savepoint(word_count.directory / "from spark")
    back = {"from_savepoint": word_count.directory / "from spark"}
    rows: list[Any] = []

    def run_locally(**options: Any) -> None:
        environment = LocalStreamEnvironment(max_parallelism=16)
        files = JsonLinesSource(word_count.source, "word string, number bigint", pattern="*.json")
        words = environment.from_source(files, "word string, number bigint", uid="source").key_by("word")
        words.process(CountWords(), uid="words", schema="word string, times bigint, total bigint").sink_to(rows)
        environment.execute("local", **back, **options)

    with pytest.raises(JobRestoreError, match=r"the source 'source': .* positions of 'source' \(FileSource\["):
        run_locally()
    run_locally(restore_source_progress=False)
    assert ("a", 7, 32) in rows


@pytest.mark.extended
def test_no_savepoint_is_taken_of_an_epoch_whose_output_is_not_committed(word_count: WordCount) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count.directory / "out")
    job = word_count.start(crashing_once(output, "commit", 0))
    with pytest.raises((EpochError, KeyboardInterrupt)):
        job.await_termination()
    with pytest.raises(EpochError, match="output of epoch 0 is not committed"):
        job.savepoint(word_count.directory / "savepoint")
    assert not (word_count.directory / "savepoint").exists()
    report = word_count.run(output).savepoint(word_count.directory / "savepoint")
    assert report.epoch_id == 0


@pytest.mark.extended
def test_stopping_does_not_hide_a_failed_epoch(word_count: WordCount) -> None:
    word_count.add_batch([("poison", 1)])
    job = word_count.start(memory_sink())
    with pytest.raises(EpochError, match="poison"):
        job.process_all_available()
    job.stop()
    with pytest.raises(EpochError, match="poison"):
        job.await_termination()


@pytest.mark.extended
def test_only_the_first_epoch_of_a_run_reports_restored_state(word_count: WordCount) -> None:
    savepoint = word_count.directory / "savepoint"
    word_count.run(memory_sink()).savepoint(savepoint)
    for number in range(2):
        word_count.add_batch([("a", number)])
    job = word_count.run(memory_sink(), CountWordsUpgraded(), job="new", execute={"from_savepoint": savepoint})
    assert {state.state_name: state.entries_migrated for state in job.restore_report()}["seen"] == 3
    # One report per subtask, however many epochs follow.
    assert len(job._driver.recorder.subtask_reports) == 2


@pytest.mark.parametrize("uid", ["..", "飛行機" * 30])
def test_an_operator_of_any_name_has_its_files_inside_the_directories_of_the_job(
    word_count: WordCount, uid: str
) -> None:
    sink = memory_sink()
    job = word_count.run(sink, uid=uid)
    assert rows_of(sink) == word_count.expected()
    job.savepoint(word_count.directory / "savepoint")
    assert {path.name for path in word_count.directory.iterdir()} == {"source", "job", "local", "savepoint"}
    (parallelism,) = (word_count.directory / "local").glob("*/00002")
    assert len([path for path in parallelism.iterdir() if path.is_dir()]) == 1


def test_local_state_is_in_a_directory_of_the_user_by_default(
    word_count: WordCount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from statebackend.spark import environment

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    # As if another user had created it, without permission for this one.
    (tmp_path / "tmp" / "statebackend").mkdir(mode=0o500)
    sink = memory_sink()
    environment_of_job = environment.SparkStreamEnvironment(word_count.spark, job_dir=tmp_path / "job")
    words = environment_of_job.from_dataframe(word_count.stream()).key_by("word")
    words.process(
        CountWords(), uid="words", schema="word string, times bigint, total bigint", order_by="number"
    ).sink_to(sink)
    environment_of_job.execute("count words", trigger={"availableNow": True}).await_termination()
    assert rows_of(sink) == word_count.expected()
    assert {path.name for path in (tmp_path / "tmp").iterdir()} == {"statebackend", f"statebackend-{os.getuid()}"}
    assert (tmp_path / "tmp" / f"statebackend-{os.getuid()}").stat().st_mode & 0o777 == 0o700


def test_a_local_directory_that_is_a_link_is_rejected_at_the_start(word_count: WordCount) -> None:
    (word_count.directory / "elsewhere").mkdir()
    (word_count.directory / "local").symlink_to(word_count.directory / "elsewhere")
    with pytest.raises(PrivateDirectoryError, match=f"{word_count.directory / 'local'}: it is a link"):
        word_count.start(memory_sink())
    assert list((word_count.directory / "elsewhere").iterdir()) == []


def test_local_state_of_former_parallelisms_and_removed_jobs_is_deleted(word_count: WordCount) -> None:
    for parallelism in (2, 3):
        job = word_count.run(memory_sink(), parallelism=parallelism)
        word_count.add_batch([("a", 1)])
    job.savepoint(word_count.directory / "savepoint")
    shutil.rmtree(word_count.directory / "job")
    word_count.run(
        memory_sink(), job="upgraded", execute={"from_savepoint": word_count.directory / "savepoint"}, parallelism=1
    )
    databases = list((word_count.directory / "local").rglob("db"))
    assert len(databases) == 1
    assert len([path for path in (word_count.directory / "local").iterdir() if path.is_dir()]) == 1


def test_subtasks_without_rows_migrate_too_so_that_any_parallelism_can_restore_the_epoch(
    word_count: WordCount,
) -> None:
    word_count.run(memory_sink(), parallelism=4)
    word_count.add_batch([("a", 100)])
    word_count.run(memory_sink(), CountWordsUpgraded(), parallelism=4)
    word_count.add_batch([("a", 1), ("b", 1), ("c", 1)])
    sink = memory_sink()
    word_count.run(sink, CountWordsUpgraded(), parallelism=3)
    assert rows_of(sink) == [("a", 5, 112), ("b", 4, 27), ("c", 2, 6)]


@attrs.frozen
class Handled:
    word: str


@attrs.frozen
class HandledWithNumber:
    word: str
    number: int = -1


class CountWordsPerSubtask(CountWords):
    """Stores operator state of each mode, with the schema of ``handled``."""

    handled: type = Handled

    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        record = AttrsSerializer(self.handled, name="Handled")
        store = context.operator_state
        self.words = store.get_list_state(SplitListStateDescriptor("words", record))
        self.indexes = store.get_union_list_state(UnionListStateDescriptor("indexes", int))
        self.indexes.update([context.subtask_index])
        self.limits = store.get_broadcast_state(BroadcastStateDescriptor("limits", record, int))
        self.limits.put(self.handled("limit"), 7)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
        self.words.add(self.handled(value.word))
        yield from super().process_element(value, context)


class CountWordsPerSubtaskUpgraded(CountWordsPerSubtask):
    handled = HandledWithNumber


class CountWordsPerSubtaskIncompatible(CountWords):
    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        context.operator_state.get_list_state(SplitListStateDescriptor("words", int))
        context.operator_state.get_list_state(SplitListStateDescriptor("limits", int))


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["stage", "commit"])
def test_operator_state_is_checked_migrated_and_counted_once(word_count_of_three: WordCount, moment: str) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count_of_three.directory / "out")
    with pytest.raises((EpochError, KeyboardInterrupt)):
        word_count_of_three.run(crashing_once(output, moment, 1), CountWordsPerSubtask())
    job = word_count_of_three.run(output, CountWordsPerSubtask())
    savepoint = word_count_of_three.directory / "savepoint"
    report = job.savepoint(savepoint)
    # There are seven rows, so the replayed epoch did not add its rows twice.
    assert report.operator_state_rows == {"words": {"words": 7, "indexes": 2, "limits": 2}}

    def check(function: KeyedProcessFunction[Any, Any, Any]) -> Any:
        environment = word_count_of_three.environment("checked", backend="heap", parallelism=3)
        words = environment.from_dataframe(word_count_of_three.stream()).key_by("word")
        words.process(function, uid="words", schema="word string, times bigint, total bigint").sink_to(memory_sink())
        return environment.check(from_savepoint=savepoint, allow_non_restored_state=True)["words"]

    rejected = check(CountWordsPerSubtaskIncompatible())
    assert not rejected.is_compatible
    assert rejected.unregistered_operator_state == ("indexes",)
    with pytest.raises(JobRestoreError, match=r"does not register: 'words' \(operator state\), 'indexes' \(operator"):
        word_count_of_three.run(memory_sink(), job="upgraded", execute={"from_savepoint": savepoint})
    assert check(CountWordsPerSubtaskUpgraded()).is_compatible

    word_count_of_three.add_batch([("a", 100)])
    upgraded = word_count_of_three.run(
        memory_sink(),
        CountWordsPerSubtaskUpgraded(),
        job="upgraded",
        backend="heap",
        parallelism=3,
        execute={"from_savepoint": savepoint},
    )
    migrated = {state.state_name: state for state in upgraded.restore_report() if state.is_operator_state}
    assert {name: state.entries_migrated for name, state in migrated.items()} == {"words": 7, "indexes": 0, "limits": 3}
    assert "<key>.number: added [field-added]" in str(migrated["limits"])
    rows = upgraded.savepoint(word_count_of_three.directory / "upgraded savepoint").operator_state_rows
    assert rows == {"words": {"words": 8, "indexes": 3, "limits": 3}}

    # The local runtime continues from the savepoint that the job on Spark took.
    class Tell(CountWordsPerSubtaskUpgraded):
        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
            yield sorted(record.word for record in self.words.get()), dict(self.limits.items())

    @attrs.frozen
    class Word:
        word: str
        number: int

    local = LocalStreamEnvironment(max_parallelism=16)
    results: list[Any] = []
    local.from_elements([Word("z", 9)]).key_by("word").process(
        emitting_objects(Tell()), uid="words", schema=OBJECT
    ).sink_to(collecting(results))
    local.execute("local", from_savepoint=word_count_of_three.directory / "upgraded savepoint")
    assert results == [(["a", "a", "a", "a", "b", "b", "b", "c"], {HandledWithNumber("limit"): 7})]
