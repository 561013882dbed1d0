"""The object store of the tests: a server in its own process, and a proxy that can make it fail.

`ObjectStoreServer` is the store. `FaultyProxy` is between clients and the store. For selected requests it behaves like
a busy store or network: it answers in place of the store, cuts the request off, or loses the answer of a request that
took effect.
"""

from __future__ import annotations

import contextlib
import enum
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import boto3
from attrs import define, field, frozen
from botocore.config import Config

ACCESS_KEY = "tests-access-key"
SECRET_KEY = "tests-secret-key"
REGION = "us-east-1"
PATIENCE_S = 600
"""Seconds until a store counts as hanging. Slow requests are not repeated before that, because tests count requests."""

_PROGRAM = Path(__file__).resolve().with_name("object_store_process.py")
_END_OF_HEAD = b"\r\n\r\n"


class ObjectStoreServer:
    """A running store. `close` ends its process, and so does the end of this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.client: Any = client_of(self.port)

    def new_bucket(self, name: str) -> None:
        """Create a bucket with a new name, and return it."""
        self.client.create_bucket(Bucket=name)

    def keys(self, bucket: str) -> list[str]:
        """The keys of all objects of a bucket, in order."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@frozen
class Bucket:
    """A bucket of a store, empty at first, for one test."""

    server: ObjectStoreServer
    name: str

    @property
    def credentials(self) -> dict[str, str]:
        """Environment variables with the credentials of the store."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def uri(self, path: str = "", *, port: int | None = None, user: str = "", gives_up: bool = False) -> str:
        """The URI of a path of the bucket, by default without credentials.

        Clients wait for a slow store. With ``gives_up``, they repeat a request that is not answered within a second.
        """
        query = {"endpoint_override": f"127.0.0.1:{port or self.server.port}", "scheme": "http"}
        timeout = {"request_timeout_s": 1 if gives_up else PATIENCE_S}
        return f"s3://{user}{self.name}/{path}?{urlencode({**query, **timeout})}"

    @property
    def keys(self) -> list[str]:
        """The keys of all objects, in order."""
        return self.server.keys(self.name)

    def read(self, key: str) -> bytes:
        """The content of an object."""
        content: bytes = self.server.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def write(self, key: str, content: bytes) -> None:
        """Puts an object."""
        self.server.client.put_object(Bucket=self.name, Key=key, Body=content)

    def delete(self, key: str) -> None:
        """Deletes an object."""
        self.server.client.delete_object(Bucket=self.name, Key=key)


def client_of(port: int) -> Any:
    """A client of the store at a port."""
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
        config=Config(connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S),
    )


@frozen
class Request:
    """A request of a client. ``target`` is path and query."""

    method: str
    target: str
    headers: dict[str, str]
    content_bytes: int


class Fault(enum.Enum):
    """A fault to inject into matching requests."""

    DROP = "the connection is closed before the store hears of it"
    CUT = "the store hears half of it, and the connection is closed"
    LOSE_ANSWER = "it takes effect, and the connection is closed before the answer"
    STALL = "nobody answers, until the proxy is closed"
    ERROR_500 = "500 InternalError"
    ERROR_503 = "503 SlowDown"
    EMPTY_LISTING = "a listing says that there is nothing"


@define
class _Rule:
    fault: Fault
    method: str
    pattern: re.Pattern[str]
    times: int
    met: int = 0

    def take(self, request: Request) -> bool:
        """Whether the rule matches this request. A match uses the rule up."""
        is_met = self.times > 0 and request.method == self.method and self.pattern.search(request.target) is not None
        if is_met:
            self.times -= 1
            self.met += 1
        return is_met


@define
class FaultyProxy:
    """A proxy with its own port in front of a store. It records the requests."""

    store_port: int
    requests: list[Request] = field(factory=list)
    before_request: Callable[[Request], object] | None = None
    _rules: list[_Rule] = field(factory=list)
    _lock: threading.Lock = field(factory=threading.Lock)
    _closing: threading.Event = field(factory=threading.Event)
    _listener: socket.socket = field(factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=64))

    def __attrs_post_init__(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """The port for clients."""
        port: int = self._listener.getsockname()[1]
        return port

    def fail(self, fault: Fault, method: str, pattern: str, times: int = 1_000_000) -> Callable[[], int]:
        """Let the next requests with a matching target fail. Return a function that counts the failures."""
        rule = _Rule(fault, method, re.compile(pattern), times)
        self._rules.append(rule)
        return lambda: rule.met

    def heal(self) -> None:
        """Inject no more faults."""
        self._rules.clear()

    def asked(self, method: str, pattern: str) -> int:
        """The number of requests with this method and a matching target."""
        return sum(one.method == method and re.search(pattern, one.target) is not None for one in list(self.requests))

    def close(self) -> None:
        """Accept no more requests."""
        self._closing.set()
        # Closing does not wake a thread that waits in accept, but shutdown does.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head, body = _read_request(client)
            if not head:
                return
            request = _request_of(head, len(body))
            with self._lock:
                self.requests.append(request)
                rule = next((rule for rule in self._rules if rule.take(request)), None)
            if self.before_request is not None:
                self.before_request(request)
            self._answer(client, head, body, None if rule is None else rule.fault)

    def _answer(self, client: socket.socket, head: bytes, body: bytes, fault: Fault | None) -> None:
        if fault is Fault.DROP:
            return
        if fault is Fault.STALL:
            self._closing.wait()
            return
        if fault in (Fault.ERROR_500, Fault.ERROR_503):
            status, code = fault.value.split()
            client.sendall(_answer_of(int(status), f"<Error><Code>{code}</Code><Message>try later</Message></Error>"))
            return
        if fault is Fault.EMPTY_LISTING:
            client.sendall(_answer_of(200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"))
            return
        with socket.create_connection(("127.0.0.1", self.store_port)) as store:
            store.sendall(head + (body[: len(body) // 2] if fault is Fault.CUT else body))
            if fault is Fault.CUT:
                return
            answer = b"".join(iter(lambda: store.recv(1 << 16), b""))
        if fault is not Fault.LOSE_ANSWER:
            client.sendall(answer)


@contextlib.contextmanager
def faulty_proxy(server: ObjectStoreServer) -> Iterator[FaultyProxy]:
    """A proxy for a store, closed at the end of the context."""
    proxy = FaultyProxy(server.port)
    try:
        yield proxy
    finally:
        proxy.close()


def _answer_of(status: int, content: str) -> bytes:
    body = f'<?xml version="1.0" encoding="UTF-8"?>{content}'.encode()
    head = f"HTTP/1.1 {status} x\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\nConnection: close"
    return head.encode() + _END_OF_HEAD + body


def _request_of(head: bytes, content_bytes: int) -> Request:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    return Request(method, target, {name.strip().lower(): value.strip() for name, _, value in pairs}, content_bytes)


def _read_request(client: socket.socket) -> tuple[bytes, bytes]:
    """Read head and body of one request from the connection."""
    source = client.makefile("rb")
    lines = []
    while (line := source.readline()) not in (b"\r\n", b""):
        lines.append(line)
    names = {line.partition(b":")[0].strip().lower(): line.partition(b":")[2].strip() for line in lines[1:]}
    if b"expect" in names:
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    hidden = (b"expect", b"connection")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in hidden]
    head = b"".join(kept) + b"Connection: close\r\n\r\n" if lines else b""
    if names.get(b"transfer-encoding", b"").lower() == b"chunked":
        return head, _read_chunks(source)
    return head, source.read(int(names.get(b"content-length", b"0")))


def _read_chunks(source: Any) -> bytes:
    read = bytearray()
    while True:
        line = source.readline()
        read += line
        size = int(line.partition(b";")[0].strip() or b"0", 16)
        if size == 0:
            while (trailer := source.readline()) not in (b"\r\n", b""):
                read += trailer
            return bytes(read + trailer)
        read += source.read(size + 2)
