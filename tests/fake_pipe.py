"""A picture pipeline that draws what its prompt says and costs what it is told to, for tests of evaluations."""

from __future__ import annotations

import random
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmspec import conformance
from mmspec.recipes import Recipe
from mmspec.stats import Stats
from mmspec.vision.shapes.classifier import ShapesClassifier
from mmspec.vision.shapes.domain import sample_scene
from mmspec.vision.shapes.render import render_batch, to_uint8

SECONDS = {"plain": 4.0, "scd": 1.0, "lantern": 0.5}
TOKENS = 16


@dataclass
class Output:
    images: list[Image.Image]
    stats: Stats


class Pipe:
    """Draws a scene of the seed; `lantern` adds noise to it, the more the larger its delta.

    Its clock is its own: each call takes what `SECONDS` says, a little more for some prompts than for others.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, str, int]] = []
        self.config = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "guidance_scale": 2.0}
        self.fail_at: int | None = None

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def __call__(self, prompts: list[str], *, recipe: Recipe, seed: int, **options: Any) -> Output:
        (prompt,) = prompts
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        self.calls.append((str(recipe), prompt, seed))
        key = zlib.crc32(f"{prompt} {seed}".encode())
        pixels = to_uint8(render_batch([sample_scene(random.Random(key))]))[0].astype(np.int64)
        noise = 0.0 if recipe.exact else 300 * float(recipe.knobs["delta"])
        pixels = pixels + np.random.default_rng(key).normal(size=pixels.shape) * noise
        picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        # Eighths, which binary numbers hold exactly, so that sums have no order.
        seconds = SECONDS[recipe.name] * (1 + key % 7 / 8)
        self.now += seconds
        calls = int(SECONDS[recipe.name] * 4)
        parts = {"target": 0.75 * seconds, "drafter": 0.0, "rule": 0.125 * seconds, "other": 0.125 * seconds}
        entropy = 3.0 if options["measure_entropy"] else None
        bound = 0.0 if recipe.exact else float(recipe.knobs["delta"]) / 10
        acceptance = [] if recipe.name == "plain" else [0.8, 0.4, None]
        return Output(
            [picture], Stats(calls, TOKENS, TOKENS / calls, acceptance, 0, seconds, parts, 7, bound, entropy=entropy)
        )


def gate(recipe: Recipe) -> conformance.Conformity:
    """Passes."""
    return conformance.Conformity(tv=0.0, floor=0.0, limit=0.1, samples=1, tokens_per_call=1.0)


def classifier() -> ShapesClassifier:
    """One of random weights, large enough for features of the size that training gives."""
    torch.manual_seed(0)
    made = ShapesClassifier(channels=4, hidden=6).eval()
    with torch.no_grad():
        made.body[-2].weight.mul_(100)
    return made


def install(pipe: Pipe) -> None:
    """Makes `mmspec eval` use all this, in a process of its own."""
    import mmspec
    import mmspec.metrics.attributes as attributes
    import mmspec.metrics.evaluation.quality as quality

    vars(mmspec)["load"] = lambda model, device: pipe
    vars(conformance)["check"] = gate
    vars(quality)["SET_RESAMPLES"] = 40
    vars(attributes)["embedded_classifier"] = classifier
    vars(time)["perf_counter"] = lambda: pipe.now


if __name__ == "__main__":
    from mmspec.cli import main

    install(Pipe())
    sys.exit(main(sys.argv[1:]))
