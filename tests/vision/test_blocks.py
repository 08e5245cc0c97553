"""Models whose step yields a block of tokens: order, windows, exactness by enumeration, pipelines."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from PIL import Image
from torch import Tensor
from trainable import settings

import mmspec
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.to_end import Decoded
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.serving.raster import encoded_image, raster_of
from mmspec.testing.adapters import check_windows
from mmspec.testing.exactness import ExactnessResult, compare_with_joint
from mmspec.vision.llamagen.gpt import LlamaGenBlockGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

V, CELL = 2, 2  # 4 blocks of 1 x 2 tokens have 256 sequences
LAYOUT = Layout(length=4, width=2, cell=(CELL,))
SETTINGS = {"T=1": SamplingParams(), "T=0.8, top-p, guidance": SamplingParams(0.8, top_p=0.9, guidance_scale=1.5)}


def tiny(seed: int = 0, vocab_size: int = V, block: tuple[int, int] = (1, CELL)) -> LlamaGenBlockGPT:
    gpt = LlamaGenBlockGPT(block, 2, vocab_size=vocab_size, dim=16, n_layer=2, n_head=2, ffn_dim=16, num_classes=3)
    generator = torch.Generator().manual_seed(seed)
    for p in gpt.parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * 0.7
    return gpt.eval()


def target_of(gpt: LlamaGenBlockGPT, rows: int, slack: int, guided: bool = True) -> LlamaGenTarget:
    labels = torch.ones(rows, dtype=torch.int64)
    return LlamaGenTarget(gpt, labels, gpt.unconditional(rows) if guided else None, None, slack)


def joint_of(gpt: LlamaGenBlockGPT, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """All sequences int64 [256, 4, 2] in order, and their probabilities by the model's own teacher-forced logits."""
    sequences = torch.cartesian_prod(*[torch.arange(V)] * 8).view(-1, 4, CELL)
    labels = torch.ones(len(sequences), dtype=torch.int64)
    guided = sampling.guidance_scale != 1
    classes = torch.cat([labels, gpt.unconditional(len(labels))]) if guided else labels
    with torch.no_grad():
        logits = split_cfg(gpt(torch.cat([sequences] * (1 + guided)), classes), guided)
    sampler = LAYOUT.sampler([sampling] * len(labels), torch.device("cpu"))
    p = dense(sampler(logits, Numbers(np.tile(np.arange(4), (len(labels), 1))))).double()
    return sequences, p.gather(-1, sequences[..., None])[..., 0].flatten(1).prod(1)


def compare(
    recipe: str, sampling: SamplingParams, kind: type[LlamaGenTarget] = LlamaGenTarget, draft_seed: int = 7
) -> ExactnessResult:
    gpt, guided = tiny(), sampling.guidance_scale != 1
    _, joint = joint_of(gpt, sampling)

    def decode(seeds: Sequence[int]) -> Decoded:
        rows = len(seeds)
        labels = torch.ones(rows, dtype=torch.int64)
        target = kind(gpt, labels, gpt.unconditional(rows) if guided else None, None, 4)
        resources = DraftResources(
            draft_model=partial(target_of, tiny(draft_seed), rows, 4, False),
            draft_sampling=[SamplingParams(sampling.temperature)] * rows,
        )
        with torch.inference_mode():
            return run(target, parse(recipe), LAYOUT, [sampling] * rows, seeds, resources)

    place = V ** torch.arange(7, -1, -1)
    return compare_with_joint(joint, decode, lambda tokens: (tokens.flatten(1) * place).sum(1), range(20_000), 10_000)


def test_blocks_and_raster_order() -> None:
    gpt = tiny(block=(2, 2))
    image = torch.arange(16)[None]
    steps = gpt.steps_of(image)
    assert steps.tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    assert torch.equal(gpt.in_raster_order(steps), image)
    assert gpt.in_raster_order([steps[0, :1]])[0].tolist() == [0, 1, -1, -1, 4, 5, *[-1] * 10]
    assert (gpt.grid, gpt.cell) == ((4, 4), (4,))


def test_windows_give_the_logits_of_single_blocks() -> None:
    gpt = tiny(vocab_size=5)
    assert check_windows(lambda rows, slack: target_of(gpt, rows, slack), 4, 2, cell=(CELL,)) < 1e-4


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("scd:window=3", "T=0.8, top-p, guidance"),
        ("scd:window=4,coupling=gumbel", "T=1"),
        ("draft:window=3", "T=0.8, top-p, guidance"),
        ("layer-skip:window=3,layers=1", "T=1"),
    ],
)
def test_recipes_keep_the_distribution_of_blocks(recipe: str, settings: str) -> None:
    result = compare(recipe, SETTINGS[settings])
    assert result.ok, result


