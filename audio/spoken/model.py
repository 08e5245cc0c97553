"""The embedded voice as a speaker, from the weights that ship with the package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mmspec.audio.codec import Codec
from mmspec.audio.pipeline import PreparedText, SpeechPipeline, TargetJob
from mmspec.audio.spoken.checkpoint import load as load_net
from mmspec.audio.spoken.codec import SpokenCodec
from mmspec.audio.spoken.config import CODES, RECIPE, TEMPERATURE, TOP_K, VOICES, WEIGHTS
from mmspec.audio.spoken.ngram_drafter import TextNGramDrafter, TextNGramTable
from mmspec.audio.spoken.script import Script
from mmspec.audio.spoken.target import SpokenTarget
from mmspec.audio.spoken.text import alphabet, read, script
from mmspec.audio.spoken.transformer import STOP, SpokenTransformer
from mmspec.codebook import Codebook
from mmspec.decoding.adaptive_window import AdaptiveWindows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

_TOKENS_PER_PHONE = 9  # twice what phones take on average; a sentence is cut after so many


class SpokenAdapter:
    """The embedded voice; see `mmspec.audio.pipeline.SpeechAdapter`.

    Args:
        net: The transformer.
        draft: Its small drafter, on the same device.
        codec: On the same.
        table: The guesses of the recipe `table`.
    """

    guided = False
    voices: Sequence[str] = tuple(VOICES)
    recipe = RECIPE
    sampling = SamplingParams(TEMPERATURE, TOP_K)

    def __init__(
        self, net: SpokenTransformer, draft: SpokenTransformer, codec: SpokenCodec, table: TextNGramTable
    ) -> None:
        self.net = net
        self.draft = draft
        self.codec: Codec = codec
        self.table = table
        self._paces: AdaptiveWindows = {}

    def read(self, text: str, voice: str | None) -> PreparedText:
        reading = read(text)
        number = self.voices.index(voice) if voice is not None else 0
        notes = [f"spelled, since the voice has not learnt it: {word}" for word in reading.spelled]
        return PreparedText([script(sentence, number) for sentence in reading.sentences], notes)

    def job(self, parts: Sequence[Script], recipe: Recipe, samplings: Sequence[SamplingParams]) -> TargetJob:
        features = [alphabet().features(part) for part in parts]
        length = _TOKENS_PER_PHONE * max(map(len, parts)) + 20
        target = SpokenTarget(self.net, features, length, slack=recipe.window)
        resources = DraftResources(
            draft_model=partial(SpokenTarget, self.draft, features, length, slack=recipe.window),
            draft_sampling=samplings,
            codebook=self.codebook,
            continuation=lambda: TextNGramDrafter(self.table, target, features),
            adaptive_windows=self._paces,
        )
        return TargetJob(target, Layout(length, eos=frozenset({STOP}), pad=STOP), resources)

    def codes(self, tokens: Tensor) -> Tensor:
        said = tokens[tokens != STOP]
        return (said % CODES)[None]

    def codebook(self) -> Codebook:
        """What tokens stand for; those that end a phone lie far from all that do not."""
        book = self.codec.tables()[0].float()
        far = torch.full((CODES, 1), 1e3, device=book.device)
        vectors = torch.cat([torch.cat([book, -far], dim=1), torch.cat([book, far], dim=1)])
        return Codebook(vectors, vocab_size=self.net.vocab_size)


def load_table(folder: Path) -> TextNGramTable:
    state = load_file(folder / "model.safetensors")
    return TextNGramTable(state["keys"].numpy().astype(np.int64) + 2**31, state["tokens"].numpy())


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32) -> SpeechPipeline:
    """The embedded voice on `device`, its transformers in `dtype`."""
    net, draft = (load_net(SpokenTransformer, WEIGHTS / name).to(device, dtype) for name in ("target", "draft"))
    codec = load_net(SpokenCodec, WEIGHTS / "codec").to(device)
    return SpeechPipeline(SpokenAdapter(net, draft, codec, load_table(WEIGHTS / "table")))
