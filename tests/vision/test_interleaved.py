"""Emu3.5's answers of text and images: those of its original code, pieces, sizes, limits and batches."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch
from golden import GOLDEN
from tiny_emu35 import CODES, LENGTH, PROMPTS, fill, sizes, tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

import mmspec
from mmspec.errors import ArgumentError, PromptError, UnknownNameError
from mmspec.hf.generate import generate, prepare
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.vision.hf.interleaved import TASKS, InterleavedGenerator, _Run
from mmspec.vision.hf.pipeline import TransformersPipeline

EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "emu35.json").read_text())
FIRST = 256 + 14
GREEDY: dict[str, Any] = {
    "text_sampling": SamplingParams(temperature=0),
    "image_sampling": SamplingParams(temperature=0, guidance_scale=3.0),
    "output_type": "latent",
}
SIZE: dict[str, Any] = {"height": 32, "width": 48}


def pipeline(seed: int, **options: Any) -> TransformersPipeline:
    model = Qwen3ForCausalLM(Qwen3Config(**sizes()))
    fill(model.named_parameters(), seed)
    pipe = TransformersPipeline(model.eval(), tokenizer(), layout="emu3.5", **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


CASES = [(kind, one) for kind, answers in EXPECTED.items() for one in answers]


@pytest.mark.releases
@pytest.mark.parametrize(("kind", "one"), CASES, ids=[f"{kind}-{one['seed']}" for kind, one in CASES])
def test_greedy_answers_are_the_originals(kind: str, one: dict[str, Any]) -> None:
    """Text, marks, sizes and codes; an image that the limit cuts off is left out."""
    generator = InterleavedGenerator(pipeline(one["seed"]))
    size: dict[str, Any] = SIZE if kind == "fixed" else {}
    out = generator(one["prompt"], **GREEDY, **size, max_new_tokens=LENGTH[kind], recipe="scd:window=4")
    found = out.tokens[0].tolist()
    assert found == one["answer"][: len(found)] and len(found) > one["second"]
    assert out.truncated == [found[-1] != tokenizer().convert_tokens_to_ids("<|extra_204|>")]
    images = [piece for piece in out.pieces[0] if piece.kind == "image"]
    assert len(images) >= 2 and len({tuple(piece.codes.shape) for piece in images if piece.codes is not None}) == 1
    codes = torch.cat([piece.codes.flatten() for piece in images if piece.codes is not None])
    assert codes.tolist() == [token - FIRST for token in found if token >= FIRST]
    assert _Run(generator, one["prompt"], output_type="latent").rows[0].ids == one["ids"]


@pytest.mark.parametrize("one", EXPECTED["fixed"], ids=lambda one: str(one["seed"]))
def test_tokens_are_sampled_from_the_originals_distributions(
    one: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the first token of text, and of the first code of the second image, which is guided by the first."""
    found: list[dict[str, Any]] = []
    text, image = SamplingParams(0.8, 9, 0.9), SamplingParams(1.2, 7, 0.95, 3.0)

    @functools.wraps(generate)
    def recorded(model: Any, input_ids: Tensor, **given: Any) -> Any:
        fixed: Any = [given[name] for name in ("logits_processor", "stopping_criteria", "generation_config")]
        own = {name: value for name, value in given.items() if name in ("attention_mask", "use_cache")}
        logits_processor, stopping, config = fixed
        job = prepare(model, input_ids, logits_processor, stopping, config, own)
        guided = job.plan.guidance_scale != 1
        if guided or not found:
            sampler = TokenSampler([image if guided else text], job.layout.constraint, torch.device("cpu"))
            p = sampler.probs(job.target(job.plan, 1).prefill(), np.zeros((1, 1), dtype=np.int64))[0, 0]
            found.append({str(int(i) + job.plan.first_id): float(p[i]) for i in p.nonzero()[:, 0]})
        return generate(model, input_ids, **given)

    monkeypatch.setattr("mmspec.vision.hf.interleaved.generate", recorded)
    InterleavedGenerator(pipeline(one["seed"]))(one["prompt"], **GREEDY, **SIZE, max_new_tokens=LENGTH["fixed"])
    for p, expected in zip((found[0], found[2]), one["probs"], strict=True):
        assert p == {name: pytest.approx(value, abs=1e-5) for name, value in expected.items()}


