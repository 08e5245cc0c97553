"""docs/is-my-model.md: every class that it names as loading is one that mmspec reads."""

from __future__ import annotations

import re
from pathlib import Path

from mmspec.audio.load import PUBLISHED, SPEECH_ADAPTERS
from mmspec.hf.adapters import adapters


def test_the_classes_of_the_page_are_read(root: Path) -> None:
    text = (root / "docs" / "is-my-model.md").read_text()
    named = {name for name in re.findall(r"`(\w+)`", text) if name[0].isupper()}
    assert len(named) >= 15
    assert named <= {*adapters(), *SPEECH_ADAPTERS, *PUBLISHED}
