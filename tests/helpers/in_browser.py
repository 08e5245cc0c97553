"""Renders a page in headless Chromium and evaluates JavaScript on it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def in_browser(text: str, folder: Path, width: int, report: str) -> tuple[str, str]:
    """Renders a page in a frame, since a headless window is at least 500 pixels wide.

    Args:
        text: The page.
        folder: For the browser's files.
        width: Of the frame, in pixels.
        report: A JavaScript expression on `page`, the document of the page.

    Returns:
        The value of the expression, and what the browser wrote to its console.
    """
    path = folder / "frame.html"
    path.write_text(
        f'<title>-</title><iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{escape(text)}"></iframe>'
        "<script>const frame = document.querySelector('iframe'); frame.onload = () => { "
        f"const page = frame.contentDocument; document.title = [{report}].join() }}</script>"
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0"]
    flags += ["--window-size=1400,1000", f"--user-data-dir={folder / 'profile'}"]
    command = [str(CHROMIUM), *flags, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert found is not None
    return unescape(found[1]), "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
