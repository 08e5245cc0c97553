"""The MAR pipeline: class labels to images, by the published decoding or by a recipe for latents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DiffusionPipeline
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.arguments import check_integer, check_number, shown
from mmspec.continuous.prepared import build_latent_rule, run_latents
from mmspec.continuous.sampler import LatentModel
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStep, Step
from mmspec.errors import ArgumentError
from mmspec.keywords import refuse_keywords, refuse_unknown_keywords
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.callbacks import CallbackOnStepEnd, Interrupted, observer
from mmspec.vision.class_prompts import read_classes
from mmspec.vision.component_dtypes import component_dtypes
from mmspec.vision.mar.denoising import MARHead
from mmspec.vision.mar.kl16 import pixels
from mmspec.vision.mar.masked import Shortcuts, decode_masked
from mmspec.vision.mar.published import decode_published
from mmspec.vision.mar.target import MARTarget, orders
from mmspec.vision.mar.transformer import MARTransformer
from mmspec.vision.outputs import ImageOutput, check_call, check_output_type, memory_for
from mmspec.vision.previews import check_latents, visible

SCHEDULES = ("linear", "constant")


class MARPipeline(DiffusionPipeline):
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
        if steps is not None:
            check_integer("steps", steps, 1, self.transformer.places)
        if head_steps is not None:
            check_integer("head_steps", head_steps, 2, 1000)
        if not isinstance(shortcuts, Shortcuts):
            raise ArgumentError(
                f"shortcuts={shown(shortcuts)} is not allowed; it must be a mmspec.vision.mar.Shortcuts"
            )
        if temperature is not None:
            check_number("temperature", temperature, 1e-4, 1e4)
        if self.vae is None and output_type != "latent":
            raise ArgumentError(f"output_type={output_type!r} requires a vae, and this pipeline has none; use 'latent'")
        recipe, default, places = parse("plain" if recipe is None else recipe), self.config, self.transformer.places
        labels = read_classes(prompt, class_labels, self.transformer.config.class_num)
        labels = labels.repeat_interleave(num_images_per_prompt)
        seeds = row_seeds(seed, len(labels), generator)
        scale = guidance_of_call(default.guidance_scale if guidance_scale is None else guidance_scale)
        schedule = default.cfg_schedule if cfg_schedule is None else cfg_schedule
        if not isinstance(schedule, str) or schedule not in SCHEDULES:
            raise ArgumentError(f"cfg_schedule={shown(schedule)} is not allowed; use one of {', '.join(SCHEDULES)}")
        temperature = default.temperature if temperature is None else temperature
        if not temperature > 0:
            raise ArgumentError(f"temperature={temperature} is not allowed; it must be above 0")
        chain = default.head_steps if head_steps is None else head_steps
        passes = steps or default.steps or places

        def head(count: int, model: MARTransformer = self.transformer) -> MARHead:
            net, dim = model.diffloss.net, model.config.token_dim
            return MARHead(net, dim, places, count, chain, temperature, scale, schedule == "linear")

        order = orders(seeds, places)
        with memory_for(len(labels)), self.progress_bar(total=len(labels) * places) as bar:
            callback = observer(
                self,
                bar,
                on_step,
                callback_on_step_end,
                callback_on_step_end_tensor_inputs,
                partial(latents_so_far, order, self.transformer.config.token_dim),
            )
            try:
                if recipe.name == "plain":
                    latents, stats = decode_masked(
                        self.transformer, head, chain, labels, order, seeds, scale != 1, passes, shortcuts, callback
                    )
                elif shortcuts.lossy or (passes != places and not self._runs_as_published(recipe)):
                    raise ArgumentError(
                        f"recipe '{recipe}' samples latents one by one: leave out steps and shortcuts, or use 'plain', "
                        "or with a draft_transformer draft+cspd, which supports fewer steps"
                    )
                elif passes != places:
                    latents, stats = self._publish(
                        recipe, head, chain, labels, order, seeds, scale != 1, passes, callback
                    )
                else:
                    latents, stats = self._speculate(recipe, head, chain, labels, order, seeds, scale != 1, callback)
            except Interrupted as end:
                latents, stats = end.tokens, end.stats
        images = self.decode(latents, output_type=output_type)
        self.maybe_free_model_hooks()
        if not return_dict:
            return (images,)  # type: ignore[return-value]
        return ImageOutput(images, latents, seeds, stats)

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
        check_output_type(output_type)
        if output_type == "latent":
            return tokens
        if self.vae is None:
            raise ArgumentError(f"output_type={output_type!r} requires a vae, and this pipeline has none; use 'latent'")
        check_latents(tokens, self.transformer.places, self.transformer.config.token_dim)
        tokens = tokens.to(self.vae.device)
        images = pixels(self.vae, tokens.nan_to_num(nan=0.0))
        known = ~tokens.isnan().any(-1)
        if not bool(known.all()):
            side = self.transformer.config.grid_size
            seen = visible(known, (side, side), (images.shape[2], images.shape[3]))
            images = images.masked_fill(~seen[:, None], 0)
        return self.image_processor.postprocess(images, output_type=output_type)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> MARPipeline:
        folder = Path(pretrained_model_name_or_path)
        kwargs["dtype"] = component_dtypes(folder, kwargs.get("dtype"), "transformer", "vae")
        pipe: MARPipeline = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        return pipe

    def _speculate(
        self,
        recipe: Recipe,
        head: Callable[..., MARHead],
        chain: int,
        labels: Tensor,
        order: Tensor,
        seeds: list[int],
        guided: bool,
        on_step: OnStep | None,
    ) -> tuple[Tensor, Any]:
        published = recipe.knobs.get("schedule") == "published"

        def target(model: MARTransformer, **how: Any) -> MARTarget:
            return MARTarget(model, labels, order, guided, **how)

        def observe(step: Step) -> None:
            if published:
                ours.refresh(step)
            if on_step is not None:
                on_step(step)

        ours, draft = target(self.transformer, blind=published), self.draft_transformer
        model = self.transformer
        models: dict[str, Callable[[int], LatentModel]] = {
            "layer-skip": lambda n: LatentModel(target(model, layers=n), head(chain)),
            "few-steps": lambda n: LatentModel(target(model), head(n)),
        }
        if draft is not None:
            models = {"draft": lambda _: LatentModel(target(draft), head(chain, draft)), **models}
        resources = DraftResources(latent_models=models, adaptive_windows=adaptive_windows_of(model))
        dim, places = model.config.token_dim, model.places
        layout = Layout(length=places, cell=(dim,), dtype=torch.float32)
        found = run_latents(ours, head(chain), recipe, layout, seeds, resources, observe)
        index = order.to(found.tokens.device)[..., None].expand_as(found.tokens)
        return torch.zeros_like(found.tokens).scatter_(1, index, found.tokens), found.stats

    def _runs_as_published(self, recipe: Recipe) -> bool:
        drafting = recipe.parts == ("draft", "cspd") and not recipe.knobs["layers"] and not recipe.auto
        return drafting and recipe.knobs["schedule"] == "published" and self.draft_transformer is not None

    def _publish(
        self,
        recipe: Recipe,
        head: Callable[..., MARHead],
        chain: int,
        labels: Tensor,
        order: Tensor,
        seeds: list[int],
        guided: bool,
        passes: int,
        on_step: OnStep | None,
    ) -> tuple[Tensor, Any]:
        assert self.draft_transformer is not None
        models = (self.transformer, self.draft_transformer)
        ours, theirs = (MARTarget(model, labels, order, guided, blind=True) for model in models)
        rule = build_latent_rule(recipe)
        tokens, stats = decode_published(
            ours, head(chain), theirs, head(chain, self.draft_transformer), rule, seeds, self.transformer.places,
            passes, recipe.window - 1, on_step,
        )  # fmt: skip
        index = order.to(tokens.device)[..., None].expand_as(tokens)
        return torch.zeros_like(tokens).scatter_(1, index, tokens), stats


def latents_so_far(order: Tensor, dim: int, step: Step) -> Tensor:
    """The latents of a step in raster order, float32 [B, N, D], with NaN where they are missing.

    Args:
        order: The places of the latents in the order in which they are generated, int64 [B, N].
        dim: D.
        step: The step.
    """
    latents = torch.full((*order.shape, dim), torch.nan, device=step.tokens[0].device)
    for row, found, places in zip(latents, step.tokens, order.to(latents.device), strict=True):
        row[places[: len(found)]] = found.to(row)
    return latents
