"""`.ci/prose` finds long sentences, long lines and hinges of Markdown, and passes code and tables."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ci_scripts import script

LONG = "A " + "b " * 40 + "sentence."
WIDE = "It is wide. " * 20


@pytest.fixture(scope="module")
def prose(root: Path) -> Any:
    return script(root, "prose")


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        (LONG, 1, "a sentence of 42 words"),
        ("A title.\n\n- item\n- " + LONG, 4, "a sentence of 43 words"),
        ("Code.\n```\nx\n```\n" + LONG, 5, "a sentence of 42 words"),
        (WIDE, 1, "a line of 240 characters"),
        ("Tables, such as this.", 1, "such as (like"),
        ("One of\nsuch as this.", 1, "such as (like"),
    ],
)
def test_faults_are_found(prose: Any, text: str, line: int, fault: str) -> None:
    (found,) = prose.check(text)
    assert found[0] == line and found[1].startswith(fault)


@pytest.mark.parametrize(
    "text",
    [
        "Short. " * 20,
        f"| {LONG} | such as |",
        f"```python\n{LONG}\n```",
        f"Run:\n\n    {LONG}",
        f"- `{LONG}`",
        "It is [wide](" + "x" * 200 + ").",
        "Such rules, as many as there are.",
    ],
)
def test_the_rest_passes(prose: Any, text: str) -> None:
    assert list(prose.check(text)) == []


def repeated(text: str) -> list[str]:
    """Comments whose first line follows once more within the same block."""
    lines = [line.strip() for line in text.splitlines()]
    blocks = [[""]]
    for line in lines:
        blocks[-1].append(line) if line.startswith("# ") else blocks.append([])
    return [line for block in blocks for line in block if len(line) > 20 and block.count(line) > 1]


def test_no_comment_is_written_twice(root: Path) -> None:
    assert repeated("# a sentence of a comment.\n# more\n# a sentence of a comment.\n# more") != []
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True).stdout
    found = {path: lines for path in listed.split() if (lines := repeated((root / path).read_text("utf-8")))}
    assert found == {}
