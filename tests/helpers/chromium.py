"""Fixtures of headless Chromium, by the DevTools protocol over two pipes, without a package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio",
    "--remote-debugging-pipe",
)  # fmt: skip


class Chromium:
    """A running browser.

    Args:
        read: The file descriptor of what Chromium says.
        write: The file descriptor of what it is told.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._number, self._rest = read, write, 0, b""

    def call(self, method: str, arguments: dict[str, Any], session: str | None, seen: list[Any]) -> Any:
        """The result of a method of the protocol; what is said before it is appended to `seen`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (found := self._message()).get("id") != self._number:
            seen.append(found)
        assert "error" not in found, found
        return found["result"]

    def _message(self) -> Any:
        while b"\0" not in self._rest:
            part = os.read(self._read, 2**20)
            assert part, "Chromium has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


class Page:
    """A tab, which shares nothing with other tabs.

    Args:
        chromium: The browser.

    Attributes:
        console: What the page and the browser wrote to the console.
        requested: The addresses that the page asked for.
    """

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self._session: str | None = None
        self.console: list[str] = []
        self.requested: list[str] = []
        self._context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Closes the tab, with all that it stored."""
        self._session = None
        self.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **arguments: Any) -> Any:
        """The result of a method of the protocol."""
        seen: list[Any] = []
        result = self._chromium.call(method, arguments, self._session, seen)
        for found in seen:
            if self._session is not None and found.get("sessionId") == self._session:
                self._notice(found["method"], found["params"])
        return result

    def _notice(self, method: str, values: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.console.append(str([one.get("value") for one in values["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(values["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Log.entryAdded":
            self.console.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(values["request"]["url"])

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


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser for all tests of a process."""
    folder = tmp_path_factory.mktemp("chromium")
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
        yield Chromium(ours_in, ours_out)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)


@pytest.fixture
def tab(chromium: Chromium) -> Iterator[Page]:
    """A new tab."""
    page = Page(chromium)
    yield page
    page.close()


def in_frame(tab: Page, text: str, folder: Path, width: int, report: str) -> tuple[str, str]:
    """Renders a page in a frame, by a browser.

    Args:
        tab: An empty tab.
        text: The page.
        folder: For the file of the frame.
        width: Of the frame, in pixels.
        report: A JavaScript expression on `page`, the document of the page, and `frame`, its element.

    Returns:
        The value of the expression, and what the browser wrote to its console.
    """
    path = folder / "frame.html"
    path.write_text(
        f'<title>-</title><iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{escape(text)}"></iframe>'
        "<script>const frame = document.querySelector('iframe')</script>"
    )
    tab.open(path.as_uri(), 1400, 1000)
    found = tab.value(f"(() => {{ const page = frame.contentDocument; return [{report}].join() }})()")
    return str(found), "\n".join(tab.console)
