"""LFM2-Audio frame by frame: all codes along the depth, the first of them a code or the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import DepthFrames, left_padded
from mmspec.audio.depth.depth_target import DepthTarget, by_index
from mmspec.audio.models.lfm2_audio.model import Lfm2Audio
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.params import SamplingParams


class Lfm2AudioFrames(DepthFrames):
    """A model with its prompts given.

    Args:
        prompts: The text ids int64 [T] of each row.
        length: Frames to generate, with the one that ends a row.
        slack: How many frames a window may reach past the end.
    """

    def __init__(self, model: Lfm2Audio, prompts: Sequence[Tensor], length: int, slack: int = 0) -> None:
        self._projection = model.depth_linear
        ids = model.config.codes + 1
        parts = Backbone(model.layers, model.embed_frames, model.first_logits, ids, model.device)
        with torch.inference_mode():
            embeds, mask = left_padded([model.lfm.embed_tokens(own.to(model.device)) for own in prompts])
        super().__init__(parts, Lfm2AudioDepth(model), Prompt(embeds, mask, position_ids_of(mask)), length, slack)

    def _depth(self, hidden: Tensor, first: Tensor, start: int, window: int) -> DepthTarget:
        with torch.inference_mode():
            projected = self._projection(hidden)
        return ProjectedDepthTarget(self._decoder, projected, first, start, window)


class ProjectedDepthTarget(DepthTarget):
    """The codes of one frame; every slot reads a projection of the hidden state of its own.

    Its hidden state is [R, K * H], the projections for all slots.
    """

    def _with_hidden(self, embeds: Tensor, slots: Tensor) -> Tensor:
        index = slots.clamp(max=self._codebooks - 1)[..., None].expand(embeds.shape)
        return embeds.masked_fill((slots == 0)[..., None], 0) + self._projections().gather(1, index)

    def _begun(self, embeds: Tensor, first: int) -> Tensor:
        embeds = embeds if first else F.pad(embeds, (0, 0, 1, 0))
        return embeds + self._projections()[:, first : first + embeds.shape[1]]

    def _projections(self) -> Tensor:
        return self.inputs[0].unflatten(1, (self._codebooks, -1))


class Lfm2AudioDepth:
    """The layers along the depth; see `mmspec.audio.depth.depth_target.DepthDecoder`."""

    def __init__(self, model: Lfm2Audio) -> None:
        self.vocab_size = model.config.codes + 1
        self.codebooks = model.config.codebooks
        self.module = self._model = model
        heads = [part for each in range(1, self.codebooks) for part in model.table(each).head]
        self.reader = nn.ModuleList([model.depthformer, *heads])

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        model, width = self._model, self._model.config.depth.hidden_size
        tokens = tokens.clamp(max=self.vocab_size - 1)
        dtype = model.audio_embedding.weight.dtype
        return by_index(tokens, books, self.codebooks, width, dtype, lambda book, own: model.table(book).embedding(own))

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        return self._model.run_depth(embeds, mask, positions, cache)

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        model, count = self._model, self.codebooks - 1
        return by_index(
            hidden, heads, count, self.vocab_size, hidden.dtype, lambda head, own: model.table(head + 1).logits(own)
        )


def frame_ends(model: Lfm2Audio) -> Any:
    """A function of frames int64 [..., K] to bool [...]: True for frames that end their row."""
    return lambda frames: frames[..., 0] == model.config.codes


def frame_spec(model: Lfm2Audio, length: int, sampling: SamplingParams) -> FrameSpec:
    """The frames to generate; all codes are sampled alike."""
    return FrameSpec(length, frame_ends(model), model.config.codes, sampling, sampling)
