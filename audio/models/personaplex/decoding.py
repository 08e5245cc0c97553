"""PersonaPlex frame by frame: a text id and the codes along the depth, while the user's codes are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.depth.captured_depth import CapturedDepth, DepthGraphs
from mmspec.audio.depth.depth_frames import left_padded
from mmspec.audio.models.kyutai_tts.decoding import VoicedDecoder, VoicedTarget
from mmspec.audio.models.kyutai_tts.depth import KyutaiDepth, reader_of
from mmspec.audio.models.kyutai_tts.model import KyutaiTTS
from mmspec.audio.models.personaplex.prompt import Conversation
from mmspec.decoding.target import cache_bytes, read_window
from mmspec.hf.causal_target import Prompt, with_cuda_graphs
from mmspec.hf.plan import position_ids_of
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers


class DuplexFrames:
    """A model with its conversations given: a `mmspec.audio.depth.depth_decoding.FrameModel`.

    The first token of a frame is its text id. The original also makes the user's codes, which follow the model's own,
    and drops them; here they are left out.

    Args:
        conversations: One per row, with the same number of frames.

    Attributes:
        codes: K, tokens of a frame after the first.
        device: Where its tensors are.
    """

    ROWS = ("_target", "_user", "_codes", "_length")
    SAME = ("_model", "_frames")

    def __init__(self, model: KyutaiTTS, conversations: Sequence[Conversation]) -> None:
        self.codes, self.device = model.config.codebooks, model.device
        self.reader = reader_of(model)
        self._model = model
        given = torch.stack([each.given for each in conversations])
        self._codes = given[..., 1 : 1 + self.codes].numpy()
        self._user = given[..., 1 + self.codes :].to(self.device)
        self._frames, self._length = given.shape[1], np.zeros(len(given), dtype=np.int64)
        with torch.inference_mode():
            embeds = [
                torch.cat([each.embeds.to(self.device, model.dtype), model.embed_columns(each.prompt.to(self.device))])
                for each in conversations
            ]
            padded, mask = left_padded(embeds)
        prompt = Prompt(padded, mask, position_ids_of(mask))
        self._target = with_cuda_graphs(VoicedTarget(VoicedDecoder(model, None), prompt, None, self._frames, 0))
        self._graphs = DepthGraphs(model, len(given))

    def start(self) -> Logits:
        return self._target.prefill()

    def step(self, frame: Tensor) -> Logits:
        at = Numbers(self._length).uploaded(self.device)
        user = self._user[torch.arange(len(frame), device=self.device), at.on(self.device)]
        logits = read_window(self._target, torch.cat([frame, user], dim=1)[:, None], at)
        self._length = self._length + 1
        return logits

    def depth(self, first: Tensor, start: int, window: int) -> KyutaiDepth | CapturedDepth:
        given = self.given_codes(self._length[:, None])[:, 0]
        frame = KyutaiDepth(self._model, self._target.features()[:, -1], first[:, 0], given, start, window)
        # See `mmspec.audio.models.kyutai_tts.decoding.KyutaiFrames.depth`.
        return self._graphs.of(frame) if window == 1 and (given < 0).all() else frame

    def given_codes(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.take_along_axis(self._codes, frames[..., None].clip(max=self._frames - 1), axis=1)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._target)
