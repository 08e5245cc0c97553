"""The speech adapter of Bark: texts and voices by its processor, three stages, EnCodec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkFineGenerationConfig,
    BarkSemanticGenerationConfig,
)

from mmspec.audio.adapter import PreparedText
from mmspec.audio.checkpoint_sampling import checkpoint_sampling, stage_sampling
from mmspec.audio.codec import Codec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.bark.fine_stage import generate_fine
from mmspec.audio.text import split_text
from mmspec.batching.run import Decoded
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep, Step
from mmspec.errors import ArgumentError
from mmspec.hf.generate import generate
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 200  # of a part: Bark's audio is good for about 13 seconds
# How github.com/suno-ai/bark samples, for what a checkpoint's generation config leaves out.
ORIGINAL = SamplingParams(0.7)
FINE_TEMPERATURE = 0.5
MIN_EOS_P = 0.2
# A voice shorter than this is none: transformers reads the whole of a history of which no pair of tokens fits.
MIN_HISTORY = 4


@dataclass(frozen=True)
class BarkVoice:
    """A voice to continue, which transformers calls a history prompt.

    Attributes:
        semantic: int64 [S].
        codes: int64 [codebooks, F], of all codebooks.
        coarse: int64 [2, F'], of the first two; presets have some codes more or less.
        source: What it was read from. Rows with voices from the same object are decoded together.
    """

    semantic: Tensor
    codes: Tensor
    coarse: Tensor
    source: object

    def history_prompt(self, device: torch.device) -> dict[str, Tensor]:
        """As `BarkModel.generate` takes it."""
        prompts = {"semantic_prompt": self.semantic, "coarse_prompt": self.coarse, "fine_prompt": self.codes}
        return {name: prompt.to(device) for name, prompt in prompts.items()}


@dataclass(frozen=True)
class BarkPart:
    """A part of a text.

    Attributes:
        ids: int64 [1, T], its ids, padded on the right.
        mask: int64 [1, T], 0 on padding.
        voice: The voice to continue; None samples a voice.
    """

    ids: Tensor
    mask: Tensor
    voice: BarkVoice | None


class BarkAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of Bark.

    A text without a voice is spoken by a random one. Its first part is the voice of the others.

    The sampling parameters of a call apply to the first two stages. For those that a call leaves at their defaults,
    each stage has its own. The temperature of the third stage is that of its generation config, unless the call's is 0.

    The last stage is not causal, so that a stream arrives as one chunk per part.

    Args:
        model: A `BarkModel`.
        processor: A `BarkProcessor`.
        codec: The codec of its codes.
        draft_model: A smaller `BarkModel` that drafts the second stage, or None.
    """

    recipe = "scd:window=6"
    takes_min_p = True
    guided = False
    in_engines = False
    draws_voice = True

    def __init__(self, model: Any, processor: Any, codec: Codec, draft_model: Any = None) -> None:
        self.model, self.processor, self.codec = model.eval(), processor, codec
        self.draft_model = None if draft_model is None else draft_model.eval()
        self.voices: Sequence[str] = tuple(getattr(processor, "available_voice_presets", ()))
        self._presets: dict[str, BarkVoice] = {}
        self.sampling = stage_defaults(model.generation_config.semantic_config)

    def read(self, text: str, voice: str | None) -> PreparedText:
        preset = None if voice is None else self._preset(voice)
        pieces = split_text(text, MAX_LETTERS)
        parts = [self.processor(piece) for piece in pieces]
        length = int(self.model.generation_config.semantic_config.get("max_input_semantic_length", 256))
        ids, masks = (
            [torch.as_tensor(part[name]).view(1, -1)[:, :length] for part in parts]
            for name in ("input_ids", "attention_mask")
        )
        return PreparedText([BarkPart(i, m, preset) for i, m in zip(ids, masks, strict=True)], texts=pieces)

    def _preset(self, voice: str) -> BarkVoice:
        """The voice of a name, the same object at each call, also in other threads."""
        if voice not in self._presets:
            self._presets.setdefault(voice, self._read_preset(voice))
        return self._presets[voice]

    def _read_preset(self, voice: str) -> BarkVoice:
        try:
            found = self.processor("", voice_preset=voice)["history_prompt"]
        except (OSError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ArgumentError(f"voice={voice!r} cannot be read: {reason}") from None
        semantic, codes, coarse = (
            torch.as_tensor(found[f"{name}_prompt"]).long() for name in ("semantic", "fine", "coarse")
        )
        return BarkVoice(semantic, codes, coarse, voice)

    def continue_voice(self, part: BarkPart, first: BarkPart, tokens: Tensor) -> BarkPart:
        if part.voice is not None:
            return part
        semantic, codes = tokens[tokens[:, -1] >= 0, -1], self.codes(tokens)
        if min(len(semantic), codes.shape[1]) < MIN_HISTORY:
            return part
        return replace(part, voice=BarkVoice(semantic, codes, codes[:2], tokens))

    def job(self, parts: Sequence[BarkPart], recipe: Recipe, samplings: Sequence[SamplingParams]) -> BarkJob:
        return BarkJob(self, parts)

    def codes(self, tokens: Tensor) -> Tensor:
        return tokens[tokens[:, 0] >= 0, :-1].T


@dataclass(frozen=True)
class BarkJob:
    """A batch of texts; see `mmspec.audio.adapter.DecodingJob`.

    Attributes:
        adapter: The adapter.
        parts: The texts.
    """

    adapter: BarkAdapter
    parts: Sequence[BarkPart]

    def run(
        self,
        recipe: Recipe,
        samplings: Sequence[SamplingParams],
        seeds: Sequence[int],
        on_step: OnStep | None,
        measure_entropy: bool,
    ) -> Decoded:
        """Int64 [B, N, codebooks + 1]: codes, and in the last column semantic codes; -1 after the end of each."""
        if measure_entropy:
            raise ArgumentError("measure_entropy is not possible for Bark, whose tokens come from two models")
        # transformers takes one voice per call.
        groups: dict[int, list[int]] = {}
        for row, part in enumerate(self.parts):
            groups.setdefault(id(None if part.voice is None else part.voice.source), []).append(row)
        codebooks = int(self.adapter.model.generation_config.fine_acoustics_config.get("n_fine_codebooks", 8))
        no_tokens, rows = torch.empty(0, codebooks + 1, dtype=torch.int64), dict[int, Tensor]()
        stats = None

        def report(step: Step) -> None:
            assert on_step is not None
            on_step(replace(step, tokens=[no_tokens] * len(seeds)))  # no frame is complete before the last stage

        for group in groups.values():
            parts, own_seeds = [self.parts[row] for row in group], [seeds[row] for row in group]
            stages = Stages(self.adapter, recipe, samplings[0], own_seeds, None if on_step is None else report)
            made = stages.run(parts)
            rows |= dict(zip(group, made, strict=True))
            found = merge_stages(stages.stats)
            stats = found if stats is None else stats.followed_by(found)
        assert stats is not None
        if len(groups) > 1:
            order = [row for group in groups.values() for row in group]
            stats = replace(stats, rows=[stats.rows[order.index(row)] for row in range(len(seeds))])
        padded = torch.nn.utils.rnn.pad_sequence([rows[row] for row in range(len(seeds))], True, -1)
        return Decoded(padded, stats)


class Stages:
    """The three stages of rows that have one voice.

    Args:
        adapter: The adapter.
        recipe: How to decode the first two stages.
        sampling: The sampling parameters of the call.
        seeds: One per row.
        on_step: Called after every target call.

    Attributes:
        stats: Those of each decoding run.
    """

    def __init__(
        self,
        adapter: BarkAdapter,
        recipe: Recipe,
        sampling: SamplingParams,
        seeds: Sequence[int],
        on_step: OnStep | None,
    ) -> None:
        self._adapter, self._recipe, self._sampling = adapter, recipe, sampling
        self._seeds, self._on_step = list(seeds), on_step
        self._by_model = recipe.needs_draft_model or int(recipe.knobs.get("layers", 0)) > 0
        self.stats: list[Stats] = []

    def run(self, parts: Sequence[BarkPart]) -> list[Tensor]:
        """Int64 [N, codebooks + 1] of each row, see `BarkJob.run`."""
        model, voice = self._adapter.model, parts[0].voice
        configs, device = model.generation_config, model.device
        semantic = BarkSemanticGenerationConfig(**configs.semantic_config)
        coarse = BarkCoarseGenerationConfig(**configs.coarse_acoustics_config)
        fine = BarkFineGenerationConfig(**configs.fine_acoustics_config)
        history = None if voice is None else voice.history_prompt(device)
        semantic_codes = model.semantic.generate(
            torch.cat([part.ids for part in parts]).to(device),
            semantic,
            history_prompt=history,
            attention_mask=torch.cat([part.mask for part in parts]).to(device),
            min_eos_p=configs.semantic_config.get("min_eos_p", MIN_EOS_P),
            **self._sampled(configs.semantic_config),
        )
        ends = semantic_codes == semantic.eos_token_id
        counts = [int(row.int().argmax()) if row.any() else len(row) for row in ends]
        size = configs.codebook_size
        coarse_codes, lengths = model.coarse_acoustics.generate(
            semantic_codes.clone(),  # padded in place
            semantic,
            coarse,
            codebook_size=size,
            history_prompt=history,
            return_output_lengths=True,
            **self._sampled(configs.coarse_acoustics_config),
        )
        books = int(coarse.n_coarse_codebooks)
        temperature = float(configs.fine_acoustics_config.get("temperature", FINE_TEMPERATURE))
        out = []
        for row, (seed, count) in enumerate(zip(self._seeds, (lengths // books).tolist(), strict=True)):
            own = (coarse_codes[row, : count * books].view(-1, books) - semantic.semantic_vocab_size) % size
            codes = generate_fine(
                model.fine_acoustics,
                own.long(),
                fine,
                size,
                temperature if self._sampling.temperature else 0.0,
                seed,
                None if voice is None else voice.codes.T,
            )
            texts = semantic_codes[row, : counts[row], None].long()
            out.append(torch.cat([pad_rows(codes, counts[row]), pad_rows(texts, count)], dim=1))
        return out

    def _sampled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with which a stage decodes, by its part of the generation config."""
        s = stage_sampling(stage_defaults(config), self._adapter.sampling, self._sampling)
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p") if s.temperature else ()
        sampling = {name: getattr(s, name) for name in names}
        return {"do_sample": bool(s.temperature), **sampling, "custom_generate": self._decode}

    def _decode(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> Tensor:
        generation_config.return_dict_in_generate = True
        # The prompt of the first stage consists of the model's own embeddings, which no draft model can read.
        second, draft = type(model).__name__ == "BarkCoarseModel", self._adapter.draft_model
        out: Any = generate(
            *(model, input_ids, logits_processor, stopping_criteria, generation_config),
            recipe=self._recipe if second or not self._by_model else "plain",
            seed=self._seeds,
            draft_model=draft.coarse_acoustics if second and draft is not None else None,
            on_step=self._on_step,
            **inputs,
        )
        self.stats.append(out.stats)
        found: Tensor = out.sequences
        return found


def stage_defaults(config: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters of a stage, by its part of the generation config."""
    own = {name: config.get(name) for name in ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p")}
    return checkpoint_sampling(GenerationConfig(**own), ORIGINAL)


def pad_rows(tokens: Tensor, length: int) -> Tensor:
    """Int64 [n, K] with rows of -1 up to `length`."""
    return torch.nn.functional.pad(tokens.cpu(), (0, 0, 0, max(length - len(tokens), 0)), value=-1)


def merge_stages(stats: Sequence[Stats]) -> Stats:
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
        target_calls=sum(one.target_calls for one in stats),
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
