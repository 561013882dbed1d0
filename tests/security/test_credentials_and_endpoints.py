"""No error, log, file or repr contains credentials, and no request goes to a store that only a file names."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hostile_directories import (
    COMMANDS,
    FAILING,
    PROGRAM,
    arguments_of,
    change_checksummed_json,
    command,
    content_of,
    environment,
    run_job,
    write_checksummed_json,
)

from statebackend import JobRestoreError, Savepoint
from statebackend.connectors import IcebergSink, JsonLinesSource, ParquetSink, Sink, SinkLineage
from statebackend.savepoint.rewrite import SavepointWriter
from statebackend.testing.sinks import SinkDriver

pytestmark = pytest.mark.slow

SECRETS = ("AKIAKEY", "S3CR", "3TS", "TAIL")
"""Parts of the credentials in the URIs below."""

URIS = [
    "s3://AKIAKEY:S3CR/3TS@bucket/path",
    "s3://AKIAKEY:S3CR/3TS/TAIL@bucket/path?endpoint_override=127.0.0.1:1&scheme=http",
    "s3://AKIAKEY:S3CR?3TS@bucket/path",
    "s3://AKIAKEY:S3CR#3TS@bucket/path",
    "s3://AKIAKEY:S3CR@3TS@bucket/path",
    "s3://AKIAKEY:S3CR@3TS/TAIL@bucket/path",
    "s3://AKIAKEY:/S3CR@bucket/path",
    "s3://AKIAKEY%3AS3CR/3TS@bucket/path",
    "s3://AKIAKEY:S3CR3TS/path",
    "s3://AKIAKEY:S3CR/3TS",
    "s3://AKIAKEY:S3CR%2F3TS@bucket/path?unknown=1",
    "s3://AKIAKEY:S3CR%2F3TS@bad bucket/path",
    "s3://bucket/path?endpoint_override=AKIAKEY:S3CR@host:9000",
    "s3://bucket/path?secret_key=S3CR/3TS&access_key=AKIAKEY",
    "S3://AKIAKEY:S3CR/3TS@bucket/path",
    "s3:///AKIAKEY:S3CR3TS@bucket/path",
    "s3a:///AKIAKEY:S3CR/3TS@bucket/path",
    "s3a://AKIAKEY:S3CR/3TS@bucket/path",
    "gs://AKIAKEY:S3CR/3TS@bucket/path",
    "abfss://container:S3CR/3TS@account.dfs.core.windows.net/path",
    "abfss://:S3CR/3TS==@account/path",
    "hdfs://AKIAKEY:S3CR/3TS@host:8020/path",
    "file://AKIAKEY:S3CR/3TS@host/path",
    "nowhere://AKIAKEY:S3CR/3TS@host/path",
    "https://AKIAKEY:S3CR/3TS@bucket/path",
]


def check_no_secret(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text], text


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a job, and a savepoint of it."""
    directory = tmp_path_factory.mktemp("made")
    run_job(directory / "job", "a").savepoint(directory / "savepoint")
    return directory


