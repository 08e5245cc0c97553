"""Draft heads of tests/golden/speculators, and how far their logits are from those of the package's classes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from golden import GOLDEN, expected, waves
from torch import Tensor

from mmspec.heads.checkpoint import load_head
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.methods.block.head import BlockHead


def folder_of(case: str) -> Path:
    return GOLDEN / "speculators" / case


def recorded(folder: Path) -> dict[str, Tensor]:
    """Inputs and outputs of a drafter, also the `hidden` states that are not stored."""
    found = expected(folder)
    layer = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    return {"hidden": waves(found["tokens"].shape[1], 3 * layer["hidden_size"]), **found}


def eagle3_head(folder: Path) -> Eagle3Head:
    head = load_head(folder)
    assert isinstance(head, Eagle3Head)
    return head


def block_head(folder: Path, embedding: Tensor) -> BlockHead:
    head = load_head(folder, embedding)
    assert isinstance(head, BlockHead)
    return head


@torch.no_grad()
def eagle3_differences(head: Eagle3Head, wanted: dict[str, Tensor]) -> list[float]:
    """The largest difference of the logits of drafted tokens at each depth; other tokens must be impossible."""
    found = []
    for d, outputs in enumerate(head.unroll(wanted["tokens"], wanted["hidden"], 3)):
        z = head.logits(outputs)[:, d:]
        if head.t2d is not None:
            assert z[..., ~head.t2d].isneginf().all()
            z = z[..., head.t2d]  # draft tokens are in ascending order there
        kept = wanted[f"logits_{d}"]  # of the last slots at which drafts begin
        first = wanted["tokens"].shape[1] - kept.shape[1]
        found.append(float((z[:, first:] - kept[:, : z.shape[1] - first]).abs().max()))
    return found


@torch.no_grad()
def block_difference(head: BlockHead, wanted: dict[str, Tensor]) -> float:
    """The largest difference of the logits of blocks at some anchors."""
    anchors, slots = wanted["anchors"], torch.arange(wanted["tokens"].shape[1])[None]
    tokens = torch.full((1, len(anchors), head.block_size), head.mask_token_id)
    tokens[0, :, 0] = wanted["tokens"][0, anchors]
    at = (anchors[:, None] + torch.arange(head.block_size))[None]
    hidden = head(tokens, at, head.context(wanted["hidden"], slots), (slots < anchors[:, None])[None])[0]
    z = hidden @ (wanted["lm_head"] if head.lm_head is None else head.lm_head.weight).T
    if head.markov_head is not None:
        state = hidden.new_zeros(len(anchors), head.markov_head.rank)
        for i in range(head.block_size):
            bias, state = head.markov_head(wanted["before"][:, i], hidden[:, i], state)
            z[:, i] += bias
    return float((z - wanted["logits"]).abs().max())
