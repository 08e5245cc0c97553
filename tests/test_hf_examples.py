"""The scripts in examples/, run on tiny models and stand-ins for their processors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_models as tiny
import torch
from PIL import Image
from torch import Tensor
from transformers import BatchFeature, Emu3ImageProcessor


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def example(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", root / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Words:
    """A processor that knows one prompt of each kind, whatever it is told."""

    def __init__(self, prompts: dict[str, list[int]], postprocess: Any = None) -> None:
        self._prompts = prompts
        self.postprocess = postprocess
        self.tokenizer = SimpleNamespace(
            eof_token_id=5,
            eoi_token_id=6,
            eos_token_id=2,
            pad_token_id=0,
            image_wrapper_token_id=3,
            convert_tokens_to_ids={"<|extra_200|>": 4}.__getitem__,
        )

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool) -> str:
        assert add_generation_prompt and messages[0]["role"] == "user"
        return "dog"

    def __call__(self, text: Any, return_tensors: str, **options: Any) -> BatchFeature:
        key = "image" if options.get("generation_mode") == "image" or options.get("return_for_image_generation") else ""
        ids = torch.tensor([self._prompts[key]])
        made = BatchFeature({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        if options.get("return_for_image_generation"):
            made["image_sizes"] = [[4, 4]]
        return made


def pictures(images: list[Tensor], return_tensors: str) -> dict[str, list[Image.Image]]:
    """From [H, W, 3] in -1..1, as Janus decodes them."""
    assert return_tensors == "PIL.Image.Image" and images[0].shape[-1] == 3
    pixels = [((image.clamp(-1, 1) + 1) * 127.5).byte().numpy() for image in images]
    return {"pixel_values": [Image.fromarray(p) for p in pixels]}


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_janus(root: Path, here: Path) -> None:
    words = Words({"image": [1, 10, 11, 3]}, pictures)
    example(root, "janus").main(tiny.janus(), words)
    assert size_of(here / "janus_0.png") == (8, 8)


def test_emu3(root: Path, here: Path) -> None:
    words = Words({"image": [1, 31, 32, 3], "": [1, 33]}, Emu3ImageProcessor().postprocess)
    example(root, "emu3").main(tiny.emu3(), words)
    assert size_of(here / "emu3_0.png") == (8, 8)


def test_imagegpt(root: Path, here: Path) -> None:
    palette = np.random.default_rng(0).uniform(-1, 1, (20, 3))
    processor = SimpleNamespace(clusters=palette, size={"height": 4, "width": 4})
    example(root, "imagegpt").main(tiny.imagegpt(), processor)
    assert [size_of(here / f"imagegpt_{i}.png") for i in range(8)] == [(4, 4)] * 8


def test_anole(root: Path, here: Path) -> None:
    words = Words({"": [0, 33, 34]})
    example(root, "anole").main(tiny.chameleon(), words, tiny.CHAMELEON_IDS, 4)
    codes = torch.load(here / "anole.pt")
    assert codes.shape == (1, 16) and codes.min() >= 0 and codes.max() < 20


class TwoStages:
    """What diffusers' pipeline does with its first stage; the second paints each code grey."""

    def __init__(self) -> None:
        self.vision_language_encoder = tiny.glm()

    def __call__(self, prompt: str) -> SimpleNamespace:
        ids = torch.tensor([[30, 31, 32, 20]])
        grids = {"image_grid_thw": torch.tensor([[1, 4, 4], [1, 2, 2]]), "images_per_sample": torch.tensor([2])}
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **grids}
        torch.manual_seed(0)
        out = self.vision_language_encoder.generate(**inputs, max_new_tokens=21, do_sample=True, pad_token_id=45)
        codes = torch.zeros(16, dtype=torch.uint8)
        large = out[0, 8:24].byte()
        codes[: len(large)] = large
        return SimpleNamespace(images=[Image.fromarray(codes.view(4, 4).numpy())])


def test_glm_image(root: Path, here: Path) -> None:
    example(root, "glm_image").main(TwoStages())
    assert size_of(here / "glm_image.png") == (4, 4)
