"""The adapter of the embedded voice, and its loader."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.spoken.checkpoint import load_module
from mmspec.audio.spoken.codec import SpokenCodec
from mmspec.audio.spoken.config import CODES, RECIPE, TEMPERATURE, TOP_K, VOICES, WEIGHTS
from mmspec.audio.spoken.ngram_drafter import TextNGramDrafter, TextNGramTable
from mmspec.audio.spoken.script import Script
from mmspec.audio.spoken.target import SpokenTarget
from mmspec.audio.spoken.text import alphabet, read, script
from mmspec.audio.spoken.transformer import STOP, SpokenTransformer
from mmspec.codebook import Codebook
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.window_policy import AdaptiveWindows
from mmspec.heads.head import Head
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

_TOKENS_PER_PHONE = 9  # length limit of a sentence: twice the average


class SpokenAdapter:
    """The embedded voice; see `mmspec.audio.adapter.SpeechAdapter`.

    Args:
        net: The transformer.
        draft: The small draft model, on the same device.
        codec: The codec, on the same device.
        table: N-gram table of the recipe `table`.

    Attributes:
        heads: Draft heads by kind; see `mmspec.audio.pipeline.SpeechPipeline.add_drafter`.
    """

    guided = False
    voices: Sequence[str] = tuple(VOICES)
    recipe = RECIPE
    takes_min_p = True
    sampling = SamplingParams(TEMPERATURE, TOP_K)

    def __init__(
        self, net: SpokenTransformer, draft: SpokenTransformer, codec: SpokenCodec, table: TextNGramTable
    ) -> None:
        self.net = net
        self.draft = draft
        self.codec: Codec = codec
        self.table = table
        self.heads: dict[str, Head] = {}
        self._adaptive_windows: AdaptiveWindows = {}

    def read(self, text: str, voice: str | None) -> PreparedText:
        normalized = read(text)
        number = self.voices.index(voice) if voice is not None else 0
        sentences = normalized.sentences
        parts = [script(sentence, number) for sentence in sentences]
        return PreparedText(parts, normalized.notes, [sentence.text for sentence in sentences])

    def prepare_rows(
        self, parts: Sequence[Script], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        features = [alphabet().features(part) for part in parts]
        length = _TOKENS_PER_PHONE * max(map(len, parts)) + 20
        target = SpokenTarget(self.net, features, length, slack=recipe.window)
        resources = DraftResources(
            draft_model=partial(SpokenTarget, self.draft, features, length, slack=recipe.window),
            draft_sampling=samplings,
            codebook=self.codebook,
            continuation=lambda: TextNGramDrafter(self.table, target, features),
            adaptive_windows=self._adaptive_windows,
            heads=self.heads,
        )
        return PreparedRows(target, Layout(length, eos=frozenset({STOP}), pad=STOP), samplings, resources)

    def codes(self, tokens: Tensor) -> Tensor:
        return (tokens[tokens != STOP] % CODES)[None]

    def codebook(self) -> Codebook:
        """The codebook of all tokens. Tokens that end a phone lie far from all that do not."""
        book = self.codec.tables()[0].float()
        far = torch.full((CODES, 1), 1e3, device=book.device)
        vectors = torch.cat([torch.cat([book, -far], dim=1), torch.cat([book, far], dim=1)])
        return Codebook(vectors, vocab_size=self.net.vocab_size)


def load_table(folder: Path) -> TextNGramTable:
    """Loads the n-gram table from a folder."""
    state = load_file(folder / "model.safetensors")
    return TextNGramTable(state["keys"].numpy().astype(np.int64) + 2**31, state["tokens"].numpy())


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32) -> SpeechPipeline:
    """Loads the embedded voice.

    Args:
        device: Device of all models.
        dtype: Dtype of the transformers; the codec is in float32.
    """
    net, draft = (load_module(SpokenTransformer, WEIGHTS / name).to(device, dtype) for name in ("target", "draft"))
    codec = load_module(SpokenCodec, WEIGHTS / "codec").to(device)
    return SpeechPipeline(SpokenAdapter(net, draft, codec, load_table(WEIGHTS / "table")))