class ReadsOneTokenOfADraft(LlamaGenTarget):
    """Wrong: of the drafts in a window it reads the first token of each block alone."""

    def forward(self, tokens: Tensor, at: np.ndarray, early_exit: object = None) -> Logits:
        cut = tokens[..., :1].expand_as(tokens)
        return super().forward(torch.cat([tokens[:, :1], cut[:, 1:]], dim=1), at)


def test_a_target_that_misreads_drafted_blocks_is_found() -> None:
    assert not compare("draft:window=4", SETTINGS["T=1"], ReadsOneTokenOfADraft, draft_seed=0).ok


def test_pipeline_draws_saves_and_loads(tmp_path: Path) -> None:
    gpt = tiny(vocab_size=7, block=(2, 2))
    pipe = LlamaGenPipeline(gpt, draft_transformer=tiny(1, 7, (2, 2)), temperature=0.9)
    pipe.set_progress_bar_config(disable=True)
    seen: list[Tensor] = []

    def keep(*given: object) -> None:
        seen.append(given[3]["tokens"])  # type: ignore[index]

    call = partial(pipe, class_labels=[0, 1], seed=3, guidance_scale=2.0, output_type="latent")
    out = call(recipe="draft:window=2", callback_on_step_end=keep)
    assert out.tokens.shape == (2, 16)
    assert out.stats.tokens == 8
    assert (seen[0] < 0).sum() == 24, "of 16 tokens each of two rows had one block of 4"
    assert torch.equal(seen[-1], out.tokens)
    pipe.save_pretrained(tmp_path)
    again = mmspec.load(str(tmp_path))
    again.set_progress_bar_config(disable=True)
    saved = again(class_labels=[0, 1], seed=3, guidance_scale=2.0, output_type="latent", recipe="draft:window=2")
    assert torch.equal(saved.tokens, out.tokens)
    greedy = [call(recipe=recipe, temperature=0.0).tokens for recipe in ("plain", "scd:window=3", "draft:window=3")]
    assert torch.equal(greedy[0], greedy[1])
    assert torch.equal(greedy[0], greedy[2])


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"block=\(1, 1\) is not allowed; it must be two integers from 1 to 8"):
        LlamaGenBlockGPT((1, 1))
    with pytest.raises(ArgumentError, match=r"draft_transformer draws \(4, 2\) tokens, the transformer \(2, 4\)"):
        LlamaGenPipeline(tiny(), draft_transformer=LlamaGenBlockGPT((2, 1), 2, vocab_size=V, dim=16, n_head=2))
    (tmp_path / "config.json").write_text('{"_class_name": "LlamaGenGPT"}')
    with pytest.raises(ModelError, match="a model of blocks takes no other"):
        LlamaGenPipeline(tiny()).add_drafter(tmp_path)


def test_drafters_of_blocks_are_not_trained_and_others_not_added(tmp_path: Path) -> None:
    pipe = LlamaGenPipeline(tiny())
    with pytest.raises(ArgumentError, match="drafters are trained for single tokens"):
        settings("medusa").prepare(pipe, ["1"], 1)
    with pytest.raises(ArgumentError, match="no small model can be trained here"):
        pipe.new_small()
    other: Any = tiny(block=(CELL, 1))
    other.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=r"draft_transformer draws \(4, 2\) tokens, the transformer \(2, 4\)"):
        pipe.add_drafter(tmp_path)


def test_a_server_shows_the_blocks_so_far() -> None:
    gpt = tiny(vocab_size=8, block=(2, 2))
    pipe = LlamaGenPipeline(gpt, ShapesTokenizer((2, 2, 2), channels=4, image_size=16))
    raster = raster_of(pipe)
    assert (raster.rows, raster.columns, raster.size) == (2, 2, "16x16")
    codes = torch.arange(12).view(3, 4) % 8

    def pixels(blocks: int) -> np.ndarray:
        with Image.open(io.BytesIO(base64.b64decode(encoded_image(pipe, codes[:blocks], None, "png")))) as image:
            return np.asarray(image)

    assert (pixels(1)[8:] == 128).all() and (pixels(1)[:8, 8:] == 128).all() and (pixels(1)[:8, :8] != 128).any()
    (whole,) = pipe.decode(torch.as_tensor(gpt.in_raster_order(codes[None])), output_type="np")
    assert (pixels(3) == (whole * 255).round()).all()
