"""Speculative decoding for autoregressive image and audio models, as a `custom_generate` repository."""

from __future__ import annotations

from typing import Any


def generate(model: Any, **arguments: Any) -> Any:
    """Calls `model.generate` with `custom_generate=mmspec.generate`.

    Args:
        model: Passed by transformers.
        **arguments: Those of `model.generate`, and those of `mmspec.generate`: `recipe`, `seed`, `draft_model`, ...

    Returns:
        What `model.generate` returns: ids, or an output with `stats` if `return_dict_in_generate` is set.
    """
    from transformers import GenerationMixin

    import mmspec

    # The method of the base class: Janus, MusicGen and Dia override it with loops of their own.
    return GenerationMixin.generate(model, **arguments, custom_generate=mmspec.generate)
