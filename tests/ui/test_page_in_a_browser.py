"""The page in Chromium: its single style sheet applies under the content security policy, and nothing is blocked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from inspected_job import run_job

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_signs_in_and_shows_a_state(tmp_path: Path) -> None:
    run_job("heap").savepoint(tmp_path / "savepoint")
    command = [sys.executable, "-m", "statebackend", "ui", str(tmp_path / "savepoint"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            opened = re.fullmatch(r"open (http://127\.0\.0\.1:\d+)/\?(token=\S+)\n", server.stdout.readline())
            assert opened is not None
            path = "/state?at=0&operator=per%20shop&state=totals&key=shop%203"
            options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
            browser = subprocess.run(
                [str(CHROMIUM), *options, f"--user-data-dir={tmp_path / 'chromium'}", f"{opened[1]}{path}&{opened[2]}"],
                capture_output=True,
                text=True,
                check=True,
            )
        finally:
            server.terminate()
    assert "<td>shop 3</td>" in browser.stdout
    assert "&quot;sales&quot;: 5" in browser.stdout or '"sales": 5' in browser.stdout
    assert "Content Security Policy" not in browser.stderr
