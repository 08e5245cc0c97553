"""Image models whose steps are their own, in the server: their images, what is shown meanwhile, and what is refused."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_amused
import tiny_mar
import tiny_var
import torch
from diffusers import AutoencoderKL
from PIL import Image
from served import served

import mmspec
from mmspec.serving.engines import RunningBatch
from mmspec.serving.load import served_model
from mmspec.vision.mar import MARPipeline

IMAGES = "/v1/images/generations"


def mar() -> Any:
    torch.manual_seed(0)
    vae = AutoencoderKL(block_out_channels=(8,), latent_channels=4, norm_num_groups=4).eval()
    return MARPipeline(tiny_mar.tiny(), vae, head_steps=4)


# What makes the pipeline, a prompt, the size of images, and whether some are shown before all tokens are there.
MODELS: dict[str, tuple[Callable[[], Any], str, str, bool]] = {
    "var": (tiny_var.tiny_var_pipeline, "3", "8x8", True),
    "amused": (tiny_amused.tiny_amused, "a red cat", "16x16", False),
    "mar": (mar, "3", "4x4", True),
    "shapes-latent": (lambda: mmspec.load("shapes-latent"), "a red circle", "64x64", True),
}


def pixels(encoded: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "shapes-latent" else []) for name in MODELS]
)
def test_images_are_those_of_the_pipeline(name: str) -> None:
    make, prompt, size, shows = MODELS[name]
    pipe = make()
    pipe.set_progress_bar_config(disable=True)
    model = served_model(name, pipe, None, 4, 8)
    assert isinstance(model.engine, RunningBatch)
    body = {"prompt": prompt, "seed": 3, "guidance_scale": 2.0}
    with served([model]) as running:
        found = running.json(IMAGES, body | {"n": 2})
        for i, image in enumerate(found["data"]):
            own = np.asarray(pipe(prompt, seed=3 + i, guidance_scale=2.0).images[0])
            assert np.abs(pixels(image["b64_json"]).astype(int) - own).max() <= 1  # a batch may round differently
        assert found["size"] == running.json("/v1/models")["data"][0]["size"] == size
        _, _, content = running.request(IMAGES, body | {"stream": True, "steps": True})
        events = [json.loads(line[6:]) for line in content.decode().splitlines() if line.startswith("data: {")]
        kinds = [event["type"].rpartition(".")[2] for event in events]
        # An image is left out where the next tokens are there before it is drawn.
        assert (shows or "partial_image" not in kinds) and "step" in kinds
        own = np.asarray(pipe(prompt, seed=3, guidance_scale=2.0).images[0])
        assert (pixels(events[-1]["b64_json"]) == own).all()
        for wrong, word in (({"size": "32x32"}, "size"), ({"top_k": -3}, "top_k"), ({"prompt": "7 cats"}, "prompt")):
            if name != "amused" or word != "prompt":
                status, _, content = running.request(IMAGES, body | wrong)
                assert status == 400 and json.loads(content)["error"]["param"] == word


@pytest.mark.parametrize("name", [name for name in MODELS if name != "shapes-latent"])
def test_tokens_come_before_the_last_step_where_images_are_shown(name: str) -> None:
    make, prompt, _, shows = MODELS[name]
    engine = mmspec.Engine(make())
    engine.add(prompt, seed=3, guidance_scale=2.0, output_type="latent")
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert any(len(output.tokens) for output in outputs if not output.finished) == shows
