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

    Raises:
        ImportError: If mmspec is not installed.
    """
    from functools import partial

    from transformers import GenerationMixin

    # transformers would look for an import outside of `try` in advance, and tell to install a package of that name.
    try:
        import mmspec  # noqa: F401
        from mmspec.hf.call import call_generate
    except ModuleNotFoundError:
        raise ImportError("mmspec is not installed; run pip install . in a checkout of its repository") from None

    # The method of the base class: Janus, MusicGen and Dia override it with loops of their own.
    return call_generate(partial(GenerationMixin.generate, model), **arguments)
