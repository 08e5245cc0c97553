"""Headless Chromium by the DevTools protocol over two pipes, without a package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio",
    "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """A tab.

    Args:
        read: The file descriptor of what Chromium says.
        write: The file descriptor of what it is told.

    Attributes:
        console: What the page and the browser wrote to the console.
        requested: The addresses that the page asked for.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._number, self._rest = read, write, 0, b""
        self._session: str | None = None
        self.console: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **arguments: Any) -> Any:
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def _message(self) -> Any:
        while b"\0" not in self._rest:
            part = os.read(self._read, 2**20)
            assert part, "Chromium has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(text)
        values = found.get("params", {})
        if found.get("method") == "Runtime.consoleAPICalled":
            self.console.append(str([one.get("value") for one in values["args"]]))
        elif found.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(values["exceptionDetails"].get("exception", {}).get("description")))
        elif found.get("method") == "Log.entryAdded":
            self.console.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
        elif found.get("method") == "Network.requestWillBeSent":
            self.requested.append(values["request"]["url"])
        return found

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Loads a page in a window of this size."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < deadline, f"not true in time: {expression}"
            time.sleep(0.03)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Presses a key."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Types a text where the focus is."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """Writes a PNG of the window, or of the first `height` pixels of the page."""
        options: dict[str, Any] = {}
        if height is not None:
            width = self.value("innerWidth")
            options = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
            options["captureBeyondViewport"] = True
        found = self.call("Page.captureScreenshot", format="png", **options)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Runs Chromium with one tab.

    Args:
        folder: For its files.
    """
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def wire() -> None:  # the protocol reads from 3 and writes to 4
        first, second = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(first, 3)
        os.dup2(second, 4)

    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}"]
    process = subprocess.Popen(
        command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_in, ours_out)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
