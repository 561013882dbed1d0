"""Files on an S3-compatible store that is busy, loses answers or lists late. Secrets are never shown."""

from __future__ import annotations

import logging
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable

import pytest
from attrs import evolve
from object_store import SECRET_KEY, Bucket, Fault, FaultyProxy

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    FileHandle,
    KeyedStateHandle,
    MissingFileError,
    OperatorState,
    SavepointExistsError,
    StorageError,
    SubtaskState,
    read_savepoint,
    write_savepoint,
)
from statebackend.checkpoint.fs.retries import BoundedRetries
from statebackend.checkpoint.fs.s3_storage import S3Location, S3Storage
from statebackend.checkpoint.fs.store_uri import (
    parent_and_name,
    place_inside,
    redacted,
    secrets_of,
    without_secrets,
)
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory

pytestmark = pytest.mark.slow

LARGE = bytes(range(256)) * 47_000
"""More than one part of a multipart upload."""


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def fs(bucket: Bucket, faulty_store: FaultyProxy, pauses: list[float]) -> CheckpointFileSystem:
    """The store behind the proxy. Pauses are recorded instead of waited for."""
    uri = bucket.uri("job", port=faulty_store.port)
    retries = BoundedRetries(attempts=3, first_pause_s=1.0, sleep=pauses.append)
    return CheckpointFileSystem(uri, S3Storage.at(S3Location.from_uri(uri), retries, 1))


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.ERROR_503, Fault.DROP, Fault.CUT, Fault.LOSE_ANSWER])
def test_transient_errors_are_retried(fs, faulty_store, tmp_path, fault) -> None:
    failed = faulty_store.fail(fault, "PUT", "/job/x", times=2)
    handle = fs.write_file("x", b"content")
    failed_to_look = faulty_store.fail(fault, "HEAD", "/job/x", times=2)
    assert fs.size("x") == 7
    failed_to_read = faulty_store.fail(fault, "GET", "/job/x", times=2)
    assert fs.read_file(handle) == b"content"
    failed_to_open = faulty_store.fail(fault, "GET", "/job/x", times=2)
    with fs.open_input("x") as source:
        source.seek(3)
        assert source.read() == b"tent"
    failed_to_list = faulty_store.fail(fault, "GET", "list-type", times=2)
    assert fs.list_files() == ("x",)
    failed_to_delete = faulty_store.fail(fault, "DELETE", "/job/x", times=2)
    fs.delete("x")
    assert not fs.exists("x")
    assert [one() for one in (failed, failed_to_look, failed_to_read, failed_to_open, failed_to_list)] == [2] * 5
    # If the first request took effect, the second one finds nothing to delete.
    assert failed_to_delete() in (1, 2)


@pytest.mark.parametrize("fault", [Fault.ERROR_503, Fault.DROP])
def test_persistent_errors_end_with_the_path_and_the_old_file_stays(fs, faulty_store, pauses, fault) -> None:
    old = fs.write_file("a/x", b"old")
    faulty_store.fail(fault, "PUT", "/job/a/x")
    with pytest.raises(StorageError, match=r"cannot write s3://bucket-\w+/job/a/x: .*(SLOW_DOWN|NETWORK)"):
        fs.write_file("a/x", b"newer")
    assert [0.5 <= pauses[0] <= 1.0, 1.0 <= pauses[1] <= 2.0, len(pauses)] == [True, True, 2]
    faulty_store.heal()
    assert fs.read_file(old) == b"old"


def test_permanent_errors_are_not_retried(fs, bucket, faulty_store, pauses) -> None:
    elsewhere = S3Location.from_uri(bucket.uri("job", port=faulty_store.port).replace(bucket.name, "no-such-bucket"))
    nowhere = CheckpointFileSystem(
        "s3://no-such-bucket/job", S3Storage.at(elsewhere, BoundedRetries(sleep=pauses.append), 1)
    )
    with pytest.raises(StorageError, match=r"no-such-bucket.*(NO_SUCH_BUCKET|bucket)"):
        nowhere.write_file("x", b"")
    with pytest.raises(MissingFileError, match="job/absent"):
        fs.read_file("absent")
    assert pauses == []


