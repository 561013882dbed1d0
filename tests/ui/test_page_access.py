"""Access to the page: token, cookie, host, origin, and the headers of every response."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspected_job import run_job
from served_page import ServedPage, served

from statebackend.cli.main import main
from statebackend.cli.streams import NOT_READABLE
from statebackend.ui.server import MAX_UPLOAD_BYTES, Access


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    directory = tmp_path_factory.mktemp("state")
    run_job("heap", directory / "job")
    with served([directory / "job"]) as one:
        yield one


def test_the_token_is_exchanged_for_a_cookie_that_opens_the_page(page: ServedPage) -> None:
    signed_in = page.request(f"/job?at=0&token={page.access.token}")
    assert (signed_in.status, signed_in.headers["location"]) == (303, "/job?at=0")
    cookie = signed_in.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert page.access.token not in cookie
    assert page.request("/", {"Cookie": cookie.partition(";")[0]}).status == 200


def test_two_pages_of_a_machine_have_cookies_of_their_own(page: ServedPage) -> None:
    """A browser sends the cookies of all ports of a host."""
    other = Access()
    assert other.cookie_name != page.access.cookie_name
    cookies = f"{other.cookie_name}={other.cookie}; {page.signed_in['Cookie']}"
    assert page.request("/", {"Cookie": cookies}).status == 200


def test_signing_in_leads_to_no_other_host(page: ServedPage) -> None:
    assert page.request(f"//evil.example/?token={page.access.token}").headers["location"] == "/evil.example/"


@pytest.mark.parametrize(
    "path", ["/", "/job?at=0", "/state?at=0&operator=per+shop&state=totals", "/nothing", "/?token=no"]
)
def test_nothing_is_served_without_token_or_cookie(page: ServedPage, path: str) -> None:
    name = page.access.cookie_name
    for headers in ({}, {"Cookie": f"{name}=no"}, {"Cookie": f"{name}={page.access.token}"}):
        answered = page.request(path, headers)
        assert answered.status == 401
        assert "per shop" not in answered.text


def test_a_token_outside_of_ascii_is_a_wrong_token(page: ServedPage) -> None:
    assert page.request("/?token=%C3%A9%FF").status == 401


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("localhost:9000", True),
        ("127.0.0.1", True),
        ("[::1]:80", True),
        ("10.0.0.7:8765", True),
        ("state.example", True),
        ("STATE.example:1", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_a_host_name_that_was_not_allowed_is_rejected(page: ServedPage, host: str, is_allowed: bool) -> None:
    assert Access(["state.example"]).is_allowed_host(host) is is_allowed
    if host:
        status = page.request("/", {**page.signed_in, "Host": host}).status
        assert status == (200 if is_allowed else 403)


def test_every_response_forbids_scripts_frames_and_caching(page: ServedPage) -> None:
    for path in ("/", "/nothing", "/job?at=7"):
        for headers in ({}, page.signed_in):
            answered = page.request(path, headers)
            [style] = re.findall("<style>(.*?)</style>", answered.text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
            policy = answered.headers["content-security-policy"]
            assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'")
            assert "script" not in policy
            assert "unsafe" not in policy
            assert answered.headers["cache-control"] == "no-store"
            assert answered.headers["referrer-policy"] == "same-origin"
            assert answered.headers["x-frame-options"] == "DENY"


def test_forms_of_other_sites_and_large_files_are_rejected(page: ServedPage) -> None:
    target = "/compatibility?at=0"
    page.upload(target, b"x", status=403, Origin="http://evil.example")
    for origin in ("null", "http://[", "http://"):
        page.upload(target, b"x", status=403, Origin=origin)
    assert "state.lock does not begin with" in page.upload(target, b"x", status=409, Origin=page.origin).text
    assert "of 1 to 1,048,576 bytes" in page.upload(target, b"", status=409).text
    assert "at most 1,048,576 bytes" in page.upload(target, b"x" * (MAX_UPLOAD_BYTES + 8192), status=409).text
    assert page.request(target, page.signed_in).status == 404


def test_a_form_without_a_file_is_rejected(page: ServedPage) -> None:
    for kind, body in (("text/plain", b"lock=1"), ("multipart/form-data; boundary=x", b"--x--"), ("", b"")):
        answered = page.request("/compatibility?at=0", {**page.signed_in, "Content-Type": kind}, body)
        assert answered.status == 409


@pytest.mark.parametrize(
    ("boundary", "body"),
    [
        (
            "b0",
            b"".join(b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n" % (n, n + 1) for n in range(9999)),
        ),
        ("(" * 3000, b"--x"),
        ("x", b"--x\r\nContent-Disposition: " + b"form-data; " * 50_000 + b"name=lock\r\n\r\ndata\r\n--x--"),
        (
            "x",
            b'--x\r\nContent-Disposition: form-data; name="lock"; filename='
            + b"(((" * 20_000
            + b"\r\n\r\ndata\r\n--x--",
        ),
        ("x", b'--x\r\nContent-Disposition: form-data; name="lock"\r\n\r\nnot closed'),
    ],
)
def test_a_hostile_form_is_rejected(page: ServedPage, boundary: str, body: bytes) -> None:
    kind = f"multipart/form-data; boundary={boundary}"
    answered = page.request("/compatibility?at=0", {**page.signed_in, "Content-Type": kind}, body)
    assert answered.status == 409
    assert "of 1 to 1,048,576 bytes" in answered.text or "does not begin with" in answered.text


def test_paths_of_the_machine_are_not_accepted(page: ServedPage, tmp_path: Path) -> None:
    for place in ("1", "0.", "0.job", str(tmp_path), "../job", "", "0/../.."):
        text = page.get(f"/job?at={place}", status=404).text
        assert "shows no job or savepoint" in text


def test_the_command_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("statebackend.ui.server", "statebackend.ui.places"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["ui", "anywhere"]) == NOT_READABLE
    assert "pip install 'statebackend[ui]'" in capsys.readouterr().err
