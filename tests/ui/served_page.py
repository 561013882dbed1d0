"""The page on a free port of this machine, and a browser without scripts that reads it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn
from attrs import field, frozen
from page_reader import PageReader

from statebackend.ui.places import Places
from statebackend.ui.server import Access, application


@frozen
class Answered:
    """A response."""

    status: int
    headers: Mapping[str, str]
    text: str


@frozen
class ServedPage:
    """A running page. ``get`` and ``post`` are signed in."""

    port: int
    access: Access = field(repr=False)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Answered:
        """Send a request with these headers only."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answered(response.status, {**response.headers}, response.read().decode())
        finally:
            connection.close()

    def get(self, path: str, status: int = 200) -> PageReader:
        """Read a page, and check that it is well-formed and loads nothing."""
        answered = self.request(path, self.signed_in)
        assert answered.status == status, answered.text[-2000:]
        return PageReader(answered.text, is_served=True)

    def upload(self, path: str, data: bytes, status: int = 200, **headers: str) -> PageReader:
        """Upload a lockfile, as the form of a browser does."""
        body = (
            b'--line\r\nContent-Disposition: form-data; name="lock"; filename="state.lock"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n" + data + b"\r\n--line--\r\n"
        )
        sent = {**self.signed_in, "Content-Type": "multipart/form-data; boundary=line", **headers}
        answered = self.request(path, sent, body)
        assert answered.status == status, answered.text[-2000:]
        return PageReader(answered.text, is_served=True)

    @property
    def signed_in(self) -> dict[str, str]:
        return {"Cookie": f"{self.access.cookie_name}={self.access.cookie}"}


@contextlib.contextmanager
def served(paths: Sequence[str | Path]) -> Iterator[ServedPage]:
    """Serve the page in a thread until the context ends."""
    access = Access(["state.example"])
    app = application(Places([str(path) for path in paths]), access)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield ServedPage(listener.getsockname()[1], access)
        finally:
            server.should_exit = True
            thread.join()