@pytest.mark.extended_after(8)
@pytest.mark.parametrize("uri", URIS)
def test_no_error_log_or_file_shows_credentials(
    made: Path, tmp_path: Path, uri: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    for name in COMMANDS:
        answer = command(*arguments_of(name, uri, tmp_path / "written"))
        assert answer.status == 3
        check_no_secret(answer.output + answer.errors)
    for use in (
        lambda: Savepoint.open(uri),
        lambda: run_job(uri),
        lambda: run_job(tmp_path / "new", from_savepoint=uri),
        lambda: run_job(made / "job").savepoint(uri),
        lambda: SavepointWriter.copy_of(str(made / "savepoint"), uri).write(),
        lambda: SavepointWriter.copy_of(uri, str(tmp_path / "another")).write(),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            use()
        check_no_secret("".join(traceback.format_exception(caught.value)))
    for arguments in (
        ["export", made / "savepoint", "count", "count", uri, "--to", "csv"],
        ["report", made / "job", uri],
        ["rewrite", made / "savepoint", uri, "--plan", tmp_path / "written" / "plan.py"],
        ["migrate", made / "savepoint", uri, "--job", PROGRAM],
        ["check", "--lock", uri, "--job", PROGRAM],
        ["check", "--history", uri, "--job", PROGRAM],
        ["lock", "--output", uri, "--job", PROGRAM],
        ["lock", "--history", uri, "--job", PROGRAM],
        ["gc", made / "job", "--driver-directory", uri],
    ):
        answer = command(*arguments)
        assert answer.status == 3, arguments
        check_no_secret(answer.output + answer.errors)
    check_no_secret(caplog.text)
    check_no_secret(repr(content_of(tmp_path)))


def write_to(sink: Sink) -> None:
    SinkDriver(sink, SinkLineage("sink", "job"), "run").start()


@pytest.mark.parametrize("uri", URIS)
def test_no_error_of_a_connector_shows_credentials(uri: str) -> None:
    pytest.importorskip("pyiceberg")
    makers: list[Callable[[], object]] = [
        lambda: ParquetSink(uri),
        lambda: JsonLinesSource(uri, "key string"),
        lambda: write_to(IcebergSink("shop.orders", "lake", {"type": "rest", "uri": uri})),
    ]
    for make in makers:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            make()
        check_no_secret("".join(traceback.format_exception(caught.value)))


@contextlib.contextmanager
def listener() -> Iterator[tuple[str, list[bytes]]]:
    """An address, and the start of each request to it."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        received.append(connection.recv(65536))
                        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", received
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def origin_of(savepoint: Savepoint, uri: str) -> dict[str, object]:
    return {
        "version": 1,
        "savepoint_uri": uri,
        "savepoint_job_id": savepoint.metadata.job_id,
        "savepoint_id": savepoint.metadata.checkpoint_id,
        "savepoint_timestamp_ms": savepoint.metadata.timestamp_ms,
        "with_source_progress": False,
        "restarted_sources": [],
    }


@pytest.fixture
def started_job(tmp_path: Path) -> Path:
    """The directory of a job that started from a savepoint and has no checkpoint yet."""
    run_job(tmp_path / "first", "a").savepoint(tmp_path / "savepoint")
    with pytest.raises(Exception, match="fails in its first epoch"):
        run_job(tmp_path / "job", [FAILING], from_savepoint=tmp_path / "savepoint")
    assert not list(tmp_path.glob("job/checkpoints/*/_metadata"))
    return tmp_path / "job"


def start(job: Path) -> None:
    run_job(job)


def check(job: Path) -> None:
    with contextlib.closing(environment(job)) as env:
        env.check()


@pytest.mark.parametrize("use", [start, check])
@pytest.mark.parametrize(
    "place",
    [
        "s3://bucket/savepoint?endpoint_override={address}&scheme=http",
        "s3://bucket/savepoint?scheme=http&region=us-east-1&endpoint_override={address}",
        "S3://bucket/savepoint?endpoint_override={address}&scheme=http",
        "s3://AKIAKEY:S3CR%2F3TS@bucket/savepoint?endpoint_override={address}&scheme=http",
        "gs://anonymous@bucket/savepoint?endpoint_override={address}&scheme=http&retry_limit_seconds=1",
        "s3://bucket/savepoint?endpoint_override=user%40{address}&scheme=http",
        "hdfs://{address}/savepoint",
        "abfss://container@account/savepoint?blob_storage_authority={address}&blob_storage_scheme=http",
    ],
)
def test_no_request_is_sent_to_a_store_that_only_the_job_directory_names(
    started_job: Path, place: str, use: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with listener() as (address, received):
        change_checksummed_json(started_job / "origin.json", savepoint_uri=place.format(address=address))
        with pytest.raises(JobRestoreError, match="Pass from_savepoint=") as caught:
            use(started_job)
        assert not received
    check_no_secret("".join(traceback.format_exception(caught.value)))


def test_a_savepoint_in_a_store_is_used_once_the_program_names_it_again(
    tmp_path: Path, started_job: Path, bucket: object
) -> None:
    uri = bucket.uri("savepoint")  # type: ignore[attr-defined]
    run_job(tmp_path / "first").savepoint(uri)
    write_checksummed_json(started_job / "origin.json", origin_of(Savepoint.open(uri), uri))
    with pytest.raises(JobRestoreError, match="does not name that store, so no request is sent there"):
        run_job(started_job, "a")
    job = run_job(started_job, "a", from_savepoint=uri)
    assert job is not None
    [entry] = Savepoint.open(started_job).read("count", "count")
    assert entry.value == 2


def test_a_savepoint_on_a_disk_and_one_in_the_store_of_the_job_are_used_as_before(
    tmp_path: Path, started_job: Path, bucket: object
) -> None:
    run_job(started_job, "a")
    [entry] = Savepoint.open(started_job).read("count", "count")
    assert entry.value == 2
    savepoint, job = bucket.uri("savepoint"), bucket.uri("job")  # type: ignore[attr-defined]
    run_job(tmp_path / "first").savepoint(savepoint)
    with pytest.raises(Exception, match="fails in its first epoch"):
        run_job(job, [FAILING], from_savepoint=savepoint)
    run_job(job, "a")
    [entry] = Savepoint.open(job).read("count", "count")
    assert entry.value == 2
