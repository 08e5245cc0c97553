"""A model as it is called by the checks: its own generate, mmspec's, and its target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.generation import GenerationMixin

from mmspec.audio.models.vibevoice.speech import VibeVoiceAdapter
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.step import Step
from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError
from mmspec.hf.generate import captured_job, generate
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.image_adapter import Components
from mmspec.vision.hf.image_request import ImageRequest
from mmspec.vision.hf.pipeline import TransformersPipeline, input_device, sampling_arguments
from mmspec.vision.hf.registry import image_adapter_of
from mmspec.vision.mar.pipeline import MARPipeline


@dataclass(frozen=True)
class Made:
    """The result of a call.

    Attributes:
        tokens: int64 [rows, n], or audio float32 where a model's own generate returns no tokens.
        calls: Target calls; 0 where a model's own generate calls only parts of it.
    """

    tokens: Tensor
    calls: int = 0


@dataclass(frozen=True)
class PromptedTarget:
    """A target with the prompt in all rows.

    Attributes:
        length: Tokens of a sequence.
        first_id: The id, in `Made.tokens`, of the target's token 0.
        guidance_scale: That of a greedy call.
    """

    target: Target
    length: int
    first_id: int = 0
    guidance_scale: float = 1.0


class Subject(Protocol):
    """What the checks call."""

    @property
    def has_own(self) -> bool:
        """Whether the model has a generate of its own to compare with."""
        ...

    @property
    def name(self) -> str:
        """The class of the model."""
        ...

    @property
    def prompt_ids(self) -> list[int]:
        """The ids of the prompt; empty if the model reads none."""
        ...

    def own(self, greedy: bool, rows: int, seed: int) -> Made:
        """Generates with the model's own generate."""
        ...

    def ours(self, recipe: Recipe, greedy: bool, rows: int, seed: int) -> Made:
        """Generates with a recipe.

        Raises:
            ArgumentError: If the recipe is not possible for the model.
        """
        ...

    def target(self, rows: int, slack: int) -> PromptedTarget | None:
        """The target of the model with the prompt in all rows; None if its tokens are not single ids.

        Args:
            rows: Rows of the batch.
            slack: Tokens by which a window may reach past the end.
        """
        ...


@dataclass(frozen=True)
class GenerateSubject:
    """A transformers model, called through its `generate` with and without `custom_generate`.

    Attributes:
        ids: The ids of the prompt.
        inputs: Makes the inputs of a number of rows.
        sampled: Arguments of a sampled call.
        greedy: Arguments of a greedy call.
        single_ids: Whether tokens are single ids, so that a target can be made.
        own_only: Further arguments of the model's own generate.
        prompt_kept: Whether the result begins with the prompt.
        draft_model: A draft model, or None.
    """

    model: Any
    ids: list[int]
    inputs: Callable[[int], Mapping[str, Any]]
    sampled: Mapping[str, Any]
    greedy: Mapping[str, Any]
    single_ids: bool = True
    own_only: Mapping[str, Any] | None = None
    prompt_kept: bool = True
    draft_model: Any = None
    has_own: bool = True

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def prompt_ids(self) -> list[int]:
        return self.ids

    def own(self, greedy: bool, rows: int, seed: int) -> Made:
        torch.manual_seed(seed)
        with counted(self.model) as calls:
            out = self.model.generate(**self.inputs(rows), **self._settings(greedy), **(self.own_only or {}))
        return Made(self._new(out), len(calls))

    def ours(self, recipe: Recipe, greedy: bool, rows: int, seed: int) -> Made:
        torch.manual_seed(seed)
        calls = 0

        def count(step: Step) -> None:
            nonlocal calls
            calls += 1

        given = {"recipe": recipe, "seed": [seed + row for row in range(rows)], "on_step": count}
        # Some classes override `generate` without passing `custom_generate` on.
        method = type(self.model).generate if self.name in OWN_METHOD else GenerationMixin.generate
        if recipe.needs_draft_model:
            given["draft_model"] = self.draft_model
        out = method(self.model, **self.inputs(rows), **self._settings(greedy), custom_generate=generate, **given)
        return Made(self._new(out), calls)

    def target(self, rows: int, slack: int) -> PromptedTarget | None:
        if not self.single_ids:
            return None
        job = captured_job(
            lambda capture: GenerationMixin.generate(
                self.model, **self.inputs(rows), **self._settings(greedy=True), custom_generate=capture
            )
        )
        scale = float(job.sampling.guidance_scale)
        return PromptedTarget(job.target(job.plan, slack), job.plan.length, job.plan.first_id, scale)

    def _settings(self, greedy: bool) -> Mapping[str, Any]:
        return self.greedy if greedy else self.sampled

    def _new(self, out: Any) -> Tensor:
        found: Tensor = out if isinstance(out, Tensor) else torch.nn.utils.rnn.pad_sequence(list(out), batch_first=True)
        start = len(self.ids) if self.prompt_kept else 0
        return found[:, start:].flatten(1).cpu()


