"""The MAR pipeline: class labels to images, by the published decoding or by a recipe for latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from torch import Tensor

from mmspec.arguments import check_integer, check_number, shown
from mmspec.arguments.keywords import refuse_keywords, refuse_unknown_keywords
from mmspec.batching.closed import PreparedClosed
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.continuous.prepared import PreparedLatents, build_latent_rule
from mmspec.continuous.sampler import LatentModel
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStep, Step
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams, guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.calls import CallbackOnStepEnd, generate_tokens, image_request, read_options
from mmspec.vision.class_prompts import read_class, read_classes
from mmspec.vision.component_dtypes import component_dtypes
from mmspec.vision.folder_pipeline import FolderPipeline
from mmspec.vision.image_stream import StreamsImages
from mmspec.vision.mar.denoising import MARHead
from mmspec.vision.mar.kl16 import pixels
from mmspec.vision.mar.masked import PassBatch, Shortcuts
from mmspec.vision.mar.published import PublishedBatch
from mmspec.vision.mar.target import MARTarget, orders
from mmspec.vision.mar.transformer import MARTransformer
from mmspec.vision.outputs import (
    ImageOutput,
    check_call,
    check_latents,
    check_output_type,
    complete_latents,
    grey_where_missing,
)

SCHEDULES = ("linear", "constant")
OPTIONS = ("steps", "head_steps", "guidance_scale", "cfg_schedule", "temperature", "shortcuts")
PLAIN = parse("plain")


@dataclass(frozen=True)
class MARSettings:
    """The settings of a call, but for the guidance scale.

    Attributes:
        passes: Of the backbone.
        head_steps: Steps of the diffusion head.
        linear: Whether the guidance scale grows over the passes.
        temperature: Factor of the head's noise.
        shortcuts: Lossy shortcuts.
    """

    passes: int
    head_steps: int
    linear: bool
    temperature: float
    shortcuts: Shortcuts


class MARPipeline(StreamsImages, FolderPipeline):
    """Generates images of classes with a MAR.

    Args:
        transformer: Backbone and diffusion head.
        vae: The decoder of latents; without one a call returns latents only (`output_type="latent"`).
        draft_transformer: A smaller MAR of the same latents, for the recipe `draft`; optional.
        steps: The default of a call; 256 passes in the published evaluation. None is one latent per pass.
        head_steps: The default of a call; 100 steps in the published evaluation.
        guidance_scale: The default of a call; 2.9 (B), 3.0 (L) or 3.2 (H) in the published evaluation.
        cfg_schedule: The default of a call; "linear" in the published evaluation.
        temperature: The default of a call; 1.0 in the published evaluation.

    Raises:
        ArgumentError: If the parts do not fit each other.
    """

    model_cpu_offload_seq = "draft_transformer->transformer->vae"
    _optional_components = ["vae", "draft_transformer"]
    _callback_tensor_inputs = ["tokens"]

    def __init__(
        self,
        transformer: MARTransformer,
        vae: AutoencoderKL | None = None,
        draft_transformer: MARTransformer | None = None,
        steps: int | None = None,
        head_steps: int = 100,
        guidance_scale: float = 2.9,
        cfg_schedule: str = "linear",
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if vae is not None and vae.config.latent_channels != transformer.config.token_dim:
            raise ArgumentError(
                f"vae has latents of {vae.config.latent_channels} numbers, the transformer of "
                f"{transformer.config.token_dim}; they must be equal"
            )
        for name in ("grid_size", "token_dim", "class_num"):
            if draft_transformer is not None and draft_transformer.config[name] != transformer.config[name]:
                raise ArgumentError(f"draft_transformer has another {name} than the transformer; they must be equal")
        self.register_modules(transformer=transformer, vae=vae, draft_transformer=draft_transformer)
        self.register_to_config(
            steps=steps,
            head_steps=head_steps,
            guidance_scale=guidance_scale,
            cfg_schedule=cfg_schedule,
            temperature=temperature,
        )
        self.image_processor = VaeImageProcessor()

    @refuse_keywords(
        "its tokens are vectors of numbers, which have no probabilities to compare",
        "top_k", "top_p", "min_p", "typical_p",
    )  # fmt: skip
    @refuse_unknown_keywords
    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        steps: int | None = None,
        head_steps: int | None = None,
        guidance_scale: float | None = None,
        cfg_schedule: str | None = None,
        temperature: float | None = None,
        shortcuts: Shortcuts = Shortcuts(),  # noqa: B008 (frozen)
        num_images_per_prompt: int = 1,
        batch_size: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        on_step: OnStep | None = None,
        callback_on_step_end: CallbackOnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> ImageOutput:
        """Generates images of classes.

        An exception from a callback ends the call.

        Args:
            prompt: Class ids as text, such as "207"; instead of `class_labels`.
            class_labels: One or more class ids.
            recipe: `plain` for the published decoding, as None; or `plain+smoothed`, or a recipe that drafts with a
                rule for latents. All but `plain` sample latents one by one.
            seed: Row i uses `seed + i`; or one seed per row. None takes one from `generator`, or from torch's global
                generator.
            steps: Passes of the backbone, 1 to the number of latents, which is the default. Recipes require the
                default, except `draft+cspd` in its published schedule, where a window of W is W - 1 passes of the draft
                model.
            head_steps: Steps of the diffusion head, 2 to 1000.
            guidance_scale: 1 and below is off; None takes the pipeline's default.
            cfg_schedule: "linear" (the scale grows over the passes) or "constant".
            temperature: Factor of the head's noise, above 0.
            shortcuts: Lossy shortcuts, with `plain` only.
            num_images_per_prompt: Images per class; they are next to each other in the output.
            batch_size: Images to decode at a time, at most; None is all. The images do not depend on it.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent".
            return_dict: False returns `(images,)`.
            on_step: Called with a `mmspec.decoding.step.Step` after every target call.
            callback_on_step_end: Called as diffusers does, `(pipe, target calls, latents so far, {"tokens": latents})`.
                The latents float32 [B, N, D] are NaN where they are missing; `decode` makes previews of them. It may
                set `pipe._interrupt = True`, which ends the call with the latents so far, and cannot change them.
            callback_on_step_end_tensor_inputs: The tensors that it gets; "tokens" is the only one.

        Returns:
            An `ImageOutput` whose `tokens` are latents in raster order, float32 [B, N, D].

        Raises:
            PromptError: If a prompt is not a number.
            ArgumentError: If an argument has a value that is not allowed.
            UnknownNameError: If there is no recipe or rule of that name.
        """
        check_call(
            "num_images_per_prompt", num_images_per_prompt, output_type, on_step, callback_on_step_end, return_dict
        )
        self._check_output(output_type)
        recipe = PLAIN if recipe is None else parse(recipe)
        sampling, settings = self._settings(
            recipe, steps, head_steps, guidance_scale, cfg_schedule, temperature, shortcuts
        )
        labels = read_classes(prompt, class_labels, self.transformer.config.class_num)
        labels = labels.repeat_interleave(num_images_per_prompt)
        seeds = row_seeds(seed, len(labels), generator)
        order = orders(seeds, self.transformer.places)
        rows = (RowPrompt(*row, settings) for row in zip(labels.tolist(), [sampling] * len(seeds), seeds, strict=True))
        tokens, stats = generate_tokens(
            self,
            [self._request(row) for row in rows],
            recipe,
            on_step,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
            lambda step, rows: latents_so_far(order[rows], self.transformer.config.token_dim, step),
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
            options: `seed`, `output_type`, and arguments of a call by name: `class_labels`, `steps`, `head_steps`,
                `guidance_scale`, `cfg_schedule`, `temperature` and `shortcuts`.
            recipe: How it is decoded, as in a call.

        Raises:
            PromptError: If the prompt is not the number of a class.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        given, seed, output_type = read_options(options, ("class_labels", *OPTIONS))
        self._check_output(output_type)
        labels = read_class(prompt, given.pop("class_labels", None), self.transformer.config.class_num)
        sampling, settings = self._settings(recipe, **given)
        return self._request(RowPrompt(int(labels), sampling, seed, settings), output_type)

    @torch.no_grad()
    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedClosed | PreparedLatents:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        settings, model, draft = rows[0].kind, self.transformer, self.draft_transformer
        assert isinstance(settings, MARSettings)
        labels, seeds, places = torch.tensor([row.prompt for row in rows]), [row.seed for row in rows], model.places
        order, chain, scale = orders(seeds, places), settings.head_steps, rows[0].sampling.guidance_scale
        guided, passes = scale != 1, settings.passes

        def head(count: int, of: MARTransformer = model) -> MARHead:
            net, dim = of.diffloss.net, of.config.token_dim
            return MARHead(net, dim, places, count, chain, settings.temperature, scale, settings.linear)

        def target(of: MARTransformer, **how: Any) -> MARTarget:
            return MARTarget(of, labels, order, guided, **how)

        if recipe.name == "plain":
            return PreparedClosed(
                partial(PassBatch, model, head, chain, labels, order, guided, passes, settings.shortcuts)
            )
        if passes != places:
            assert draft is not None
            models = target(model, blind=True), head(chain), target(draft, blind=True), head(chain, draft)
            rule = build_latent_rule(recipe)
            return PreparedClosed(partial(PublishedBatch, *models, rule, places, passes, recipe.window - 1))
        published = recipe.knobs.get("schedule") == "published"
        ours = target(model, blind=published)
        drafters: dict[str, Callable[[int], LatentModel]] = {
            "layer-skip": lambda n: LatentModel(target(model, layers=n), head(chain)),
            "few-steps": lambda n: LatentModel(target(model), head(n)),
        }
        if draft is not None:
            drafters = {"draft": lambda _: LatentModel(target(draft), head(chain, draft)), **drafters}
        resources = DraftResources(latent_models=drafters, adaptive_windows=adaptive_windows_of(model))
        layout = Layout(length=places, cell=(model.config.token_dim,), dtype=torch.float32)
        return PreparedLatents(ours, head(chain), layout, resources, observe=ours.refresh if published else None)

    @refuse_unknown_keywords
    @torch.no_grad()
    def decode(self, tokens: Tensor, *, output_type: str = "pil") -> Any:
        """Images of latents, as of the `tokens` of an output or of a callback.

        Args:
            tokens: Latents [B, N, D] in raster order. Pixels of latents that are NaN are grey.
            output_type: "pil", "np", "pt" or "latent".

        Returns:
            Images; see `mmspec.vision.outputs.ImageOutput`.

        Raises:
            ArgumentError: If an argument has a value that is not allowed, or there is no `vae`.
        """
        self._check_output(output_type)
        if output_type == "latent":
            return tokens
        check_latents(tokens, self.transformer.places, self.transformer.config.token_dim)
        tokens = tokens.to(self.vae.device)
        side = self.transformer.config.grid_size
        images = grey_where_missing(pixels(self.vae, tokens.nan_to_num(nan=0.0)), tokens, (side, side))
        return self.image_processor.postprocess(images, output_type=output_type)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of latents."""
        side = self.transformer.config.grid_size
        return side, side

    def preview(self, tokens: Tensor) -> Image.Image:
        """The image of the latents [n, D] in raster order, grey where they are missing."""
        latents = complete_latents([tokens], self.transformer.places, self.transformer.config.token_dim)
        image: Image.Image = self.decode(latents)[0]
        return image

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> MARPipeline:
        folder = Path(pretrained_model_name_or_path)
        kwargs["dtype"] = component_dtypes(folder, kwargs.get("dtype"), "transformer", "vae")
        pipe: MARPipeline = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        return pipe

    def _settings(
        self,
        recipe: Recipe,
        steps: int | None = None,
        head_steps: int | None = None,
        guidance_scale: float | None = None,
        cfg_schedule: str | None = None,
        temperature: float | None = None,
        shortcuts: Shortcuts = Shortcuts(),  # noqa: B008 (frozen)
    ) -> tuple[SamplingParams, MARSettings]:
        """Reads arguments of a call, with the pipeline's defaults in place of None."""
        default, places = self.config, self.transformer.places
        if steps is not None:
            check_integer("steps", steps, 1, places)
        if head_steps is not None:
            check_integer("head_steps", head_steps, 2, 1000)
        if not isinstance(shortcuts, Shortcuts):
            raise ArgumentError(
                f"shortcuts={shown(shortcuts)} is not allowed; it must be a mmspec.vision.mar.Shortcuts"
            )
        temperature = default.temperature if temperature is None else temperature
        check_number("temperature", temperature, 1e-4, 1e4)
        scale = guidance_of_call(default.guidance_scale if guidance_scale is None else guidance_scale)
        schedule = default.cfg_schedule if cfg_schedule is None else cfg_schedule
        if not isinstance(schedule, str) or schedule not in SCHEDULES:
            raise ArgumentError(f"cfg_schedule={shown(schedule)} is not allowed; use one of {', '.join(SCHEDULES)}")
        passes = steps or default.steps or places
        if recipe.name != "plain" and (shortcuts.lossy or (passes != places and not self._runs_as_published(recipe))):
            raise ArgumentError(
                f"recipe '{recipe}' samples latents one by one: leave out steps and shortcuts, or use 'plain', "
                "or with a draft_transformer draft+cspd, which supports fewer steps"
            )
        chain = default.head_steps if head_steps is None else head_steps
        settings = MARSettings(passes, chain, schedule == "linear", float(temperature), shortcuts)
        return SamplingParams(guidance_scale=scale), settings

    def _request(self, row: RowPrompt, output_type: str = "latent") -> PreparedRequest:
        """A request of one row, whose latents are given out in raster order, as far as they are known."""
        (order,) = orders([row.seed], self.transformer.places)
        return image_request(self, row, output_type, partial(known_first, order))

    def _runs_as_published(self, recipe: Recipe) -> bool:
        drafting = recipe.parts == ("draft", "cspd") and not recipe.knobs["layers"] and not recipe.auto
        return drafting and recipe.knobs["schedule"] == "published" and self.draft_transformer is not None

    def _check_output(self, output_type: str) -> None:
        """Refuses an output type that this pipeline cannot give."""
        check_output_type(output_type)
        if self.vae is None and output_type != "latent":
            raise ArgumentError(f"output_type={output_type!r} requires a vae, and this pipeline has none; use 'latent'")


def known_first(order: Tensor, latents: Tensor) -> Tensor:
    """The latents of a row in raster order up to the first that is missing, [m, D].

    Args:
        order: The places of the latents in the order in which they are generated, int64 [N].
        latents: Those so far in that order, [n, D].
    """
    places = order[: len(latents)]
    known = torch.zeros(len(order), dtype=torch.int64).scatter(0, places, 1)
    found = latents.new_zeros(len(order), latents.shape[1])
    found[places] = latents
    return found[: int(known.cumprod(0).sum())]


def latents_so_far(order: Tensor, dim: int, step: Step) -> Tensor:
    """The latents of a step in raster order, float32 [B, N, D], with NaN where they are missing.

    Args:
        order: The places of the latents in the order in which they are generated, int64 [B, N].
        dim: D.
    """
    latents = torch.full((*order.shape, dim), torch.nan, device=step.tokens[0].device)
    for row, found, places in zip(latents, step.tokens, order.to(latents.device), strict=True):
        row[places[: len(found)]] = found.to(row)
    return latents
