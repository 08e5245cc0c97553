"""The scripts in examples/ on tiny models with the real processors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import tiny_models
import tiny_processors
import torch
from PIL import Image

import mmspec


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


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_janus(root: Path, here: Path) -> None:
    example(root, "janus").main(tiny_models.janus(), tiny_processors.janus())
    assert size_of(here / "janus_0.png") == (8, 8)


def test_emu3(root: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = tiny_processors.emu3()
    monkeypatch.setattr(processor, "image_area", 32 * 32)  # the default is 90 x 90 tokens
    example(root, "emu3").main(tiny_models.emu3(), processor)
    assert size_of(here / "emu3_0.png") == (8, 8)


def test_imagegpt(root: Path, here: Path) -> None:
    example(root, "imagegpt").main(tiny_models.imagegpt(), tiny_processors.imagegpt())
    assert [size_of(here / f"imagegpt_{i}.png") for i in range(8)] == [(4, 4)] * 8


def test_anole(root: Path, here: Path) -> None:
    torch.save({"state_dict": tiny_models.vqgan()[1]}, "vqgan.ckpt")
    model, processor = tiny_models.chameleon(), tiny_processors.chameleon()
    example(root, "anole").main("vqgan.ckpt", model, processor, 4)
    codes = torch.load(here / "anole.pt")
    assert codes.shape == (1, 16) and codes.min() >= 0 and codes.max() < 20
    assert size_of(here / "anole_0.png") == (8, 8)
    pipe = mmspec.load(model, processor=processor)
    pipe.set_progress_bar_config(disable=True)
    assert torch.equal(pipe("a red apple on a table", seed=0, output_type="latent").tokens, codes)


def test_lumina_mgpt(root: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": tiny_models.vqgan()[1]}, "vqgan.ckpt")
    example(root, "lumina_mgpt").main("vqgan.ckpt", tiny_models.chameleon(), tiny_processors.chameleon(), 12)
    assert size_of(here / "lumina_mgpt_0.png") == (12, 12) and "tokens per call" in capsys.readouterr().out


class TwoStages:
    """Calls the first stage as diffusers' pipeline does; the second stage maps each code to a grey pixel."""

    def __init__(self) -> None:
        self.vision_language_encoder = tiny_models.glm()

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
