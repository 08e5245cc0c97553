"""The speech adapter of Bark: texts by its processor, three stages, EnCodec."""

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
from mmspec.audio.pipeline import PreparedText
from mmspec.audio.text import split_text
from mmspec.decoding.batch import Step
from mmspec.decoding.loop import OnStep
from mmspec.decoding.stats import Stats
from mmspec.engine import Decoded
from mmspec.errors import ArgumentError
from mmspec.hf.generate import generate
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 200  # of a part: Bark's audio is good for about 13 seconds


class BarkAdapter:
    """The `mmspec.audio.pipeline.SpeechAdapter` of Bark.

    The last stage is not causal, so that a stream arrives as one chunk.

    Args:
        model: A `BarkModel`.
        processor: A `BarkProcessor`.
        codec: The codec of its codes.
        draft_model: A smaller `BarkModel` that drafts the second stage, or None.
    """

    recipe = "scd:window=6"
    guided = False
    voices = ()

    def __init__(self, model: Any, processor: Any, codec: Codec, draft_model: Any = None) -> None:
        self.model, self.processor, self.codec = model.eval(), processor, codec
        self.draft_model = None if draft_model is None else draft_model.eval()
        config = model.generation_config.semantic_config
        self.sampling = SamplingParams(float(config.get("temperature", 1.0)) if config.get("do_sample") else 0.0)

    def read(self, text: str, voice: str | None) -> PreparedText:
        return PreparedText([self.processor(piece) for piece in split_text(text, MAX_LETTERS)])

    def job(
        self, parts: Sequence[Mapping[str, Tensor]], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> BarkJob:
        return BarkJob(self, parts)

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens[tokens[:, 0] >= 0].T


@dataclass(frozen=True)
class BarkJob:
    """A batch of texts; see `mmspec.audio.pipeline.DecodingJob`.

    Attributes:
        adapter: The adapter.
        texts: The outputs of its processor.
    """

    adapter: BarkAdapter
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
            raise ArgumentError("measure_entropy is not possible for Bark, whose tokens come from two models")
        model, stats = self.adapter.model, list[Stats]()
        configs = model.generation_config
        semantic = BarkSemanticGenerationConfig(**configs.semantic_config)
        coarse = BarkCoarseGenerationConfig(**configs.coarse_acoustics_config)
        fine = BarkFineGenerationConfig(**configs.fine_acoustics_config)
        draft = self.adapter.draft_model
        by_model = recipe.needs_draft_model or int(recipe.knobs.get("layers", 0)) > 0
        no_frames = torch.empty(0, fine.n_fine_codebooks, dtype=torch.int64)

        def report(step: Step) -> None:
            assert on_step is not None
            on_step(replace(step, tokens=[no_frames] * len(seeds)))  # no frame is complete before the last stage

        def decode(
            model: Any,
            input_ids: Tensor,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            **inputs: Any,
        ) -> Tensor:
            generation_config.return_dict_in_generate = True
            # The prompt of the first stage consists of the model's own embeddings, which no draft model can read.
            second = type(model).__name__ == "BarkCoarseModel"
            out: Any = generate(
                *(model, input_ids, logits_processor, stopping_criteria, generation_config),
                recipe=recipe if second or not by_model else "plain",
                seed=list(seeds),
                draft_model=draft.coarse_acoustics if second and draft is not None else None,
                on_step=None if on_step is None else report,
                **inputs,
            )
            stats.append(out.stats)
            return out.sequences

        s = samplings[0]
        sampling = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p} if s.temperature else {}
        how = {"do_sample": bool(s.temperature), **sampling, "custom_generate": decode}
        device = model.device
        ids = torch.cat([torch.as_tensor(text["input_ids"]).view(1, -1) for text in self.texts]).to(device)
        mask = torch.cat([torch.as_tensor(text["attention_mask"]).view(1, -1) for text in self.texts]).to(device)
        semantic_codes = model.semantic.generate(
            ids, semantic, attention_mask=mask, min_eos_p=semantic.min_eos_p, **how
        )
        size = configs.codebook_size
        coarse_codes, lengths = model.coarse_acoustics.generate(
            semantic_codes, semantic, coarse, codebook_size=size, return_output_lengths=True, **how
        )
        frames = (lengths // coarse.n_coarse_codebooks).tolist()
        out = torch.full((len(seeds), max(frames), fine.n_fine_codebooks), -1, dtype=torch.int64)
        for row, (seed, count) in enumerate(zip(seeds, frames, strict=True)):
            # This stage samples from torch's global generator: one row at a time, so that rows do not share its state.
            with torch.random.fork_rng():
                torch.manual_seed(seed % 2**63)
                own = coarse_codes[row : row + 1, : count * coarse.n_coarse_codebooks]
                made = model.fine_acoustics.generate(own, semantic, coarse, fine, codebook_size=size)
            out[row, :count] = made[0].T
        return Decoded(out, merge_stats(stats))


def merge_stats(stats: Sequence[Stats]) -> Stats:
    """Statistics of several runs over the same rows, one after the other.

    The acceptance rate per slot is left out: it describes a single run.
    """
    first, *others = stats
    rows = list(first.rows)
    for one in others:
        rows = [
            replace(a, tokens=a.tokens + b.tokens, calls=a.calls + b.calls) for a, b in zip(rows, one.rows, strict=True)
        ]
    tokens = sum(one.tokens for one in stats)
    return Stats(
        nfe=sum(one.nfe for one in stats),
        tokens=tokens,
        tokens_per_call=tokens / sum(row.calls for row in rows),
        acceptance=[],
        draft_calls=sum(one.draft_calls for one in stats),
        seconds=sum(one.seconds for one in stats),
        seconds_by_part={part: sum(one.seconds_by_part[part] for one in stats) for part in first.seconds_by_part},
        peak_memory=max(one.peak_memory for one in stats),
        tv_bound=sum(one.tv_bound * one.tokens for one in stats) / tokens,
        rows=rows,
    )


def make(model: Any, processor: Any, codec: Codec | None, config: Mapping[str, Any], draft_model: Any) -> BarkAdapter:
    """The `BarkAdapter` of a loaded model; see `mmspec.audio.load.SPEECH_ADAPTERS`.

    Raises:
        ArgumentError: For unknown options.
    """
    if config:
        raise ArgumentError(f"config has {sorted(config)[0]!r}, which Bark does not have; it may have 'draft_model'")
    return BarkAdapter(model, processor, codec or codec_of(model.codec_model), draft_model)
