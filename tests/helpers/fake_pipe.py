"""An image pipeline with known outputs and a simulated clock, for tests of evaluations."""

from __future__ import annotations

import random
import signal
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from train_shapes.render import render_batch, to_uint8

import mmspec
from mmspec.decoding.stats import RowStats, Stats
from mmspec.decoding.step import Step
from mmspec.metrics import metric
from mmspec.metrics.extractors import shapes
from mmspec.recipes import Recipe
from mmspec.testing import columns, exactness
from mmspec.vision.shapes.classifier import ShapesClassifier
from mmspec.vision.shapes.domain import sample_scene

SECONDS = {"plain": 4.0, "scd": 1.0, "lantern": 0.5}
TOKENS = 16


@dataclass
class Output:
    images: list[Image.Image]
    stats: Stats


class Pipe:
    """Renders a scene chosen by prompt and seed; `lantern` adds noise in proportion to its delta.

    The clock is simulated: a call takes the seconds of `SECONDS`, and up to three quarters more for some prompts.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, str, int]] = []
        self.config = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "guidance_scale": 2.0}
        self.fail_at: int | None = None
        self.window = 16

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def __call__(self, prompts: list[str], *, recipe: Recipe, seed: list[int], **options: Any) -> Output:
        if len(self.calls) == self.fail_at:
            signal.raise_signal(signal.SIGINT)
        keys = [zlib.crc32(f"{prompt} {one}".encode()) for prompt, one in zip(prompts, seed, strict=True)]
        self.calls += [(str(recipe), prompt, one) for prompt, one in zip(prompts, seed, strict=True)]
        images = [self._image(key, recipe) for key in keys]
        # Eighths are exact in binary, so that sums do not depend on their order.
        seconds = SECONDS[recipe.name] * (1 + keys[0] % 7 / 8)
        calls = int(SECONDS[recipe.name] * 4)
        for call in range(calls):
            self.now += seconds / calls  # `calls` is a power of two
            so_far = TOKENS * (call + 1) // calls
            tokens = [torch.zeros(so_far)] * len(prompts)
            options["on_step"](Step(call + 1, so_far * len(prompts), TOKENS * len(prompts), tokens))
        parts = {"target": 0.75 * seconds, "drafter": 0.0, "rule": 0.125 * seconds, "other": 0.125 * seconds}
        measured = options.get("measure_entropy")
        bound = 0.0 if recipe.exact else float(recipe.knobs["delta"]) / 10
        rows = [
            RowStats(TOKENS, calls, bound, 3.0 if measured else None, 3 + key % 2 + bound if measured else None)
            for key in keys
        ]
        acceptance = [] if recipe.name == "plain" else [0.8, 0.4, None]
        stats = Stats(calls, TOKENS * len(prompts), TOKENS / calls, acceptance, 0, seconds, parts, 7, bound, rows=rows)
        stats.window = self.window
        return Output(images, stats)

    def _image(self, key: int, recipe: Recipe) -> Image.Image:
        pixels = to_uint8(render_batch([sample_scene(random.Random(key))]))[0].astype(np.int64)
        noise = 0.0 if recipe.exact else 300 * float(recipe.knobs["delta"])
        pixels = pixels + np.random.default_rng(key).normal(size=pixels.shape) * noise
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def gate(recipe: Recipe) -> exactness.ExactnessResult:
    """An exactness check that passes."""
    return exactness.ExactnessResult(tv=0.0, floor=0.0, limit=0.1, samples=1, tokens_per_call=1.0)


def open_gate(patch: pytest.MonkeyPatch) -> None:
    """Lets every recipe pass the exactness checks, of tokens and of columns, that a command runs before it measures."""
    patch.setattr(exactness, "check", gate)
    patch.setattr(columns, "check_columns", gate)


def classifier() -> ShapesClassifier:
    """A classifier with random weights, scaled so that its features are as large as trained ones."""
    torch.manual_seed(0)
    made = ShapesClassifier(channels=4, hidden=6).eval()
    with torch.no_grad():
        made.body[-2].weight.mul_(100)
    return made


def install(pipe: Pipe) -> None:
    """Patches `mmspec eval` to use this pipeline, in a process started for it."""
    import mmspec
    import mmspec.metrics.extractors.shapes as shapes
    import mmspec.metrics.metric as metric

    vars(mmspec)["load"] = lambda model, device, dtype=None: pipe
    open_gate(pytest.MonkeyPatch())
    vars(metric)["SET_RESAMPLES"] = 40
    vars(shapes)["embedded_classifier"] = classifier
    vars(time)["perf_counter"] = lambda: pipe.now


if __name__ == "__main__":
    from mmspec.cli.app import main

    install(Pipe())
    sys.exit(main(sys.argv[1:]))


def evaluated_pipe(patch: pytest.MonkeyPatch) -> Pipe:
    """The pipeline that `mmspec eval` loads, with its clock, few resamples and no check of exactness."""
    pipe = Pipe()
    patch.setattr(mmspec, "load", lambda model, device, dtype=None: pipe, raising=False)
    open_gate(patch)
    patch.setattr(shapes, "embedded_classifier", classifier)
    patch.setattr(time, "perf_counter", lambda: pipe.now)
    patch.setattr(metric, "SET_RESAMPLES", 40)
    return pipe