def test_a_store_that_answers_is_not_given_up(bucket, faulty_store) -> None:
    location = S3Location.from_uri(bucket.uri("job", port=faulty_store.port, gives_up=True))
    fs = CheckpointFileSystem("s3://x/job", S3Storage.at(location, BoundedRetries(attempts=1), 1))
    faulty_store.fail(Fault.STALL, "GET", "list-type")
    with pytest.raises(StorageError, match=r"NETWORK_CONNECTION.*[Tt]ime"):
        fs.list_files()


@pytest.mark.parametrize(("fault", "method", "pattern"), [
    (Fault.CUT, "PUT", "partNumber=2"),
    (Fault.LOSE_ANSWER, "PUT", "partNumber=1"),
    (Fault.LOSE_ANSWER, "POST", "uploadId"),
    (Fault.LOSE_ANSWER, "POST", "uploads"),
    (Fault.ERROR_503, "POST", "uploadId"),
])  # fmt: skip
@pytest.mark.extended
def test_a_large_file_is_complete_whatever_part_of_it_fails(fs, faulty_store, tmp_path, fault, method, pattern) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    failed = faulty_store.fail(fault, method, pattern, times=1)
    handle = fs.upload(tmp_path / "source", "shared/large")
    assert failed() == 1
    fs.download(handle, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == LARGE


def test_an_aborted_upload_leaves_nothing(fs, bucket, faulty_store, tmp_path) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    faulty_store.fail(Fault.CUT, "PUT", "partNumber=2")
    with pytest.raises(StorageError, match=r"upload .*source to .*shared/large"):
        fs.upload(tmp_path / "source", "shared/large")
    assert not [key for key in bucket.keys if not key.endswith("/")]


def test_an_upload_of_a_killed_process_is_not_a_file(fs, bucket) -> None:
    client = bucket.server.client
    started = client.create_multipart_upload(Bucket=bucket.name, Key="job/shared/large")
    client.upload_part(
        Bucket=bucket.name, Key="job/shared/large", PartNumber=1, UploadId=started["UploadId"], Body=b"x" * 100
    )
    assert not fs.exists("shared/large")
    assert fs.list_files() == ()


def test_empty_directory_objects_are_ignored(fs, bucket) -> None:
    for marker in ("job/", "job/shared/", "job/checkpoints/chk-000000000001/"):
        bucket.write(marker, b"")
    fs.write_file("shared/a", b"a")
    assert fs.list_files() == ("shared/a",)
    assert not fs.exists("shared")
    fs.delete("shared/a")
    fs.delete_directory("shared")
    fs.delete_directory("never/there")
    assert fs.list_files() == ()


def test_an_interrupted_move_loses_nothing(fs, faulty_store) -> None:
    files = [fs.write_file(f"old/{name}", name.encode()) for name in ("a", "b", "c")]
    faulty_store.fail(Fault.DROP, "PUT", "/job/new/b")
    with pytest.raises(StorageError, match="move to new"):
        fs.move_directory("old", "new")
    assert [fs.read_file(file) for file in files] == [b"a", b"b", b"c"]
    faulty_store.heal()
    fs.move_directory("old", "new")
    assert fs.list_files() == ("new/a", "new/b", "new/c")
    assert [fs.read_file(evolve(file, path=file.path.replace("old", "new"))) for file in files] == [b"a", b"b", b"c"]


def test_an_object_missing_in_a_listing_is_found_by_name(fs, faulty_store) -> None:
    handle = fs.write_file("a", b"a")
    faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
    assert fs.list_files() == ()
    assert (fs.exists("a"), fs.size("a"), fs.read_file(handle)) == (True, 1, b"a")
    fs.verify_present([handle])


class TestConditionalWrites:
    def test_one_of_two_concurrent_writes_on_one_version_succeeds(self, fs) -> None:
        first, second = fs.conditional, fs.conditional
        assert first.read("pointer") is None
        version = first.write("pointer", b"of the first", None)
        assert version is not None
        assert second.write("pointer", b"of the second", None) is None
        assert second.read("pointer").content == b"of the first"
        newer = second.write("pointer", b"of the second, later", version)
        assert newer not in (None, version)
        assert first.write("pointer", b"of the first, too late", version) is None
        assert first.read("pointer").content == b"of the second, later"

    def test_a_deleted_object_has_no_version(self, fs, bucket) -> None:
        version = fs.conditional.write("pointer", b"x", None)
        bucket.delete("job/pointer")
        assert fs.conditional.write("pointer", b"y", version) is None

    @pytest.mark.extended_after(3)
    @pytest.mark.parametrize("is_new", [True, False])
    @pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.DROP, Fault.CUT, Fault.ERROR_500, Fault.ERROR_503])
    def test_a_write_with_a_lost_answer_is_recognised_as_its_own(self, fs, bucket, faulty_store, fault, is_new) -> None:
        objects = fs.conditional
        version = None if is_new else objects.write("pointer", b"before", None)
        failed = faulty_store.fail(fault, "PUT", "pointer", times=2)
        written = objects.write("pointer", b"mine", version)
        assert failed() == 2
        assert written == objects.read("pointer").version
        assert bucket.read("job/pointer") == b"mine"

    def test_a_driver_replaced_during_a_lost_answer_has_not_written(self, fs, bucket, faulty_store) -> None:
        objects = fs.conditional
        faulty_store.fail(Fault.LOSE_ANSWER, "PUT", "pointer", times=1)
        seen: list[str] = []

        def overtake(request) -> None:
            if request.method == "PUT":
                seen.append(request.target)
                if len(seen) == 2:
                    bucket.write("job/pointer", b"another's")

        faulty_store.before_request = overtake
        assert objects.write("pointer", b"mine", None) is None

    def test_a_missing_store_is_named(self, fs, faulty_store, pauses) -> None:
        faulty_store.fail(Fault.DROP, "PUT", "pointer")
        with pytest.raises(StorageError, match=r"cannot write s3://bucket-\w+/job/pointer: .*then start the job again"):
            fs.conditional.write("pointer", b"x", None)
        assert len(pauses) == 2

    def test_without_boto3_the_error_names_what_to_install(self, fs, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        monkeypatch.setenv("AWS_PROFILE", "of-nobody-who-has-asked-before")
        with pytest.raises(StorageError, match=r"pip install 'statebackend\[s3\]'"):
            fs.conditional  # noqa: B018


SECRET_URI = "s3://AKID:S3%2Fcret@bucket/path?endpoint_override=127.0.0.1%3A1&scheme=http"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (SECRET_URI, "s3://bucket/path?endpoint_override=127.0.0.1%3A1&scheme=http"),
        ("s3://AKID@bucket/path", "s3://bucket/path"),
        ("abfss://container@account.net/p?sas_token=abc&x=1", "abfss://container@account.net/p?x=1"),
        ("abfss://account:key@host/p", "abfss://host/p"),
        ("gs://b/p?access_token=abc", "gs://b/p"),
        ("hdfs://user@host:8020/p?replication=1", "hdfs://user@host:8020/p?replication=1"),
        ("x://b?a=1&secret=abc;password=d&b=2", "x://b?a=1&b=2"),
        ("/local/a:b@c?secret=1", "/local/a:b@c?secret=1"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
    ],
)
def test_a_uri_is_shown_without_its_secrets(uri, shown) -> None:
    assert without_secrets(uri) == shown
    assert without_secrets(shown) == shown
    assert all(secret not in shown for secret in secrets_of(uri))