def test_the_unconditional_side_reads_the_images_before() -> None:
    """The error that the golden numbers must notice: guidance by a text without images."""
    one = EXPECTED["fixed"][0]
    generator = InterleavedGenerator(pipeline(one["seed"]))
    run = _Run(generator, one["prompt"], **GREEDY, **SIZE, max_new_tokens=LENGTH["fixed"])
    start = len(run.rows[0].uncond)
    for _, piece in run:
        if piece.kind == "image":
            del run.rows[0].uncond[start:]
    found = run.rows[0].ids[run.rows[0].prompt :]
    assert found != one["answer"][: len(found)]


def test_rows_do_not_depend_on_their_batch() -> None:
    """Answers of several lengths, whose images meet in one call or not; pieces come as they are complete."""
    generator = InterleavedGenerator(pipeline(EXPECTED["fixed"][0]["seed"]))
    options: dict[str, Any] = {**SIZE, "output_type": "latent", "max_new_tokens": 90, "recipe": "scd:window=3"}
    both = generator(PROMPTS, **options, seed=[4, 5, 6])
    for row, prompt in enumerate(PROMPTS):
        alone = generator(prompt, **options, seed=4 + row)
        assert alone.tokens[0].tolist() == both.tokens[row].tolist()
    streamed = list(generator.stream(PROMPTS, **options, seed=[4, 5, 6]))
    assert [[p.kind for n, p in streamed if n == row] for row in range(3)] == [
        [piece.kind for piece in pieces] for pieces in both.pieces
    ]
    assert both.stats.target_calls > 0 and both.seeds == [4, 5, 6]


def test_thoughts_and_marks_are_read() -> None:
    generator = InterleavedGenerator(pipeline(0))
    run = _Run(generator, "cat", output_type="latent")
    row = run.rows[0]
    row.ids += run._ids("<|extra_60|>plan<|extra_61|>Once<|extra_50|>a cat<|extra_51|><|extra_101|><|extra_204|>")
    assert [(piece.kind, piece.text) for piece in run._texts(row)] == [
        ("global_cot", "plan"), ("text", "Once"), ("image_cot", "a cat"),
    ]  # fmt: skip


def test_images_have_pixels_and_wrong_calls_are_one_line() -> None:
    class Decoder(torch.nn.Module):
        vocab_size = CODES
        device = torch.device("cpu")

        def decode_grid(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
            shade = tokens.view(len(tokens), 1, *grid) / CODES * 2 - 1
            return shade.expand(-1, 3, -1, -1).repeat_interleave(16, 2).repeat_interleave(16, 3)

    pipe = pipeline(EXPECTED["fixed"][0]["seed"])
    pipe.vqvae = Decoder()
    generator = InterleavedGenerator(pipe)
    out = generator(EXPECTED["fixed"][0]["prompt"], **{**GREEDY, "output_type": "pil"}, **SIZE, max_new_tokens=40)
    assert [piece.image.size for piece in out.pieces[0] if piece.kind == "image"][:1] == [(48, 32)]
    assert TASKS["howto"].text == SamplingParams(0.7, 200, 0.8) and TASKS["story"].image.guidance_scale == 3
    off = _Run(generator, "cat", image_sampling=SamplingParams(guidance_scale=0.5), output_type="latent")
    assert off._image.guidance_scale == 1
    with pytest.raises(UnknownNameError, match="did you mean 'story'"):
        generator("cat", task="storey")
    with pytest.raises(PromptError, match="is empty"):
        generator(" ")
    with pytest.raises(ArgumentError, match="at most 1584 pixels"):
        generator("cat", height=1600, width=16)
    with pytest.raises(ArgumentError, match="guidance_scale=2.0 is not allowed; it must be 1"):
        generator("cat", text_sampling=SamplingParams(guidance_scale=2.0))
    for wrong in ({"text_sampling": {"top_p": 0.9}}, {"image_sampling": "x"}):
        with pytest.raises(ArgumentError, match=f"{next(iter(wrong))}=.* is not allowed; pass a SamplingParams"):
            generator("cat", **wrong)
    with pytest.raises(UnknownNameError, match="unknown task"):
        generator("cat", task=None)
    with pytest.raises(PromptError, match="prompt of 1[0-9]* tokens is too long; the model has 1024 positions"):
        generator("cat " * 400)
    calls: tuple[Any, ...] = (generator, generator.stream)
    for call in calls:
        with pytest.raises(ArgumentError, match=r"heigth is not .*\(did you mean 'height'\?\)"):
            call("cat", heigth=3)
    with pytest.raises(ArgumentError, match="load an Emu3.5"):
        InterleavedGenerator(mmspec.load("shapes"))
