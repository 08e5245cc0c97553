"""YuE's second stage: from a track's first codebook to all eight, and the codec of songs that it is a part of.

The first codebook's codes of up to six seconds are the prompt, and are forced again as the first of each frame's eight
tokens; the model takes the most likely codes for the others. Source: the repository YuE at 9f1394b (Apache License
2.0), its `infer.py`, which does not restrict tokens to their codebooks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.codec import Codec, CodecStream, OverlapStream, check_codec
from mmspec.audio.models.flat.decoding import decoder_of
from mmspec.audio.models.flat.left_padding import flat_prompt
from mmspec.audio.models.flat.yue_prompt import CODES, FIRST, STAGE_1, STAGE_2, START
from mmspec.batching.call import decode_rows
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ModelError
from mmspec.hf.causal_target import Backbone, CausalTarget, slice_head, with_cuda_graphs
from mmspec.recipes import Recipe, parse
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.params import SamplingParams

BOOKS = 8
FRAMES = 300  # six seconds
BATCH = 4
LOUDEST = 0.99


class SecondStage:
    """The second stage of YuE.

    Args:
        model: A `LlamaForCausalLM`.
        recipe: How it is decoded; its tokens are those of any other exact recipe.
        frames: Frames that it reads at a time.

    Raises:
        ModelError: If the model does not have the codes.
    """

    def __init__(self, model: Any, recipe: Recipe | None = None, frames: int = FRAMES) -> None:
        if (ids := model.lm_head.weight.shape[0]) < FIRST + BOOKS * CODES:
            raise ModelError(f"stage_2 has {ids} ids; a YuE has {FIRST + BOOKS * CODES} or more")
        self.model, self.recipe, self.frames = model.eval(), recipe or parse("recycle:window=4"), frames

    @torch.inference_mode()
    def complete(self, track: Tensor) -> Tensor:
        """All codes int64 [8, F] of a track's first ones, int64 [F]."""
        pieces = [piece for piece in track.split(self.frames) if len(piece)]
        whole = [piece for piece in pieces if len(piece) == self.frames]
        groups = [whole[i : i + BATCH] for i in range(0, len(whole), BATCH)]
        groups += [[piece] for piece in pieces[len(whole) :]]
        return torch.cat([row for group in groups for row in self._decode(group)], dim=1)

    def _decode(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """The codes [8, F] of pieces of the same length."""
        model, device, length = self.model, self.model.device, BOOKS * len(pieces[0])
        # Kinds 0 to 7 are a codebook's codes, and 8 + c is code c of the first one, which is forced.
        allowed = torch.cat(
            [
                torch.eye(BOOKS, device=device).repeat_interleave(CODES, 1),
                torch.eye(CODES, BOOKS * CODES, device=device),
            ]
        ).bool()
        kind = torch.arange(length, device=device).remainder(BOOKS).repeat(len(pieces), 1)
        kind[:, ::BOOKS] = BOOKS + torch.stack(list(pieces)).to(device)
        layout = Layout(length, BOOKS, Constraint(kind, allowed))
        embed = model.get_input_embeddings()
        backbone = Backbone(
            decoder_of(model),
            lambda tokens: embed(tokens + FIRST),
            slice_head(model.lm_head, FIRST, FIRST + BOOKS * CODES),
            BOOKS * CODES,
            device,
        )
        rows = [[START, STAGE_1, *(piece + FIRST).tolist(), STAGE_2] for piece in pieces]
        target = CausalTarget(backbone, flat_prompt(model, rows), None, length, self.recipe.window)
        params = [SamplingParams(0.0)] * len(rows)
        resources = DraftResources(draft_sampling=params, adaptive_windows=adaptive_windows_of(model))
        prepared = PreparedRows(with_cuda_graphs(target), layout, params, resources)
        found, _ = decode_rows(prepared, self.recipe, [0] * len(rows))
        first = CODES * torch.arange(BOOKS)
        return [(tokens.view(-1, BOOKS) - first).T.to(device) for tokens in found]


class Tracks:
    """The `mmspec.audio.codec.Codec` of songs: their two tracks are completed, decoded and mixed.

    Args:
        codec: Makes audio of one track, with eight codebooks.
        stage: Completes a track.
    """

    codebooks = 2
    codebook_size = CODES

    def __init__(self, codec: Codec, stage: SecondStage) -> None:
        self._codec, self._stage = check_codec(codec, BOOKS, CODES), stage
        self.sampling_rate, self.channels, self.hop = codec.sampling_rate, codec.channels, codec.hop

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        whole = torch.stack([torch.stack([self._stage.complete(track) for track in song]) for song in codes])
        tracks = self._codec.decode(whole.flatten(0, 1)).clamp(-LOUDEST, LOUDEST)
        return tracks.unflatten(0, (len(codes), 2)).sum(1).clamp(-1, 1)

    def stream(self) -> CodecStream:
        return OverlapStream(self, None, sys.maxsize)

    def tables(self) -> list[Tensor]:
        return [self._codec.tables()[0]] * self.codebooks