@pytest.mark.parametrize(
    ("secrets", "shown"),
    [
        (["a"], "a table: user=a password=*** at '***' of s3://key:***@data"),
        (["table"], "a ***: user=a password=a at 'a' of s3://key:a@data"),
        (["", "data", "a"], "a table: user=a password=*** at '***' of s3://key:***@***"),
    ],
)
def test_a_short_secret_is_hidden_and_the_message_stays_readable(secrets: list[str], shown: str) -> None:
    message = "a table: user=a password=a at 'a' of s3://key:a@data"
    assert redacted(message, secrets) == shown.replace("user=a", "user=***" if "a" in secrets else "user=a")


def _shown_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "uri",
    [
        SECRET_URI + "&nonsense=1",
        SECRET_URI.replace("scheme=http", "scheme=ftp"),
        "s3://AKID:S3%2Fcret@/path",
        "s3://AKID:S3%2Fcret@[bucket/path",
        "nowhere://AKID:S3%2Fcret@bucket/path",
        "gs://AKID:S3%2Fcret@bucket/path?nonsense=2",
    ],
)
def test_no_error_about_a_uri_shows_its_secret(uri) -> None:
    with pytest.raises(StorageError) as caught:
        CheckpointFileSystem.from_uri(uri)
    assert "S3%2Fcret" not in _shown_of(caught.value)
    assert "S3/cret" not in _shown_of(caught.value)
    assert "AKID" not in _shown_of(caught.value)


