"""The epochs of a `ParquetSink` on an S3-compatible store: each row once, even after an interrupted commit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet
import pytest
from object_store import SECRET_KEY, Bucket, Fault, FaultyProxy

from statebackend.checkpoint import CheckpointFileSystem, StorageError
from statebackend.connectors import ParquetSink, SinkEpoch, SinkError, SinkLineage

pytestmark = pytest.mark.slow

JOB = SinkLineage("sink", "job")


def epoch(epoch_id: int) -> SinkEpoch:
    return SinkEpoch(JOB, epoch_id, "a")


@pytest.fixture
def uri(bucket: Bucket, faulty_store: FaultyProxy) -> str:
    return bucket.uri("out", user=f"tests:{SECRET_KEY}@", port=faulty_store.port)


@pytest.fixture
def sink(uri: str) -> ParquetSink:
    return ParquetSink(uri)


def staged_by_hand(uri: str, epoch_id: int, attempt_id: str, *rows: tuple[int, ...]) -> bytes:
    """Stage as several subtasks do."""
    fs = CheckpointFileSystem.from_uri(uri)
    files = []
    for number, ids in enumerate(rows):
        sink = pa.BufferOutputStream()
        pyarrow.parquet.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
        name = f"part-{number}-{attempt_id}.parquet"
        handle = fs.write_file(f"_staging/{epoch_id:012d}-{attempt_id}/{name}", sink.getvalue().to_pybytes())
        files.append([name, handle.size_bytes, handle.checksum])
    return json.dumps({"format": 1, "epoch": epoch_id, "attempt": attempt_id, "files": files}).encode()


def visible(uri: str, below: str = "") -> dict[str, list[int]]:
    """The rows that a reader finds by listing, by directory."""
    fs = CheckpointFileSystem.from_uri(uri)
    rows: dict[str, list[int]] = {}
    for path in fs.list_files(below):
        directory, _, name = path.rpartition("/")
        if name.endswith(".parquet") and (below or not path.startswith("_")):
            with fs.open_input(path) as source:
                ids = pyarrow.parquet.read_table(source)["id"].to_pylist()
            rows[directory] = sorted(rows.get(directory, []) + ids)
    return rows


def others(bucket: Bucket) -> list[str]:
    """All objects except those that a reader finds."""
    return [
        key for key in bucket.keys if not key.endswith((".parquet", "/")) or ("/_" in key and not key.endswith("/"))
    ]


def test_an_epoch_that_fails_names_the_error_and_leaves_nothing_visible(uri, quick, faulty_store) -> None:
    sink = quick(uri)
    faulty_store.fail(Fault.ERROR_503, "PUT", "_staging")
    with pytest.raises(
        SinkError,
        match=r"epoch 1 of job/sink cannot be written: .*_staging/000000000001-job.a/part-\w+.parquet",
    ):
        sink.stage(epoch(1), 0, pa.table({"id": [1]}).to_reader())
    faulty_store.heal()
    sink.abort(epoch(1))
    assert visible(uri) == {}


def test_its_identity_has_the_path_and_no_secret(bucket, sink) -> None:
    assert sink.identity == f"ParquetSink('s3://{bucket.name}/out')"


@pytest.mark.parametrize("options", [{"compression": "best"}, {"maxRecordsPerFile": "1"}])
def test_an_unsupported_option_is_rejected(uri, options) -> None:
    with pytest.raises(ValueError, match=r"option compression, not max|compression is 'best'") as caught:
        ParquetSink(uri, options)
    assert SECRET_KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "pattern"),
    [
        ("PUT", "epoch=000000000003/part-0"),
        ("PUT", "epoch=000000000003/part-1"),
        ("PUT", "epoch=000000000003/_committable"),
        ("DELETE", "_staging/000000000003-job.a/part-0"),
        ("DELETE", "_staging/000000000003-job.a/part-1"),
    ],
)
@pytest.mark.parametrize("fault", [Fault.DROP, Fault.LOSE_ANSWER])
@pytest.mark.extended
def test_an_interrupted_commit_is_finished_by_the_next(
    uri, bucket, faulty_store, quick, method, pattern, fault
) -> None:
    committable = staged_by_hand(uri, 3, "job.a", (1, 2), (3,))
    broken = quick(uri)
    failed = faulty_store.fail(fault, method, pattern.replace("=", "%3D"))
    failed_too = faulty_store.fail(fault, method, pattern)
    # A repeated request may find that the file is already deleted.
    with contextlib.suppress(SinkError, StorageError):
        broken.commit(epoch(3), [committable])
    assert failed() + failed_too()
    faulty_store.heal()
    again = quick(uri)
    again.recover(JOB, 3)
    again.commit(epoch(3), [committable])
    assert visible(uri) == {"epoch=000000000003": [1, 2, 3]}
    assert others(bucket) == ["out/epoch=000000000003/_committable"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ParquetSink]:
    """Sinks that retry twice without pauses."""
    from statebackend.checkpoint.fs.retries import BoundedRetries
    from statebackend.checkpoint.fs.s3_storage import S3Location, S3Storage

    def made(uri: str) -> CheckpointFileSystem:
        storage = S3Storage.at(S3Location.from_uri(uri), BoundedRetries(attempts=2, first_pause_s=0), 1)
        return CheckpointFileSystem(uri, storage)

    def sink(uri: str) -> ParquetSink:
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointFileSystem, "from_uri", made)
            return ParquetSink(uri)

    return sink


def test_a_late_listing_hides_and_duplicates_no_row(uri, bucket, sink, faulty_store) -> None:
    committable = staged_by_hand(uri, 3, "job.a", (1, 2), (3,))
    faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
    sink.recover(JOB, 3)
    sink.commit(epoch(3), [committable])
    sink.commit(epoch(3), [committable])
    with pytest.raises(SinkError, match="this job has not completed epoch 3"):
        sink.recover(JOB, 2)
    assert sink.roll_back(JOB, 2) == [f"s3://{bucket.name}/out/_set_aside"]
    faulty_store.heal()
    assert visible(uri) == {}
    assert visible(uri, "_set_aside") == {"_set_aside/epoch=000000000003-job.a": [1, 2, 3]}


def test_epochs_missing_in_a_listing_are_looked_up_after_gaps(uri, sink, faulty_store) -> None:
    for epoch_id in (3, 12, 21):
        sink.commit(epoch(epoch_id), [staged_by_hand(uri, epoch_id, "job.a", (epoch_id,))])
    faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
    sink.roll_back(JOB, 2)
    faulty_store.heal()
    assert visible(uri) == {}


def test_an_epoch_of_another_job_is_neither_kept_nor_overwritten(uri, sink) -> None:
    theirs, ours = staged_by_hand(uri, 3, "other.a", (1,)), staged_by_hand(uri, 3, "job.a", (2,))
    sink.commit(epoch(3), [theirs])
    with pytest.raises(SinkError, match="was not written by the attempt that completed epoch 3"):
        sink.commit(epoch(3), [ours])
    with pytest.raises(SinkError, match="this job did not write it"):
        sink.roll_back(JOB, 2)
    assert visible(uri) == {"epoch=000000000003": [1]}


def test_foreign_files_in_place_of_an_epoch_are_named(uri, bucket, sink) -> None:
    committable = staged_by_hand(uri, 3, "job.a", (1,))
    bucket.write("out/epoch=000000000003/part-x.parquet", b"strange")
    with pytest.raises(SinkError, match=r"part-x.parquet is not one of the files of epoch 3"):
        sink.commit(epoch(3), [committable])
    with pytest.raises(SinkError, match="this job has not completed epoch 3"):
        sink.recover(JOB, 2)
    with pytest.raises(SinkError, match="this job did not write it"):
        sink.roll_back(JOB, 2)


def test_missing_rows_are_detected(uri, bucket, sink) -> None:
    committable = staged_by_hand(uri, 3, "job.a", (1,), (2,))
    bucket.delete("out/_staging/000000000003-job.a/part-1-job.a.parquet")
    with pytest.raises(SinkError, match=r"rows of epoch 3 are gone: .*part-1-job.a.parquet is missing or"):
        sink.commit(epoch(3), [committable])


def test_only_remains_of_the_job_are_removed(uri, bucket, sink) -> None:
    for epoch_id, attempt in ((3, "job.a"), (4, "job.a"), (4, "job.b"), (5, "other.a"), (4, "jobs.a")):
        staged_by_hand(uri, epoch_id, attempt, (1,))
    sink.recover(JOB, 3)
    left = {key.split("/")[2] for key in others(bucket)}
    assert left == {"000000000003-job.a", "000000000005-other.a", "000000000004-jobs.a"}


@pytest.mark.parametrize(
    "pattern", ["_set_aside/.*part-1", "_set_aside/.*_committable", "epoch.*part-0", "epoch.*_comm"]
)
@pytest.mark.extended
def test_an_interrupted_roll_back_is_finished_by_the_next(uri, bucket, faulty_store, quick, pattern) -> None:
    for epoch_id in (2, 3, 4):
        quick(uri).commit(
            epoch(epoch_id), [staged_by_hand(uri, epoch_id, f"job.{epoch_id}", (epoch_id,), (10 * epoch_id,))]
        )
    method = "PUT" if "_set_aside" in pattern else "DELETE"
    failed = faulty_store.fail(Fault.DROP, method, pattern)
    with pytest.raises((SinkError, StorageError)):
        quick(uri).roll_back(JOB, 2)
    assert failed()
    faulty_store.heal()
    quick(uri).roll_back(JOB, 2)
    assert visible(uri) == {"epoch=000000000002": [2, 20]}
    assert visible(uri, "_set_aside") == {
        "_set_aside/epoch=000000000003-job.3": [3, 30],
        "_set_aside/epoch=000000000004-job.4": [4, 40],
    }
    quick(uri).commit(epoch(3), [staged_by_hand(uri, 3, "job.again", (33,))])
    assert visible(uri)["epoch=000000000003"] == [33]


def test_a_part_of_an_uncommitted_epoch_is_removed_by_a_roll_back(uri, faulty_store, quick) -> None:
    committable = staged_by_hand(uri, 3, "job.a", (1,), (2,))
    faulty_store.fail(Fault.DROP, "PUT", "epoch.*part-1")
    with pytest.raises((SinkError, StorageError)):
        quick(uri).commit(epoch(3), [committable])
    faulty_store.heal()
    assert visible(uri) == {"epoch=000000000003": [1]}
    quick(uri).roll_back(JOB, 2)
    assert visible(uri) == {}
    assert visible(uri, "_staging") == {"_staging/000000000003-job.a": [1, 2]}


@pytest.mark.parametrize(
    "committable",
    [
        b"",
        b"[]",
        b'{"format": 1, "epoch": 3, "attempt": "job.a"}',
        b'{"format": 1, "epoch": 3, "attempt": "job.a", "files": [["../../x", 1, "xxh3:00"]]}',
        json.dumps({"format": 1, "epoch": 3, "attempt": "job.a", "files": [["a/b", 1, "xxh3:" + 32 * "0"]]}).encode(),
        json.dumps({"format": 1, "epoch": 3, "attempt": "../x", "files": []}).encode(),
        json.dumps({"format": 1, "epoch": 4, "attempt": "job.a", "files": []}).encode(),
        json.dumps({"format": 2, "epoch": 3, "attempt": "job.a", "files": []}).encode(),
    ],
)
def test_an_invalid_committable_is_rejected_and_nothing_changes(bucket, sink, committable) -> None:
    with pytest.raises(SinkError, match=r"committable|directory's name"):
        sink.commit(epoch(3), [committable])
    assert bucket.keys == []