@contextmanager
def counted(model: Any) -> Iterator[list[None]]:
    """Collects an item per call of a model's decoder inside the context, or of the model if it names none."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    before, real = vars(decoder).get("forward"), decoder.forward
    calls: list[None] = []

    @wraps(real)
    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return real(*args, **kwargs)

    decoder.forward = forward  # a hook would miss a model that calls its own `forward`
    try:
        yield calls
    finally:
        del decoder.forward
        if before is not None:
            decoder.forward = before


# Classes whose own `generate` prepares the call and accepts `custom_generate`.
OWN_METHOD = ("BarkModel", "CsmForConditionalGeneration")


@dataclass(frozen=True)
class PipelineSubject:
    """A pipeline that is not one of a transformers model with a `generate` that could be called.

    Attributes:
        pipe: An image or speech pipeline. Where it has them, its `own_generate(prompts, greedy, seed)` is the model's
            own loop, which returns int64 [rows, n], and its `model` the module which that calls.
        prompt: The prompt; for class-conditional models, a number.
        has_greedy: Whether temperature 0 is possible; otherwise a greedy call is one with the default parameters.
    """

    pipe: Any
    prompt: str
    has_greedy: bool = True

    @property
    def has_own(self) -> bool:
        return hasattr(self.pipe, "own_generate")

    @property
    def name(self) -> str:
        return type(getattr(self.pipe, "adapter", self.pipe)).__name__

    @property
    def prompt_ids(self) -> list[int]:
        return []

    def own(self, greedy: bool, rows: int, seed: int) -> Made:
        model = getattr(self.pipe, "model", None)
        with counted(model if isinstance(model, nn.Module) else nn.Identity()) as calls:
            tokens = self.pipe.own_generate([self.prompt] * rows, greedy=greedy, seed=seed)
        return Made(tokens.flatten(1).cpu(), len(calls))

    def ours(self, recipe: Recipe, greedy: bool, rows: int, seed: int) -> Made:
        given: dict[str, Any] = {"recipe": recipe, "seed": [seed + row for row in range(rows)]}
        if greedy and self.has_greedy:
            given["temperature"] = 0.0
        out: Any
        if isinstance(self.pipe, SpeechPipeline):
            out = self.pipe([self.prompt] * rows, **given)
            parts = [torch.cat([part.flatten() for part in one.tokens]) for one in out]
            return Made(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), out.stats.target_calls)
        if "output_type" in signature(self.pipe.__call__).parameters:
            given["output_type"] = "latent"
        out = self.pipe([self.prompt] * rows, **given)
        return Made(out.tokens.flatten(1).cpu(), out.stats.target_calls)

    def target(self, rows: int, slack: int) -> PromptedTarget | None:
        if isinstance(self.pipe, SpeechPipeline):
            adapter = self.pipe.adapter
            part = adapter.read(self.prompt, None).parts[0]
            recipe = parse(f"sjd:window={max(slack, 2)}")
            ready = adapter.prepare_rows([part] * rows, recipe, [adapter.sampling] * rows)
            if type(ready) is PreparedRows and ready.layout.kind == "tokens":
                return PromptedTarget(ready.target, ready.layout.length, guidance_scale=adapter.sampling.guidance_scale)
        elif hasattr(self.pipe, "prepare"):
            prepared = self.pipe.prepare([self.prompt] * rows, slack)
            if prepared.layout.kind == "tokens":
                scale = prepared.samplings[0].guidance_scale
                return PromptedTarget(prepared.make(), prepared.layout.length, guidance_scale=scale)
        return None


def subject_of(pipe: Any, prompt: str, tokens: int) -> Subject:
    """The subject of a loaded pipeline.

    Args:
        pipe: What `mmspec.load` returned.
        prompt: The prompt or text.
        tokens: New tokens of a call, where the model does not fix their number.
    """
    if isinstance(pipe, TransformersPipeline):
        return image_subject(pipe, prompt, tokens)
    adapter = getattr(pipe, "adapter", None)
    model = getattr(adapter, "model", None)
    if isinstance(model, GenerationMixin) and type(model).__name__ in SPEECH_INPUTS:
        return SPEECH_INPUTS[type(model).__name__](adapter, prompt, tokens)
    # Their latents come from noise at every step; no temperature makes them greedy.
    has_greedy = not isinstance(pipe, MARPipeline) and not isinstance(adapter, VibeVoiceAdapter)
    return PipelineSubject(pipe, prompt, has_greedy=has_greedy)


def image_subject(pipe: TransformersPipeline, prompt: str, tokens: int) -> GenerateSubject:
    """An image model of transformers, with the prompts of its pipeline."""
    config, model = pipe.config, pipe.model
    sampling = SamplingParams(config.temperature, config.top_k, config.top_p, config.guidance_scale)
    adapter = image_adapter_of(model, Components(pipe.processor, pipe.vqvae, config.layout))
    device = input_device(model)

    def inputs(rows: int) -> Mapping[str, Any]:
        request = ImageRequest([prompt] * rows, sampling.guidance_scale != 1, None, None, None)
        return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in adapter.job(request).arguments.items()}

    length = adapter.job(ImageRequest([prompt], sampling.guidance_scale != 1, None, None, None)).length
    janus = type(model).__name__ == "JanusForConditionalGeneration"
    count = {"max_new_tokens": length if janus else min(tokens, length)}
    greedy = SamplingParams(0, guidance_scale=sampling.guidance_scale)
    return GenerateSubject(
        model,
        inputs(1)["input_ids"][0].tolist(),
        inputs,
        {**sampling_arguments(sampling), **count},
        {**sampling_arguments(greedy), **count},
        own_only={"generation_mode": "image"} if janus else None,
        prompt_kept=not janus,
        draft_model=pipe.draft_model,
        # Chameleon's own forward excludes the codes of images.
        has_own=type(model).__name__ != "ChameleonForConditionalGeneration",
    )


def flat_subject(adapter: Any, text: str, tokens: int) -> GenerateSubject:
    """A flat speech model, with the prompt of its style and its default sampling parameters."""
    ids = adapter.read(text, None).parts[0].ids
    s = adapter.sampling
    count = {"max_new_tokens": tokens}
    sampled = {"do_sample": True, "temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p}
    return GenerateSubject(
        adapter.model,
        list(ids),
        lambda rows: mask_all(torch.tensor([ids] * rows, device=adapter.model.device)),
        (sampled if s.temperature else {"do_sample": False}) | count,
        {"do_sample": False, **count},
        draft_model=adapter.draft_model,
    )


def csm_subject(adapter: Any, text: str, tokens: int) -> GenerateSubject:
    """CSM, with the prompt of its pipeline; both of its decoders are greedy, or sample as the checkpoint says."""
    ids = adapter.read(text, None).parts[0].ids
    count = {"max_new_tokens": tokens}
    return GenerateSubject(
        adapter.model,
        list(ids),
        lambda rows: mask_all(torch.tensor([ids] * rows, device=adapter.model.device)),
        count,
        {"do_sample": False, "depth_decoder_do_sample": False, **count},
        single_ids=False,
        prompt_kept=False,
        draft_model=adapter.draft_model,
    )


def bark_subject(adapter: Any, text: str, tokens: int) -> GenerateSubject:
    """Bark: audio, whose last stage samples from torch's generator."""
    words = adapter.processor(text)
    inputs = {name: torch.as_tensor(words[name]).view(1, -1) for name in ("input_ids", "attention_mask")}

    def repeated(rows: int) -> Mapping[str, Any]:
        return {name: ids.repeat(rows, 1).to(adapter.model.device) for name, ids in inputs.items()}

    return GenerateSubject(
        adapter.model,
        inputs["input_ids"][0].tolist(),
        repeated,
        {"do_sample": True},
        {"do_sample": False},
        single_ids=False,
        prompt_kept=False,
        draft_model=adapter.draft_model,
    )


