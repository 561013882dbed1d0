"""The web server of the page: addresses, access, and limits on what is uploaded.

- Access: the first address has a token. It is exchanged for a cookie that scripts cannot read and that other sites
  cannot send. Both are compared in constant time.
- `Host` must be an IP address, ``localhost``, or a name that was allowed. Other names are how a web site that rebinds
  its own name to this address would be seen (DNS rebinding).
- The content security policy allows one style sheet, by its hash, and forms to this server. There are no scripts.
- An uploaded lockfile is parsed as data. It has at most `MAX_UPLOAD_BYTES`.

Requests only read. They run in threads, so a slow one does not hold up the others.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import uvicorn
from attrs import field, frozen
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.savepoint.errors import StateLockError
from statebackend.savepoint.html_pages import page_style
from statebackend.savepoint.inspection import (
    difference_of_entries,
    difference_of_schemas,
    displayed_schemas,
    entries_of,
    matched,
    schemas,
)
from statebackend.savepoint.lockfile import lock_from_bytes
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_entries import OperatorStateElements
from statebackend.savepoint.state_location import find_state
from statebackend.state.clock import wall_clock
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob
from statebackend.streaming.errors import EXPECTED_ERRORS, expected_message
from statebackend.ui.pages import (
    ELEMENT_COLUMNS,
    ENTRY_COLUMNS,
    MOST_CHARACTERS,
    MOST_OF_ONE,
    checkpoint_page,
    comparison_page,
    difference_page,
    element_row,
    entry_row,
    error_page,
    job_page,
    places_page,
    state_page,
)
from statebackend.ui.places import EntriesPage, Place, Places, entries_page

__all__ = ["MAX_UPLOAD_BYTES", "Access", "application", "serve"]

MAX_UPLOAD_BYTES: Final = 1 << 20
"""The maximum size of an uploaded lockfile."""

_FORM_BYTES: Final = 4096
"""What a form may add to the file: boundaries, names and headers."""

_BOUNDARY: Final = re.compile(
    """multipart/form-data; *boundary="?([-\\w'()+,./:=?]{1,70})"?""", re.ASCII | re.IGNORECASE
)
_LOCK: Final = re.compile('\r\ncontent-disposition: *form-data; *name="lock"(?:; *filename="([^"]*)")?', re.IGNORECASE)
"""Browsers write the headers of a form's part in this form, with quotes and line ends inside a name encoded."""

ENTRIES_PER_PAGE: Final = 50
DIFFERENCES: Final = 200


