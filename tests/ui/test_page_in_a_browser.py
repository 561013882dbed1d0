"""The page in Chromium: its single style sheet applies under the content security policy, and nothing is blocked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inspected_job import run_job

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def started_page(path: Path) -> Iterator[tuple[str, str]]:
    """Serve a savepoint in another process; the address and the parameter with the token."""
    command = [sys.executable, "-m", "statebackend", "ui", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            opened = re.fullmatch(r"open (http://127\.0\.0\.1:\d+)/\?(token=\S+)\n", server.stdout.readline())
            assert opened is not None
            yield opened[1], opened[2]
        finally:
            server.terminate()


class Browser:
    """A page of Chromium, driven by the DevTools protocol over two pipes."""

    def __init__(self, to_browser: Any, from_browser: Any) -> None:
        self._to_browser, self._from_browser = to_browser, from_browser
        self._session: dict[str, str] = {}
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def __call__(self, method: str, **parameters: Any) -> Any:
        """Call a method; its result, or nothing if it failed."""
        message = {"id": 1, "method": method, "params": parameters, **self._session}
        self._to_browser.write(json.dumps(message).encode() + b"\0")
        self._to_browser.flush()
        return next(one for one in self._messages() if one.get("id") == 1).get("result", {})

    def text_when(self, condition: str) -> str:
        """Wait until a condition in JavaScript holds; the text of the page."""
        look = f"() => {condition} ? done(document.body.innerText) : setTimeout(look, 10)"
        while True:
            # A navigation ends the call without a value.
            called = self(
                "Runtime.evaluate",
                expression=f"new Promise(done => {{ const look = {look}; look() }})",
                awaitPromise=True,
            )
            text = called.get("result", {}).get("value")
            if text is not None:
                return str(text)

    def _messages(self) -> Iterator[Any]:
        message = bytearray()
        while byte := self._from_browser.read(1):
            if byte != b"\0":
                message += byte
                continue
            yield json.loads(message)
            message.clear()


@contextlib.contextmanager
def started_browser(directory: Path) -> Iterator[Browser]:
    for_browser, to_browser = os.pipe()
    from_browser, for_us = os.pipe()
    # Chromium reads from 3 and writes to 4.
    redirected = f'exec "$@" 3<&{for_browser} 4>&{for_us}'
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}"]
    command = ["bash", "-c", redirected, "bash", str(CHROMIUM), *options, "--remote-debugging-pipe"]
    with (
        open(to_browser, "wb") as output,
        open(from_browser, "rb") as answers,
        subprocess.Popen(command, pass_fds=(for_browser, for_us), stderr=subprocess.DEVNULL) as process,
    ):
        os.close(for_browser)
        os.close(for_us)
        try:
            yield Browser(output, answers)
        finally:
            process.terminate()


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_signs_in_and_shows_a_state(tmp_path: Path) -> None:
    run_job("heap").savepoint(tmp_path / "savepoint")
    with started_page(tmp_path / "savepoint") as (address, token):
        path = "/state?at=0&operator=per%20shop&state=totals&key=shop%203"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
        browser = subprocess.run(
            [str(CHROMIUM), *options, f"--user-data-dir={tmp_path / 'chromium'}", f"{address}{path}&{token}"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "<td>shop 3</td>" in browser.stdout
    assert "&quot;sales&quot;: 5" in browser.stdout or '"sales": 5' in browser.stdout
    assert "Content Security Policy" not in browser.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_uploads_a_lockfile(tmp_path: Path) -> None:
    run_job("heap").savepoint(tmp_path / "savepoint")
    lock = tmp_path / "state.lock"
    lock.write_text("no lockfile")
    with started_page(tmp_path / "savepoint") as (address, token), started_browser(tmp_path / "chromium") as browser:
        browser("Page.navigate", url=f"{address}/checkpoint?at=0&{token}")
        browser.text_when("document.readyState === 'complete' && document.querySelector('input[type=file]')")
        root = browser("DOM.getDocument")["root"]["nodeId"]
        chosen = browser("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
        browser("DOM.setFileInputFiles", nodeId=chosen, files=[str(lock)])
        browser("Runtime.evaluate", expression="document.querySelector('input[type=file]').form.requestSubmit()")
        shown = browser.text_when("!document.querySelector('input[type=file]') && document.readyState === 'complete'")
    assert "state.lock does not begin with" in shown
