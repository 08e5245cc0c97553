"""The suite of class-conditional pipelines, whose prompts are the numbers of classes."""

from __future__ import annotations

from typing import Any

from mmspec.errors import ArgumentError
from mmspec.pipeline import has_classes

SUITE = "imagenet50k"


def check_has_classes(pipe: Any) -> None:
    """Checks that a pipeline generates from classes.

    Raises:
        ArgumentError: If it generates from texts.
    """
    if not has_classes(pipe):
        raise ArgumentError(f"--suite {SUITE} needs a class-conditional model, which {type(pipe).__name__} is not")
