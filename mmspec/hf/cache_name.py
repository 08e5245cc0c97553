"""The name under which models take and return a KV cache.

transformers 5.24 renamed the input and the output `past_key_values` to `cache`. Modules of older releases, and code
that a checkpoint brings along, have the other name; so a module's own signature decides.
"""

from __future__ import annotations

import inspect
from functools import cache as cached
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask

NAMES = ("cache", "past_key_values")


def cache_input(module: Any, cache: Any) -> dict[str, Any]:
    """The argument that passes a KV cache to a module.

    Args:
        module: What is called: a decoder, a layer, or a function.
        cache: The KV cache, or None.
    """
    return {cache_name(module): cache}


def run_decoder(decoder: Any, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
    """The last hidden states [R, W, D] of a decoder that reads embeddings [R, W, D] with a KV cache."""
    hidden: Tensor = decoder(
        inputs_embeds=embeds,
        attention_mask=mask,
        position_ids=positions,
        use_cache=True,
        **cache_input(decoder, cache),
    ).last_hidden_state
    return hidden


def cache_name(module: Any) -> str:
    """The name of that argument."""
    module = getattr(module, "_orig_mod", module)  # inside `torch.compile(module)`
    if isinstance(module, nn.Module):
        return _name_of_class(type(module).forward)
    call = type(module).__call__
    return _name_of_class(call) if inspect.isfunction(call) else _name(module)  # the latter of functions


def cache_of(output: Any) -> Any:
    """The KV cache in the output of a model."""
    return output.cache if hasattr(output, "cache") else output.past_key_values


@cached
def _name_of_class(method: Any) -> str:
    """`_name` of a method that all objects of a class share; objects and functions of a call are not kept."""
    return _name(method)


def _name(called: Any) -> str:
    """The name of the argument of a function."""
    taken = inspect.signature(called).parameters
    # The installed release's own name is the first choice: a module may take both, or just hand on keywords.
    return next((name for name in (RELEASE, *NAMES) if name in taken), RELEASE)


def _name_of_release() -> str:
    taken = inspect.signature(create_causal_mask).parameters
    return next(name for name in NAMES if name in taken)


RELEASE = _name_of_release()