def test_credentials_of_the_uri_are_used_and_go_with_the_object_and_nowhere_else(bucket, caplog, monkeypatch) -> None:
    for name in bucket.credentials:
        if "KEY" in name:
            monkeypatch.delenv(name)
    caplog.set_level(logging.DEBUG)
    fs = CheckpointFileSystem.from_uri(bucket.uri("job", user=f"me:{SECRET_KEY}@"))
    handle = fs.write_file("x", b"content")
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.read_file(handle) == b"content"
    assert copy.conditional.write("pointer", b"x", None) is not None
    with pytest.raises(MissingFileError) as missing:
        copy.read_file("absent")
    shown = [repr(copy), copy.uri, copy.location("x"), repr(S3Location.from_uri(copy.uri)), _shown_of(missing.value)]
    shown += [repr(S3Location.from_uri(bucket.uri("job", user=f"me:{SECRET_KEY}@"))), caplog.text]
    assert not [text for text in shown if SECRET_KEY in text]


@pytest.mark.parametrize("name", ["a b", "ä", "100%", "a=b", "a+b"])
def test_a_prefix_is_percent_decoded_once(bucket, name) -> None:
    from urllib.parse import quote

    fs = CheckpointFileSystem.from_uri(bucket.uri(quote(name)))
    fs.write_file("x", b"")
    assert bucket.keys == [f"{name}/x"]
    assert fs.conditional.write("y", b"1", None) is not None
    assert bucket.keys == [f"{name}/x", f"{name}/y"]
    assert CheckpointFileSystem.from_uri(fs.uri).list_files() == ("x", "y")


@pytest.mark.parametrize("timeout", ["0", "-1", "1e3", "", "inf", "1000000"])
def test_a_timeout_that_is_not_a_number_of_seconds_is_rejected(bucket, timeout) -> None:
    assert S3Location.from_uri(bucket.uri(gives_up=True)).request_timeout_s == 1.0
    with pytest.raises(StorageError, match="request_timeout_s takes seconds"):
        S3Location.from_uri(f"s3://bucket/path?request_timeout_s={timeout}")


def test_a_handle_is_checked_as_on_a_disk(fs, bucket) -> None:
    handle = fs.write_file("x", b"content")
    bucket.write("job/x", b"CONTENT")
    assert isinstance(handle, FileHandle)
    with pytest.raises(Exception, match=re.escape("is corrupt")):
        fs.read_file(handle)


