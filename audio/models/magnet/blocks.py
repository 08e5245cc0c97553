"""MAGNeT drafts blocks for MusicGen, whose codes are those of the same EnCodec."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.audio.models.magnet.model import MagnetTransformer
from mmspec.decoding.batch import BatchState
from mmspec.errors import ModelError


class MagnetBlocks:
    """The next columns of delayed codes by a MAGNeT; see `mmspec.methods.masked.MaskedModel`.

    One pass reads each row once per codebook k, with the frames known so far of the codebooks up to k and all others
    masked, as the model was trained to fill codebook k. It is not guided.

    Args:
        states: [B, S, C], the states of its text encoder.
        mask: bool [B, S].
        delays: The delay of each codebook, in columns.
        frames: Frames of the audio, T.
    """

    ROWS = ("_text", "_mask")

    def __init__(
        self, model: MagnetTransformer, states: Tensor, mask: Tensor, delays: Sequence[int], frames: int
    ) -> None:
        self._model, self._delays, self._frames = model, np.asarray(delays), frames
        self._text, self._mask = model.read_text(states.to(model.device), mask.to(model.device)), mask.to(model.device)

    def block(self, state: BatchState, count: int) -> Tensor:
        books, masked = self._model.config.codebooks, self._model.config.codes
        length, device = state.length, self._model.device
        # Cell k of column t belongs to frame t - d_k.
        columns = np.arange(self._frames)[:, None] + self._delays
        known = torch.from_numpy(columns < length[:, None, None]).to(device)  # [B, T, K]
        last = np.broadcast_to(np.arange(int(length.max(initial=0))), (len(length), int(length.max(initial=0))))
        tokens = state.at(last)
        padding = max(self._frames + int(self._delays.max()) - tokens.shape[1], 0)
        tokens = F.pad(tokens, (0, 0, 0, padding), value=masked)
        frames = torch.stack([tokens[:, d : d + self._frames, k] for k, d in enumerate(self._delays)], dim=-1)
        codes = frames.where(known, masked).transpose(1, 2)
        # Row k of each reads what is known of the codebooks up to k.
        visible = torch.ones(books, books, dtype=torch.bool, device=device).tril()
        codes = codes[:, None].where(visible[:, :, None], masked).flatten(0, 1)
        stages = torch.arange(books, device=device).repeat(len(length))
        text, mask = (each.repeat_interleave(books, 0) for each in (self._text, self._mask))
        hidden = self._model.hidden(codes, text, mask, stages).unflatten(0, (len(length), books))
        wanted = state.positions(count)[..., None] - self._delays  # [B, count, K]
        index = torch.from_numpy(wanted.clip(0, self._frames - 1)).to(device)
        row = torch.arange(len(length), device=device)[:, None]
        heads = self._model.linears
        return torch.stack([head(hidden[row, k, index[..., k]]) for k, head in enumerate(heads)], dim=2).float()


def check_magnet(model: MagnetTransformer, codebooks: int, codes: int, text_dim: int) -> None:
    """Checks that a model has the codes and the text encoder of another one.

    Raises:
        ModelError: If it has not.
    """
    config = model.config
    for what, theirs, ours in (
        ("codebooks", config.codebooks, codebooks),
        ("codes", config.codes, codes),
        ("features of the text encoder", config.text_dim, text_dim),
    ):
        if theirs != ours:
            raise ModelError(f"draft_model has {theirs} {what}, the model {ours}; they belong to different families")
