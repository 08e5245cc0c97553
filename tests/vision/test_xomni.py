"""X-Omni: published folders, prompts, greedy codes and sampled distributions of its original code, windows, samples."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from golden import GOLDEN
from safetensors.torch import save_file
from tiny_xomni import HEIGHT, PROMPTS, TEXTS, WIDTH, fill, sizes, tokenizer

import mmspec
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.to_end import Decoded
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.adapters import joint_probs
from mmspec.testing.exactness import compare_with_joint
from mmspec.vision.hf.adapters.xomni import PUBLISHED, XOmniAdapter
from mmspec.vision.hf.image_adapter import Components
from mmspec.vision.hf.image_request import ImageRequest
from mmspec.vision.hf.pipeline import TransformersPipeline
from mmspec.vision.hf.xomni import XOmniConfig, XOmniForCausalLM

SIZE: dict[str, Any] = {"height": 16 * HEIGHT, "width": 16 * WIDTH}
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "xomni.json").read_text())


def tiny() -> XOmniForCausalLM:
    model = XOmniForCausalLM(XOmniConfig(**sizes()))
    fill(model.named_parameters())
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layout: a config with code of the repository, and the keys of its class."""
    where = tmp_path_factory.mktemp("xomni")
    tokenizer().save_pretrained(where)
    config = {**sizes(), "architectures": ["XOmniForCausalLM"], "model_type": "x-omni", "torch_dtype": "float32"}
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling_xomni.XOmniForCausalLM"}, "vision_config": {"dtype": "x"}}
    (where / "config.json").write_text(json.dumps(config))
    tensors = {name: value.contiguous() for name, value in tiny().state_dict().items()}
    assert sorted(tensors) == EXPECTED["keys"]
    save_file(tensors, where / "model.safetensors", {"format": "pt"})
    return where


@pytest.fixture
def pipe(folder: Path) -> Any:
    found = mmspec.load(str(folder))
    found.set_progress_bar_config(disable=True)
    return found


@pytest.mark.releases
@pytest.mark.parametrize("scale", [1, 3])
@pytest.mark.parametrize("recipe", ["plain", "scd:window=5", "layer-skip:layers=3,window=3"])
def test_greedy_is_the_originals(pipe: Any, recipe: str, scale: int) -> None:
    """A batch of three prompts of different lengths; the original takes one at a time."""
    out = pipe(PROMPTS, **SIZE, recipe=recipe, temperature=0, guidance_scale=scale, output_type="latent")
    assert out.tokens.tolist() == EXPECTED[f"greedy_{scale}"]


def test_prompt_ids_and_defaults_are_the_originals(pipe: Any) -> None:
    adapter = XOmniAdapter(pipe.model, Components(pipe.processor))
    job = adapter.job(ImageRequest(PROMPTS, guided=True, **SIZE))
    ids, mask = job.arguments["input_ids"], job.arguments["attention_mask"]
    assert [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)] == EXPECTED["ids"]
    assert job.arguments["negative_prompt_ids"].tolist() == [EXPECTED["negative"]] * 3
    assert SamplingParams(top_k=50, min_p=0.03) == PUBLISHED and adapter.grid(None, None) == (72, 72)
    assert (pipe.config.min_p, pipe.config.top_k, pipe.config.guidance_scale) == (0.03, 50, 1.0)


@pytest.mark.parametrize("scale", [1, 3])
def test_the_first_code_is_sampled_from_the_originals_distribution(pipe: Any, scale: int) -> None:
    """After guidance, temperature, top-k, top-p and min-p; that it is sampled so is shown below."""
    sampling = SamplingParams(0.9, 9, 0.95, float(scale), min_p=0.05)
    for prompt, expected in zip(PROMPTS, EXPECTED[f"first_{scale}"], strict=True):
        job = pipe._generate_job(ImageRequest([prompt], scale != 1, **SIZE), sampling)
        sampler = TokenSampler([sampling], None, torch.device("cpu"))
        with torch.no_grad():
            p = sampler.probs(job.target(job.plan, 1).prefill(), np.zeros((1, 1), dtype=np.int64))
        assert {str(int(i)): pytest.approx(float(p[0, 0, i]), abs=1e-5) for i in p[0, 0].nonzero()[:, 0]} == expected


