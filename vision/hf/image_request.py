"""Image requests: the part of a pipeline's call that image adapters convert, and its checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from mmspec.arguments import check_text, shown
from mmspec.errors import ArgumentError, PromptError

MAX_SIDE = 2**14  # pixels; memory bounds images earlier


@dataclass(frozen=True)
class ImageRequest:
    """Prompts and sizes of the images to generate.

    Attributes:
        prompts: One per image.
        guided: Whether unconditional prompts are needed.
        negative_prompts: The texts of the unconditional prompts, one per image; None is the model's default.
        height: In pixels; None is the model's default.
        width: In pixels; None is the model's default.
    """

    prompts: Sequence[str]
    guided: bool
    negative_prompts: Sequence[str] | None = None
    height: int | None = None
    width: int | None = None


def check_size(height: int | None, width: int | None, factor: int) -> tuple[int, int] | None:
    """Height and width in pixels; None for the model's default.

    Raises:
        ArgumentError: If only one of them is given, or one is not a multiple of `factor` of at most `MAX_SIDE`.
    """
    if height is None and width is None:
        return None

    def allowed(side: Any) -> bool:
        whole = isinstance(side, Integral) and not isinstance(side, bool)
        return whole and factor <= int(side) <= MAX_SIDE and int(side) % factor == 0

    if not (allowed(height) and allowed(width)):
        raise ArgumentError(
            f"height={shown(height)}, width={shown(width)} is not allowed; give both, as multiples of {factor} pixels, "
            f"at most {MAX_SIDE}"
        )
    assert height is not None and width is not None, "checked"
    return int(height), int(width)


def refuse_size(model: Any, height: int | None, width: int | None) -> None:
    """Checks that no size is set, for models whose images have one size.

    Raises:
        ArgumentError: If height or width is set.
    """
    for name, value in (("height", height), ("width", width)):
        if value is not None:
            raise ArgumentError(f"{name}={shown(value)} is not an option of {type(model).__name__}; leave it out")


def refuse_negative_prompt(model: Any, request: ImageRequest) -> None:
    """Checks that a request has no negative prompt, for models whose unconditional prompt is fixed.

    Raises:
        ArgumentError: If there is one.
    """
    if request.negative_prompts is not None:
        raise ArgumentError(
            f"negative_prompt={request.negative_prompts[0][:200]!r} is not an option of {type(model).__name__}; "
            "leave it out"
        )


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


def read_prompts(prompt: str | Sequence[str] | None) -> list[str]:
    """Prompts as a list.

    Raises:
        PromptError: If the list is empty, or a prompt is not a text; see `mmspec.arguments.check_text`.
    """
    prompts: list[Any] = list(prompt) if isinstance(prompt, (list, tuple)) else ["" if prompt is None else prompt]
    if not prompts:
        raise PromptError("prompt=[] is empty; give at least one prompt")
    return [check_text("prompt", text) for text in prompts]


def read_negative_prompts(negative_prompt: str | Sequence[str] | None, count: int) -> list[str] | None:
    """Negative prompts, one per prompt; None if there are none.

    Args:
        negative_prompt: One text for all prompts, or one per prompt.
        count: The number of prompts.

    Raises:
        ArgumentError: If the number of texts is another.
        PromptError: If one is not a text; see `mmspec.arguments.check_text`.
    """
    if negative_prompt is None:
        return None
    texts: list[Any] = (
        list(negative_prompt) if isinstance(negative_prompt, (list, tuple)) else [negative_prompt] * count
    )
    for text in texts:
        check_text("negative_prompt", text)
    if len(texts) != count:
        raise ArgumentError(
            f"negative_prompt has {len(texts)} texts for {count} prompts; give one text, or one per prompt"
        )
    return texts
