"""The VAR pipeline: class labels to images, with one model or a large and a small one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.arguments import check_flag, check_integer, check_number, shown
from mmspec.arguments.keywords import refuse_unknown_keywords
from mmspec.batching.closed import PreparedClosed
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.step import OnStep, Step
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse, recipe_of_call
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.calls import CallbackOnStepEnd, generate_tokens, image_request, read_options
from mmspec.vision.class_prompts import read_class, read_classes
from mmspec.vision.component_dtypes import component_dtypes
from mmspec.vision.folder_pipeline import FolderPipeline
from mmspec.vision.image_stream import StreamsImages
from mmspec.vision.outputs import ImageOutput, check_call, check_output_type, complete, images_from_pixels
from mmspec.vision.var.decoding import MapBatch, MapSettings
from mmspec.vision.var.tokenizer import VARTokenizer
from mmspec.vision.var.transformer import VARTransformer

PLAIN = parse("plain")
OPTIONS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale", "large_scales", "measure_distance",
)  # fmt: skip


class VARPipeline(StreamsImages, FolderPipeline):
    """Generates images of classes with a VAR.

    Args:
        transformer: The model.
        vae: The tokenizer, which generation needs too: the input of a map is made of the maps before it.
        draft_transformer: A smaller VAR of the same tokenizer, for `large_scales`; optional.
        guidance_scale: The default of a call.
        top_k: The default of a call.
        top_p: The default of a call.
        min_p: The default of a call.
        typical_p: The default of a call.
        recipe: The default of a call; "plain" is the only one, see `__call__`.

    Raises:
        ArgumentError: If there is no tokenizer, or the components do not fit each other.
    """

    model_cpu_offload_seq = "draft_transformer->transformer->vae"
    _optional_components = ["draft_transformer"]
    _callback_tensor_inputs = ["tokens"]

    def __init__(
        self,
        transformer: VARTransformer,
        vae: VARTokenizer | None,
        draft_transformer: VARTransformer | None = None,
        guidance_scale: float = 4.0,
        top_k: int = 900,
        top_p: float = 0.95,
        recipe: str = "plain",
        min_p: float = 0.0,
        typical_p: float = 1.0,
    ) -> None:
        super().__init__()
        if vae is None:
            raise ArgumentError(
                "a VAR generates with its tokenizer; give tokenizer='vae_ch160v4096z32.pth' or the like to mmspec.load"
            )
        for name, other in (("vae", vae), ("draft_transformer", draft_transformer)):
            for key in ("sides", "vocab_size", "code_dim"):
                if other is not None and _plain(other.config[key]) != _plain(transformer.config[key]):
                    raise ArgumentError(f"{name} has another {key} than the transformer; they must be equal")
        if draft_transformer is not None and draft_transformer.config.num_classes != transformer.config.num_classes:
            raise ArgumentError("draft_transformer has another num_classes than the transformer; they must be equal")
        self.register_modules(transformer=transformer, vae=vae, draft_transformer=draft_transformer)
        self.register_to_config(
            guidance_scale=guidance_scale, top_k=top_k, top_p=top_p, recipe=recipe, min_p=min_p, typical_p=typical_p
        )

    @refuse_unknown_keywords
    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
        large_scales: int | None = None,
        measure_distance: bool = False,
        num_images_per_prompt: int = 1,
        batch_size: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        on_step: OnStep | None = None,
        callback_on_step_end: CallbackOnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> ImageOutput:
        """Generates images of classes. An exception from a callback ends the call.

        Args:
            prompt: Class ids as text, such as "207"; instead of `class_labels`.
            class_labels: One or more class ids.
            recipe: "plain": a call generates a whole map, whose tokens do not depend on each other; see `large_scales`.
            seed: Row i uses `seed + i`; or one seed per row. None takes one from `generator`, or from torch's global
                generator.
            temperature: 0 takes the most likely token; None is 1.
            top_k: 0 keeps all tokens.
            top_p: 1 keeps all tokens.
            min_p: Keeps the tokens at least this much as likely as the most likely one, 0 all; None takes the
                pipeline's default.
            typical_p: Keeps the most typical tokens of this total probability, 1 all; None takes the pipeline's
                default.
            guidance_scale: As in the original: map i of S has the logits (1 + t) cond - t uncond with
                t = guidance_scale * i / (S - 1). 0 is off.
            large_scales: The first maps that the transformer generates; the draft transformer generates the rest
                (Collaborative decoding), which is relaxed. None is all maps.
            measure_distance: Whether both models read the result once more, so that `stats.tv_bound` has the mean
                distance of their distributions; without it, it is NaN where a draft transformer generates.
            num_images_per_prompt: Images per class; they are next to each other in the output.
            batch_size: Images to decode at a time, at most; None is all. The images do not depend on it.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent".
            return_dict: False returns `(images,)`.
            on_step: Called with a `mmspec.decoding.step.Step` after every map.
            callback_on_step_end: Called as diffusers does, `(pipe, calls, tokens so far, {"tokens": tokens})`, with the
                maps so far, int64 [B, n]; `decode` makes previews of them. It may set `pipe._interrupt = True`.
            callback_on_step_end_tensor_inputs: The tensors that it gets; "tokens" is the only one.

        Returns:
            An `ImageOutput` whose `tokens` are all maps int64 [B, L], the smallest first. `stats.target_calls` counts
            calls of the transformer, `stats.draft_calls` those of the draft transformer.

        Raises:
            PromptError: If a prompt is not a number.
            ArgumentError: If an argument has a value that is not allowed.
            UnknownNameError: If there is no recipe of that name.
        """
        check_call(
            "num_images_per_prompt", num_images_per_prompt, output_type, on_step, callback_on_step_end, return_dict
        )
        sampling, settings = self._settings(
            recipe, temperature, top_k, top_p, min_p, typical_p, guidance_scale, large_scales, measure_distance
        )
        labels = read_classes(prompt, class_labels, self.transformer.config.num_classes)
        labels = labels.repeat_interleave(num_images_per_prompt)
        seeds = row_seeds(seed, len(labels), generator)
        rows = (RowPrompt(*row, settings) for row in zip(labels.tolist(), [sampling] * len(seeds), seeds, strict=True))
        tokens, stats = generate_tokens(
            self,
            [image_request(self, row) for row in rows],
            PLAIN,
            on_step,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
            maps_so_far,
            batch_size=batch_size,
        )
        images = self.decode(tokens, output_type=output_type)
        self.maybe_free_model_hooks()
        return ImageOutput(images, tokens, seeds, stats) if return_dict else (images,)  # type: ignore[return-value]

    @torch.no_grad()
    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request of an engine; see `mmspec.batching.request.EnginePipeline`.

        Args:
            prompt: A class id as text; None with the option `class_labels`.
            options: `seed`, `output_type`, and arguments of a call by name: those of sampling, `class_labels`,
                `large_scales` and `measure_distance`.
            recipe: "plain", as in a call.

        Raises:
            PromptError: If the prompt is not the number of a class.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        given, seed, output_type = read_options(options, ("class_labels", *OPTIONS))
        labels = read_class(prompt, given.pop("class_labels", None), self.transformer.config.num_classes)
        sampling, settings = self._settings(recipe, **given)
        return image_request(self, RowPrompt(int(labels), sampling, seed, settings), output_type)

    @torch.no_grad()
    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedClosed:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        settings = rows[0].kind
        assert isinstance(settings, MapSettings)
        labels, samplings = torch.tensor([row.prompt for row in rows]), [row.sampling for row in rows]
        models = self.transformer, self.draft_transformer, self.vae
        return PreparedClosed(partial(MapBatch, *models, labels, samplings, settings))

    @refuse_unknown_keywords
    @torch.no_grad()
    def decode(self, tokens: Tensor, *, output_type: str = "pil") -> Any:
        """Images of maps, as of the `tokens` of an output or of a callback.

        Args:
            tokens: int64 [B, n], whole maps, the smallest first; without the last ones, which may be -1, the image is
                coarse.
            output_type: "pil", "np", "pt" or "latent".

        Raises:
            ArgumentError: If an argument has a value that is not allowed.
        """
        check_output_type(output_type)
        if output_type == "latent":
            return tokens
        ends = self.transformer.ends
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] not in ends:
            found = list(tokens.shape) if isinstance(tokens, Tensor) else shown(tokens)
            raise ArgumentError(
                f"tokens is {found}; it must be whole maps [B, n], n one of {', '.join(map(str, ends))}"
            )
        known = complete(tokens, ends[-1], self.transformer.config.vocab_size) >= 0
        counts = known.sum(1, keepdim=True)
        whole = torch.isin(counts, torch.tensor([0, *ends], device=counts.device))
        if not bool(whole.all()) or not bool((known.cumsum(1) == counts)[~known].all()):
            raise ArgumentError("tokens has -1 within a map or before one, which is not allowed: maps are whole")
        return images_from_pixels(self.vae.pixels(self.vae.latents(tokens.to(self.vae.device))), output_type)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the largest map."""
        side = self.transformer.sides[-1]
        return side, side

    @torch.no_grad()
    def preview(self, tokens: Tensor) -> Image.Image:
        """The image of the whole maps among the tokens int64 [n]."""
        latents = self.vae.latents(tokens[None].to(self.vae.device, torch.int64))
        image: Image.Image = images_from_pixels(self.vae.pixels(latents), "pil")[0]
        return image

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> VARPipeline:
        folder = Path(pretrained_model_name_or_path)
        kwargs["dtype"] = component_dtypes(folder, kwargs.get("dtype"), "transformer", "vae")
        pipe: VARPipeline = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        return pipe

    def _settings(
        self,
        recipe: str | Recipe | None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
        large_scales: int | None = None,
        measure_distance: bool = False,
    ) -> tuple[SamplingParams, MapSettings]:
        """Reads arguments of a call, with the pipeline's defaults in place of None."""
        check_flag("measure_distance", measure_distance)
        default, maps = self.config, len(self.transformer.sides)
        scale = default.guidance_scale if guidance_scale is None else guidance_scale
        check_number("guidance_scale", scale, 0, 1e4)
        if large_scales is not None:
            check_integer("large_scales", large_scales, 1, maps)
        if recipe_of_call(self, recipe).name != "plain":
            raise ArgumentError(
                f"recipe={str(recipe)!r} is not possible here: a call generates a whole map already; use 'plain', and "
                "large_scales=6 for a smaller model of the last maps"
            )
        large_maps = maps if large_scales is None else large_scales
        if large_maps < maps and self.draft_transformer is None:
            raise ArgumentError(
                f"large_scales={large_maps} requires a draft_transformer for the other {maps - large_maps}"
            )
        sampling = SamplingParams(
            1.0 if temperature is None else temperature,
            default.top_k if top_k is None else top_k,
            default.top_p if top_p is None else top_p,
            min_p=default.min_p if min_p is None else min_p,
            typical_p=default.typical_p if typical_p is None else typical_p,
        )
        return sampling, MapSettings(scale, large_maps, measure_distance)


def maps_so_far(step: Step, rows: slice) -> Tensor:
    """The tokens of a step of the rows, int64 [B, n]: whole maps."""
    return torch.stack(list(step.tokens))


def _plain(value: Any) -> Any:
    """A value of a configuration, lists as tuples."""
    return tuple(value) if isinstance(value, list) else value
