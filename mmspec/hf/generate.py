"""`model.generate(..., custom_generate=mmspec.generate)`: the generation loop of transformers, replaced by a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.batch import Step
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.processed_target import ProcessedTarget, normalised_guidance
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.engine import run
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import Head
from mmspec.hf.adapters import GenerateAdapter, adapter_of
from mmspec.hf.allowed_tokens import confirm
from mmspec.hf.arguments import read_length, read_processors, read_request, read_sampling, refuse_modes
from mmspec.hf.causal_target import CausalTarget, with_cuda_graphs
from mmspec.hf.codebook import read_codebook
from mmspec.hf.ngram import count_table
from mmspec.hf.plan import Plan, PlanRequest
from mmspec.hf.request import GenerateRequest, unwrap
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds


@dataclass
class GenerateOutput(GenerateDecoderOnlyOutput):
    """The output with `return_dict_in_generate=True`.

    Attributes:
        sequences: As the model's own generate returns them.
        stats: Target calls, acceptance and seconds.
    """

    stats: Stats | None = None


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    recipe: str | Recipe = "scd",
    seed: int | Sequence[int] | None = None,
    draft_model: Any = None,
    table: Tensor | None = None,
    heads: Sequence[Head] = (),
    on_step: OnStep | None = None,
    measure_entropy: bool = False,
    **inputs: Any,
) -> Tensor | GenerateOutput:
    """Generates the tokens of images or audio by a recipe; pass it to `model.generate` as `custom_generate`.

    The other arguments of `model.generate` keep their meaning: `do_sample`, `temperature`, `top_k`, `top_p`,
    `guidance_scale` with negative prompts, `prefix_allowed_tokens_fn`, `max_new_tokens`, `eos_token_id`,
    `num_return_sequences`; those that are not given have the model's defaults. The KV cache is always mmspec's, and
    `prefix_allowed_tokens_fn` may depend on the position, the row and the prompt only. `repetition_penalty`,
    `no_repeat_ngram_size`, `min_new_tokens`, `suppress_tokens` and others that `mmspec.hf.logits_processors` lists are
    applied to the prefix of every drafted position. transformers does not pass on `streamer` and `assistant_model`; use
    `on_step` and `draft_model` instead.

    The model may be quantised, offloaded, sharded or compiled: decoding calls its parts and does not read their
    weights. Layers that quantise their inputs with one scale per call, such as torch's dynamic int8, make a token's
    logits depend on the drafts next to it (and, in any decoding loop, on the batch); recipes are exact up to that.

    Janus, MusicGen and Dia override `generate` with loops of their own. Call the method that they override:
    `GenerationMixin.generate(model, **inputs, custom_generate=mmspec.generate, guidance_scale=5)`.

    Args:
        model: Passed by transformers.
        input_ids: Passed by transformers.
        logits_processor: Passed by transformers.
        stopping_criteria: Passed by transformers.
        generation_config: Passed by transformers.
        recipe: How to decode, e.g. `"scd:window=32"`.
        seed: Row i uses `seed + i`; or one seed per row. None takes one from torch's global generator.
        draft_model: A smaller model of the same class, for the recipe `draft`.
        table: Images for an n-gram table, for the recipe `table` and for initial draft tokens: the new ids of earlier
            calls with the same arguments, int64 [n, N].
        heads: Draft heads on the model's features, one of a kind, for the recipes `eagle`, `medusa` and their trees, as
            `mmspec.heads.checkpoint.load_head` reads them.
        on_step: Called with a `mmspec.decoding.batch.Step` after every call of the model.
        measure_entropy: Also report the entropy of the model's distribution.
        **inputs: The inputs of the model, passed by transformers.

    Returns:
        int64 ids as the model's own generate returns them: prompt and new tokens, or the codes of an image (Janus).

    Raises:
        ArgumentError: If an argument has a value that is not allowed, or is not supported for the model.
        PromptError: If a prompt is padded on the right.
        UnknownNameError: If there is no recipe or rule of that name.
        ModelError: If draft model or heads do not fit the model.
    """
    recipe = parse(recipe)
    own = getattr(adapter_of(unwrap(model)), "generate", None)
    if own is not None:
        prepared = (input_ids, logits_processor, stopping_criteria, generation_config, inputs)
        return own(GenerateRequest(unwrap(model), *prepared, recipe, seed, unwrap(draft_model), on_step))
    job = prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, inputs)
    plan, first, rows = job.plan, job.plan.first_id, len(input_ids)

    def on_step_in_ids(step: Step) -> None:
        assert on_step is not None
        on_step(replace(step, tokens=[tokens + first for tokens in step.tokens]))

    ngrams = count_table(table, recipe, job.layout, first, plan.backbone.vocab_size, plan.backbone.device)
    decoded = run(
        job.target(plan, recipe.window),
        recipe,
        job.layout,
        [job.sampling] * rows,
        salted(row_seeds(seed, rows), plan.salt),
        replace(job.resources(draft_model, recipe.window, heads), table=ngrams),
        on_step_in_ids if on_step is not None else None,
        measure_entropy,
    )
    tokens = decoded.tokens[:, : longest(decoded.tokens, job.layout.eos)] + first
    prompted = torch.cat([job.request.input_ids, tokens], dim=1)
    confirm(job.request, prompted, {end + first for end in job.layout.eos})
    sequences = prompted if plan.keep_prompt else tokens
    if generation_config.return_dict_in_generate:
        return GenerateOutput(sequences=sequences, stats=decoded.stats)
    return sequences


@dataclass(frozen=True)
class GenerateJob:
    """A call of `generate`, ready to be decoded.

    Attributes:
        model: The model.
        adapter: The adapter of its class.
        vocab_size: The number of ids that the model's logits cover.
        request: The arguments of the call.
        plan: How the model decodes them.
        layout: The sequence to generate, in the loop's tokens.
        sampling: The sampling parameters of all rows.
    """

    model: Any
    adapter: GenerateAdapter
    vocab_size: int
    request: PlanRequest
    plan: Plan
    layout: Layout
    sampling: SamplingParams

    def target(self, plan: Plan, slack: int, guided: bool = True) -> CausalTarget | CUDAGraphTarget | ProcessedTarget:
        """The model of a plan with its prompts.

        Args:
            plan: The plan of the model, or of a draft model.
            slack: Tokens that a window may extend past the end of the sequence.
            guided: Whether to read the unconditional prompts as well.

        Raises:
            ArgumentError: If there are logits processors of the prefix, and prompts and images have different ids.
        """
        uncond, processors = plan.uncond if guided else None, self.request.processors
        target = with_cuda_graphs(CausalTarget(plan.backbone, plan.cond, uncond, plan.length, slack))
        if not processors:
            return target
        if plan.history is None:
            raise ArgumentError(
                f"logits_processor depends on the prefix, and {type(self.model).__name__} has other ids for prompts "
                "than for images; leave out repetition_penalty and the like"
            )
        guide = None if uncond is None else normalised_guidance(plan.guidance_scale)
        return ProcessedTarget(target, processors, plan.history, plan.length + slack, guide)

    def resources(self, draft_model: Any, slack: int, heads: Sequence[Head] = ()) -> DraftResources:
        """The resources that the call provides for drafters.

        Args:
            draft_model: A smaller model of the same class, or None.
            slack: Tokens that a window may extend past the end of the sequence.
            heads: Draft heads, one of a kind.

        Raises:
            ModelError: If the draft model is of another class, or has other ids or another length of image.
        """
        codebook = partial(read_codebook, self.model, self.plan)
        known = {head.kind: head.to(self.plan.backbone.device) for head in heads}
        if draft_model is None:
            return DraftResources(codebook=codebook, adaptive_windows=adaptive_windows_of(self.model), heads=known)
        draft_model = unwrap(draft_model)
        if adapter_of(draft_model) is not self.adapter:
            kinds = type(draft_model).__name__, type(self.model).__name__
            raise ModelError(f"draft_model is a {kinds[0]}, the model a {kinds[1]}; use the same class")
        vocab_size = self.adapter.vocab_size(draft_model)
        if vocab_size != self.vocab_size:
            raise ModelError(f"draft_model has a vocabulary of {vocab_size} ids, the model one of {self.vocab_size}")
        plan = self.adapter.plan(draft_model, self.request)
        if plan.length != self.plan.length:
            raise ModelError(f"draft_model generates images of {plan.length} tokens, the model of {self.plan.length}")
        s = self.sampling
        # Without guidance by default, which halves the work: a draft is tested against the distribution it came from.
        return DraftResources(
            draft_model=lambda: self.target(plan, slack, guided=False),
            guided_draft_model=None if plan.uncond is None else lambda: self.target(plan, slack),
            draft_sampling=[SamplingParams(s.temperature, s.top_k, s.top_p)] * len(self.request.input_ids),
            codebook=codebook,
            adaptive_windows=adaptive_windows_of(self.model),
            heads=known,
        )


def prepare(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    inputs: Mapping[str, Any],
) -> GenerateJob:
    """Converts the arguments of `generate` to a job.

    Raises:
        ArgumentError: If an argument has a value that is not allowed, or is not supported for the model.
        PromptError: If a prompt is padded on the right.
    """
    model = unwrap(model)
    adapter = adapter_of(model)
    refuse_modes(generation_config, inputs, getattr(adapter, "READS_EMBEDS", False))
    found, processors = read_processors(logits_processor)
    sampling = read_sampling(found, bool(generation_config.do_sample))
    # Weights that accelerate offloads are on the device "meta" between calls; its hooks accept inputs on any device.
    input_ids = input_ids if model.device.type == "meta" else input_ids.to(model.device)
    length, eos = read_length(stopping_criteria, input_ids.shape[1])
    vocab_size = adapter.vocab_size(model)
    request = read_request(model, input_ids, found, processors, length, vocab_size, generation_config, inputs)
    plan = adapter.plan(model, request)
    pad = getattr(generation_config, "_pad_token_tensor", None)
    layout = Layout(
        length=plan.length,
        width=plan.width,
        constraint=plan.constraint,
        # An id whose logit is not computed is never generated; as padding it is only written.
        eos=frozenset(end - plan.first_id for end in eos) if plan.ends else frozenset(),
        pad=0 if pad is None else int(pad) - plan.first_id,
    )
    # Guidance precedes logits processors of the prefix, so `ProcessedTarget` applies both.
    scale = 1.0 if processors else plan.guidance_scale
    return GenerateJob(model, adapter, vocab_size, request, plan, layout, replace(sampling, guidance_scale=scale))


def salted(seeds: Sequence[int], salt: Sequence[int] | None) -> list[int]:
    """Row seeds with the salt of a plan, one integer per row, mixed into their upper half."""
    return list(seeds) if salt is None else [(s ^ (extra << 32)) % 2**64 for s, extra in zip(seeds, salt, strict=True)]


def longest(tokens: Tensor, eos: frozenset[int]) -> int:
    """The length of the longest row of tokens int64 [B, N], its end-of-sequence token included."""
    if not eos:
        return tokens.shape[1]
    end = torch.isin(tokens, torch.tensor(sorted(eos), device=tokens.device))
    lengths = torch.where(end.any(1), end.int().argmax(1) + 1, tokens.shape[1])
    return int(lengths.max())
