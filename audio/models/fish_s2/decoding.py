"""Fish Audio S2 Pro frame by frame: the first code or the end, then the codes along the depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.depth_frames import DepthFrames, left_padded
from mmspec.audio.models.fish_s2.model import FishS2
from mmspec.hf.cache_name import run_decoder
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import position_ids_of
from mmspec.hf.slot_cache import SlotCache
from mmspec.sampling.params import SamplingParams

PENALIZED, REPEATED = 16, 4  # of the latest first codes: those that are penalized, those that must not repeat
AGAIN = SamplingParams(1.0, top_p=0.9)  # after first codes that repeat


@dataclass(frozen=True)
class FirstCodes:
    """How first codes are sampled: a logits processor whose logits are those of the final distribution.

    The latest first codes are penalized. Top-p is applied before the temperature, and drops the code with which it is
    exceeded. If a code occurs twice among the latest four, the next one has temperature 1 and top-p 0.9.

    Attributes:
        sampling: Sampling parameters; a temperature of 0 takes the most likely code, also after codes that repeat.
        penalty: The repetition penalty.
    """

    sampling: SamplingParams
    penalty: float

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Logits float32 [n, V] after the first codes int64 [n, L], -1 where there is none."""
        recent, size = prefix[:, -PENALIZED:], logits.shape[-1]
        seen = torch.zeros(len(logits), size + 1, dtype=torch.bool, device=logits.device)
        seen = seen.scatter(1, torch.where(recent < 0, size, recent), True)[:, :size]
        penalized = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        z = torch.where(seen, penalized, logits)
        if self.sampling.temperature == 0:
            return z
        latest = F.pad(prefix, (REPEATED, 0), value=-1)[:, -REPEATED:].sort(-1).values
        again = (latest[:, :1] >= 0) & (latest[:, 1:] == latest[:, :-1]).any(-1, keepdim=True)
        values, ids = z.topk(min(self.sampling.top_k or size, size), dim=-1)
        # Sums of all probabilities may exceed 1 by rounding.
        own = self.sampling.top_p if self.sampling.top_p < 1 else torch.inf
        drop = values.softmax(-1).cumsum(-1) > torch.where(again, AGAIN.top_p, own)
        drop[:, 0] = False
        values = values.masked_fill(drop, -torch.inf) / torch.where(again, AGAIN.temperature, self.sampling.temperature)
        return torch.full_like(z, -torch.inf).scatter(1, ids, values.log_softmax(-1))


class FishFrames(DepthFrames):
    """A model with its prompts given.

    Args:
        prompts: The text ids int64 [T] of each row, -1 in the places of its voice, and the voice's frames int64 [n, K].
        length: Frames to generate, with the one that ends a row.
        first: How first codes are sampled.
        slack: How many frames a window may reach past the end.
    """

    def __init__(
        self,
        model: FishS2,
        prompts: Sequence[tuple[Tensor, Tensor]],
        length: int,
        first: FirstCodes,
        slack: int = 0,
    ) -> None:
        parts = Backbone(model.slow, model.embed_frames, model.first_logits, model.config.codes + 1, model.device)
        with torch.inference_mode():
            embeds, mask = left_padded([embed_prompt(model, *prompt) for prompt in prompts])
        prompt = Prompt(embeds, mask, position_ids_of(mask))
        super().__init__(parts, FishDepth(model), prompt, length, slack, [first])


def embed_prompt(model: FishS2, ids: Tensor, voice: Tensor) -> Tensor:
    """The embeddings [T, D] of a prompt; see `FishFrames`."""
    ids = ids.to(model.device)
    embeds: Tensor = model.text_embeddings(ids.clamp(min=0))
    embeds[ids < 0] = model.embed_frames(voice.to(model.device))
    return embeds


class FishDepth:
    """The transformer along the depth; see `mmspec.audio.depth.depth_target.DepthDecoder`."""

    def __init__(self, model: FishS2) -> None:
        self.vocab_size = model.config.codes
        self.codebooks = model.config.codebooks
        self.module = self._model = model
        self.reader = nn.ModuleList([model.fast, model.fast_head])

    def embed(self, tokens: Tensor, books: Tensor | int) -> Tensor:
        # One embedding for all codebooks: positions tell them apart.
        embeds: Tensor = self._model.fast_embeddings(tokens.clamp(0, self.vocab_size - 1))
        return embeds

    def run(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        return run_decoder(self._model.fast, embeds, mask, positions, cache)

    def head(self, hidden: Tensor, heads: Tensor | int) -> Tensor:
        logits: Tensor = self._model.fast_head(hidden)
        return logits


def frame_ends(model: FishS2) -> Any:
    """A function of frames int64 [..., K] to bool [...]: True for frames that end their row."""
    return lambda frames: frames[..., 0] == model.config.codes


def frame_spec(model: FishS2, length: int, sampling: SamplingParams, residual: SamplingParams) -> FrameSpec:
    """The frames to generate: the logits of first codes have their sampling parameters, see `FirstCodes`."""
    first = SamplingParams(0.0) if sampling.temperature == 0 else SamplingParams()
    return FrameSpec(length, frame_ends(model), model.config.codes, first, residual)
