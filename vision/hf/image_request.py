"""What a pipeline is asked to draw, and what is refused before any model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.errors import ArgumentError, PromptError


@dataclass(frozen=True)
class ImageRequest:
    """What is to be drawn.

    Attributes:
        prompts: One per image.
        guided: Whether an unconditional side is needed.
        negative_prompt: What guidance leads away from; None is the model's own.
        height: In pixels; None is the model's own.
        width: In pixels; None is the model's own.
    """

    prompts: Sequence[str]
    guided: bool
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None


def size_of(request: ImageRequest, factor: int) -> tuple[int, int] | None:
    """Height and width of an order; None where it leaves them to the model.

    Raises:
        ArgumentError: For one side without the other, and for what is no multiple of `factor` pixels.
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
    """Checks that none of these options of an order is given.

    Raises:
        ArgumentError: When an option of an order is given that the model does not have.
    """
    for name in names:
        value = getattr(request, name)
        if value is not None:
            raise ArgumentError(f"{name}={value!r} is not allowed: it is no option of {type(model).__name__}")


def refuse_empty(prompts: Sequence[str]) -> None:
    """Checks that every prompt says something.

    Raises:
        PromptError: For a prompt that says nothing.
    """
    for prompt in prompts:
        if not prompt.strip():
            raise PromptError(f"prompt={prompt!r} is empty; describe an image")


def chat(processor: Any, prompts: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Prompts as conversations of one turn.

    Raises:
        ArgumentError: When the processor has no chat template.
    """
    if getattr(processor, "chat_template", None) is None:
        raise ArgumentError(f"processor ({type(processor).__name__}) has no chat_template, which this model needs")
    return [[{"role": "user", "content": [{"type": "text", "text": prompt}]}] for prompt in prompts]
