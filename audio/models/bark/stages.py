"""Bark's three stages as one batch: from text to semantic codes, to the first two codebooks, to all codes."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.logits_process import AlternatingCodebooksLogitsProcessor
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkFineGenerationConfig,
    BarkSemanticGenerationConfig,
)

from mmspec.audio.checkpoint_sampling import checkpoint_sampling, stage_sampling
from mmspec.audio.models.bark.fine_stage import generate_fine
from mmspec.audio.models.bark.parts import BarkPart
from mmspec.decoding.closed_batch import ClosedBatch
from mmspec.decoding.layout import Layout
from mmspec.decoding.step import Step, Watch
from mmspec.errors import ArgumentError
from mmspec.hf.generate import GenerateJob, captured_job, salted
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams

# How github.com/suno-ai/bark samples, for what a checkpoint's generation config leaves out.
ORIGINAL = SamplingParams(0.7)
FINE_TEMPERATURE = 0.5
MIN_EOS_P = 0.2


class BarkBatch(ClosedBatch):
    """Rows that have one voice. A step is one target call of one of the first two stages; the third follows the last.

    A token is a frame, int64 [codebooks + 1]: its codes, and in the last column a semantic code; -1 after the end of
    each. All frames come at the end.

    Args:
        model: A `BarkModel`.
        draft_model: A smaller one that drafts the second stage, or None.
        parts: The texts.
        recipe: How to decode the first two stages.
        own: The default sampling parameters of a call.
        sampling: The sampling parameters of the call.
        seeds: One per row.
        watch: What to show; no frame is complete before the last stage.

    Raises:
        ArgumentError: If entropies are asked for.
    """

    def __init__(
        self,
        model: Any,
        draft_model: Any,
        parts: Sequence[BarkPart],
        recipe: Recipe,
        own: SamplingParams,
        sampling: SamplingParams,
        seeds: Sequence[int],
        watch: Watch,
    ) -> None:
        if watch.measure_entropy:
            raise ArgumentError("measure_entropy is not possible for Bark, whose tokens come from two models")
        self._model, self._draft_model, self._parts, self._seeds = model, draft_model, list(parts), list(seeds)
        self._recipe, self._own, self._sampling = recipe, own, sampling
        configs = model.generation_config
        self._semantic = BarkSemanticGenerationConfig(**configs.semantic_config)
        self._coarse = BarkCoarseGenerationConfig(**configs.coarse_acoustics_config)
        self._fine = BarkFineGenerationConfig(**configs.fine_acoustics_config)
        # Tokens of the second stage for one of the first.
        self._ratio = self._coarse.coarse_rate_hz / self._semantic.semantic_rate_hz * self._coarse.n_coarse_codebooks
        voice = parts[0].voice
        self._voice, self._history = voice, None if voice is None else voice.history_prompt(model.device)
        self._counts, self._cuts = [0] * len(seeds), [False] * len(seeds)
        books, most = int(self._fine.n_fine_codebooks), model.semantic.config.block_size
        layout = Layout(
            math.ceil(most * max(self._ratio, 1)),
            cell=(books + 1,),
            pad=-1,
            stops=lambda row, tokens: len(tokens) == self._counts[row],
            cut=lambda row, tokens: self._cuts[row],
        )
        super().__init__(seeds, layout, model.device, watch)
        self._calls = self._stages()

    def step(self) -> bool:
        """Makes one target call; returns whether any row is running."""
        next(self._calls, None)
        return bool(self.state.is_running.any())

    def _stages(self) -> Iterator[None]:
        """The calls of all stages, and at last the frames."""
        semantic = yield from self._decoded(self._semantic_job())
        ends = semantic == self._semantic.eos_token_id
        counts = [int(row.int().argmax()) if row.any() else len(row) for row in ends]
        self._cuts = (~ends.any(1)).tolist()
        books = int(self._coarse.n_coarse_codebooks)
        frames = torch.floor(torch.tensor(counts) * self._ratio / books).int().tolist()
        coarse = yield from self._coarse_codes(semantic, max(frames) * books)
        rows = [
            torch.cat(
                [_padded(self._all_codes(row, codes[: n * books]), count), _padded(words[:count, None], n)], dim=1
            )
            for row, (codes, n, words, count) in enumerate(zip(coarse, frames, semantic, counts, strict=True))
        ]
        self._counts = [len(row) for row in rows]
        tokens = pad_sequence(rows, batch_first=True, padding_value=-1).to(self.state.device)
        self.state.commit(tokens, np.array(self._counts) - 1)
        self.state.stop(range(len(rows)))  # those without a frame, too

    def _semantic_job(self) -> GenerateJob:
        """The first stage. Its prompt consists of the model's own embeddings, which no draft model can read."""
        device = self._model.device
        return captured_job(
            lambda capture: self._model.semantic.generate(
                torch.cat([part.ids for part in self._parts]).to(device),
                semantic_generation_config=self._semantic,
                history_prompt=self._history,
                attention_mask=torch.cat([part.mask for part in self._parts]).to(device),
                min_eos_p=self._model.generation_config.semantic_config.get("min_eos_p", MIN_EOS_P),
                **self._sampled(self._model.generation_config.semantic_config),
                custom_generate=capture,
            )
        )

    def _coarse_codes(self, semantic: Tensor, length: int) -> Generator[None, None, Tensor]:
        """The codes int64 [B, length] of the second stage, in windows with a prompt each; semantic [B, n]."""
        model, config, size = self._model.coarse_acoustics, self._coarse, self._model.generation_config.codebook_size
        words = semantic.masked_fill(semantic == self._semantic.semantic_pad_token, config.coarse_semantic_pad_token)
        before, codes = model.preprocess_histories(
            config.max_coarse_history, self._ratio, len(words), self._semantic, size, self._history
        )
        words, known, room = torch.hstack([before, words]), codes.shape[1], config.max_coarse_input_length
        mark = torch.full((len(words), 1), config.coarse_infer_token, device=words.device)
        for start in range(0, length, config.sliding_window_len):
            reached = before.shape[1] + round(start / self._ratio)
            read = words[:, max(reached - math.floor(config.max_coarse_history / self._ratio), 0) :][:, :room]
            read = F.pad(read, (0, room - read.shape[1]), value=config.coarse_semantic_pad_token)
            prompt = torch.hstack([read, mark, codes[:, -config.max_coarse_history :]])
            job = self._coarse_job(prompt, min(config.sliding_window_len, length - start))
            codes = torch.hstack([codes, (yield from self._decoded(job))])
        return (codes[:, known:].long() - self._semantic.semantic_vocab_size) % size

    def _coarse_job(self, prompt: Tensor, length: int) -> GenerateJob:
        """A window of the second stage."""
        config = self._model.generation_config
        alternating = AlternatingCodebooksLogitsProcessor(
            prompt.shape[1], self._semantic.semantic_vocab_size, config.codebook_size
        )
        return captured_job(
            lambda capture: GenerationMixin.generate(
                self._model.coarse_acoustics,
                prompt,
                logits_processor=[alternating],
                max_new_tokens=length,
                generation_config=self._coarse,
                **self._sampled(config.coarse_acoustics_config),
                custom_generate=capture,
            )
        )

    def _decoded(self, job: GenerateJob) -> Generator[None, None, Tensor]:
        """The ids int64 [B, n] of a stage, one target call after the other."""
        second = job.model is self._model.coarse_acoustics
        by_model = self._recipe.needs_draft_model or int(self._recipe.knobs.get("layers", 0)) > 0
        recipe = self._recipe if second or not by_model else parse("plain")
        draft = self._draft_model.coarse_acoustics if second and self._draft_model is not None else None
        rows = job.rows(len(self._seeds), recipe, job.resources(draft, recipe.window))
        batch = rows.batch(recipe, salted(self._seeds, job.plan.salt), Watch(self._on_step and self._report))
        batch.meter.clock = self.meter.clock
        batch.use(most_steps=1)
        running = batch.start()
        yield
        while running:
            running = batch.step()
            yield
        self.meter.add(batch.meter)
        self.draft_calls += batch.draft_calls
        tokens = batch.state.result()
        return tokens[:, : job.longest(tokens)] + job.plan.first_id

    def _report(self, step: Step) -> None:
        """Shows a call of a stage."""
        assert self._on_step is not None
        self._on_step(replace(step, tokens=[self.state.tokens(row) for row in range(len(self._seeds))]))

    def _all_codes(self, row: int, codes: Tensor) -> Tensor:
        """The codes int64 [F, codebooks] of a row, from those of the second stage, int64 [F * n]."""
        default = float(self._model.generation_config.fine_acoustics_config.get("temperature", FINE_TEMPERATURE))
        return generate_fine(
            self._model.fine_acoustics,
            codes.view(-1, int(self._coarse.n_coarse_codebooks)),
            self._fine,
            self._model.generation_config.codebook_size,
            default if self._sampling.temperature else 0.0,
            self._seeds[row],
            None if self._voice is None else self._voice.codes.T,
        )

    def _sampled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with which a stage samples, by its part of the generation config."""
        s = stage_sampling(stage_defaults(config), self._own, self._sampling)
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p") if s.temperature else ()
        return {"do_sample": bool(s.temperature), **{name: getattr(s, name) for name in names}}


def stage_defaults(config: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters of a stage, by its part of the generation config."""
    own = {name: config.get(name) for name in ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p")}
    return checkpoint_sampling(GenerationConfig(**own), ORIGINAL)


def _padded(tokens: Tensor, length: int) -> Tensor:
    """Int64 [n, K] with rows of -1 up to `length`."""
    return F.pad(tokens, (0, 0, 0, max(length - len(tokens), 0)), value=-1)
