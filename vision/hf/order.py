"""What a pipeline is asked to draw, and what is refused before any model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.errors import ArgumentError, PromptError


@dataclass(frozen=True)
class Order:
    """What is to be drawn.

    - `prompts`: one per picture.
    - `guided`: whether an unconditional side is needed.
    - `negative_prompt`: what guidance leads away from; None is the model's own.
    - `height`, `width`: in pixels; None is the model's own.
    """

    prompts: Sequence[str]
    guided: bool
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None


def size_of(order: Order, factor: int) -> tuple[int, int] | None:
    """Height and width of an order; None where it leaves them to the model.

    **Raises:** `ArgumentError` for one side without the other, and for what is no multiple of `factor` pixels.
    """
    height, width = order.height, order.width
    if height is None and width is None:
        return None
    if height is None or width is None or height < factor or width < factor or height % factor or width % factor:
        raise ArgumentError(
            f"height={height}, width={width} is not allowed; give both, as multiples of {factor} pixels"
        )
    return height, width


def refuse_options(model: Any, order: Order, *names: str) -> None:
    """**Raises:** `ArgumentError` when an option of an order is given that the model does not have."""
    for name in names:
        value = getattr(order, name)
        if value is not None:
            raise ArgumentError(f"{name}={value!r} is not allowed: it is no option of {type(model).__name__}")


def refuse_empty(prompts: Sequence[str]) -> None:
    """**Raises:** `PromptError` for a prompt that says nothing."""
    for prompt in prompts:
        if not prompt.strip():
            raise PromptError(f"prompt={prompt!r} is empty; describe a picture")


def chat(processor: Any, prompts: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Prompts as conversations of one turn. **Raises:** `ArgumentError` when the processor has no chat template."""
    if getattr(processor, "chat_template", None) is None:
        raise ArgumentError(f"processor ({type(processor).__name__}) has no chat_template, which this model needs")
    return [[{"role": "user", "content": [{"type": "text", "text": prompt}]}] for prompt in prompts]
