"""`call_generate`: a call of a model's `generate`, decoded by mmspec, of which all arguments are known.

transformers does not hand `streamer`, `assistant_model` and `synced_gpus` to a callable in `custom_generate`, nor does
it say which inputs the caller gave. A caller of `model.generate` itself uses the arguments of `mmspec.generate`;
this function is for those that stand in front of `model.generate`, and know the whole call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.hf.generate import generate
from mmspec.hf.modes import SYNCED, refuse_assistant_settings
from mmspec.recipes import Recipe, parse


def call_generate(
    method: Callable[..., Any],
    inputs: Any = None,
    *,
    streamer: Any = None,
    assistant_model: Any = None,
    synced_gpus: bool | None = None,
    recipe: str | Recipe | None = None,
    draft_model: Any = None,
    **arguments: Any,
) -> Any:
    """Calls `generate` of a model of transformers, which decodes by a recipe.

    Args:
        method: `model.generate`, or `partial(GenerationMixin.generate, model)` for a class with a loop of its own.
        assistant_model: Another name of `draft_model`.
        synced_gpus: True is refused.
        **arguments: All other arguments of `model.generate` and of `mmspec.generate`.

    Raises:
        ArgumentError: As `mmspec.generate`; and for an input of the model that mmspec does not read, whatever it is.
    """
    if arguments.pop("custom_generate", None) is not None:
        raise ArgumentError("custom_generate is set by mmspec; leave it out")
    if synced_gpus:
        raise ArgumentError(SYNCED)
    if assistant_model is not None:
        if draft_model is not None:
            raise ArgumentError("draft_model and assistant_model name the same thing; give one of them")
        if recipe is not None and not (chosen := parse(recipe)).needs_draft_model:
            raise ArgumentError(
                f"assistant_model was given, but recipe '{chosen}' does not draft with a draft model; "
                "use recipe='draft'"
            )
        refuse_assistant_settings(arguments)
        draft_model = assistant_model
    known = partial(generate, given=frozenset(arguments))
    positional = () if inputs is None else (inputs,)
    return method(
        *positional, **arguments, recipe=recipe, draft_model=draft_model, token_streamer=streamer, custom_generate=known
    )
