"""`model.generate(..., custom_generate=mmspec.generate)`: the built-in loop's place, taken by a recipe."""

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
    """What `return_dict_in_generate=True` gives: `sequences` as generate has them, and what they cost."""

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
    """Makes the tokens of images or sound by any recipe; pass it to `model.generate` as `custom_generate`.

    The other arguments of `model.generate` stay as they are: `do_sample`, `temperature`, `top_k`, `top_p`,
    `guidance_scale` with negative prompts, `prefix_allowed_tokens_fn`, `max_new_tokens`, `eos_token_id`,
    `num_return_sequences`. What they do not name is the model's own default. The cache is always mmspec's, and
    `prefix_allowed_tokens_fn` may depend on position, row and prompt alone. `repetition_penalty`,
    `no_repeat_ngram_size`, `min_new_tokens`, `suppress_tokens` and their like see the prefix of every drafted position
    (`mmspec.hf.logits_processors` lists them). transformers does not hand on `streamer` and `assistant_model`: `on_step`
    and `draft_model` are their like here.

    The model may be quantised, offloaded, spread over devices or compiled: its parts are called, never read. Layers
    that quantise their inputs by one scale per call, as torch's own dynamic int8 does, make a token's logits depend on
    the drafts beside it (and on its batch, whoever decodes); recipes are exact up to that.

    Janus, MusicGen and Dia have loops of their own, which their `generate` enters. Call the method it overrides:
    `GenerationMixin.generate(model, **inputs, custom_generate=mmspec.generate, guidance_scale=5)`.

    Args:
        model: Comes from transformers.
        input_ids: Comes from transformers.
        logits_processor: Comes from transformers.
        stopping_criteria: Comes from transformers.
        generation_config: Comes from transformers.
        **inputs: Comes from transformers, which hands everything it does not know by name on to the model.
        recipe: How to decode, e.g. `"scd:window=32"`.
        seed: Row i uses `seed + i`; or one seed per row. None draws one from torch's global generator.
        draft_model: A smaller model of the same class, for the recipe `draft`.
        table: For the recipe `table` and for start tokens, images made before: new tokens of a call like this one,
            int64 [n, N] of ids.
        heads: For the recipes `eagle`, `medusa` and their trees, networks on the model's features: those that
            `mmspec.heads.checkpoint.load_head` reads from a folder, one of a kind.
        on_step: Called with a `mmspec.decoding.batch.Step` after every call of the model.
        measure_entropy: Also report the entropy of the model's distribution.

    Returns:
        int64 ids as the built-in generate does: prompt and new tokens, or an image's codes (Janus).

    Raises:
        ArgumentError: When an argument has a value that is not allowed.
        PromptError: When a prompt cannot be read by the model.
        UnknownNameError: When a model, recipe, rule or drafter of that name does not exist.
        ModelError: When a model or a checkpoint is not what it claims to be.
    """
    recipe = parse(recipe)
    own = getattr(adapter_of(unwrap(model)), "generate", None)
    if own is not None:
        asked = (input_ids, logits_processor, stopping_criteria, generation_config, inputs)
        return own(GenerateRequest(unwrap(model), *asked, recipe, seed, unwrap(draft_model), on_step))
    job = prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, inputs)
    plan, first, rows = job.plan, job.plan.first_id, len(input_ids)

    def in_ids(step: Step) -> None:
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
        in_ids if on_step is not None else None,
        measure_entropy,
    )
    tokens = decoded.tokens[:, : longest(decoded.tokens, job.layout.eos)] + first
    whole = torch.cat([job.request.input_ids, tokens], dim=1)
    confirm(job.request, whole, {end + first for end in job.layout.eos})
    sequences = whole if plan.keep_prompt else tokens
    if generation_config.return_dict_in_generate:
        return GenerateOutput(sequences=sequences, stats=decoded.stats)
    return sequences


