"""Engines of every kind of image and video pipeline give what a call gives, in company and beside one that leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from image_pipelines import CASES

from mmspec.batching.engine import Engine
from mmspec.batching.request import RequestOutput
from mmspec.masked.keeping import Credit
from mmspec.vision.mar import Shortcuts

NOT_LOADED = {"interleaved", "llamagen-text"}  # not given by `mmspec.load`, and features of captions are no request
# The options that only some models have, and recipes with more ways through them than the default.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in CASES if name not in NOT_LOADED},
    "var-two-models": ("var", {"large_scales": 2, "measure_distance": True, "top_k": 9, "temperature": 0.8}),
    "var-by-label": ("var", {"guidance_scale": 0}),
    "amused-ahead": ("amused", {"steps": 8, "ahead": 4, "guidance_scale": 2.0, "negative_prompt": "cat"}),
    "amused-kept": ("amused", {"steps": 12, "confidence": 0.9, "keep": Credit(0.5)}),
    "amused-reuse": ("amused", {"steps": 6, "refresh": 3, "temperature": (1.0, 0.2)}),
    "mar-passes": ("mar", {"steps": 5, "head_steps": 6, "shortcuts": Shortcuts(3, 2), "cfg_schedule": "constant"}),
    "mar-smoothed": ("mar", {"recipe": "few-steps+smoothed:sigma=0.3,window=3,steps=2", "head_steps": 6}),
    "mar-cspd": ("mar-pair", {"recipe": "draft+cspd:window=4", "head_steps": 6}),
    "mar-published": ("mar-pair", {"recipe": "draft+cspd:window=3", "steps": 8, "head_steps": 6}),
    "shapes-latent": ("shapes-latent", {"head_steps": 2}),
    "shapes-latent-drafts": ("shapes-latent", {"recipe": "draft+tolerance:distance=0.00001", "head_steps": 2}),
}
LONG = {"scenes", "liquid", "glm", "shapes-latent", "shapes-latent-drafts"}
IN_STEP = {"var", "amused", "mar", "mar-pair"}  # their batches take several steps, whatever the recipe


def finished(engine: Engine, found: dict[str, RequestOutput], steps: int = 10**6) -> dict[str, RequestOutput]:
    """Steps an engine, to its end or for some steps; its last outputs by request."""
    while engine.has_unfinished and steps:
        found |= {output.request_id: output for output in engine.step() if output.finished}
        steps -= 1
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in OPTIONS]
)
def test_an_engine_gives_what_a_call_gives(name: str) -> None:
    case, options = OPTIONS[name]
    own = CASES[case]
    pipe, given = own.make(), {**own.call, **options, "output_type": "np" if own.pixels else "latent"}
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    request = dict(given)
    prompt = request.pop("prompt", None)

    engine = Engine(pipe, max_rows=3)
    engine.add(prompt, seed=3, request_id="alone", **request)
    found = finished(engine, {})
    for seed in (3, 4, 5):
        engine.add(prompt, seed=seed, request_id=str(seed), **request)
    found = finished(engine, found, steps=1)
    assert engine.cancel("5") or case not in IN_STEP
    found = finished(engine, found)

    assert found["5"].finish_reason == "cancelled" or case not in IN_STEP
    for key, seed in (("alone", 3), ("3", 3), ("4", 4)):
        assert found[key].error is None, found[key].error
        out, whole = found[key].result, pipe(**given, seed=seed)
        field = "frames" if hasattr(whole, "frames") else "images"
        images, expected = (np.asarray(getattr(each, field)) for each in (out, whole))
        if whole.tokens.is_floating_point() and key != "alone":
            # Batches of other shapes round differently: of shapes-latent, whose codes are 0.5 apart, by up to 0.02.
            assert float((out.tokens - whole.tokens).abs().max()) < 0.05
        else:
            assert torch.equal(out.tokens, whole.tokens) and np.array_equal(images, expected, equal_nan=True)
            assert out.stats.nfe == whole.stats.nfe
        assert out.seeds == [seed]
