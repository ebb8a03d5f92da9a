"""A headless Chromium that tests drive by its own protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")


class Page:
    """One page."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._ids = connection, itertools.count(1)
        self.session: str | None = None

    def call(self, method: str, **parameters: object) -> Any:
        """Does what the protocol calls so, and returns its result."""
        id = next(self._ids)
        message = {"id": id, "method": method, "params": parameters}
        self._connection.send(
            json.dumps({**message, **({"sessionId": self.session} if self.session else {})})
        )
        while True:
            answer = json.loads(self._connection.recv(timeout=30))
            if answer.get("id") == id:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, script: str) -> Any:
        """Returns what a script gives."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def shown_as(self, width: int, scheme: str) -> None:
        """Makes the window as wide, with light or dark colours."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        """Writes a picture of all of it."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browsed(url: str) -> Iterator[Page]:
    """Opens a page that may write to the clipboard; skips where there is no browser."""
    client = pytest.importorskip("websockets.sync.client")
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("there is no Chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [browser, *FLAGS, f"--user-data-dir={home}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr
            line = next(line for line in process.stderr if "DevTools listening on" in line)
            with client.connect(line.split()[-1], max_size=None) as connection:
                page = Page(connection)
                page.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
                target = page.call("Target.createTarget", url=url)["targetId"]
                page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
                page.call("Page.bringToFront")
                yield page
        finally:
            process.kill()
            process.communicate()
