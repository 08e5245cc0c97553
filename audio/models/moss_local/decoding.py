"""MOSS-TTS-Local v1.5 frame by frame: whether one comes and its first code, then the codes along the depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import DepthFrames
from mmspec.audio.depth.depth_target import by_index
from mmspec.audio.models.moss_local.model import MossLocal
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler


class MossLocalFrames(DepthFrames):
    """A model with its prompts given.

    The original samples "another frame" or "the end", and then the first code, from one hidden state of the
    transformer along the depth. Here both are one first token: a code, or the end, whose id follows the codes. Its
    logits include the sampling parameters, which apply to the code alone.

    Args:
        prompts: The text ids int64 [T] and codes int64 [T, K] of each row's prompt.
        length: Frames to generate, with the one that ends a row.
        sampling: Sampling parameters of codes; a temperature of 0 takes the most likely of "another frame" and "the
            end" too.
        slack: How many frames a window may reach past the end.
    """

    def __init__(
        self,
        model: MossLocal,
        prompts: Sequence[tuple[Tensor, Tensor]],
        length: int,
        sampling: SamplingParams,
        slack: int = 0,
    ) -> None:
        config, longest = model.config, max(len(text) for text, _ in prompts)
        text = torch.stack([F.pad(ids, (longest - len(ids), 0)) for ids, _ in prompts]).to(model.device)
        codes = torch.stack(
            [F.pad(rows, (0, 0, longest - len(rows), 0), value=config.code_pad) for _, rows in prompts]
        ).to(model.device)
        lengths = torch.tensor([[len(ids)] for ids, _ in prompts], device=model.device)
        mask = torch.arange(longest, device=model.device) >= longest - lengths

        def head(hidden: Tensor) -> Tensor:
            return torch.cat(model.first_logits(hidden), dim=-1)

        parts = Backbone(model.transformer, model.embed_frames, head, config.codes + 1, model.device)
        with torch.inference_mode():
            prompt = Prompt(model.embed(text, codes), mask, position_ids_of(mask))
        super().__init__(parts, MossLocalDepth(model), prompt, length, slack, [FirstToken(sampling)])


@dataclass(frozen=True)
class FirstToken:
    """How first tokens are sampled: a logits processor whose logits are those of the final distribution.

    Attributes:
        sampling: Sampling parameters of the code.
    """

    sampling: SamplingParams

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Log-probabilities [n, V + 1] of the first code, and the end after them.

        Args:
            prefix: Not used.
            logits: [n, 2 + V], of "another frame" and "the end", then of the first code.
        """
        text, codes = logits[:, :2], logits[None, :, 2:]
        sampler = TokenSampler([self.sampling], None, logits.device)
        of_codes = dense(sampler(Logits(codes, None), Numbers(np.zeros(codes.shape[:2], dtype=np.int64))))[0].log()
        if self.sampling.temperature == 0:
            ends = text[:, 1:] > text[:, :1]
            choice = torch.where(torch.cat([~ends, ends], dim=-1), 0.0, -torch.inf)
        else:
            choice = text.log_softmax(-1)
        return torch.cat([choice[:, :1] + of_codes, choice[:, 1:]], dim=-1)


class MossLocalDepth:
    """The transformer along the depth; see `mmspec.audio.depth.depth_target.DepthDecoder`."""

    def __init__(self, model: MossLocal) -> None:
        self.vocab_size = model.config.codes
        self.codebooks = model.config.codebooks
        self.module = self._model = model
        self.reader = nn.ModuleList([model.local_transformer, *model.audio_embeddings[1:]])

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        model, tokens = self._model, tokens.clamp(max=self.vocab_size - 1)
        table = model.table(0)
        return by_index(
            tokens, books, self.codebooks, table.shape[1], table.dtype, lambda book, own: model.table(book)[own]
        )

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        hidden: Tensor = self._model.local_transformer(embeds, mask, positions, cache)
        return hidden

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        def logits(head: int, own: Tensor) -> Tensor:
            return F.linear(own, self._model.table(head + 1))

        return by_index(hidden, heads, self.codebooks - 1, self.vocab_size, hidden.dtype, logits)


def frame_ends(model: MossLocal) -> Any:
    """A function of frames int64 [..., K] to bool [...]: True for frames that end their row."""
    return lambda frames: frames[..., 0] == model.config.codes


def frame_spec(model: MossLocal, length: int, sampling: SamplingParams) -> FrameSpec:
    """The frames to generate: the logits of first tokens have the sampling parameters, see `MossLocalFrames`."""
    first = SamplingParams(0.0) if sampling.temperature == 0 else SamplingParams()
    return FrameSpec(length, frame_ends(model), model.config.codes, first, sampling)
