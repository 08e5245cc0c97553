"""Bark with what surrounds it: text and voices by its processor, three stages, EnCodec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkFineGenerationConfig,
    BarkSemanticGenerationConfig,
)

from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.speech import pieces
from mmspec.audio.pipeline import Reading
from mmspec.decoding.batch import Step
from mmspec.decoding.loop import OnStep
from mmspec.decoding.stats import Stats
from mmspec.engine import Decoded
from mmspec.errors import ArgumentError
from mmspec.hf.generate import generate
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

LETTERS = 200  # Bark's sound is good for about 13 seconds


class BarkAdapter:
    """A `mmspec.audio.pipeline.SpeechAdapter`. Its last stage looks both ways, so that a stream comes in one piece.

    Args:
        model: A `BarkModel`.
        processor: A `BarkProcessor`.
        draft_model: A smaller `BarkModel`, which drafts the second stage, or None.
    """

    recipe = "scd:window=6"
    guided = False
    voices = ()

    def __init__(self, model: Any, processor: Any, codec: Codec, draft_model: Any = None) -> None:
        self.model, self.processor, self.codec = model.eval(), processor, codec
        self.draft_model = None if draft_model is None else draft_model.eval()
        config = model.generation_config.semantic_config
        self.sampling = SamplingParams(float(config.get("temperature", 1.0)) if config.get("do_sample") else 0.0)

    def read(self, text: str, voice: str | None) -> Reading:
        return Reading([self.processor(piece) for piece in pieces(text, LETTERS)])

    def task(
        self, parts: Sequence[Mapping[str, Tensor]], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> Stages:
        return Stages(self, parts)

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens[tokens[:, 0] >= 0].T


@dataclass(frozen=True)
class Stages:
    """A batch of texts as the processor gives them."""

    speaker: BarkAdapter
    texts: Sequence[Mapping[str, Tensor]]

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """Codes int64 [B, F, codebooks], -1 after the end of a row."""
        if measure_entropy:
            raise ArgumentError("measure_entropy is not possible for Bark, whose tokens have two models")
        model, spent = self.speaker.model, list[Stats]()
        configs = model.generation_config
        semantic = BarkSemanticGenerationConfig(**configs.semantic_config)
        coarse = BarkCoarseGenerationConfig(**configs.coarse_acoustics_config)
        fine = BarkFineGenerationConfig(**configs.fine_acoustics_config)
        draft = self.speaker.draft_model
        by_model = recipe.needs_draft_model or int(recipe.knobs.get("layers", 0)) > 0
        nothing = torch.empty(0, fine.n_fine_codebooks, dtype=torch.int64)

        def heard(step: Step) -> None:
            assert on_step is not None
            on_step(replace(step, tokens=[nothing] * len(seeds)))  # no frame is done before the last stage

        def decode(
            model: Any,
            input_ids: Tensor,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            **inputs: Any,
        ) -> Tensor:
            generation_config.return_dict_in_generate = True
            # The first stage makes its prompt of vectors of its own, which no other model can read.
            second = type(model).__name__ == "BarkCoarseModel"
            out: Any = generate(
                *(model, input_ids, logits_processor, stopping_criteria, generation_config),
                recipe=recipe if second or not by_model else "plain",
                seed=list(seeds),
                draft_model=draft.coarse_acoustics if second and draft is not None else None,
                on_step=None if on_step is None else heard,
                **inputs,
            )
            spent.append(out.stats)
            return out.sequences

        s = samplings[0]
        drawn = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p} if s.temperature else {}
        how = {"do_sample": bool(s.temperature), **drawn, "custom_generate": decode}
        device = model.device
        ids = torch.cat([torch.as_tensor(text["input_ids"]).view(1, -1) for text in self.texts]).to(device)
        mask = torch.cat([torch.as_tensor(text["attention_mask"]).view(1, -1) for text in self.texts]).to(device)
        words = model.semantic.generate(ids, semantic, attention_mask=mask, min_eos_p=semantic.min_eos_p, **how)
        size = configs.codebook_size
        books, lengths = model.coarse_acoustics.generate(
            words, semantic, coarse, codebook_size=size, return_output_lengths=True, **how
        )
        frames = (lengths // coarse.n_coarse_codebooks).tolist()
        out = torch.full((len(seeds), max(frames), fine.n_fine_codebooks), -1, dtype=torch.int64)
        for row, (seed, count) in enumerate(zip(seeds, frames, strict=True)):
            # This stage draws from torch's generator; row by row, so that rows do not share one.
            with torch.random.fork_rng():
                torch.manual_seed(seed % 2**63)
                own = books[row : row + 1, : count * coarse.n_coarse_codebooks]
                made = model.fine_acoustics.generate(own, semantic, coarse, fine, codebook_size=size)
            out[row, :count] = made[0].T
        return Decoded(out, merged(spent))


def merged(spent: Sequence[Stats]) -> Stats:
    """What several runs over the same rows cost one after the other; acceptance by slot is that of each run alone."""
    first, *others = spent
    rows = list(first.rows)
    for one in others:
        rows = [
            replace(a, tokens=a.tokens + b.tokens, calls=a.calls + b.calls) for a, b in zip(rows, one.rows, strict=True)
        ]
    tokens = sum(one.tokens for one in spent)
    return Stats(
        nfe=sum(one.nfe for one in spent),
        tokens=tokens,
        tokens_per_call=tokens / sum(row.calls for row in rows),
        acceptance=[],
        draft_calls=sum(one.draft_calls for one in spent),
        seconds=sum(one.seconds for one in spent),
        seconds_by_part={part: sum(one.seconds_by_part[part] for one in spent) for part in first.seconds_by_part},
        peak_memory=max(one.peak_memory for one in spent),
        tv_bound=sum(one.tv_bound * one.tokens for one in spent) / tokens,
        rows=rows,
    )


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> BarkAdapter:
    """The speaker around a model.

    Raises:
        ArgumentError: For options it does not have.
    """
    if config:
        raise ArgumentError(f"config has {sorted(config)[0]!r}, which Bark does not have; it may have 'draft_model'")
    return BarkAdapter(model, processor, codec or codec_of(model.codec_model), draft_model)
