"""The loop of CosyVoice 2 and 3 that generates the codes of speech: `inference_wrapper` of their language model.

Prompts are made by the model's own `inference`, so that voices and instructions are those of the package.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.batching.call import stream_row
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import Watch
from mmspec.drop_in.codec_loop import CodecLoop
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.logits_processors import RepetitionAware
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds


@dataclass(frozen=True)
class NotAmongFirst:
    """Forbids an id among the first tokens of a stream, before the processors that follow."""

    token: int
    first: int

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[(prefix >= 0).sum(-1) < self.first, self.token] = -torch.inf
        return logits


class InferenceWrapper(CodecLoop):
    """`inference_wrapper`, which yields one code after the other; see `mmspec.accelerate`."""

    NAME = "inference_wrapper"
    PACKAGE = "cosyvoice"

    @torch.inference_mode()
    def __call__(self, lm_input: Tensor, sampling: int, min_len: int, max_len: int, uuid: str) -> Iterator[int]:
        """Yields the codes of a prompt [1, T, D] as they are decoded."""
        random, begun, stats = torch.get_rng_state(), False, list[Stats]()
        try:
            if max_len > 0:
                self._check(lm_input)
                rows, recipe = self._rows(lm_input[0], min_len, max_len)
                for codes in stream_row(rows, recipe, row_seeds(None, 1)[0], Watch(on_stats=stats.append)):
                    begun = True
                    yield from (code for code in codes.tolist() if code < self.owner.speech_token_size)
                self.keep(stats, recipe)
            return
        except ArgumentError as error:
            if begun:
                raise
            self.note(str(error))
        torch.set_rng_state(random)
        yield from self.__wrapped__(lm_input, sampling, min_len, max_len, uuid)

    def _check(self, lm_input: Tensor) -> None:
        """Refuses what would not be decoded as the package does."""
        self.check_method()
        if hasattr(self.owner, "vllm"):
            raise ArgumentError("vLLM decodes after load_vllm, with a model of its own")
        if len(lm_input) != 1:
            raise ArgumentError(f"lm_input has {len(lm_input)} rows; a call decodes 1")

    def _rows(self, prompt: Tensor, min_len: int, max_len: int) -> tuple[PreparedRows, Recipe]:
        lm = self.owner
        processors = (NotAmongFirst(lm.speech_token_size, min_len), sampling_of(lm))
        ends = lm.stop_token_ids
        layout = Layout(max_len, eos=frozenset(ends), pad=ends[0])
        model = CodecLM(lm.llm.model.model, lm.speech_embedding, lm.llm_decoder)
        return self.rows(model, prompt, None, layout, CodecLMSettings(processors, SamplingParams()))


def sampling_of(lm: Any) -> RepetitionAware:
    """The distribution of a model's sampler.

    Raises:
        ArgumentError: If the sampler is not `ras_sampling` as it has been since February 2026.
    """
    sampler = getattr(lm.sampling, "func", lm.sampling)
    if getattr(sampler, "__name__", "") != "ras_sampling" or not sampler.__module__.startswith("cosyvoice."):
        raise ArgumentError("its sampler is not ras_sampling, the one that mmspec knows")
    top_p, top_k, window, share = (
        inspect.signature(lm.sampling).parameters[name].default for name in ("top_p", "top_k", "win_size", "tau_r")
    )
    # Nothing here is left to chance. The end is likeliest, and forbidden; then code 0, which is repetitive; then 1.
    scores = torch.full((lm.llm_decoder.out_features,), -1000.0)
    scores[[lm.speech_token_size, 0, 1]] = torch.tensor([0.0, -200.0, -400.0])
    with torch.random.fork_rng(devices=[]):
        try:
            drawn = int(lm.sampling_ids(scores, [0] * window, top_k, True))
        except RuntimeError:  # of earlier releases, which draw until they have another id
            drawn = -1
    if drawn != int(window * share <= window):
        raise ArgumentError("this release samples in another way than CosyVoice since February 2026")
    return RepetitionAware(top_p, top_k, window, window * share)
