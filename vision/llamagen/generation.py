"""Generation with LlamaGen models: prompts or classes to images, by any recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from mmspec.arguments import check_integer, one_text, shown
from mmspec.arguments.keywords import check_options, refuse_unknown_keywords
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep
from mmspec.decoding.target import Target
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.drafters.ngram import NGramTable
from mmspec.errors import ArgumentError, ModelError
from mmspec.pipeline import Arguments
from mmspec.recipes import Recipe, recipe_of_call
from mmspec.sampling.params import SamplingParams, guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.calls import CallbackOnStepEnd, generate_tokens
from mmspec.vision.class_prompts import read_class
from mmspec.vision.image_stream import StreamsImages
from mmspec.vision.llamagen.codes import decode_tokens, read_codebook
from mmspec.vision.llamagen.components import NGramTokens, check_codes, smaller
from mmspec.vision.llamagen.conditioning import (
    Condition,
    from_classes,
    from_embeddings,
    from_prompts,
    join_conditions,
)
from mmspec.vision.llamagen.model_heads import ModelHeads
from mmspec.vision.llamagen.target import new_target
from mmspec.vision.llamagen.transformer import LlamaGenTransformer
from mmspec.vision.outputs import ImageOutput, check_call, check_output_type, complete, images_from_pixels, visible

if TYPE_CHECKING:
    from mmspec.codebook import Codebook
    from mmspec.training.prepared import PreparedPrompts


class LlamaGenGenerator(StreamsImages):
    """Generates images with a LlamaGen transformer, without diffusers; `LlamaGenPipeline` is a pipeline of diffusers.

    Draft heads, which read the transformer's features, are not components: add them with `add_drafter`.

    Args:
        transformer: The target.
        vqvae: The decoder of tokens: a diffusers `VQModel`, or a module with
            `decode(tokens int64 [B, N]) -> [B, 3, H, W]` in -1..1. Without one a call returns tokens only
            (`output_type="latent"`).
        text_encoder: A T5 encoder, which also requires `tokenizer`, or a module with
            `encode(prompts) -> (features [B, T, C], mask [B, T])`.
        tokenizer: The tokenizer of the T5 encoder.
        draft_transformer: A smaller LlamaGen with the same conditions, for the recipe `draft`; optional.
        table: An n-gram table, for the recipe `table` and for initial draft tokens; optional.
        defaults: The default `temperature`, `top_k`, `top_p`, `guidance_scale` and `recipe` of a call.

    Attributes:
        heads: Draft heads by kind; see `add_drafter`.
        config: The defaults of a call, by key and by attribute.

    Raises:
        ArgumentError: If a component and the transformer have different numbers of codes.
    """

    _callback_tensor_inputs = ["tokens"]
    config: Any
    vqvae: Any

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        vqvae: nn.Module | None,
        text_encoder: Any,
        tokenizer: Any,
        draft_transformer: LlamaGenTransformer | None,
        table: NGramTokens | None,
        defaults: Mapping[str, Any],
    ) -> None:
        check_codes(transformer, vqvae, draft_transformer, table)
        self.transformer = transformer
        self.vqvae = vqvae
        self.text_encoder = text_encoder
        self.tokenizer = tokenizer
        self.draft_transformer = draft_transformer
        self.table = table
        self.config = Arguments(defaults)
        self.heads = ModelHeads(transformer)
        self._bar_options: dict[str, Any] = {}

    def set_progress_bar_config(self, **options: Any) -> None:
        """Sets the arguments of the progress bar, those of `tqdm`."""
        self._bar_options = options

    def progress_bar(self, total: int) -> Any:
        """The progress bar of a call, which counts to `total`."""
        return tqdm(total=total, **self._bar_options)

    @refuse_unknown_keywords
    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
        cfg_interval: int = -1,
        num_images_per_prompt: int = 1,
        batch_size: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        on_step: OnStep | None = None,
        callback_on_step_end: CallbackOnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        measure_entropy: bool = False,
    ) -> ImageOutput:
        """Generates images for prompts, class labels or caption features; exactly one of them is given.

        An exception from a callback ends the call.

        Args:
            prompt: One or more prompts; of a class-conditional model class ids as text, such as "207".
            class_labels: One or more class ids.
            prompt_embeds: Features [B, T, C] of a text encoder, with the padding last.
            prompt_attention_mask: Their mask [B, T], 0 on padding.
            recipe: How to decode, e.g. `"scd:window=32"`; None takes the pipeline's default.
            seed: Row i uses `seed + i`; or one seed per row (prompts x images per prompt). None takes one from
                `generator`, or from torch's global generator.
            temperature: 0 takes the most likely token; None takes the pipeline's default.
            top_k: Keeps the k most likely tokens, 0 all; None takes the pipeline's default.
            top_p: Keeps the most likely tokens of this total probability, 1 all; None takes the pipeline's default.
            min_p: Keeps the tokens at least this much as likely as the most likely one; None and 0 keep all.
            typical_p: Keeps the most typical tokens of this total probability; None and 1 keep all.
            guidance_scale: Classifier-free guidance, 1 and below is off; None takes the pipeline's default.
            cfg_interval: As in the original: only the first `cfg_interval + 2` tokens are guided; -1 guides all.
            num_images_per_prompt: Images per prompt; they are next to each other in the output.
            batch_size: Images to decode at a time, at most; None is all. The images do not depend on it.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent".
            return_dict: False returns `(images,)`.
            on_step: Called with a `mmspec.decoding.step.Step` after every target call.
            callback_on_step_end: Called as diffusers does, `(pipe, target calls, tokens so far, {"tokens": codes})`.
                The codes int64 [B, N] are -1 where they are missing; `decode` makes previews of them. It may set
                `pipe._interrupt = True`, which ends the call with the codes so far, and cannot change them.
            callback_on_step_end_tensor_inputs: The tensors that it gets; "tokens" is the only one.
            measure_entropy: Also report the entropy of the target distribution.

        Raises:
            PromptError: If the model does not accept a prompt.
            ArgumentError: If an argument has a value that is not allowed, or does not belong to this model.
            UnknownNameError: If there is no recipe or rule of that name.
            ModelError: If the model returns logits that are not numbers.
        """
        check_call(
            "num_images_per_prompt", num_images_per_prompt, output_type, on_step, callback_on_step_end, return_dict,
            measure_entropy,
        )  # fmt: skip
        self._check_output(output_type)
        recipe = recipe_of_call(self, recipe)
        sampling = self._sampling(temperature, top_k, top_p, guidance_scale, cfg_interval, min_p, typical_p)
        condition = self._condition(prompt, class_labels, prompt_embeds, prompt_attention_mask)
        condition = condition.repeat(num_images_per_prompt)
        seeds = row_seeds(seed, len(condition.features), generator)
        rows = zip(condition.rows(), seeds, strict=True)
        requests = [self._request(each, sampling, own_seed, "latent") for each, own_seed in rows]
        tokens, stats = generate_tokens(
            self,
            requests,
            recipe,
            on_step,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
            lambda step, _: self._complete(self.transformer.in_raster_order(step.tokens)),
            measure_entropy,
            batch_size,
        )
        images = self.decode(tokens, output_type=output_type)
        self._finish_call()
        if not return_dict:
            return (images,)  # type: ignore[return-value]
        return ImageOutput(images, tokens, seeds, stats)

    @refuse_unknown_keywords
    @torch.no_grad()
    def decode(self, tokens: Tensor | Sequence[Tensor], *, output_type: str = "pil") -> Any:
        """Images of codes, as of the `tokens` of an output or of a callback.

        Args:
            tokens: Codes int64 [B, n] in raster order, or int64 [n_row] per row. Pixels of codes that are missing at
                the end, or that are -1, are grey.
            output_type: "pil", "np", "pt" or "latent".

        Returns:
            Images; see `mmspec.vision.outputs.ImageOutput`.

        Raises:
            ArgumentError: If an argument has a value that is not allowed, or there is no `vqvae`.
        """
        self._check_output(output_type)
        if output_type == "latent":
            return tokens
        grid = self.transformer.grid
        codes = self._complete(tokens).to(self.vqvae.device)
        pixels = decode_tokens(self.vqvae, codes.clamp(min=0), grid).float()
        if bool((codes < 0).any()):
            seen = visible(codes >= 0, grid, (pixels.shape[2], pixels.shape[3]))
            pixels = pixels.masked_fill(~seen[:, None], 0)
        return images_from_pixels(pixels, output_type)

    @torch.no_grad()
    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request of an engine; see `mmspec.batching.request.EnginePipeline`.

        Args:
            prompt: A prompt; of a class-conditional model a class id as text, or None with the option `class_labels`.
            options: `seed`, `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, `guidance_scale`, `cfg_interval`,
                `output_type`; for a class-conditional model `class_labels`.
            recipe: How it is decoded.

        Raises:
            PromptError: If the model does not accept the prompt.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        names = dict[str, Any].fromkeys(("temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale"))
        names["cfg_interval"] = -1
        texts = self.transformer.config.model_type == "t2i"
        check_options(options, ("seed", "output_type", *names, *(() if texts else ("class_labels",))))
        output_type = options.get("output_type", "pil")
        self._check_output(output_type)
        sampling = self._sampling(**{name: options.get(name, default) for name, default in names.items()})
        (seed,) = row_seeds(options.get("seed"), 1)
        if texts:
            condition = self._condition(one_text("prompt", prompt), None, None, None)
        else:
            classes = self.transformer.config.num_classes
            condition = from_classes(read_class(prompt, options.get("class_labels"), classes), self.transformer)
        return self._request(condition, sampling, seed, output_type)

    @torch.no_grad()
    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedRows:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        condition = join_conditions([row.prompt for row in rows]).to(self.transformer.device)
        samplings = [row.sampling for row in rows]
        target = partial(self._target, condition, recipe.window)
        guided = target(self.transformer, _guided(samplings))
        return PreparedRows(guided, self._layout(), samplings, self._resources(target, samplings))

    def prepare(
        self,
        prompts: Sequence[str],
        slack: int,
        temperature: float | None = None,
        guidance_scale: float | None = None,
    ) -> PreparedPrompts:
        """A batch of prompts, ready to be decoded with the defaults; see `mmspec.training.prepared.TrainablePipeline`.

        Args:
            prompts: Prompts, or class labels as text.
            slack: Tokens that a window may extend past the end of the image.

        Raises:
            PromptError: If the model does not accept a prompt.
        """
        from mmspec.training.prepared import PreparedPrompts

        gpt, samplings = self.transformer, [self._sampling(temperature, None, None, guidance_scale)] * len(prompts)
        condition = self._condition(list(prompts), None, None, None).to(gpt.device)
        target = partial(self._target, condition, slack)

        def small(model: Any, tokens: Tensor) -> Tensor:
            mask = condition.mask
            return model(tokens, condition.features, None if mask is None or bool(mask.all()) else mask)

        def small_target(model: Any) -> Target:
            return target(model, False)

        return PreparedPrompts(
            partial(target, gpt, _guided(samplings)),
            self._layout(),
            samplings,
            self._resources(target, samplings),
            None if gpt.cell else gpt.tok_embeddings.weight.detach(),
            small,
            small_target,
        )

    def new_small(self) -> LlamaGenTransformer:
        return smaller(self.transformer, self.draft_transformer)

    def add_drafter(self, folder: str | Path) -> None:
        """Adds a draft head or a draft transformer; it replaces one of the same kind.

        Args:
            folder: Written by `mmspec train-drafter`, or with a LANTERN drafter or a smaller LlamaGen.

        Raises:
            ModelError: If the folder does not contain a drafter, or one for another model.
        """
        from mmspec.files.documents import read_object
        from mmspec.heads.checkpoint import check_fits_model, load_head
        from mmspec.vision.saved_component import check_component

        folder = Path(folder)
        if read_object(folder / "config.json").get("_class_name") == self.transformer.saved_as:
            check_component(type(self.transformer), folder, self.transformer.saved_as)
            small = type(self.transformer).from_folder(folder)
            check_fits_model(folder, "vocab_size", small.config.vocab_size, self.transformer.config.vocab_size)
            check_codes(self.transformer, None, small, None)
            self._set_draft_transformer(small.to(self.transformer.device, self.transformer.dtype))
            return
        if self.transformer.cell:
            raise ModelError(f"folder {shown(str(folder))} has no draft transformer; a model of blocks takes no other")
        head = load_head(folder, self.transformer.tok_embeddings.weight.detach())
        check_fits_model(folder, "vocab_size", head.vocab_size, self.transformer.config.vocab_size)
        check_fits_model(folder, "hidden_size", head.hidden_size, self.transformer.config.dim)
        self.heads[head.kind] = head

    def _request(self, condition: Condition, sampling: SamplingParams, seed: int, output_type: str) -> PreparedRequest:
        """A request of one condition."""

        def finish(tokens: Sequence[Tensor], stats: Stats) -> ImageOutput:
            codes = torch.as_tensor(self.transformer.in_raster_order(tokens[0][None]))
            return ImageOutput(self.decode(codes, output_type=output_type), codes, [seed], stats)

        return PreparedRequest([RowPrompt(condition, sampling, seed)], finish, seed)

    def _check_output(self, output_type: str) -> None:
        """Refuses an output type that this pipeline cannot give."""
        check_output_type(output_type)
        if self.vqvae is None and output_type != "latent":
            raise ArgumentError(
                f"output_type={output_type!r} requires a vqvae, and this pipeline has none; use 'latent'"
            )

    def _sampling(
        self,
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        guidance_scale: float | None,
        cfg_interval: int = -1,
        min_p: float | None = None,
        typical_p: float | None = None,
    ) -> SamplingParams:
        """The sampling parameters of a call, with the pipeline's defaults in place of None."""
        check_integer("cfg_interval", cfg_interval, -1, 2**31)
        default = self.config
        return SamplingParams(
            temperature=default.temperature if temperature is None else temperature,
            top_k=default.top_k if top_k is None else top_k,
            top_p=default.top_p if top_p is None else top_p,
            guidance_scale=guidance_of_call(default.guidance_scale if guidance_scale is None else guidance_scale),
            guidance_end=cfg_interval + 2 if cfg_interval >= 0 else None,
            min_p=0.0 if min_p is None else min_p,
            typical_p=1.0 if typical_p is None else typical_p,
        )

    def _target(self, condition: Condition, slack: int, gpt: LlamaGenTransformer, guided: bool) -> Target:
        """A transformer with conditions on its device, whose windows may extend `slack` tokens past the end."""
        uncond = gpt.unconditional(len(condition.features)) if guided else None
        return new_target(gpt, condition.features, uncond, condition.mask, slack)

    def _layout(self) -> Layout:
        """Of an image."""
        side = self.transformer.config.grid_size
        return Layout(length=side**2, width=side, cell=self.transformer.cell)

    def _resources(
        self, target: Callable[[LlamaGenTransformer, bool], Target], samplings: Sequence[SamplingParams]
    ) -> DraftResources:
        """The resources for drafters of a batch; `target` makes one with its conditions."""
        gpt, draft = self.transformer, self.draft_transformer
        # One codebook for tokens; for blocks, the same one for each token of a block.
        codebook = None if self.vqvae is None else partial(read_codebook, self.vqvae)
        return DraftResources(
            table=NGramTable(self.table.best) if self.table is not None else None,
            # The draft model is unguided unless the recipe sets its guidance: drafts from any q can be verified.
            draft_model=partial(target, draft, False) if draft is not None else None,
            guided_draft_model=partial(target, draft, True) if draft is not None else None,
            draft_sampling=[replace(each, guidance_scale=1.0, guidance_end=None) for each in samplings],
            codebook=None if gpt.cell else codebook,
            codebooks=partial(_codebooks, codebook, gpt.cell[0]) if gpt.cell and codebook is not None else None,
            adaptive_windows=adaptive_windows_of(gpt),
            heads=self.heads,
        )

    def _condition(
        self,
        prompt: str | Sequence[str] | None,
        class_labels: int | Sequence[int] | Tensor | None,
        prompt_embeds: Tensor | None,
        prompt_attention_mask: Tensor | None,
    ) -> Condition:
        given = [
            name
            for name, value in (("prompt", prompt), ("class_labels", class_labels), ("prompt_embeds", prompt_embeds))
            if value is not None
        ]
        if len(given) != 1:
            got = " and ".join(given) if given else "none"
            raise ArgumentError(f"exactly one of prompt, class_labels and prompt_embeds is required; got {got}")
        if prompt_attention_mask is not None and prompt_embeds is None:
            raise ArgumentError("prompt_attention_mask was given without prompt_embeds, whose mask it is; leave it out")
        if class_labels is not None:
            return from_classes(class_labels, self.transformer)
        if prompt_embeds is not None:
            return from_embeddings(prompt_embeds, prompt_attention_mask, self.transformer)
        prompts = list(prompt) if isinstance(prompt, (list, tuple)) else [prompt]
        return from_prompts(prompts, self.transformer, self.text_encoder, self.tokenizer)

    def _complete(self, tokens: Tensor | Sequence[Tensor]) -> Tensor:
        """Codes of whole images in raster order, int64 [B, N]; see `mmspec.vision.outputs.complete`."""
        rows, columns = self.transformer.grid
        return complete(tokens, rows * columns, self.transformer.config.vocab_size)

    def _set_draft_transformer(self, small: LlamaGenTransformer) -> None:
        self.draft_transformer = small

    def _finish_call(self) -> None:
        """Called at the end of a call, when no component is needed any more."""


def _guided(samplings: Sequence[SamplingParams]) -> bool:
    """Whether a batch is guided: all of its rows are, or none."""
    return any(each.guidance_scale != 1 for each in samplings)


def _codebooks(codebook: Callable[[], Codebook | None], count: int) -> list[Codebook]:
    """One codebook for each token of a block."""
    if (found := codebook()) is None:
        raise ArgumentError("rules that compare tokens are not possible here: the vqvae has no codebook")
    return [found] * count
