"""The target with a short KV cache as the draft model.

TriForce (Sun et al. 2024, arXiv 2404.11912) and LongSpec (Yang et al. 2025, arXiv 2502.17421) draft with attention to a
small part of the cache, here StreamingLLM's: the prompt and the last tokens. It pays where reading the cache of a long
sequence costs more than reading the weights.
"""

from __future__ import annotations

from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.chain import ChainDrafter
from mmspec.drafters.shared_cache import SharedCacheRunner, part_of_target


def build(context: DraftingContext) -> ChainDrafter:
    """Builds the drafter of the recipe `short-cache`."""
    part, settings = part_of_target(context)
    runner = SharedCacheRunner(part, context.layout.sampler(settings, context.target.device))
    return ChainDrafter(runner, context.target.device)
