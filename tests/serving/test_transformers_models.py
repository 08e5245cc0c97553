"""Models of transformers in the server: sizes, and codes among other ids."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
import tiny_models
import tiny_processors
from PIL import Image
from served import served

import mmspec
from mmspec.serving.engines import RunningBatch, new_engine
from mmspec.serving.models import ServedModel

IMAGES = "/v1/images/generations"


@pytest.mark.parametrize(("name", "size"), [("janus", {}), ("emu3", {"height": 32, "width": 32})])
def test_a_model_of_transformers_is_served(name: str, size: dict[str, int]) -> None:
    pipe = mmspec.load(getattr(tiny_models, name)(), processor=getattr(tiny_processors, name)())
    pipe.set_progress_bar_config(disable=True)
    model = ServedModel(name, pipe, "scd", new_engine(pipe, "scd", 4, 8))
    assert isinstance(model.engine, RunningBatch)
    with served([model]) as running:
        body = {"prompt": "a red cat", "seed": 3, "guidance_scale": 2.0, "size": "32x32" if size else "auto"}
        found = running.json(IMAGES, body)
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["data"][0]["b64_json"]))))
        own = pipe("a red cat", seed=3, guidance_scale=2.0, recipe="scd", **size)
        assert (image == np.asarray(own.images[0])).all()
        # The tiny tokenizer of Emu3 makes fewer pixels than the processor asks for.
        assert found["size"] == ("32x32" if size else f"{image.shape[1]}x{image.shape[0]}")
        _, _, events = running.request(IMAGES, body | {"stream": True})
        last = json.loads(events.decode().rstrip().rpartition("data: ")[2])
        assert last["b64_json"] == found["data"][0]["b64_json"]
        error = running.json(IMAGES, body | {"size": "17x13"})["error"]
        assert error["param"] == "size" and error["code"] == "invalid_value"
        default = running.json("/v1/models")["data"][0]["size"]
        assert error["message"].startswith("size='17x13' is not allowed") and default in error["message"]
