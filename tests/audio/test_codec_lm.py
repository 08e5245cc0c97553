"""CosyVoice-like and Chatterbox-like models: reference loops written out, and their target distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batch_runs import run
from tiny_models import scatter
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaModel, Qwen2Config, Qwen2Model

from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings, chatterbox
from mmspec.audio.models.codec_lm.minicpm_o import TalkerRule
from mmspec.decoding.layout import Layout
from mmspec.hf.cache_name import cache_input
from mmspec.recipes import parse
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.logits_processors import RepetitionAware
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_samples

SIZE = 16


def codec_lm(codes: int, placed: bool, spread: float = 0.4) -> CodecLM:
    sizes = dict(
        vocab_size=4, hidden_size=SIZE, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    decoder = LlamaModel(LlamaConfig(**sizes)) if placed else Qwen2Model(Qwen2Config(**sizes))
    parts = nn.ModuleList([decoder, nn.Embedding(codes, SIZE), nn.Linear(SIZE, codes, bias=not placed)])
    scatter(parts, 0, spread).requires_grad_(False)
    places = torch.randn(30, SIZE, generator=torch.Generator().manual_seed(4)) * spread if placed else None
    return CodecLM(parts[0], parts[1], parts[2], places)  # type: ignore[arg-type]


def prompts(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, SIZE, generator=generator) for n in lengths]


def greedy(model: CodecLM, prompt: Tensor, uncond: Tensor, weight: float, penalty: float, start: int, n: int) -> Tensor:
    """One row of Chatterbox's own loop: guidance as a batch of two, the penalty over the start token and all codes."""
    cache, made = DynamicCache(), [start]
    assert model.learned_positions is not None
    embeds = torch.stack([prompt, uncond])
    for step in range(n):
        past = cache_input(model.decoder, cache)
        hidden = model.decoder(inputs_embeds=embeds, use_cache=True, **past).last_hidden_state[:, -1]
        cond, free = model.head(hidden)
        z = cond + weight * (cond - free)
        seen = torch.tensor(made).unique()
        z[seen] = torch.where(z[seen] < 0, z[seen] * penalty, z[seen] / penalty)
        made.append(int(z.argmax()))
        embeds = (model.embed.weight[made[-1]] + model.learned_positions[step + 1]).expand(2, 1, -1)
    return torch.tensor(made[1:])


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=5,start=random"])
def test_greedy_matches_the_loop_of_chatterbox(recipe: str) -> None:
    model, start = codec_lm(9, placed=True), 8
    cond = prompts([5, 3, 6])
    uncond = [row.flip(0) for row in cond]
    settings = CodecLMSettings(chatterbox(penalty=2.0).processors[:1], SamplingParams(0), 1.5)
    before = torch.full((3, 1), start)
    with torch.inference_mode():
        own = [greedy(model, c, u, 0.5, 2.0, start, 14) for c, u in zip(cond, uncond, strict=True)]
    wanted = parse(recipe)
    target = model.target(cond, uncond, 14, wanted.window, settings, before)
    found = run(target, wanted, Layout(14), [settings.sampling] * 3, range(3))
    assert torch.equal(found.tokens, torch.stack(own))


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("cosyvoice", "scd:window=3,start=left"),
        ("chatterbox", "sjd:window=4,start=random"),
        ("minicpm-o", "sjd:window=3"),
    ],
)
def test_samples_follow_the_target_distribution(name: str, recipe: str) -> None:
    codes = 4 if name == "minicpm-o" else 3  # its rule keeps three
    model = codec_lm(codes, placed=name == "chatterbox", spread=0.25)
    settings = {
        "cosyvoice": CodecLMSettings((RepetitionAware(0.7, 2, 2),), SamplingParams()),
        "chatterbox": chatterbox(0.9, 0.1, 0.95, 1.6),
        "minicpm-o": CodecLMSettings((TalkerRule(0.9, 0, 0.6, 1.4, 2),), SamplingParams()),
    }[name]

    def make(batch_size: int, window: int) -> Any:
        cond, uncond = prompts([4]) * batch_size, prompts([2]) * batch_size if name == "chatterbox" else None
        return model.target(cond, uncond, 4, window, settings, torch.zeros(batch_size, 1, dtype=torch.int64))

    # The last ends the stream, after 2 tokens at the earliest; the constraint forbids tokens that the processors leave.
    allowed = torch.ones(2, codes, dtype=torch.bool)
    allowed[0, -1] = False
    layout = Layout(4, constraint=Constraint((torch.arange(4) >= 2).long(), allowed), eos=frozenset({codes - 1}))
    found = check_samples(make, layout, recipe, settings.sampling, samples=6_000, batch=6_000)
    assert found.ok and found.tokens_per_call > 1, found