def columns_subject(adapter: Any, text: str, tokens: int) -> GenerateSubject:
    """MusicGen or Dia, with the texts of its processor."""
    dia = type(adapter.model).__name__ == "DiaForConditionalGeneration"
    text = adapter.read(text, None).parts[0].text if dia else text  # with the tag of a speaker
    reader = getattr(adapter.processor, "tokenizer", adapter.processor)

    def inputs(rows: int) -> Mapping[str, Any]:
        words = reader([text] * rows, padding=True, return_tensors="pt").to(adapter.model.device)
        found = {name: words[name].clone() for name in ("input_ids", "attention_mask")}
        return found | (begun_columns(adapter.model, rows) if dia else {})

    scale = adapter.sampling.guidance_scale
    more = {"max_new_tokens": tokens} | ({"guidance_scale": scale} if scale != 1 else {})
    return GenerateSubject(
        adapter.model,
        inputs(1)["input_ids"][0].tolist(),
        inputs,
        {"do_sample": True, **more},
        {"do_sample": False, **more},
        single_ids=False,
        prompt_kept=False,
        draft_model=adapter.draft_model,
    )


def higgs_subject(adapter: Any, text: str, tokens: int) -> GenerateSubject:
    """Higgs Audio, with one user turn."""
    turns = [{"role": "user", "content": [{"type": "text", "text": text}]}]

    def inputs(rows: int) -> Mapping[str, Any]:
        words = adapter.processor.apply_chat_template(
            [turns] * rows,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            padding=True,
            return_tensors="pt",
        )
        return {name: words[name].to(adapter.model.device) for name in ("input_ids", "attention_mask")}

    count = {"max_new_tokens": tokens}
    return GenerateSubject(
        adapter.model,
        inputs(1)["input_ids"][0].tolist(),
        inputs,
        {"do_sample": True, **count},
        {"do_sample": False, **count},
        single_ids=False,
        prompt_kept=False,
        draft_model=adapter.draft_model,
    )