def test_samples_follow_the_enumerated_distribution() -> None:
    """64 images of 3 codes, guided, with min-p; without min-p, the twin, they do not."""
    model = XOmniForCausalLM(XOmniConfig(**{**sizes(), "image_vocab_size": 4})).eval()
    fill(model.named_parameters())
    pipe, sampling = TransformersPipeline(model, tokenizer()), SamplingParams(0.8, guidance_scale=2.0, min_p=0.3)

    def make(rows: int, window: int) -> Any:
        job = pipe._generate_job(ImageRequest(["cat"] * rows, True, height=16, width=48), sampling)
        return job.target(job.plan, window)

    def decode(seeds: Any, sampling: SamplingParams = sampling) -> Decoded:
        return run(make(len(seeds), 3), parse("scd:window=3"), layout, [sampling] * len(seeds), seeds, DraftResources())

    layout, place = Layout(length=3), 4 ** torch.arange(2, -1, -1)
    with torch.no_grad():
        joint = joint_probs(make, layout, sampling)
        result = compare_with_joint(joint, decode, lambda tokens: (tokens * place).sum(1), range(3000), 1500)
        biased = partial(decode, sampling=replace(sampling, min_p=0.0))
        twin = compare_with_joint(joint, biased, lambda tokens: (tokens * place).sum(1), range(3000), 1500)
    assert result.ok and result.tokens_per_call > 1 and not twin.ok, (result, twin)


def test_states_of_layers_are_refused() -> None:
    """They have the feature that tells images from texts, which no head expects."""
    pipe = TransformersPipeline(tiny(), tokenizer())
    job = pipe._generate_job(ImageRequest(["cat"], False, **SIZE), SamplingParams())
    target = job.target(job.plan, 4)
    assert target.fused_layers == ()
    with pytest.raises(ArgumentError, match="reads states of layers is not possible here: XOmniDecoder"):
        target.collect_layers((1, 2))


def test_a_layer_for_images_that_reads_texts_gives_other_codes(pipe: Any) -> None:
    """The error that the golden numbers must notice: all layers change all positions."""
    pipe.model.config.num_mm_adap_layers = pipe.model.config.num_mm_head_layers = 0
    out = pipe(PROMPTS, **SIZE, temperature=0, guidance_scale=3, output_type="latent")
    assert out.tokens.tolist() != EXPECTED["greedy_3"]


def test_saved_pipelines(pipe: Any, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path / "saved")
    again, call = mmspec.load(str(tmp_path / "saved")), {**SIZE, "seed": 3, "output_type": "latent"}
    expected = pipe("a red dog", **call).tokens
    assert type(again.model) is XOmniForCausalLM and torch.equal(again("a red dog", **call).tokens, expected)


def test_wrong_calls_and_files_are_one_line(pipe: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="drawn by a diffusion model .* use output_type='latent'"):
        pipe("cat", **SIZE)
    with pytest.raises(ArgumentError, match="as multiples of 16 pixels"):
        pipe("cat", height=24, width=16, output_type="latent")
    with pytest.raises(ArgumentError, match=r"min_p=2 is not allowed; it must be from 0 \(off\) to 1"):
        pipe("cat", **SIZE, min_p=2, output_type="latent")
    with pytest.raises(ArgumentError, match="input_ids does not end with <IMAGE>"):
        pipe.model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, custom_generate=mmspec.generate)
    with pytest.raises(ModelError, match="pass custom_generate=mmspec.generate"):
        pipe.model(torch.tensor([[1, 2]]))
    for marks in (["<SOM>"], 5, ["<SOM>", "<EOM>", 5]):
        pipe.model.config.mm_special_tokens = marks
        with pytest.raises(ModelError, match="has mm_special_tokens=.*; they must be three marks"):
            pipe("cat", **SIZE, output_type="latent")
    pipe.model.config.mm_special_tokens = ["<SOM>", "<EOM>", "<IMAGE>"]
    pipe.model.config.vocab_size = TEXTS + 1
    with pytest.raises(ModelError, match="processor has code 0 and the marks <SOM> and <IMAGE> as ids"):
        pipe("cat", **SIZE, output_type="latent")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = dict(tiny().state_dict())
    del tensors["mm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"missing: mm_head.weight"):
        mmspec.load(str(tmp_path), processor=tokenizer())


def test_the_published_size() -> None:
    """Qwen2.5-7B with four more layers on each side, as in the paper; config.json itself was not seen."""
    own = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
    with torch.device("meta"):
        model = XOmniForCausalLM(XOmniConfig(**own, vocab_size=152064, num_hidden_layers=36))
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(9.6, abs=0.2)
