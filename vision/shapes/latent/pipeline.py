"""The pipeline of the shapes model of latents."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mmspec.arguments import check_integer, check_number, shown, text_list
from mmspec.continuous.prepared import run_latents
from mmspec.continuous.sampler import LatentModel
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStep
from mmspec.decoding.target import EarlyExit
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.keywords import refuse_keywords, refuse_unknown_keywords
from mmspec.pipeline import ModelPipeline
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.outputs import ImageOutput, check_call, check_output_type, images_from_pixels, memory_for
from mmspec.vision.previews import check_latents
from mmspec.vision.shapes.config import GUIDANCE, TEMPERATURE
from mmspec.vision.shapes.fsq_tokenizer import FSQTokenizer
from mmspec.vision.shapes.latent.head import FlowHead
from mmspec.vision.shapes.text_encoder import CaptionEncoder

STEPS = 16


class LatentShapes(ModelPipeline):
    """Generates images of captions by sampling latents; the result of `mmspec.load("shapes-latent")`.

    Args:
        target: A transformer with latents as input; see `mmspec.vision.shapes.latent.model.latent_trunk`.
        draft: A smaller transformer with latents as input.
        tokenizer: Its decoder turns latents into pixels.
        text_encoder: The encoder of captions.
    """

    def __init__(self, target: Any, draft: Any, tokenizer: FSQTokenizer, text_encoder: CaptionEncoder) -> None:
        self.target = target
        self.draft = draft
        self.tokenizer = tokenizer
        self.text_encoder = text_encoder
        self.codes = tokenizer.codebook().float()

    def set_progress_bar_config(self, **config: Any) -> None:
        """Does nothing: this pipeline has no progress bar."""

    @refuse_keywords(
        "its tokens are vectors of numbers, which have no probabilities to compare",
        "min_p", "typical_p",
    )  # fmt: skip
    @refuse_unknown_keywords
    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        recipe: str | Recipe | None = None,
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
        """Generates images of captions.

        Args:
            prompt: One or more captions.
            recipe: `plain`, as None, or a recipe that drafts with a rule for latents, such as
                `few-steps+tolerance:steps=2`.
            seed: Row i uses `seed + i`; or one seed per row. None takes one from torch's global generator.
            temperature: Of the distribution over codes that the flow leads to, above 0; None takes that of the discrete
                model.
            top_k: Must be off (0): a density over vectors has no tokens to cut.
            top_p: Must be off (1): see `top_k`.
            guidance_scale: 1 and below is off; None takes that of the discrete model.
            head_steps: Euler steps of the flow, 1 to 1000.
            num_images_per_prompt: Images per caption; they are next to each other in the output.
            output_type: "pil", "np", "pt" or "latent".
            on_step: Called with a `mmspec.decoding.step.Step` after every target call.
            measure_entropy: Ignored: a density over vectors has no entropy in bits.

        Returns:
            An `ImageOutput` whose `tokens` are latents, float32 [B, N, 5].

        Raises:
            PromptError: If a caption does not follow the grammar.
            ArgumentError: If an argument has a value that is not allowed.
            UnknownNameError: If there is no recipe or rule of that name.
        """
        check_call(
            "num_images_per_prompt", num_images_per_prompt, output_type, on_step, measure_entropy=measure_entropy
        )
        off: dict[str, tuple[Any, int]] = {"top_k": (top_k, 0), "top_p": (top_p, 1)}
        for name, (value, neutral) in off.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or value != neutral):
                raise ArgumentError(f"{name}={shown(value)} is not possible: the tokens of this model are vectors")
        check_integer("head_steps", head_steps, 1, 1000)
        recipe, temperature = (
            parse("plain" if recipe is None else recipe),
            TEMPERATURE if temperature is None else temperature,
        )
        scale = guidance_of_call(GUIDANCE if guidance_scale is None else guidance_scale)
        check_number("temperature", temperature, 1e-4, 1e4)
        prompts = text_list("prompt", prompt)
        features, _ = self.text_encoder.encode([each for each in prompts for _ in range(num_images_per_prompt)])
        rows = len(features)
        seeds = row_seeds(seed, rows)

        def target(trunk: Any) -> LlamaGenTarget:
            uncond = trunk.unconditional(rows) if scale != 1 else None
            return LlamaGenTarget(trunk, features, uncond, None, slack=recipe.window)

        def flow_head(steps: int = head_steps) -> FlowHead:
            return FlowHead(self.codes, steps, scale, temperature)

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
        images = self.decode(found.tokens, output_type=output_type)
        return ImageOutput(images, found.tokens, seeds, found.stats)

    @refuse_unknown_keywords
    @torch.no_grad()
    def decode(self, tokens: Tensor, *, output_type: str = "pil") -> Any:
        """Images of latents, as of the `tokens` of an output.

        Args:
            tokens: Latents float32 [B, N, 5] in raster order.
            output_type: "pil", "np", "pt" or "latent".

        Raises:
            ArgumentError: If an argument has a value that is not allowed.
        """
        check_output_type(output_type)
        if output_type == "latent":
            return tokens
        grid = self.target.config.grid_size
        check_latents(tokens, grid**2, self.codes.shape[1])
        maps = tokens.transpose(1, 2).unflatten(2, (grid, grid)).to(self.tokenizer.dtype)
        images = self.tokenizer.decoder(maps).clamp(-1, 1).float()
        return images_from_pixels(images, output_type)