def test_retries_pause_longer_each_time_and_end() -> None:
    pauses: list[float] = []
    retries = BoundedRetries(attempts=6, first_pause_s=1.0, longest_pause_s=4.0, sleep=pauses.append)
    asked: list[int] = []

    def action() -> None:
        asked.append(1)
        raise OSError("busy")

    with pytest.raises(OSError, match="busy"):
        retries.run(action, lambda error: True)
    assert len(asked) == 6
    for pause_s, most in zip(pauses, (1, 2, 4, 4, 4), strict=True):
        assert most / 2 <= pause_s <= most


def test_a_retried_result_is_returned_once() -> None:
    answers: list[Callable[[], int]] = [lambda: 1 // 0, lambda: 7]
    assert BoundedRetries(first_pause_s=0).run(lambda: answers.pop(0)(), lambda error: True) == 7
    assert answers == []


class TestSavepoints:
    """Savepoints on an object store whose listing is still empty."""

    def test_a_savepoint_is_written_and_read_by_names(self, fs, bucket, faulty_store) -> None:
        uri = bucket.uri("savepoint", port=faulty_store.port)
        faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
        target = create_savepoint_directory(uri)
        state = target.write_file("state/a", b"content")
        write_savepoint(target, savepoint_of(state))
        assert read_savepoint(uri)[1] == savepoint_of(state)
        assert [key for key in bucket.keys if not key.endswith("/")] == ["savepoint/_metadata", "savepoint/state/a"]

    @pytest.mark.parametrize("present", ["_metadata", "_in_progress"])
    def test_an_existing_savepoint_is_not_overwritten(self, bucket, faulty_store, present) -> None:
        uri = bucket.uri("savepoint", port=faulty_store.port)
        bucket.write(f"savepoint/{present}", b"theirs")
        faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
        with pytest.raises(SavepointExistsError, match="Nothing was changed"):
            create_savepoint_directory(uri)
        assert bucket.read(f"savepoint/{present}") == b"theirs"

    def test_a_savepoint_completed_meanwhile_is_not_overwritten(self, bucket, faulty_store) -> None:
        uri = bucket.uri("savepoint", port=faulty_store.port)
        target = create_savepoint_directory(uri)
        bucket.write("savepoint/_metadata", b"theirs")
        faulty_store.fail(Fault.EMPTY_LISTING, "GET", "list-type")
        with pytest.raises(SavepointExistsError):
            write_savepoint(target, savepoint_of(target.write_file("state/a", b"content")))
        assert bucket.read("savepoint/_metadata") == b"theirs"


def savepoint_of(file: FileHandle) -> CheckpointMetadata:
    state = SubtaskState(KeyedStateHandle("state", "heap", 0, 3, b"meta", (file,)))
    return CheckpointMetadata(
        checkpoint_id=1,
        kind=CheckpointKind.SAVEPOINT,
        job_id="job",
        job_name="flights",
        timestamp_ms=5,
        max_parallelism=4,
        operators=(OperatorState("counter", "Counter", 4, (state,)),),
    )


@pytest.mark.parametrize(
    ("place", "parent", "name"),
    [
        ("/jobs/flights/", "/jobs", "flights"),
        ("/jobs", "/", "jobs"),
        ("flights", ".", "flights"),
        ("jobs/flights", "jobs", "flights"),
        ("/jobs/a?b/c", "/jobs/a?b", "c"),
        ("s3://bucket/jobs/flights?scheme=http&x=/a/b", "s3://bucket/jobs?scheme=http&x=/a/b", "flights"),
    ],
)
def test_the_parent_directory_keeps_its_parameters(place: str, parent: str, name: str) -> None:
    assert parent_and_name(place) == (parent, name)
    back = place_inside(parent, name)
    assert os.path.normpath(back) == os.path.normpath(place)
    assert parent_and_name(back) == (parent, name)
