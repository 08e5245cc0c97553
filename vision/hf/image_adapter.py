"""What a pipeline needs of a model class besides decoding: prompts made into inputs, and tokens made into pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.image_request import ImageRequest

# What transformers takes when neither a call nor a checkpoint says anything.
TOP_K = 50


@dataclass(frozen=True)
class DecodingJob:
    """An order as its model reads it.

    - `arguments`: of `generate`, with `input_ids` int64 [B, T] among them.
    - `length`: tokens to be made.
    - `image`: where an image's codes lie in what `generate` returns, int64 [h * w].
    - `grid`: rows and columns of codes, h and w.
    """

    arguments: dict[str, Any]
    length: int
    picture: Tensor
    grid: tuple[int, int]


class ImageAdapter(Protocol):
    """A model with what surrounds it; made of both. A plug-in's adapter brings its own as `adapter`.

    Attributes:
        sampling: How its tokens are drawn when a call does not say.
        room: Tokens a prompt and an image may have together.
        no_pixels: Why images cannot be had and what would help; None when they can.
    """

    sampling: SamplingParams
    room: int
    no_pixels: str | None

    def job(self, request: ImageRequest) -> DecodingJob:
        """Reads an order.

        Raises:
            PromptError: When a prompt cannot be read by the model.
            ArgumentError: For an option that the model does not have.
        """
        ...

    def codes(self, tokens: Tensor) -> Tensor:
        """The codebook entries, int64 [B, h * w], that the model's ids of an image (int64 [B, h * w]) stand for."""
        ...

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        """Images [B, H, W, 3] of codes int64 [B, h * w]."""
        ...


@dataclass(frozen=True)
class Components:
    """What a model comes with.

    Attributes:
        processor: Its processor of transformers.
        vqvae: A decoder of its codes.
        layout: How its images are written.
    """

    processor: Any = None
    vqvae: Any = None
    layout: str | None = None

    def refuse(self, model: Any) -> None:
        """Checks that nothing is given that the class has no use for.

        Raises:
            ArgumentError: For what most classes have no use for.
        """
        for name, value in (("tokenizer", self.vqvae), ("layout", self.layout)):
            if value is not None:
                raise ArgumentError(f"{name} was given, but it is no option of {type(model).__name__}; leave it out")

    def need(self, model: Any, kind: str) -> Any:
        """The processor, of class `kind`.

        Raises:
            ArgumentError: When there is none, or one of another class.
        """
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

    Attributes:
        pattern: The ids allowed for each new token.
        start: Tokens of the prompts, padding included.
        width: Tokens per line, where lines are of one length.
    """

    def __init__(self, pattern: Sequence[Sequence[int]], start: int, width: int | None = None) -> None:
        self.width = width
        self._pattern = pattern
        self._start = start

    def __call__(self, row: int, ids: Tensor) -> Sequence[int]:
        """The ids allowed after `ids` (int64 [n]), whatever the row."""
        return self._pattern[len(ids) - self._start]


def default_sampling(model: Any, guidance_scale: float = 1.0, top_k: int = TOP_K) -> SamplingParams:
    """What the checkpoint's generation config says; the arguments where it says nothing."""
    said = model.generation_config
    return SamplingParams(
        temperature=1.0 if said.temperature is None else said.temperature,
        top_k=top_k if said.top_k is None else said.top_k,
        top_p=1.0 if said.top_p is None else said.top_p,
        guidance_scale=guidance_scale if said.guidance_scale is None else said.guidance_scale,
    )


def eight_bit(images: Sequence[Any]) -> NDArray[np.uint8]:
    """PIL images of one size as [B, H, W, 3]."""
    return np.stack([np.asarray(picture) for picture in images])
