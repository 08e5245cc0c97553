"""Where the weights of shapes lie, and its default decoding settings."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"  # what the package ships

GUIDANCE = 1.5  # chosen on captions that no reported result uses
TEMPERATURE = 0.7