@dataclass(frozen=True)
class Job:
    """A call of generate, ready to be decoded.

    Attributes:
        model: What decodes.
        family: The adapter of its class.
        request: What it was asked.
        plan: How it goes about it.
        ids: How many the model's logits are over.
        layout: The sequence to be made, in the loop's tokens.
        sampling: How every row's tokens are drawn.
    """

    model: Any
    family: GenerateAdapter
    ids: int
    request: PlanRequest
    plan: Plan
    layout: Layout
    sampling: SamplingParams

    def target(self, plan: Plan, slack: int, guided: bool = True) -> CausalTarget | CUDAGraphTarget | ProcessedTarget:
        """The model of a plan with its prompts given; windows may reach `slack` tokens past the end.

        Raises:
            ArgumentError: For prefix rules where prompts have other ids than what is made.
        """
        uncond, rules = plan.uncond if guided else None, self.request.rules
        target = with_cuda_graphs(CausalTarget(plan.backbone, plan.cond, uncond, plan.length, slack))
        if not rules:
            return target
        if plan.history is None:
            raise ArgumentError(
                f"logits_processor looks back at ids, of which {type(self.model).__name__} has other ones for prompts; "
                "leave repetition_penalty and its like out"
            )
        guide = None if uncond is None else normalised_guidance(plan.guidance_scale)
        return ProcessedTarget(target, rules, plan.history, plan.length + slack, guide)

    def resources(self, draft_model: Any, slack: int, heads: Sequence[Head] = ()) -> DraftResources:
        """What there is for drafters: a draft model, or None, and heads.

        Raises:
            ModelError: When it is of another class or makes other tokens than the model.
        """
        codebook = partial(read_codebook, self.model, self.plan)
        known = {head.kind: head.to(self.plan.backbone.device) for head in heads}
        if draft_model is None:
            return DraftResources(codebook=codebook, adaptive_windows=adaptive_windows_of(self.model), heads=known)
        draft_model = unwrap(draft_model)
        if adapter_of(draft_model) is not self.family:
            raise ModelError(f"draft_model is a {type(draft_model).__name__}, which is another class than the model")
        ids, wanted = self.family.vocab_size(draft_model), self.ids
        if ids != wanted:
            raise ModelError(f"draft_model has a vocabulary of {ids} ids, the model one of {wanted}")
        plan = self.family.plan(draft_model, self.request)
        if plan.length != self.plan.length:
            raise ModelError(f"draft_model makes images of {plan.length} tokens, the model of {self.plan.length}")
        s = self.sampling
        # Unguided as a rule, which is half the work: a draft is tested against the distribution it was drawn from.
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
) -> Job:
    """Reads the arguments of `generate`.

    Raises:
        ArgumentError: As `generate`.
        PromptError: As `generate`.
    """
    model = unwrap(model)
    family = adapter_of(model)
    refuse_modes(generation_config, inputs, getattr(family, "READS_EMBEDS", False))
    found, rules = read_processors(logits_processor)
    sampling = read_sampling(found, bool(generation_config.do_sample))
    # What accelerate offloads is nowhere ("meta") between calls, and its hooks take inputs from anywhere.
    input_ids = input_ids if model.device.type == "meta" else input_ids.to(model.device)
    length, eos = read_length(stopping_criteria, input_ids.shape[1])
    ids = family.vocab_size(model)
    request = read_request(model, input_ids, found, rules, length, ids, generation_config, inputs)
    plan = family.plan(model, request)
    pad = getattr(generation_config, "_pad_token_tensor", None)
    layout = Layout(
        length=plan.length,
        width=plan.width,
        constraint=plan.constraint,
        # An id outside the stretch that is computed cannot come up; as padding it is only ever written.
        eos=frozenset(end - plan.first_id for end in eos) if plan.ends else frozenset(),
        pad=0 if pad is None else int(pad) - plan.first_id,
    )
    # Before rules of the prefix, guidance is theirs to apply.
    scale = 1.0 if rules else plan.guidance_scale
    return Job(model, family, ids, request, plan, layout, replace(sampling, guidance_scale=scale))


def salted(seeds: Sequence[int], salt: Sequence[int] | None) -> list[int]:
    """Seeds that differ where the salt does."""
    return list(seeds) if salt is None else [(s ^ (extra << 32)) % 2**64 for s, extra in zip(seeds, salt, strict=True)]


def longest(tokens: Tensor, eos: frozenset[int]) -> int:
    """Tokens of the longest row of int64 [B, N], its end included."""
    if not eos:
        return tokens.shape[1]
    end = torch.isin(tokens, torch.tensor(sorted(eos), device=tokens.device))
    lengths = torch.where(end.any(1), end.int().argmax(1) + 1, tokens.shape[1])
    return int(lengths.max())
