"""All constants of the voice; `examples/embedded/train_spoken` makes its weights."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"  # in the package

SAMPLING_RATE = 16_000
FRAME = 160  # samples per frame of the analysis
FRAMES_PER_TOKEN = 2
HOP = FRAME * FRAMES_PER_TOKEN  # samples per token: 50 tokens per second
CODES = 1024

VOICES = {"low": ("en-us", (60.0, 160.0)), "high": ("en-us+f3", (110.0, 320.0))}  # name in espeak-ng, pitch range in Hz

TEMPERATURE, TOP_K, RECIPE = 0.7, 25, "table:window=8"  # default decoding settings