@frozen
class Access:
    """Who may use the page: the token of the first address, and the host names that a request may have."""

    allowed_hosts: Sequence[str] = ()
    token: str = field(factory=lambda: secrets.token_urlsafe(32), repr=False)
    cookie: str = field(factory=lambda: secrets.token_urlsafe(32), repr=False)
    # Browsers send cookies to all ports of a host, so two pages on one machine need two names.
    cookie_name: str = field(factory=lambda: f"statebackend_ui_{secrets.token_hex(4)}")

    def is_allowed_host(self, host: str) -> bool:
        """Whether a request may have this value of ``Host``. The port does not matter, so that tunnels work."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", *(one.lower() for one in self.allowed_hosts)):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With no-referrer, browsers send a form with the origin "null".
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Guard:
    """Checks host and token before anything else, and adds the headers of `_HEADERS` to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        style = base64.b64encode(hashlib.sha256(page_style().encode()).digest()).decode()
        self._headers = [
            (name.lower().encode(), value.format(style=style).encode()) for name, value in _HEADERS.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        answer = self._rejected(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _rejected(self, request: Request) -> Response | None:
        """Return the response to a request that goes no further."""
        host = request.headers.get("host", "")
        if not self._access.is_allowed_host(host):
            return HTMLResponse(
                error_page("This host name is not allowed: start the page with --allow-host NAME."), 403
            )
        origin = request.headers.get("origin")
        if request.method == "POST" and origin is not None and origin.partition("://")[2] != host:
            return HTMLResponse(error_page("The form is of another site."), 403)
        token = request.query_params.get("token")
        if token is not None and _is_same(token, self._access.token):
            # The same page without the token. A path that begins with two slashes would be another host.
            rest = urlencode([one for one in request.query_params.multi_items() if one[0] != "token"])
            signed_in = RedirectResponse(f"/{request.url.path.lstrip('/')}?{rest}".rstrip("?"), 303)
            # After a link on another site, browsers do not send a strict cookie to the redirect.
            signed_in.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="lax")
            return signed_in
        if not _is_same(request.cookies.get(self._access.cookie_name, ""), self._access.cookie):
            return HTMLResponse(error_page("Open the address that the command statebackend ui printed."), 401)
        return None


def application(places: Places, access: Access) -> ASGIApp:
    """Return the page as an ASGI application."""
    pages = _Pages(places)
    routes = [
        Route("/", pages.first),
        Route("/job", pages.job),
        Route("/checkpoint", pages.checkpoint),
        Route("/state", pages.state),
        Route("/difference", pages.difference),
        Route("/compatibility", pages.compatibility, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {**dict.fromkeys(EXPECTED_ERRORS, _failed), Exception: _failed}
    app = Starlette(routes=routes, exception_handlers={**handlers, 404: _not_found, 405: _not_found})
    return _Guard(app, access)


def _not_found(request: Request, error: Exception) -> Response:
    return HTMLResponse(error_page("There is no such page."), 404)


def _failed(request: Request, error: Exception) -> Response:
    message = expected_message(error)
    if message is None:
        message = f"This is a defect of the page, and its traceback is on the server: {type(error).__name__}"
        return HTMLResponse(error_page(message), 500)
    return HTMLResponse(error_page(message), 404 if isinstance(error, LookupError) else 409)


class _AddressError(SavepointError, LookupError):
    """An address of the page lacks a parameter, or has an invalid one."""


def _parameter(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if value is None:
        raise _AddressError(f"the address has no parameter {name!r}")
    return value


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _AddressError(f"the parameter {name!r} is not a number")
    return int(text)


@frozen
class _Pages:
    """The pages by address. Each reads the files again."""

    places: Places

    def first(self, request: Request) -> Response:
        return HTMLResponse(places_page([(place, self._checkpoints(place)) for place in self.places]))

    def _checkpoints(self, place: Place) -> Sequence[CheckpointMetadata] | str:
        """Return the checkpoints, or why they cannot be read."""
        try:
            return self.places.checkpoints(place)
        except EXPECTED_ERRORS as error:
            return str(expected_message(error))

    def job(self, request: Request) -> Response:
        place = self.places.find(_parameter(request, "at"))
        return HTMLResponse(job_page(place, self.places.checkpoints(place), list(self.places)))

    def checkpoint(self, request: Request) -> Response:
        counts = request.query_params.get("counts") == "1"
        return self._of_state(
            request, lambda place, savepoint: checkpoint_page(place, savepoint, wall_clock(), counts=counts)
        )

    def state(self, request: Request) -> Response:
        operator, state = _parameter(request, "operator"), _parameter(request, "state")
        key = request.query_params.getlist("key")
        start = _number(request, "group") or 0, _number(request, "skip") or 0

        def page(place: Place, savepoint: Savepoint) -> str:
            columns, found = _entries(savepoint, operator, state, key, start)
            return state_page(place, savepoint, operator, state, found, columns=columns, key=key)

        return self._of_state(request, page)

    def _of_state(self, request: Request, page: Callable[[Place, Savepoint], str]) -> Response:
        place = self.places.find(_parameter(request, "at"))
        made = self.places.read(place, _number(request, "checkpoint"), lambda savepoint: page(place, savepoint))
        return HTMLResponse(made)

    def difference(self, request: Request) -> Response:
        old, new = (self.places.find(_parameter(request, name)) for name in ("old", "new"))
        old_id, new_id = _number(request, "old_checkpoint"), _number(request, "new_checkpoint")
        with_entries = request.query_params.get("entries") == "1"

        def compared(before: Savepoint) -> str:
            def page(after: Savepoint) -> str:
                before_it, after = matched(before, after)
                found = list(islice(difference_of_entries(before_it, after), DIFFERENCES)) if with_entries else None
                of_schemas = difference_of_schemas(*(displayed_schemas(schemas(one)) for one in (before_it, after)))
                return difference_page((old, before.metadata), (new, after.metadata), of_schemas, found, DIFFERENCES)

            return self.places.read(new, new_id, page)

        return HTMLResponse(self.places.read(old, old_id, compared))

    async def compatibility(self, request: Request) -> Response:
        name, data = await _uploaded(request)
        return await run_in_threadpool(self._compared, request, name, data)

    def _compared(self, request: Request, name: str, data: bytes) -> Response:
        place = self.places.find(_parameter(request, "at"))
        lock = lock_from_bytes(data, name)
        stored = find_state(place.path, _number(request, "checkpoint"), self.places.services)
        comparison = CompatibilityChecker(DescribedJob.of_lock(lock, stored), stored).compare()
        return HTMLResponse(comparison_page(place, stored.metadata, name, comparison))


def _entries(
    savepoint: Savepoint, operator: str, state: str, key: Sequence[str], start: tuple[int, int]
) -> tuple[Sequence[str], EntriesPage]:
    found = entries_of(savepoint, operator, state, key)
    group, skip = start
    if isinstance(found, OperatorStateElements):
        elements = islice(iter(found), skip, skip + ENTRIES_PER_PAGE + 1)
        return ELEMENT_COLUMNS, _cut_page([element_row(one) for one in elements], skip)
    is_timer = savepoint.schema(operator, state).kind == PRIORITY_QUEUE.name
    if key:
        # A map may have many entries of one key.
        entries = islice(iter(found), skip, skip + ENTRIES_PER_PAGE + 1)
        return ENTRY_COLUMNS, _cut_page(
            [entry_row(one, is_timer=is_timer, characters=MOST_OF_ONE) for one in entries], skip
        )
    return ENTRY_COLUMNS, entries_page(
        savepoint,
        operator,
        state,
        (group, skip),
        ENTRIES_PER_PAGE,
        lambda one: entry_row(one, is_timer=is_timer, characters=MOST_CHARACTERS),
    )


def _cut_page(rows: Sequence[Sequence[str]], skip: int) -> EntriesPage:
    """Return a page of the rows; one more than fits says that there is another page."""
    following = (0, skip + ENTRIES_PER_PAGE) if len(rows) > ENTRIES_PER_PAGE else None
    return EntriesPage(list(rows[:ENTRIES_PER_PAGE]), following)


async def _uploaded(request: Request) -> tuple[str, bytes]:
    """Return name and content of the uploaded lockfile.

    Raises:
        StateLockError: There is none, or it is too large.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_UPLOAD_BYTES + _FORM_BYTES:
            raise StateLockError(f"a lockfile that is uploaded has at most {MAX_UPLOAD_BYTES:,} bytes")
    # The package `email` takes a minute for hostile headers of 1 MiB.
    boundary = _BOUNDARY.fullmatch(request.headers.get("content-type", ""))
    parts = (b"\r\n" + body).split(f"\r\n--{boundary[1]}".encode()) if boundary is not None else []
    for part in parts[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        disposition = _LOCK.search(head[:_FORM_BYTES].decode("utf-8", "replace"))
        if disposition is not None and 0 < len(data) <= MAX_UPLOAD_BYTES:
            return disposition[1] or "the lockfile", data
    raise StateLockError(f"the form has no lockfile of 1 to {MAX_UPLOAD_BYTES:,} bytes")


def serve(places: Places, access: Access, listener: socket.socket) -> None:
    """Serve the page on a listening socket until the process is interrupted."""
    config = uvicorn.Config(
        application(places, access),
        # The log of accesses would have the token.
        access_log=False,
        log_level="warning",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listener])
