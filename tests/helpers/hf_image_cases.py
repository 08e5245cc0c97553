"""Calls of `generate` for tiny image models of transformers, each with and without guidance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tiny_models as tiny
import torch
from torch import Tensor
from transformers import ChameleonForConditionalGeneration
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from mmspec.hf.cache_name import RELEASE, cache_of
from mmspec.hf.generate import GenerateJob, generate, prepare
from mmspec.vision.hf.decoding.chameleon import ImageConstraint


class OpenChameleon(ChameleonForConditionalGeneration):
    """A Chameleon that can generate images: the original forward without its last step, which forbids image tokens."""

    def forward(self, input_ids: Tensor | None = None, logits_to_keep: int = 0, **inputs: Any) -> Any:
        inputs.pop("return_dict", None)
        out = self.model(input_ids=input_ids, **inputs)
        return CausalLMOutputWithPast(logits=self.lm_head(out.last_hidden_state), **{RELEASE: cache_of(out)})


def emu3_lines(height: int, width: int, model: Any) -> Callable[[int, Tensor], Any]:
    """The `prefix_allowed_tokens_fn` of the model's documentation: lines, then ends of frame, image and sequence."""

    def allowed(row: int, ids: Tensor) -> Any:
        position = torch.nonzero(ids == torch.tensor([3]), as_tuple=True)[0][0]
        offset = ids.shape[0] - position
        if offset % (width + 1) == 0:
            return (torch.tensor([4]),)
        if offset > (width + 1) * height:
            return ({1: 5, 2: 6, 3: 2}.get(int(offset) - (width + 1) * height, 0),)
        return model.model.vocabulary_mapping.image_tokens

    return allowed


@dataclass(frozen=True)
class Case:
    """A model class and the arguments of a call of its generate.

    Attributes:
        model: Makes the model, from a seed, the number of codes and the side of the image.
        call: Makes the arguments besides the prompts, from a model, the batch size and the side of the image.
        guided: Arguments that are added for guidance.
        ids: Two prompts of different lengths, padded on the left.
        padding: The id of padding.
        length: Tokens of an image, from its side.
    """

    model: Callable[..., Any]
    call: Callable[[Any, int, int], dict[str, Any]]
    guided: dict[str, Any]
    ids: list[list[int]]
    padding: int
    length: Callable[[int], int]


def of_ids(case: Case, batch_size: int) -> dict[str, Any]:
    """Two prompts of different lengths, or `batch_size` times the second one."""
    ids = torch.tensor(case.ids if batch_size == 2 else case.ids[1:]).expand(batch_size, -1).contiguous()
    first = torch.tensor(case.ids)
    real = (first != case.padding) if batch_size == 2 else torch.ones_like(ids, dtype=torch.bool)
    return {"input_ids": ids, "attention_mask": real.long()}


def with_prefix(allowed: Callable[[int, Tensor], Any], length: int) -> dict[str, Any]:
    return {"prefix_allowed_tokens_fn": allowed, "max_new_tokens": length}


CASES = {
    "janus": Case(
        lambda seed=0, codes=20, side=4, **text: tiny.janus(seed, side, codes, **text),
        lambda model, rows, side: {"max_new_tokens": 1},
        {"guidance_scale": 3.0},
        [[0, 0, 1, 10, 11, 3], [1, 12, 13, 14, 15, 3]],
        0,
        lambda side: side**2,
    ),
    "emu3": Case(
        lambda seed=0, codes=20, side=4, **text: tiny.emu3(seed, codes, **text),
        lambda model, rows, side: with_prefix(emu3_lines(side, side, model), side * (side + 1) + 3),
        {"guidance_scale": 3.0, "negative_prompt_ids": [[0, 0, 1, 31], [1, 30, 33, 34]]},
        [[0, 0, 1, 31, 32, 3], [1, 31, 33, 34, 30, 3]],
        0,
        lambda side: side * (side + 1) + 3,
    ),
    "anole": Case(
        lambda seed=0, codes=20, side=4, **text: tiny.chameleon(seed, codes, kind=OpenChameleon, **text),
        lambda model, rows, side: with_prefix(ImageConstraint.anole(model, side, tiny.CHAMELEON_IDS), side**2 + 1),
        {"guidance_scale": 3.0, "negative_prompt_ids": [[1, 0, 25], [0, 33, 25]]},
        [[1, 1, 0, 36, 37, 25], [0, 33, 35, 36, 38, 25]],
        1,
        lambda side: side**2 + 1,
    ),
    "lumina": Case(
        lambda seed=0, codes=20, side=4, **text: tiny.chameleon(seed, codes, kind=OpenChameleon, **text),
        lambda model, rows, side: with_prefix(
            ImageConstraint.lumina(model, side, side, tiny.CHAMELEON_IDS), side * (side + 1) + 4
        ),
        {"guidance_scale": 3.0},
        [[1, 1, 0, 36, 37, 25], [0, 33, 35, 36, 38, 25]],
        1,
        lambda side: side * (side + 1) + 4,
    ),
    "imagegpt": Case(
        lambda seed=0, codes=20, side=5, **text: tiny.imagegpt(seed, side, codes, **text),
        lambda model, rows, side: {"max_new_tokens": side**2 - 4},
        {"guidance_scale": 2.0, "negative_prompt_ids": [[-1, 20, 3], [20, 5, 6]]},
        [[-1, -1, 20, 4, 5], [20, 1, 2, 3, 4]],
        -1,
        lambda side: side**2 - 4,
    ),
    "glm": Case(
        lambda seed=0, codes=20, side=4, **text: tiny.glm(seed, codes, **text),
        lambda model, rows, side: {
            "image_grid_thw": torch.tensor([[1, side, side], [1, 2, 2]] * rows),
            "images_per_sample": torch.tensor([2] * rows),
            "max_new_tokens": side**2 + 5,
        },
        {},
        [[45, 45, 30, 31, 32, 20], [40, 41, 42, 30, 33, 20]],
        45,
        lambda side: side**2 + 5,
    ),
}


SIDES = {"imagegpt": 5}


GUIDANCE = [(name, guided) for name in CASES for guided in (False, True) if (name, guided) not in {("glm", True)}]


def arguments(name: str, model: Any, guided: bool, batch_size: int = 2, side: int | None = None) -> dict[str, Any]:
    case = CASES[name]
    call = of_ids(case, batch_size) | case.call(model, batch_size, side or SIDES.get(name, 4))
    call["input_ids"] = call["input_ids"].clamp(min=0)
    if guided:
        call |= case.guided
        if "negative_prompt_ids" in call:
            ids = torch.tensor(call["negative_prompt_ids"])
            ids = ids if batch_size == 2 else ids[1:].expand(batch_size, -1)
            call["negative_prompt_ids"] = ids.clamp(min=0)
            call["negative_prompt_attention_mask"] = (ids != case.padding).long()
    elif name == "janus":
        call["guidance_scale"] = 1.0
    return call


def ours(model: Any, call: dict[str, Any], method: Any = generate, **options: Any) -> Any:
    return GenerationMixin.generate(model, **call, custom_generate=method, **options)


def job_of(model: Any, call: dict[str, Any], **options: Any) -> GenerateJob:
    """The job that `mmspec.generate` would decode."""

    def stop(
        model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **i: Any
    ) -> GenerateJob:
        return prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, i)

    return ours(model, call, stop, **options)
