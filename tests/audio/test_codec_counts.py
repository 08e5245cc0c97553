"""What a chunk of a codec's stream costs the host: launches, uploads and waits, on a device that counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from own_process import printed

# By codec and frames of a chunk: the graphs that it is cut into. Around each are three launches at most.
GRAPHS = {"mimi": {1: 1, 8: 1, 12: 5, 25: 4}, "dac": {1: 1, 8: 1, 12: 1, 25: 2}}


@pytest.fixture(scope="module")
def cases(root: Path) -> dict[str, Any]:
    """In a process of its own, as the device cannot be taken away."""
    return printed(root, "codec_counts.py")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_chunk_is_a_few_launches(name: str, cases: dict[str, Any]) -> None:
    for frames, graphs in GRAPHS[name].items():
        captured, eager = cases[f"{name} {frames}"], cases[f"{name} {frames} eager"]
        assert captured["equal"] and eager["equal"]
        assert captured["graphs"] == graphs and captured["launches"] <= 4 * graphs + 1, (frames, captured)
        assert not (captured["uploads"] or captured["waits"] or eager["waits"])
        assert captured["launches"] * 8 < eager["launches"], (frames, captured, eager)
