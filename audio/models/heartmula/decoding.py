"""HeartMuLa frame by frame, with guidance of the first code and of the codes along the depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.audio.depth.depth_frames import DepthFrames, left_padded
from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.models.heartmula.model import HeartMuLa
from mmspec.hf.cache_name import run_decoder
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache


@dataclass(frozen=True)
class SongPrompt:
    """What a song is generated from.

    Attributes:
        tags: int64 [T], ids of the tags.
        lyrics: int64 [T'], ids of the lyrics.
    """

    tags: Tensor
    lyrics: Tensor


class HeartMuLaFrames(DepthFrames):
    """A HeartMuLa with its prompts given.

    Args:
        prompts: One per row.
        length: Frames to generate.
        slack: How many frames a window may reach past the end.
        guided: Whether there are unconditional rows, whose texts are all replaced by one embedding.
    """

    def __init__(
        self, model: HeartMuLa, prompts: Sequence[SongPrompt], length: int, slack: int = 0, guided: bool = True
    ) -> None:
        def heads(hidden: Tensor) -> Tensor:
            logits: Tensor = model.codebook0_head(hidden)
            return logits

        parts = Backbone(model.backbone, model.embed_frames, heads, model.config.audio_vocab_size, model.device)
        rows, uncond = [embed_prompt(model, prompt) for prompt in prompts], None
        embeds, mask = left_padded(rows)
        if guided:
            nothing = model.unconditional_text_embedding.weight[0].expand_as(embeds)
            uncond = Prompt(nothing, mask, position_ids_of(mask))
        prompt = Prompt(embeds, mask, position_ids_of(mask))
        super().__init__(parts, HeartMuLaDepth(model), prompt, length, slack, uncond=uncond)


class HeartMuLaDepth:
    """The depth decoder; see `mmspec.audio.depth.depth_target.DepthDecoder`."""

    def __init__(self, model: HeartMuLa) -> None:
        self.vocab_size = model.config.audio_vocab_size
        self.codebooks = model.config.audio_num_codebooks
        self.module = self._model = model
        self.reader = nn.ModuleList([model.decoder, model.projection, nn.ParameterList([model.audio_head])])

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        return self._model.embed_codes(tokens, books)

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        return run_decoder(self._model.decoder, self._model.projection(embeds), mask, positions, cache)

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        weight = self._model.audio_head
        return by_index(
            hidden, heads, self.codebooks - 1, self.vocab_size, hidden.dtype, lambda head, own: own @ weight[head]
        )


def embed_prompt(model: HeartMuLa, prompt: SongPrompt) -> Tensor:
    """The embeddings [T + 1 + T', D] of a prompt: tags, the place of reference audio, which is empty, and lyrics."""
    with torch.inference_mode():
        tags, lyrics = (model.text_embeddings(ids.to(model.device)) for ids in (prompt.tags, prompt.lyrics))
        silence = model.muq_linear(tags.new_zeros(1, model.config.muq_dim))
        return torch.cat([tags, silence, lyrics])
