"""One generation before a server listens, so that no request waits for what happens once in a process."""

from __future__ import annotations

import time
from typing import Any

from mmspec.errors import MMSpecError, PromptError
from mmspec.kernels.backend import choose
from mmspec.serving.models import ServedModel

# A model with a vocabulary of its own, such as those that ship with the package, or with classes reads one of these.
TEXTS = ("Good morning.", "a red circle above a blue square", "a red star at the top left", "0")


def warm_up(model: ServedModel) -> str | None:
    """Generates once with a model where kernels are compiled and calls captured, as on a CUDA device.

    It takes the model's own way through its pipeline, with its usual recipe: what is compiled does not depend on the
    number of rows or on the prompt (`mmspec.kernels.specialization`).

    Returns:
        What to tell the user; None where there is nothing to compile.
    """
    device = getattr(model.pipe, "device", None)
    if device is None or choose(device.type) != "triton":
        return None
    start = time.monotonic()
    try:
        _generate_any(model)
    except MMSpecError as error:
        return f"{model.name} was not warmed up: {error}"
    return f"{model.name} was warmed up in {time.monotonic() - start:.1f} s"


def _generate_any(model: ServedModel) -> None:
    """Generates from the first of `TEXTS` that the model reads."""
    for text in TEXTS[:-1]:
        try:
            return _generate(model.pipe, text, model.recipe, model.kind == "speech")
        except PromptError:
            pass
    _generate(model.pipe, TEXTS[-1], model.recipe, model.kind == "speech")


def _generate(pipe: Any, text: str, recipe: str, speech: bool) -> None:
    if not speech:
        pipe(text, recipe=recipe, seed=0, output_type="latent")
        return
    for _ in pipe.stream(text, recipe=recipe, seed=0):
        pass
