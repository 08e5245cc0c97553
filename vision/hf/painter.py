"""What a pipeline needs of a model class besides decoding: prompts made into inputs, and tokens made into pixels."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.generate import family_of
from mmspec.law import Sampling
from mmspec.vision.hf.order import Order

# By class name, as `FAMILIES` is.
PAINTERS = {
    "JanusForConditionalGeneration": "mmspec.vision.hf.painters.janus:JanusPainter",
    "Emu3ForConditionalGeneration": "mmspec.vision.hf.painters.emu3:Emu3Painter",
    "ChameleonForConditionalGeneration": "mmspec.vision.hf.painters.chameleon:ChameleonPainter",
    "GlmImageForConditionalGeneration": "mmspec.vision.hf.painters.glm:GlmPainter",
    "ImageGPTForCausalImageModeling": "mmspec.vision.hf.painters.imagegpt:ImageGPTPainter",
}
# What transformers takes when neither a call nor a checkpoint says anything.
TOP_K = 50


@dataclass(frozen=True)
class Work:
    """An order as its model reads it.

    - `arguments`: of `generate`, with `input_ids` int64 [B, T] among them.
    - `length`: tokens to be made.
    - `picture`: where a picture's codes lie in what `generate` returns, int64 [h * w].
    - `grid`: rows and columns of codes, h and w.
    """

    arguments: dict[str, Any]
    length: int
    picture: Tensor
    grid: tuple[int, int]


class Painter(Protocol):
    """A model with what surrounds it; made of both. A plug-in's adapter brings its own as `painter`.

    - `sampling`: how its tokens are drawn when a call does not say.
    - `room`: tokens a prompt and a picture may have together.
    - `no_pixels`: why pictures cannot be had and what would help; None when they can.
    """

    sampling: Sampling
    room: int
    no_pixels: str | None

    def work(self, order: Order) -> Work:
        """**Raises:** `PromptError`, and `ArgumentError` for an option that the model does not have."""
        ...

    def codes(self, tokens: Tensor) -> Tensor:
        """The codebook entries, int64 [B, h * w], that the model's ids of a picture (int64 [B, h * w]) stand for."""
        ...

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        """Pictures [B, H, W, 3] of codes int64 [B, h * w]."""
        ...


@dataclass(frozen=True)
class Extras:
    """What a model comes with.

    - `processor`: its processor of transformers; `vqvae`: a decoder of its codes.
    - `layout`: how its pictures are written.
    """

    processor: Any = None
    vqvae: Any = None
    layout: str | None = None

    def refuse(self, model: Any) -> None:
        """**Raises:** `ArgumentError` for what most classes have no use for."""
        for name, value in (("tokenizer", self.vqvae), ("layout", self.layout)):
            if value is not None:
                raise ArgumentError(f"{name} was given, but it is no option of {type(model).__name__}; leave it out")

    def need(self, model: Any, kind: str) -> Any:
        """The processor, of class `kind`. **Raises:** `ArgumentError` when there is none, or one of another class."""
        if self.processor is None:
            raise ArgumentError(
                f"processor is missing for {type(model).__name__}; pass processor={kind}.from_pretrained(...)"
            )
        if kind not in (base.__name__ for base in type(self.processor).__mro__):
            raise ArgumentError(
                f"processor is of class {type(self.processor).__name__}, where {type(model).__name__} needs a {kind}"
            )
        return self.processor


class Pattern:
    """A `prefix_allowed_tokens_fn` that goes by position alone.

    - `pattern`: the ids allowed for each new token; `start`: tokens of the prompts, padding included; `width`: tokens
      per line, where lines are of one length.
    """

    def __init__(self, pattern: Sequence[Sequence[int]], start: int, width: int | None = None) -> None:
        self.width = width
        self._pattern = pattern
        self._start = start

    def __call__(self, row: int, ids: Tensor) -> Sequence[int]:
        """The ids allowed behind `ids` (int64 [n]), whatever the row."""
        return self._pattern[len(ids) - self._start]


def painter_of(model: Any, extras: Extras) -> Painter:
    """The painter of a model's class, or of a class it derives from.

    **Raises:** `ArgumentError` for a class without one, for an extra it has no use for and for one that is missing.
    """
    family = family_of(model)
    where = next((PAINTERS[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in PAINTERS), None)
    if where is None:
        make = getattr(family, "painter", None)
    else:
        module, _, attribute = where.partition(":")
        make = getattr(importlib.import_module(module), attribute)
    if make is None:
        raise ArgumentError(
            f"{type(model).__name__} has an adapter for model.generate(custom_generate=mmspec.generate), but none for "
            'prompts and pictures; see "Adding a model" in the README'
        )
    painter: Painter = make(model, extras)
    return painter


def default_sampling(model: Any, guidance_scale: float = 1.0, top_k: int = TOP_K) -> Sampling:
    """What the checkpoint's generation config says; the arguments where it says nothing."""
    said = model.generation_config
    return Sampling(
        temperature=1.0 if said.temperature is None else said.temperature,
        top_k=top_k if said.top_k is None else said.top_k,
        top_p=1.0 if said.top_p is None else said.top_p,
        guidance_scale=guidance_scale if said.guidance_scale is None else said.guidance_scale,
    )


def eight_bit(pictures: Sequence[Any]) -> NDArray[np.uint8]:
    """PIL images of one size as [B, H, W, 3]."""
    return np.stack([np.asarray(picture) for picture in pictures])
