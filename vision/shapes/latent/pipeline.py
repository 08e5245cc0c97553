"""Captions to images by way of latents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.continuous.run import run_latents
from mmspec.continuous.sampler import LatentModel
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.outputs import ImageOutput, check_call, memory_for
from mmspec.vision.shapes.config import GUIDANCE, TEMPERATURE
from mmspec.vision.shapes.latent.head import FlowHead
from mmspec.vision.shapes.text import ShapesTextEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

STEPS = 16


class LatentShapes:
    """What `mmspec.load("shapes-latent")` gives.

    Args:
        target: A transformer that reads latents, see `latent_trunk`.
        draft: The same, its smaller sibling.
        tokenizer: Whose decoder makes pixels of latents.
        text_encoder: Reads captions.
    """

    def __init__(self, target: Any, draft: Any, tokenizer: ShapesTokenizer, text_encoder: ShapesTextEncoder) -> None:
        self.target = target
        self.draft = draft
        self.tokenizer = tokenizer
        self.text_encoder = text_encoder
        self.codes = tokenizer.codebook().float()
        self.image_processor = VaeImageProcessor()

    def set_progress_bar_config(self, **config: Any) -> None:
        """It has no bar of its own."""

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        recipe: str | Recipe = "plain",
        seed: int | Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float | None = None,
        head_steps: int = STEPS,
        num_images_per_prompt: int = 1,
        output_type: str = "pil",
        on_step: OnStep | None = None,
        measure_entropy: bool = False,
    ) -> ImageOutput:
        """Draws images of captions.

        Args:
            recipe: `plain`, or a way of drafting with a rule for vectors, such as `few-steps+tolerance:steps=2`.
            seed: Row i uses `seed + i`; or one seed per row.
            temperature: Of the distribution over codes that the flow leads to, above 0.
            guidance_scale: 1 is off. None takes the discrete model's own.
            head_steps: Euler steps of the flow, 1 to 1000.
            num_images_per_prompt: As in other pipelines.
            output_type: As in other pipelines; the output's `tokens` are latents float32 [B, N, 5].
            on_step: As in other pipelines.
            top_k: Off; a vector's distribution has no mass to cut and no entropy in bits.
            top_p: Off; a vector's distribution has no mass to cut and no entropy in bits.
            measure_entropy: Off; a vector's distribution has no mass to cut and no entropy in bits.

        Raises:
            PromptError: When a prompt cannot be read by the model.
            ArgumentError: When an argument has a value that is not allowed.
            UnknownNameError: When a model, recipe, rule or drafter of that name does not exist.
        """
        check_call(num_images_per_prompt, output_type)
        for name, value, off in (("top_k", top_k, 0), ("top_p", top_p, 1.0)):
            if value not in (None, off):
                raise ArgumentError(f"{name}={value} is not possible: this model's tokens are vectors")
        if not 1 <= head_steps <= 1000:
            raise ArgumentError(f"head_steps={head_steps} is not allowed; it must be from 1 to 1000")
        recipe, warmth = parse(recipe), TEMPERATURE if temperature is None else temperature
        scale = GUIDANCE if guidance_scale is None else guidance_scale
        if not warmth >= 1e-4:
            raise ArgumentError(f"temperature={warmth} is not allowed; it must be at least 0.0001")
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        features, _ = self.text_encoder.encode([each for each in prompts for _ in range(num_images_per_prompt)])
        rows = len(features)
        seeds = row_seeds(seed, rows)

        def target(trunk: Any) -> LlamaGenTarget:
            uncond = trunk.unconditional(rows) if scale != 1 else None
            return LlamaGenTarget(trunk, features, uncond, None, slack=recipe.window)

        def flow_head(steps: int = head_steps) -> FlowHead:
            return FlowHead(self.codes, steps, scale, warmth)

        ours = target(self.target)
        resources = DraftResources(
            latent_models={
                "draft": lambda _: LatentModel(target(self.draft), flow_head()),
                "layer-skip": lambda n: LatentModel(EarlyExitTarget(ours, EarlyExit(n, scale != 1)), flow_head()),
                "few-steps": lambda n: LatentModel(target(self.target), flow_head(n)),
            },
            adaptive_windows=adaptive_windows_of(self.target),
        )
        grid, dim = self.target.config.grid_size, self.codes.shape[1]
        layout = Layout(length=grid**2, width=grid, cell=(dim,), dtype=torch.float32)
        with memory_for(rows):
            found = run_latents(ours, flow_head(), recipe, layout, seeds, resources, on_step)
        images = found.tokens if output_type == "latent" else self._pixels(found.tokens, output_type)
        return ImageOutput(images, found.tokens, seeds, found.stats)

    def _pixels(self, latents: Tensor, output_type: str) -> Any:
        grid = self.target.config.grid_size
        maps = latents.transpose(1, 2).unflatten(2, (grid, grid)).to(self.tokenizer.dtype)
        images = self.tokenizer.decoder(maps).clamp(-1, 1).float()
        return self.image_processor.postprocess(images, output_type=output_type)
