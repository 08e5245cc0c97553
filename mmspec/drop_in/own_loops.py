"""Classes of transformers whose own `generate` has a loop of its own, and what it does with its arguments before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Any

from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput

from mmspec.errors import ArgumentError

JANUS_SCALE = 5.0  # the guidance scale of Janus's own `generate`

Convert = Callable[[Any, dict[str, Any]], dict[str, Any]]


def janus(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an image: guided, of a fixed length.

    Raises:
        ArgumentError: If the call asks for text, as it does by default.
    """
    arguments = dict(arguments)
    if arguments.pop("generation_mode", "text") != "image":
        raise ArgumentError("generation_mode='text' asks Janus for text, which mmspec does not decode; 'image' it does")
    config = arguments.get("generation_config") or model.generation_config
    scale = arguments.get("guidance_scale", config.guidance_scale)
    arguments.pop("max_length", None)
    length = int(model.model.vision_model.config.num_image_tokens)
    return {**arguments, "guidance_scale": JANUS_SCALE if scale is None else scale, "max_new_tokens": length}


def musicgen(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments; encoded text may be a tuple."""
    encoded = arguments.get("encoder_outputs")
    return {**arguments, "encoder_outputs": BaseModelOutput(encoded[0])} if type(encoded) is tuple else arguments


def dia(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments."""
    return arguments


OWN_LOOPS: Mapping[str, Convert] = {
    "JanusForConditionalGeneration": janus,
    "MusicgenForConditionalGeneration": musicgen,
    "MusicgenMelodyForConditionalGeneration": musicgen,
    "DiaForConditionalGeneration": dia,
}


def loop_of(model: Any, arguments: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The method that hands a call on to a `custom_generate`, and its arguments.

    Args:
        arguments: Those of the model's own `generate`.

    Raises:
        ArgumentError: If the class decodes no such call.
    """
    for kind in type(model).__mro__:
        if kind.__name__ in OWN_LOOPS:
            return partial(GenerationMixin.generate, model), OWN_LOOPS[kind.__name__](model, arguments)
    own = type(model).generate
    if all(parameter.kind != Parameter.VAR_KEYWORD for parameter in signature(own).parameters.values()):
        raise ArgumentError(f"{type(model).__name__}.generate has arguments of its own, and hands no other loop on")
    return partial(own, model), arguments
