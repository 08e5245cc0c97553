"""Image requests: the part of a pipeline's call that image adapters convert, and its checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.errors import ArgumentError, PromptError


@dataclass(frozen=True)
class ImageRequest:
    """Prompts and sizes of the images to generate.

    Attributes:
        prompts: One per image.
        guided: Whether unconditional prompts are needed.
        negative_prompt: The text of the unconditional prompts; None is the model's default.
        height: In pixels; None is the model's default.
        width: In pixels; None is the model's default.
    """

    prompts: Sequence[str]
    guided: bool
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None


def size_of(request: ImageRequest, factor: int) -> tuple[int, int] | None:
    """Height and width of a request in pixels; None for the model's default.

    Raises:
        ArgumentError: If only one of them is given, or one is not a multiple of `factor`.
    """
    height, width = request.height, request.width
    if height is None and width is None:
        return None
    if height is None or width is None or height < factor or width < factor or height % factor or width % factor:
        raise ArgumentError(
            f"height={height}, width={width} is not allowed; give both, as multiples of {factor} pixels"
        )
    return height, width


def refuse_options(model: Any, request: ImageRequest, *names: str) -> None:
    """Checks that a request sets none of these options, which the model does not have.

    Raises:
        ArgumentError: If one of them is set.
    """
    for name in names:
        value = getattr(request, name)
        if value is not None:
            raise ArgumentError(f"{name}={value!r} is not an option of {type(model).__name__}; leave it out")


def refuse_empty(prompts: Sequence[str]) -> None:
    """Checks that every prompt has text.

    Raises:
        PromptError: If a prompt is empty.
    """
    for prompt in prompts:
        if not prompt.strip():
            raise PromptError(f"prompt={prompt!r} is empty; describe an image")


def chat(processor: Any, prompts: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Prompts as conversations of one user turn.

    Raises:
        ArgumentError: If the processor has no chat template.
    """
    if getattr(processor, "chat_template", None) is None:
        raise ArgumentError(f"processor ({type(processor).__name__}) has no chat_template, which this model needs")
    return [[{"role": "user", "content": [{"type": "text", "text": prompt}]}] for prompt in prompts]
