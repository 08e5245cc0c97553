"""Streaming of image pipelines: what each step of the decoding gave an image."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.arguments import check_callback
from mmspec.batching.call import CallEngine
from mmspec.decoding.step import OnStep, Watch
from mmspec.recipes import Recipe, recipe_of_call


@dataclass(frozen=True)
class ImageEvent:
    """An image after a step of its decoding.

    Attributes:
        tokens: The tokens so far, on the CPU, [n, *cell], as an `Engine` gives them out.
        target_calls: Target calls so far.
        output: At the end, what a call returns; None before.
    """

    tokens: Tensor
    target_calls: int
    output: Any
    _pipe: Any
    _size: tuple[int, int] | None

    def preview(self) -> Image.Image:
        """The image of the tokens so far, grey or coarse where they are missing."""
        return preview_of(self._pipe, self.tokens, self._size)


class StreamsImages:
    """What image pipelines that engines can decode have in common."""

    output_kind = "image"

    def stream(
        self,
        prompt: Any = None,
        *,
        recipe: str | Recipe | None = None,
        seed: int | None = None,
        on_step: OnStep | None = None,
        **options: Any,
    ) -> Generator[ImageEvent, None, None]:
        """Yields an image after each step of its decoding; leaving the iteration stops the decoding.

        Args:
            prompt: One prompt.
            on_step: Called after every target call, from another thread.
            **options: Other arguments of a call for one image, as in `Engine.add`.

        Raises:
            PromptError: If the model does not accept the prompt; before the first event.
            ArgumentError: For an argument whose value is not allowed; before the first event.
            UnknownNameError: For an unknown recipe, rule or drafter; before the first event.
        """
        check_callback("on_step", on_step)
        pipe: Any = self
        chosen = recipe_of_call(pipe, recipe)
        given = {name: value for name, value in {"seed": seed, **options}.items() if value is not None}
        with torch.no_grad():
            request = pipe.read_request(prompt, given, chosen)
        size = (options["height"], options["width"]) if {"height", "width"} <= given.keys() else None
        return _events(pipe, CallEngine(pipe, [request], chosen, 1, Watch(on_step), streams=True), size)


def _events(pipe: Any, engine: CallEngine, size: tuple[int, int] | None) -> Generator[ImageEvent, None, None]:
    from mmspec.batching.engine_thread import outputs_from_thread

    parts: list[Tensor] = []
    with closing(outputs_from_thread(engine)) as outputs:
        for output in outputs:
            parts.append(output.tokens)
            yield ImageEvent(torch.cat(parts), output.target_calls, output.result, pipe, size)


def preview_of(pipe: Any, tokens: Tensor, size: tuple[int, int] | None) -> Image.Image:
    """The image of tokens that may be incomplete.

    Args:
        tokens: int64 [n] in raster order, blocks int64 [n, K], or latents [n, D]; the pixels of missing ones are grey.
        size: Height and width in pixels, if the request sets them.
    """
    if hasattr(pipe, "preview"):
        shown: Image.Image = pipe.preview(tokens)
        return shown
    options = {} if size is None else {"height": size[0], "width": size[1]}
    transformer = getattr(pipe, "transformer", None)
    rows = [tokens] if transformer is None else transformer.in_raster_order([tokens])
    image: Image.Image
    (image,) = pipe.decode(rows, **options)
    return image
