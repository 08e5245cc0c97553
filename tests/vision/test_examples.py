"""The scripts in examples/ on tiny models with the real processors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import tiny_models
import tiny_processors
import torch
from diffusers import DiffusionPipeline, GlmImagePipeline
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


@pytest.mark.releases
def test_janus(root: Path, here: Path) -> None:
    example(root, "janus").main(tiny_models.janus(), tiny_processors.janus())
    assert size_of(here / "janus_0.png") == (8, 8)


@pytest.mark.releases
def test_emu3(root: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = tiny_processors.emu3()
    monkeypatch.setattr(processor, "image_area", 32 * 32)  # the default is 90 x 90 tokens
    example(root, "emu3").main(tiny_models.emu3(), processor)
    assert size_of(here / "emu3_0.png") == (8, 8)


@pytest.mark.releases
def test_imagegpt(root: Path, here: Path) -> None:
    example(root, "imagegpt").main(tiny_models.imagegpt(), tiny_processors.imagegpt())
    assert [size_of(here / f"imagegpt_{i}.png") for i in range(8)] == [(4, 4)] * 8


@pytest.mark.releases
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


@pytest.mark.releases
def test_lumina_mgpt(root: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": tiny_models.vqgan()[1]}, "vqgan.ckpt")
    example(root, "lumina_mgpt").main("vqgan.ckpt", tiny_models.chameleon(), tiny_processors.chameleon(), 12)
    assert size_of(here / "lumina_mgpt_0.png") == (12, 12) and "tokens per call" in capsys.readouterr().out


class FirstStage(GlmImagePipeline):
    """diffusers' pipeline with a tiny first stage; of the second stage, each code becomes a grey pixel."""

    def __init__(self) -> None:
        DiffusionPipeline.__init__(self)
        model = tiny_models.glm()
        model.generation_config.eos_token_id = None  # random weights would end the image early
        self.register_modules(vision_language_encoder=model, processor=tiny_processors.glm())

    def __call__(self, prompt: str, height: int, width: int) -> SimpleNamespace:
        cpu, rng = torch.device("cpu"), torch.Generator().manual_seed(0)
        codes, *_ = self.generate_prior_tokens(prompt, height, width, device=cpu, generator=rng)
        # Each code covers 2 x 2 tokens of the second stage, which have 16 x 16 pixels each.
        return SimpleNamespace(images=[Image.fromarray(codes.view(height // 16, width // 16).byte().numpy())])


@pytest.mark.releases
def test_glm_image(root: Path, here: Path) -> None:
    example(root, "glm_image").main(FirstStage(), 256)
    assert size_of(here / "glm_image.png") == (16, 16)
