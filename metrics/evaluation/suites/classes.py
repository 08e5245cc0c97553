"""Class-conditional pipelines, whose prompts are the numbers of classes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from mmspec.errors import ArgumentError, PromptError
from mmspec.metrics.bench.pipe import Pipe

SUITE = "imagenet50k"


class _ByClass:
    """A pipeline that takes the numbers of classes as texts."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.__signature__ = inspect.signature(pipe.__call__)  # callers ask it for options

    def __call__(self, prompts: Sequence[str], **options: Any) -> Any:
        wrong = [prompt for prompt in prompts if not prompt.isdecimal()]
        if wrong:
            raise PromptError(f"prompt {wrong[0]!r} is not the number of a class")
        return self.pipe(class_labels=[int(prompt) for prompt in prompts], **options)


def by_class(pipe: Any) -> Pipe:
    """The pipeline as one that takes class numbers for prompts.

    Raises:
        ArgumentError: If it generates from texts.
    """
    if "class_labels" not in inspect.signature(pipe.__call__).parameters:
        raise ArgumentError(f"--suite {SUITE} needs a class-conditional model, which {type(pipe).__name__} is not")
    wrapped: Pipe = _ByClass(pipe)
    return wrapped
