"""`model.generate(..., custom_generate=mmspec.generate)`: the generation loop of transformers, replaced by a recipe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.generation import GenerateDecoderOnlyOutput

from mmspec.arguments import checked_call
from mmspec.batching.call import decode_rows
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import LogitsProcessor, ProcessedTarget, normalised_guidance
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStats, OnStep, Step, Watch
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.head import Head
from mmspec.hf.adapters import GenerateAdapter, adapter_of
from mmspec.hf.allowed_tokens import confirm
from mmspec.hf.arguments import (
    read_padding,
    read_processors,
    read_request,
    read_sampling,
    read_stopping,
    refuse_criteria,
    refuse_modes,
)
from mmspec.hf.attention import refuse_flash_attention_inside
from mmspec.hf.causal_target import CausalTarget, with_cuda_graphs
from mmspec.hf.codebook import read_codebook
from mmspec.hf.custom_processors import after_allowed_ids, check_processor
from mmspec.hf.modes import refuse_call
from mmspec.hf.ngram import count_table
from mmspec.hf.options import check_options
from mmspec.hf.plan import Plan, PlanRequest
from mmspec.hf.request import GenerateRequest, unwrap
from mmspec.hf.stopping import StopTest
from mmspec.hf.streaming import TokenStream
from mmspec.recipes import DEFAULT, Recipe, parse
from mmspec.sampling.logits_processors import one_by_one
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds
from mmspec.versions import warn_untested


@dataclass
class GenerateOutput(GenerateDecoderOnlyOutput):
    """The output with `return_dict_in_generate=True`.

    Attributes:
        sequences: As the model's own generate returns them.
        stats: Target calls, acceptance and seconds.
    """

    stats: Stats | None = None


def generate(
    model: Any = None,
    input_ids: Any = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    *,
    recipe: str | Recipe | None = None,
    seed: int | Sequence[int] | None = None,
    draft_model: Any = None,
    table: Tensor | None = None,
    heads: Sequence[Head] = (),
    on_step: OnStep | None = None,
    measure_entropy: bool = False,
    token_streamer: Any = None,
    on_stats: OnStats | None = None,
    given: Collection[str] | None = None,
    **inputs: Any,
) -> Tensor | GenerateOutput:
    """Generates the tokens of images or audio by a recipe; pass it to `model.generate` as `custom_generate`.

    The other arguments of `model.generate` do what they do in transformers, or are refused in one line;
    docs/arguments.md lists them all. transformers does not hand `streamer` and `assistant_model` to this function: use
    `token_streamer` and `draft_model`, or `mmspec.hf.call.call_generate`. The KV cache is always mmspec's.
    `prefix_allowed_tokens_fn` may depend on the position, the row and the prompt only. Logits processors and stopping
    criteria must be functions of one row's ids (and logits): they are evaluated at drafted positions, each with its own
    prefix, and for every committed token. A row that has ended is padded, also without `eos_token_id`.

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
        recipe: How to decode, e.g. `"scd:window=32"`; None is `"draft"` with a draft model, else `"scd"`,
            on CUDA `"scd:window=32"`.
        seed: Row i uses `seed + i`; or one seed per row. None takes one from torch's global generator.
        draft_model: A smaller model of the same class, for the recipe `draft`.
        table: Images for an n-gram table, for the recipe `table` and for initial draft tokens: the new ids of earlier
            calls with the same arguments, int64 [n, N].
        heads: Draft heads on the model's features, one of a kind, for the recipes `eagle`, `medusa` and their trees, as
            `mmspec.heads.checkpoint.load_head` reads them.
        on_step: Called with a `mmspec.decoding.step.Step` after every call of the model.
        measure_entropy: Also report the entropy of the model's distribution.
        token_streamer: A streamer of transformers. It receives the prompt, and the tokens as they are committed; its
            `end()` is called even after an error.
        on_stats: Called with the statistics at the end, also for models whose output has none; Bark's coarse
            stage calls it for each of its windows.
        given: The names of the caller's keywords, where they are known; see `mmspec.hf.call.call_generate`.
        **inputs: The inputs of the model, passed by transformers.

    Returns:
        int64 ids as the model's own generate returns them: prompt and new tokens, or the codes of an image (Janus).

    Raises:
        ArgumentError: If an argument has a value that is not allowed, or is not supported for the model; or if it is
            not called by transformers.
        PromptError: If a prompt is padded on the right.
        UnknownNameError: If there is no recipe or rule of that name.
        ModelError: If draft model or heads do not fit the model.
    """
    if not isinstance(input_ids, Tensor) or generation_config is None:
        raise ArgumentError(
            "mmspec.generate is called by transformers, in model.generate(..., custom_generate=mmspec.generate); to "
            "generate from a prompt, call a pipeline: mmspec.load('shapes')('a red circle')"
        )
    warn_untested()
    check_options(draft_model, table, heads, on_step, measure_entropy, on_stats)
    try:
        refuse_call(unwrap(model), generation_config)
        recipe = choose_recipe(recipe, draft_model)
        own = getattr(adapter_of(unwrap(model)), "generate", None)
        if own is not None:
            if token_streamer is not None:
                raise ArgumentError(
                    f"a streamer is not supported for {type(unwrap(model)).__name__}, whose tokens are not single ids; "
                    "use on_step"
                )
            refuse_flash_attention_inside(unwrap(model))
            prepared = (input_ids, logits_processor, stopping_criteria, generation_config, inputs)
            by_kind = {head.kind: head.to(model.device) for head in heads}
            return own(
                GenerateRequest(
                    unwrap(model), *prepared, recipe, seed, unwrap(draft_model), on_step, by_kind, given, on_stats
                )
            )
        job = prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, inputs, given)
        if token_streamer is not None:
            token_streamer.put(input_ids.cpu())
        resources = job.resources(draft_model, recipe.window, heads)
        observer = job.observer(on_step, token_streamer)
        rows, stats = decode(job, recipe, seed, resources, table, Watch(observer, measure_entropy, on_stats))
    finally:
        # A reader in another thread waits for the end, also after an error.
        if token_streamer is not None:
            token_streamer.end()
    ids = job.request.input_ids
    tokens = pad_sequence(rows, batch_first=True, padding_value=job.layout.pad).to(ids.device) + job.plan.first_id
    prompted = torch.cat([ids, tokens], dim=1)
    confirm(job.request, prompted, {end + job.plan.first_id for end in job.layout.eos})
    sequences = prompted if job.plan.keep_prompt else tokens
    if generation_config.return_dict_in_generate:
        return GenerateOutput(sequences=sequences, stats=stats)
    return sequences


def choose_recipe(recipe: str | Recipe | None, draft_model: Any) -> Recipe:
    """The recipe of a call.

    Args:
        recipe: As the caller gave it.
        draft_model: The draft model, or None.

    Raises:
        UnknownNameError: If there is no recipe or rule of that name.
        ArgumentError: If the recipe has a knob that is not allowed.
    """
    return parse(recipe if recipe is not None else DEFAULT if draft_model is None else "draft")


def decode(
    job: GenerateJob,
    recipe: Recipe,
    seed: int | Sequence[int] | None,
    resources: DraftResources,
    table: Tensor | None,
    watch: Watch,
) -> tuple[list[Tensor], Stats]:
    """Decodes a call of `generate` whose tokens are single ids; see `mmspec.batching.call.decode_rows`."""
    plan, rows = job.plan, len(job.request.input_ids)
    ngrams = count_table(table, recipe, job.layout, plan.first_id, plan.backbone.vocab_size, plan.backbone.device)
    prepared = job.rows(rows, recipe, replace(resources, table=ngrams))
    return decode_rows(prepared, recipe, salted(row_seeds(seed, rows), plan.salt), watch)


@dataclass(frozen=True)
class GenerateJob:
    """A call of `generate`, ready to be decoded.

    Attributes:
        adapter: The adapter of its class.
        vocab_size: The number of ids that the model's logits cover.
        request: The arguments of the call.
        plan: How the model decodes them.
        layout: The sequence to generate, in the loop's tokens.
        sampling: The sampling parameters of all rows.
        stop_test: Stopping criteria other than a length and end-of-sequence ids, or None.
    """

    model: Any
    adapter: GenerateAdapter
    vocab_size: int
    request: PlanRequest
    plan: Plan
    layout: Layout
    sampling: SamplingParams
    stop_test: StopTest | None = None

    def observer(self, on_step: OnStep | None, streamer: Any) -> OnStep | None:
        """The callback of the loop, whose tokens count from 0: calls `on_step` and feeds a streamer with ids.

        Args:
            on_step: The callback of the call, or None.
            streamer: A streamer of transformers, or None.
        """
        if on_step is None and streamer is None:
            return None
        first, layout = self.plan.first_id, self.layout
        stream = None
        if streamer is not None:
            eos = {end + first for end in layout.eos}
            stopped = {} if self.stop_test is None else self.stop_test.lengths
            stream = TokenStream(streamer, layout.length, eos, layout.pad + first, stopped)

        def observe(step: Step) -> None:
            step = replace(step, tokens=[tokens + first for tokens in step.tokens])
            if stream is not None:
                stream(step)
            if on_step is not None:
                on_step(step)

        return observe

    def longest(self, tokens: Tensor) -> int:
        """The length of the longest row of tokens int64 [B, N]."""
        stopped = {} if self.stop_test is None else self.stop_test.lengths
        lengths = row_lengths(tokens, self.layout.eos).tolist()
        return max(stopped.get(row, length) for row, length in enumerate(lengths))

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

    def rows(self, count: int, recipe: Recipe, resources: DraftResources) -> PreparedRows:
        """The rows of the call, ready to be decoded."""
        return PreparedRows(self.target(self.plan, recipe.window), self.layout, [self.sampling] * count, resources)

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
        # Without guidance by default, which halves the work: a draft is tested against the distribution it came from.
        return DraftResources(
            draft_model=lambda: self.target(plan, slack, guided=False),
            guided_draft_model=None if plan.uncond is None else lambda: self.target(plan, slack),
            draft_sampling=[replace(self.sampling, guidance_scale=1.0)] * len(self.request.input_ids),
            codebook=codebook,
            adaptive_windows=adaptive_windows_of(self.model),
            heads=known,
        )


def captured_job(call: Callable[[Callable[..., Tensor]], Any]) -> GenerateJob:
    """What a call of `generate` asks for, without a call of the model.

    Args:
        call: Calls the model's `generate` with this argument as `custom_generate`.

    Raises:
        ArgumentError: As `prepare`.
        PromptError: As `prepare`.
    """
    jobs: list[GenerateJob] = []

    def capture(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> Tensor:
        jobs.append(prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, inputs))
        return input_ids

    with torch.no_grad():
        call(capture)
    (job,) = jobs
    return job


def prepare(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    inputs: Mapping[str, Any],
    given: Collection[str] | None = None,
) -> GenerateJob:
    """Converts the arguments of `generate` to a job.

    Raises:
        ArgumentError: If an argument has a value that is not allowed, or is not supported for the model.
        PromptError: If a prompt is padded on the right.
    """
    model = unwrap(model)
    adapter = adapter_of(model)
    refuse_modes(generation_config, inputs, getattr(adapter, "READS_EMBEDS", False))
    custom: list[Any] = []

    def convert_custom(processor: Any) -> LogitsProcessor:
        custom.append(processor)
        return one_by_one(processor)

    found, processors = read_processors(logits_processor, convert_custom)
    sampling = read_sampling(found, bool(generation_config.do_sample))
    # Weights that accelerate offloads are on the device "meta" between calls; its hooks accept inputs on any device.
    input_ids = input_ids if model.device.type == "meta" else input_ids.to(model.device)
    length, eos, criteria = read_stopping(stopping_criteria, input_ids.shape[1])
    vocab_size = adapter.vocab_size(model)
    for processor in custom:
        check_processor(processor, input_ids, vocab_size)
    request = read_request(model, input_ids, found, processors, length, vocab_size, generation_config, inputs, given)
    processors = after_allowed_ids(processors, custom, request.allowed, input_ids.shape[1])
    request = replace(request, processors=processors)
    kind, must = type(model).__name__, "a mmspec.hf.plan.Plan"
    plan = checked_call(
        f"plan of the adapter of {kind}", adapter.plan, model, request, must=must, fits=lambda p: isinstance(p, Plan)
    )
    if plan.history is None:
        refuse_criteria(criteria)
    stop_test = StopTest(criteria, input_ids, plan.first_id) if criteria else None
    pad = read_padding(generation_config)
    layout = Layout(
        length=plan.length,
        width=plan.width,
        constraint=plan.constraint,
        # An id whose logit is not computed is never generated; as padding it is only written.
        eos=frozenset(end - plan.first_id for end in eos) if plan.ends else frozenset(),
        pad=0 if pad is None else pad - plan.first_id,
        stops=stop_test,
    )
    # Guidance precedes logits processors of the prefix, so `ProcessedTarget` applies both.
    scale = 1.0 if processors else plan.guidance_scale
    sampling = replace(sampling, guidance_scale=scale)
    return GenerateJob(model, adapter, vocab_size, request, plan, layout, sampling, stop_test)


def salted(seeds: Sequence[int], salt: Sequence[int] | None) -> list[int]:
    """Row seeds with the salt of a plan, one integer per row, mixed into their upper half."""
    return list(seeds) if salt is None else [(s ^ (extra << 32)) % 2**64 for s, extra in zip(seeds, salt, strict=True)]


def row_lengths(tokens: Tensor, eos: frozenset[int]) -> Tensor:
    """The length of each row of tokens int64 [B, N], its first end-of-sequence token included: int64 [B]."""
    if not eos:
        return torch.full(tokens.shape[:1], tokens.shape[1])
    end = torch.isin(tokens, torch.tensor(sorted(eos), device=tokens.device))
    return torch.where(end.any(1), end.int().argmax(1) + 1, tokens.shape[1])
