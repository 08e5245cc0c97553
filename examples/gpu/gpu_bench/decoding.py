"""Decodes of published sizes with random weights, whose drafts are accepted about as often as those of trained models.

The logits of a random model say nothing about the next token, so that no draft would be accepted. Here the heads get a
bias that falls with the rank of a token, the same for every context, and weights so small that two contexts differ by
little: distributions have a few bits, and drafts of every kind meet them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot

import torch
from gpu_bench.published import PublishedModel, StepModel
from torch import nn

from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.graph_capture import use_cuda_graphs
from mmspec.decoding.kept_graphs import with_kept_graphs
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import Target
from mmspec.decoding.to_end import Decoded, decode_to_end
from mmspec.drafters.ngram import NGramTable
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

SPREAD = 0.3  # standard deviation of the logits between contexts, with guidance
DECAY = 2.0  # of the probability of a token with its rank: the first one has about 0.6
SLACK = 64  # of all targets, so that recipes with different windows replay the same graphs
DRAFT_LAYERS = 2
LARGEST_TABLE = 2**15  # tokens of a vocabulary with a table of pairs


@dataclass(frozen=True)
class Decoder:
    """A model of a published size that can be decoded, with its draft model and its n-gram table."""

    published: PublishedModel
    model: StepModel
    draft: StepModel
    params: SamplingParams
    table: NGramTable | None

    def decode(self, recipe: str, rows: int, tokens: int) -> Decoded:
        """Decodes so many tokens (columns, frames) of each row."""
        target, params = target_of(self.model, rows), [self.params] * rows
        alone = replace(self.params, guidance_scale=1.0)
        resources = DraftResources(
            table=self.table, draft_model=lambda: target_of(self.draft, rows), draft_sampling=[alone] * rows
        )
        cell = self.model.target(1, SLACK).cell
        layout = Layout(tokens, self.published.arguments.get("grid_size"), cell=cell)
        return decode_to_end(PreparedRows(target, layout, params, resources).batch(parse(recipe), range(rows)))


def decoder(published: PublishedModel, device: torch.device, dtype: torch.dtype) -> Decoder:
    """A model of a published size on a device, and what drafts for it."""
    model = published.on(device, dtype)
    draft = replace(published, guided=False).on(device, dtype, min(DRAFT_LAYERS, published.layers))
    size = model.heads[0].out_features
    cut = {"top_k": min(2000, size // 2), "guidance_scale": 4.0} if published.guided else {"top_k": min(50, size // 2)}
    params = SamplingParams(temperature=0.9, **cut)
    for one in (model, draft):
        make_predictable(one, params.guidance_scale)
    table = None
    if len(model.heads) == 1 and size <= LARGEST_TABLE:
        likeliest = int(model.heads[0].bias.argmax())
        table = NGramTable(torch.full((size + 1, size), likeliest, dtype=torch.int16, device=device))
    return Decoder(published, model, draft, params, table)


def make_predictable(model: StepModel, guidance_scale: float) -> None:
    """Gives the heads of a model with random weights distributions of a few bits that differ little between contexts.

    Heads of equal size get the same bias, those of a draft model too.
    """
    for head in model.heads:
        ranks = torch.randperm(head.out_features, generator=torch.Generator().manual_seed(0))
        bias = -DECAY * torch.log1p(ranks.float())
        now = (
            float(head.weight.detach().float().std())
            * head.in_features**0.5
            * hypot(guidance_scale, guidance_scale - 1)
        )
        with torch.no_grad():
            head.weight.mul_(SPREAD / now)
        head.bias = nn.Parameter(bias.to(head.weight), requires_grad=False)


def target_of(model: StepModel, rows: int) -> Target:
    """A new target, whose windows are captured in CUDA graphs where a device has them."""
    # Ordinary tensors, because later calls may write to them outside of inference mode.
    with torch.inference_mode(False), torch.no_grad():
        target = model.target(rows, SLACK)
    return with_kept_graphs(target, model.module, model.calls) if use_cuda_graphs(target.device) else target
