"""The names of airlines, requested over HTTP: an async function with many requests in flight.

The server, `AirlineServer`, is small and listens on this machine only. At times it answers that it is busy, and the
request has to be repeated.
"""

from __future__ import annotations

import asyncio
import threading
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from statebackend import AsyncContext, AsyncFunction, AsyncRetryStrategy

BUSY_EVERY = 10
"""The server rejects one in this many requests."""


class ServerBusyError(Exception):
    """The server is busy and asks for a later request."""


ASK_AGAIN = AsyncRetryStrategy.exponential_backoff(
    5, "20 milliseconds", "1 second", retry_on_exception=(ServerBusyError, ConnectionError)
)


class NameAirline(AsyncFunction[Any, tuple[Any, ...]]):
    """Emits each record with the name of its airline; ``url`` is that of the server."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def async_invoke(self, flight: Any, context: AsyncContext) -> list[tuple[Any, ...]]:
        return [(*flight, await http_get(f"{self.url}/airlines/{urllib.parse.quote(flight.carrier)}"))]


async def http_get(url: str) -> str:
    """Return the answer of an HTTP server as text. Raises `ServerBusyError`, or `ConnectionError` for another error."""
    parts = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode("ascii"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = int(head.split(b" ", 2)[1])
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise ServerBusyError(url)
    if status != HTTPStatus.OK:
        raise ConnectionError(f"{url} was answered with the status {status}")
    return body.decode("utf-8")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """The default queue holds five connections. The sixth would wait for a second, without an error."""


class AirlineServer:
    """Answers ``/airlines/<carrier>`` with a name, in threads of this process, until it is closed."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.requests = 0
        """The number of all requests."""
        self.rejected = 0
        """The number of requests that were rejected as busy."""
        self._names = names
        self._counting = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="airlines", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str) -> tuple[HTTPStatus, str]:
        with self._counting:
            self.requests += 1
            is_busy = self.requests % BUSY_EVERY == 0
            self.rejected += is_busy
        if is_busy:
            return HTTPStatus.SERVICE_UNAVAILABLE, "busy"
        name = self._names.get(urllib.parse.unquote(path.removeprefix("/airlines/")))
        return (HTTPStatus.NOT_FOUND, "unknown") if name is None else (HTTPStatus.OK, name)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = answer(self.path)
                body = text.encode("utf-8")
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        return Handler
