"""Where the weights of scenes lie, and its default decoding settings."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"  # what the package ships

GUIDANCE = 1.5
TEMPERATURE = 1.0
