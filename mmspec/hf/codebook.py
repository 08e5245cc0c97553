"""The codebook vectors of a transformers model's image ids, for rules that compare tokens."""

from __future__ import annotations

from typing import Any

import torch

from mmspec.codebook import Codebook
from mmspec.hf.plan import Plan


def read_codebook(model: Any, plan: Plan) -> Codebook | None:
    """The codebook over the loop's tokens; None for a model without a VQ model (ImageGPT, classes of plug-ins)."""
    quantiser = getattr(getattr(getattr(model, "model", None), "vqmodel", None), "quantize", None)
    if quantiser is None:
        return None
    entries = quantiser.embedding.weight
    ids = torch.arange(len(entries))
    mapping = getattr(model.model, "vocabulary_mapping", None)
    if mapping is not None:  # images share the vocabulary of the text
        code_of = {int(token): int(code) for token, code in mapping.bpe2img.items()}
        ids = torch.tensor([token for token, _ in sorted(code_of.items(), key=lambda pair: pair[1])])
        entries = entries[torch.tensor(sorted(code_of.values()), device=entries.device)]
    tokens = ids - plan.first_id
    inside = (tokens >= 0) & (tokens < plan.backbone.vocab_size)
    return Codebook(entries[inside.to(entries.device)], tokens[inside], plan.backbone.vocab_size)