def begun_columns(model: Any, rows: int) -> dict[str, Tensor]:
    """The columns with which Dia's processor begins audio: each codebook's first id, delayed, and padding after it."""
    config, delays = model.config.decoder_config, torch.tensor(model.config.delay_pattern)
    begun = torch.arange(int(delays.max()) + 1)[:, None] <= delays
    columns = torch.where(begun, int(config.bos_token_id), int(config.pad_token_id)).int()
    return {
        "decoder_input_ids": columns.repeat(rows, 1, 1).to(model.device),
        "decoder_attention_mask": torch.ones(rows, len(columns), dtype=torch.int64, device=model.device),
    }


def mask_all(ids: Tensor) -> dict[str, Tensor]:
    """Prompts int64 [B, T] without padding, with their mask."""
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


FLAT = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Lfm2ForCausalLM")
SPEECH_INPUTS: dict[str, Callable[[Any, str, int], GenerateSubject]] = {
    **dict.fromkeys(FLAT, flat_subject),
    "CsmForConditionalGeneration": csm_subject,
    "BarkModel": bark_subject,
    "MusicgenForConditionalGeneration": columns_subject,
    "MusicgenMelodyForConditionalGeneration": columns_subject,
    "DiaForConditionalGeneration": columns_subject,
    "HiggsAudioV2ForConditionalGeneration": higgs_subject,
}


def possible(subject: Subject, recipes: Sequence[Recipe]) -> tuple[list[Recipe], dict[str, str]]:
    """The recipes that a model can run, and why it cannot run the others.

    Args:
        subject: The model.
        recipes: The candidates.
    """
    found, refused = [], {}
    for recipe in recipes:
        try:
            subject.ours(recipe, greedy=True, rows=1, seed=0)
        except ArgumentError as error:
            refused[str(recipe)] = str(error)
        else:
            found.append(recipe)
    return found, refused


def dtype_of(pipe: Any) -> torch.dtype:
    """The dtype of a pipeline's model."""
    for holder in (getattr(pipe, "adapter", pipe), pipe):
        for name in ("model", "transformer"):
            model = getattr(holder, name, None)
            if isinstance(model, torch.nn.Module):
                return next(p.dtype for p in model.parameters() if p.is_floating_point())
    dtype: torch.dtype = pipe.dtype
    return dtype
