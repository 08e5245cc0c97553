"""The prompts of a model for which a command was given none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def builtin_prompts(model: str, pipe: Any) -> Sequence[str]:
    """Captions or texts, or numbers of classes for a class-conditional pipeline."""
    from mmspec.metrics.prompts import BUILTIN, BY_MODEL, SPEECH
    from mmspec.pipeline import makes_audio
    from mmspec.vision.class_prompts import class_count

    if (classes := class_count(pipe)) is not None:
        return tuple(str(i) for i in range(0, classes, -(-classes // len(BUILTIN))))
    return BY_MODEL.get(model, SPEECH if makes_audio(pipe) else BUILTIN)
