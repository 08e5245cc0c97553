"""The LlamaGen transformer in the loop: KV cache, guidance rows, and the pipeline."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from tiny_llamagen import GRID, C, N, T, V, tiny
from torch import Tensor

import mmspec
from mmspec.decoding.rows import select_rows
from mmspec.decoding.step import Step
from mmspec.drafters.ngram import NGramTable
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.testing.exactness import largest_z, noise_floor, score_of_drafts
from mmspec.testing.limits import FALSE_ALARM
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.ngram import NGramTokenTable
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.llamagen.target import LlamaGenTarget

RECIPES = ["draft:window=4", "table:window=4", "sjd:window=5", "scd:window=4", "scd:window=12,coupling=gumbel"]


class Codes(ModelMixin, ConfigMixin):
    """A tokenizer that decodes each token to one grey pixel."""

    @register_to_config
    def __init__(self, vocab_size: int = V) -> None:
        super().__init__()
        self.register_buffer("grey", torch.linspace(-1, 1, vocab_size))
        self.vocab_size = vocab_size

    def decode(self, tokens: Tensor) -> Tensor:
        side = int(tokens.shape[1] ** 0.5)
        return self.grey[tokens].unflatten(1, (1, side, side)).expand(-1, 3, -1, -1)


class Letters(ModelMixin, ConfigMixin):
    """A text encoder that marks the letter at each slot, with padding on the left."""

    @register_to_config
    def __init__(self, slots: int = T, features: int = C) -> None:
        super().__init__()
        self.register_buffer("eye", torch.eye(features))

    def encode(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        slots, features = self.config.slots, self.config.features
        ids = torch.tensor([[ord(c) % features for c in p.rjust(slots)[:slots]] for p in prompts])
        mask = torch.tensor([[int(c != " ") for c in p.rjust(slots)[:slots]] for p in prompts])
        return self.eye[ids] * mask[..., None], mask


@pytest.fixture
def pipe() -> LlamaGenPipeline:
    table = NGramTokenTable(V)
    table.best.copy_(torch.randint(V, (V + 1, V), generator=torch.Generator().manual_seed(0)))
    pipe = LlamaGenPipeline(tiny(), Codes(), Letters(), None, tiny(1, n_layer=1), table, guidance_scale=2.0)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "config",
    [{}, {"qk_norm": True, "condition_rope": "identity", "position_embedding": True}],
    ids=["as published", "as shapes"],
)
def test_windows_with_rollback_equal_one_pass(config: dict[str, Any], padded: bool) -> None:
    gpt = tiny(grid_size=4, **config)
    generator = torch.Generator().manual_seed(3)
    x, junk = torch.randint(V, (2, 3, 16), generator=generator)
    condition = torch.randn(3, T, C, generator=generator)
    mask = torch.ones(3, T)
    if padded:
        mask[0, :2], mask[2, :4] = 0, 0
    with torch.inference_mode():
        whole = [gpt(x, c, mask if padded else None) for c in (condition, gpt.unconditional(3))]
        target = LlamaGenTarget(gpt, condition, gpt.unconditional(3), mask, slack=6)

        def check(logits: Any, row_ids: list[int], at: list[int], width: int) -> None:
            for side, expected in zip(logits, whole, strict=True):
                for i, (row, start) in enumerate(zip(row_ids, at, strict=True)):
                    assert torch.allclose(side[i], expected[row, start : start + width], atol=1e-4)

        check(target.prefill(), [0, 1, 2], [0, 0, 0], 1)
        for at in ([0, 0, 0], [2, 4, 3], [3, 6, 3]):
            target.forward(junk[:, :6], np.array(at))  # drafts that are all rejected
            window = torch.stack([x[b, n : n + 4] for b, n in enumerate(at)])
            check(target.forward(window, np.array(at)), [0, 1, 2], [n + 1 for n in at], 4)
        select_rows(target, [0, 2], 3)
        window = torch.stack([x[0, 6:10], x[2, 7:11]])
        check(target.forward(window, np.array([6, 7])), [0, 2], [7, 8], 4)
        assert target.forward(junk[:2, :6], np.array([15, 13])).cond.isfinite().all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_greedy_equals_plain(pipe: LlamaGenPipeline, recipe: str) -> None:
    prompts = ["abcde", "xy", "hello"]
    plain = pipe(prompts, recipe="plain", temperature=0, seed=0)
    ours = pipe(prompts, recipe=recipe, temperature=0, seed=5)
    assert torch.equal(plain.tokens, ours.tokens)
    # Without a KV cache: the most likely token of one teacher-forced pass is the next token.
    condition, mask = pipe.text_encoder.encode(prompts)
    with torch.inference_mode():
        cond = pipe.transformer(plain.tokens, condition, mask)
        uncond = pipe.transformer(plain.tokens, pipe.transformer.unconditional(3), mask)
    assert torch.equal((uncond + 2.0 * (cond - uncond)).argmax(-1), plain.tokens)


@pytest.mark.parametrize("recipe", ["plain", *RECIPES])
def test_a_row_does_not_depend_on_its_batch(pipe: LlamaGenPipeline, recipe: str) -> None:
    prompts, seeds = ["abcde", "xy", "hello", "xy"], [9, 2, 5, 7]
    together = pipe(prompts, recipe=recipe, seed=seeds).tokens
    alone = torch.cat([pipe(p, recipe=recipe, seed=s).tokens for p, s in zip(prompts, seeds, strict=True)])
    assert torch.equal(together, alone)
    assert torch.equal(pipe(prompts[::-1], recipe=recipe, seed=seeds[::-1]).tokens, together.flip(0))


@pytest.mark.parametrize("recipe", RECIPES)
def test_sampling_follows_the_transformer(recipe: str) -> None:
    """The joint distribution of images of four tokens with a vocabulary of 3, 81 outcomes.

    With 10,000 samples the noise floor of the total variation is 0.008, and the limit five standard deviations, 0.01,
    above it. A bias of 0.01 towards the draft model is found in 100 of 100 runs, and one of 0.03 in any direction.
    """
    v, count = 3, 10_000
    table = NGramTokenTable(v)
    table.best.copy_(torch.tensor([[0, 1, 2], [1, 1, 0], [2, 0, 2], [0, 2, 1]]))
    pipe = LlamaGenPipeline(
        tiny(2, v, 2), Codes(v), Letters(), None, tiny(3, v, 2, n_layer=1), table, temperature=0.9, guidance_scale=1.5
    )
    pipe.set_progress_bar_config(disable=True)
    every = torch.cartesian_prod(*[torch.arange(v)] * 4)
    condition, mask = pipe.text_encoder.encode(["abc"] * len(every))

    def joint_of(transformer: LlamaGenGPT, scale: float) -> Tensor:
        with torch.inference_mode():
            cond = transformer(every, condition, mask)
            uncond = transformer(every, transformer.unconditional(len(every)), mask)
        p = ((uncond + scale * (cond - uncond)) / 0.9).double().softmax(-1)
        joint = p.gather(2, every[..., None])[..., 0].prod(1)
        assert joint.sum().item() == pytest.approx(1, abs=1e-5)
        return joint / joint.sum()

    assert pipe.draft_transformer is not None
    joint, drafts = joint_of(pipe.transformer, 1.5), joint_of(pipe.draft_transformer, 1)
    out = pipe("abc", recipe=recipe, seed=123, num_images_per_prompt=count, output_type="latent")
    counts = torch.bincount((out.tokens * torch.tensor([27, 9, 3, 1])).sum(1), minlength=81)
    tv = float((counts / count - joint).abs().sum() / 2)
    floor, spread = noise_floor(joint, count)
    assert tv < floor + 5 * spread
    z, z_limit = largest_z(joint, counts, [joint.log(), score_of_drafts(joint, drafts)], FALSE_ALARM)
    assert abs(z) <= z_limit
    assert out.stats.tokens_per_call > 1


def test_correct_drafts_take_the_fewest_calls(pipe: LlamaGenPipeline) -> None:
    same = LlamaGenPipeline(pipe.transformer, pipe.vqvae, pipe.text_encoder, draft_transformer=pipe.transformer)
    same.set_progress_bar_config(disable=True)
    stats = same(["abcde", "xyz"], recipe="draft:window=4", seed=0).stats
    assert stats.target_calls == 1 + -(-(N - 1) // 4) and stats.acceptance == [1.0, 1.0, 1.0]
    assert stats.tokens == 2 * N and stats.tokens_per_call == N / stats.target_calls
    assert stats.draft_calls == 1 + 3 * (stats.target_calls - 1)


def test_output_types_and_stats(pipe: LlamaGenPipeline) -> None:
    out = pipe(["abcde", "xyz"], seed=4, num_images_per_prompt=2, measure_entropy=True)
    assert out.tokens.shape == (4, N) and out.tokens.dtype == torch.int64 and out.seeds == [4, 5, 6, 7]
    assert [image.size for image in out.images] == [(GRID, GRID)] * 4
    assert out.stats.entropy is not None and 0 < out.stats.entropy < np.log2(V)
    assert set(out.stats.seconds_by_part) == {"target", "drafter", "rule", "other"}
    assert out.stats.seconds == pytest.approx(sum(out.stats.seconds_by_part.values()))
    kinds = {kind: pipe("abc", seed=1, output_type=kind).images for kind in ("np", "pt", "latent")}
    assert kinds["np"].shape == (1, GRID, GRID, 3) and kinds["pt"].shape == (1, 3, GRID, GRID)
    assert torch.equal(kinds["latent"], pipe("abc", seed=1).tokens)
    assert pipe("abc", seed=1, return_dict=False)[0][0].size == (GRID, GRID)
    by_generator = [pipe("abc", generator=torch.Generator().manual_seed(3)).tokens for _ in range(2)]
    assert torch.equal(*by_generator)
    assert pipe(["abc"] * 2, seed=[3, 3]).tokens.unique(dim=0).shape[0] == 1


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4"])
def test_callbacks_see_the_accepted_tokens(pipe: LlamaGenPipeline, recipe: str) -> None:
    steps: list[Step] = []
    seen: list[tuple[int, int]] = []

    def end(_: Any, call: int, tokens: int, state: dict[str, Any]) -> dict[str, Any]:
        seen.append((call, tokens))
        return state

    out = pipe(["abcde", "xyz"], recipe=recipe, seed=0, on_step=steps.append, callback_on_step_end=end)
    assert seen == [(s.target_calls, s.committed) for s in steps] and seen[-1] == (out.stats.target_calls, 2 * N)
    for step in steps:
        assert step.total == 2 * N and sum(len(t) for t in step.tokens) == step.committed
        for so_far, whole in zip(step.tokens, out.tokens, strict=True):
            assert torch.equal(so_far, whole[: len(so_far)])


def test_a_callback_can_stop_the_call(pipe: LlamaGenPipeline) -> None:
    before = pipe("abc", seed=0).tokens

    def stop(step: Step) -> None:
        if step.target_calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipe("abc", seed=0, on_step=stop)
    assert torch.equal(pipe("abc", seed=0).tokens, before)


def test_save_and_load(pipe: LlamaGenPipeline, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path)
    again = LlamaGenPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    assert again.config.guidance_scale == 2.0
    for recipe in ("plain", *RECIPES):
        assert torch.equal(again("abc", recipe=recipe, seed=0).tokens, pipe("abc", recipe=recipe, seed=0).tokens)


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "draft:window=3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(pipe: LlamaGenPipeline, recipe: str, dtype: torch.dtype) -> None:
    tokens = pipe.to(dtype)(["abcde", "xy"], recipe=recipe, seed=0).tokens
    assert tokens.shape == (2, N)
    assert pipe.transformer(tokens, torch.randn(2, T, C)).isfinite().all()


def test_training_continues_after_an_image(pipe: LlamaGenPipeline) -> None:
    tokens = pipe("abc", seed=0).tokens
    pipe.transformer(tokens.clone(), torch.randn(1, T, C)).sum().backward()
    assert pipe.transformer.output.weight.grad is not None


@pytest.mark.parametrize("seed", [np.int64(4), torch.tensor(4), [4], np.array([4])])
def test_integers_of_any_kind_are_seeds(pipe: LlamaGenPipeline, seed: Any) -> None:
    assert torch.equal(pipe("abc", seed=seed).tokens, pipe("abc", seed=4).tokens)


def test_one_generator_per_image(pipe: LlamaGenPipeline) -> None:
    generators = [torch.Generator().manual_seed(s) for s in (1, 2)]
    out = pipe(["abc", "abc"], generator=generators)
    assert out.seeds == pipe(["abc", "abc"], seed=out.seeds).seeds and out.seeds[0] != out.seeds[1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *[
            ({"seed": s}, ArgumentError, "is not allowed; it must be an integer")
            for s in (1.5, "x", ["x"], [1.7], True)
        ],
        *[({"prompt": p}, PromptError, "is not allowed; it must be a string") for p in (5, [1], [None])],
        ({"prompt": "  "}, PromptError, "prompt='  ' is empty; describe an image"),
        ({"num_images_per_prompt": 1.5}, ArgumentError, "num_images_per_prompt=1.5 is not allowed"),
        ({"prompt": []}, PromptError, "prompt=[] is empty"),
        ({"num_images_per_prompt": 0}, ArgumentError, "num_images_per_prompt=0 is not allowed; it must be an integer"),
        ({"output_type": "jpg"}, ArgumentError, "output_type='jpg' is not allowed; use one of pil, np, pt, latent"),
        ({"seed": [1, 2]}, ArgumentError, "seed has 2 values for 1 rows"),
        ({"temperature": -1.0}, ArgumentError, "temperature=-1.0 is not allowed"),
    ],
)
def test_bad_calls_are_refused(
    pipe: LlamaGenPipeline, call: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        pipe(**({"prompt": "abc"} | call))


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_numbers_are_refused(pipe: LlamaGenPipeline, recipe: str, temperature: float) -> None:
    pipe.transformer.output.weight.data[0] = torch.nan
    with pytest.raises(ModelError, match="not numbers"):
        pipe("abc", recipe=recipe, temperature=temperature)


def test_bad_arguments_of_the_transformer_are_refused() -> None:
    with pytest.raises(ArgumentError, match="model_type='i2t' is not allowed"):
        tiny(model_type="i2t")
    with pytest.raises(ArgumentError, match="condition_rope='none' is not allowed"):
        tiny(condition_rope="none")
    with pytest.raises(ArgumentError, match=re.escape("dim=30 must be divisible by 4 * n_head=8")):
        tiny(dim=30)


def test_a_counted_table_predicts_from_neighbors() -> None:
    maps = torch.tensor([[0, 1, 2, 1, 2, 0], [0, 1, 2, 1, 2, 0], [0, 1, 1, 1, 1, 1]])
    best = NGramTable.count(maps, width=3, vocab_size=4).best
    assert best[1, 1] == 2  # left 1, up 1: 2 in two maps of three
    assert best[0, 0] == 1  # in the first column, the upper neighbor replaces the left one
    assert best[-1, 1] == 2 and best[-1, 0] == 1  # the first line
    assert best[3, 1] == best[-1, 1] or best[3, 1] in (1, 2)  # no counts of the pair: the left token decides
    assert best[3, 3] == 3  # no counts: a repetition


def test_a_counted_table_holds_the_most_frequent_token_of_each_pair() -> None:
    """With enough pairs to find writes that depend on the order of threads."""
    maps = torch.randint(40, (300, 64), generator=torch.Generator().manual_seed(3)) // 3
    best = NGramTable.count(maps, width=8, vocab_size=14).best
    seen: dict[tuple[int, int], Counter[int]] = {}
    for grid in maps.unflatten(1, (8, 8)).tolist():
        for above, line in zip(grid, grid[1:], strict=False):
            for column in range(1, 8):
                seen.setdefault((above[column], line[column - 1]), Counter())[line[column]] += 1
    for pair, tokens in seen.items():
        up, left = pair
        # In the first column the token above replaces the one to the left, which adds to pairs of equal tokens.
        assert up == left or tokens[int(best[up, left])] == max(tokens.values())


def test_a_draft_model_has_the_truncation_of_the_call() -> None:
    pipe, recipe = mmspec.load("shapes"), parse("plain")
    options = {"seed": 0, "temperature": 0.9, "min_p": 0.1, "typical_p": 0.8, "guidance_scale": 2.0, "cfg_interval": 3}
    rows = pipe.read_request("a red circle", options, recipe).rows
    found = pipe.prepare_rows(rows, recipe).resources.draft_sampling
    assert found == [replace(rows[0].sampling, guidance_scale=1.0, guidance_end=None)]
    assert (found[0].min_p, found[0].typical_p) == (0.1, 0.8)
