"""The interface of image adapters, which turn prompts into arguments of `generate`, and tokens into pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.padding import with_padding
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.image_request import ImageRequest

# The default of transformers, for models whose original code is that of transformers or diffusers.
TOP_K = 50


@dataclass(frozen=True)
class DecodingJob:
    """The arguments of `generate` for an image request.

    Attributes:
        arguments: Of `generate`, with `input_ids` int64 [B, T] and `attention_mask` among them.
        length: Tokens to generate.
        image: Positions of the image's codes among the new tokens, int64 [h * w].
        grid: Rows and columns of codes, (h, w).
    """

    arguments: dict[str, Any]
    length: int
    image: Tensor
    grid: tuple[int, int]


class ImageAdapter(Protocol):
    """The adapter of a model class, constructed with a model and its `Components`.

    Attributes:
        sampling: The default sampling parameters.
        codebook_size: The number of codes.
        max_length: Tokens that a prompt and an image may have together.
        no_pixels: Why the model cannot return pixels, and what to do about it; None if it can.
    """

    sampling: SamplingParams
    codebook_size: int
    max_length: int
    no_pixels: str | None

    def job(self, request: ImageRequest) -> DecodingJob:
        """The arguments of `generate` for a request.

        Raises:
            PromptError: If the model does not accept a prompt.
            ArgumentError: If the model does not have an option of the request, or an option has a value that is not
                allowed.
        """
        ...

    def grid(self, height: int | None, width: int | None) -> tuple[int, int]:
        """Rows and columns of codes of an image.

        Args:
            height: In pixels; None is the model's default.
            width: In pixels; None is the model's default.

        Raises:
            ArgumentError: If the model has no images of this size.
        """
        ...

    def codes(self, tokens: Tensor) -> Tensor:
        """The codes int64 [B, h * w] of the model's ids int64 [B, h * w]."""
        ...

    def pixels(self, codes: Tensor, grid: tuple[int, int]) -> NDArray[np.uint8]:
        """Images uint8 [B, H, W, 3] of codes int64 [B, h * w]."""
        ...


@dataclass(frozen=True)
class Components:
    """The parts of a pipeline besides the model.

    Attributes:
        processor: The processor of transformers.
        vqvae: A decoder of the codes, for models without one: Chameleon and flat models.
        layout: How images are written as tokens, for the same models.
    """

    processor: Any = None
    vqvae: Any = None
    layout: str | None = None

    def refuse_chameleon_components(self, model: Any) -> None:
        """Checks that there are no parts that only Chameleon and flat models use.

        Raises:
            ArgumentError: If there is a `vqvae` or a `layout`.
        """
        for name, value in (("tokenizer", self.vqvae), ("layout", self.layout)):
            if value is not None:
                raise ArgumentError(f"{name} is not an option of {type(model).__name__}; leave it out")

    def require_processor(self, model: Any, kind: str) -> Any:
        """The processor, which can pad.

        Args:
            model: The model that needs it.
            kind: The name of its class.

        Raises:
            ArgumentError: If it is missing, of another class, or has no token for padding.
        """
        if self.processor is None:
            auto = "AutoTokenizer" if kind == "PreTrainedTokenizerBase" else kind
            raise ArgumentError(
                f"processor is missing for {type(model).__name__}; pass processor={auto}.from_pretrained(...)"
            )
        if kind not in (base.__name__ for base in type(self.processor).__mro__):
            raise ArgumentError(
                f"processor is of class {type(self.processor).__name__}, where {type(model).__name__} needs a {kind}"
            )
        return with_padding(self.processor)


class AllowedByPosition:
    """A `prefix_allowed_tokens_fn` that depends on the position only.

    Args:
        allowed: The ids that are allowed for each new token.
        start: Tokens of the prompts, padding included.
        width: Tokens per line, if all lines have the same length.
    """

    def __init__(self, allowed: Sequence[Sequence[int]], start: int, width: int | None = None) -> None:
        self.width = width
        self._allowed = allowed
        self._start = start

    def __call__(self, row: int, ids: Tensor) -> Sequence[int]:
        """The ids that may follow `ids`, int64 [n]."""
        return self._allowed[len(ids) - self._start]


def default_sampling(model: Any, published: SamplingParams) -> SamplingParams:
    """The sampling parameters of the model's generation config.

    Args:
        published: Those of the model's original code, for parameters that the config does not set.
    """
    config = model.generation_config

    def own(value: float | None, otherwise: float) -> float:
        return otherwise if value is None else value

    return SamplingParams(
        temperature=own(config.temperature, published.temperature),
        top_k=published.top_k if config.top_k is None else int(config.top_k),
        top_p=own(config.top_p, published.top_p),
        guidance_scale=own(config.guidance_scale, published.guidance_scale),
        min_p=own(config.min_p, published.min_p),
    )


def eight_bit(images: Sequence[Any]) -> NDArray[np.uint8]:
    """PIL images of one size as an array uint8 [B, H, W, 3]."""
    return np.stack([np.asarray(image) for image in images])
