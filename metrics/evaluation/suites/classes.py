"""The suite of class-conditional pipelines, whose prompts are the numbers of classes."""

from __future__ import annotations

from inspect import signature
from typing import Any

from mmspec.errors import ArgumentError

SUITE = "imagenet50k"


def check_has_classes(pipe: Any) -> None:
    """Checks that a pipeline generates from classes.

    Raises:
        ArgumentError: If it generates from texts.
    """
    if "class_labels" not in signature(pipe.__call__).parameters:
        raise ArgumentError(f"--suite {SUITE} needs a class-conditional model, which {type(pipe).__name__} is not")
