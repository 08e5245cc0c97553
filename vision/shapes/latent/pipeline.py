"""The pipeline of the shapes model of latents."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from mmspec.arguments import check_integer, check_number, one_text, shown, text_list
from mmspec.arguments.keywords import refuse_keywords, refuse_unknown_keywords
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.continuous.prepared import PreparedLatents
from mmspec.continuous.sampler import LatentModel
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStep
from mmspec.decoding.target import EarlyExit
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.errors import ArgumentError
from mmspec.pipeline import Arguments, ModelPipeline
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams, guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.calls import CallbackOnStepEnd, generate_tokens, image_request, read_options
from mmspec.vision.image_stream import StreamsImages
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.outputs import (
    ImageOutput,
    check_call,
    check_latents,
    check_output_type,
    complete_latents,
    grey_where_missing,
    images_from_pixels,
)
from mmspec.vision.shapes.config import GUIDANCE, TEMPERATURE
from mmspec.vision.shapes.fsq_tokenizer import FSQTokenizer
from mmspec.vision.shapes.latent.head import FlowHead
from mmspec.vision.shapes.text_encoder import CaptionEncoder

STEPS = 16
PLAIN = parse("plain")
OPTIONS = ("temperature", "top_k", "top_p", "guidance_scale", "head_steps")


class LatentTarget(LlamaGenTarget):
    """A transformer of latents, whose rows join only rows with the same settings: a batch has one flow head.

    Args:
        settings: Those of the flow head.
        *args: Those of `LlamaGenTarget`.
    """

    SAME = (*LlamaGenTarget.SAME, "_settings")

    def __init__(self, settings: Hashable, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = settings


class LatentShapes(StreamsImages, ModelPipeline):
    """Generates images of captions by sampling latents; the result of `mmspec.load("shapes-latent")`.

    Args:
        target: A transformer with latents as input; see `mmspec.vision.shapes.latent.model.latent_trunk`.
        draft: A smaller transformer with latents as input.
        tokenizer: Its decoder turns latents into pixels.
        text_encoder: The encoder of captions.
    """

    _callback_tensor_inputs = ["tokens"]

    def __init__(self, target: Any, draft: Any, tokenizer: FSQTokenizer, text_encoder: CaptionEncoder) -> None:
        self.target = target
        self.draft = draft
        self.tokenizer = tokenizer
        self.text_encoder = text_encoder
        self.codes = tokenizer.codebook().float()
        self.config = Arguments(recipe="plain", temperature=TEMPERATURE, guidance_scale=GUIDANCE)
        self._bar_options: dict[str, Any] = {}

    def set_progress_bar_config(self, **options: Any) -> None:
        """Sets the arguments of the progress bar, those of `tqdm`."""
        self._bar_options = options

    def add_drafter(self, folder: str | Path) -> None:
        """Refused: drafters are trained for discrete tokens."""
        raise ArgumentError(
            f"drafter={str(folder)!r} was given, but shapes-latent takes no drafters; it has a draft model: use "
            "recipe='draft+tolerance'"
        )

    def progress_bar(self, total: int) -> Any:
        """The progress bar of a call, which counts to `total`."""
        return tqdm(total=total, **self._bar_options)

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
        batch_size: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        on_step: OnStep | None = None,
        callback_on_step_end: CallbackOnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        measure_entropy: bool = False,
    ) -> ImageOutput:
        """Generates images of captions.

        Args:
            prompt: One or more captions.
            recipe: `plain`, as None, or a recipe that drafts with a rule for latents, such as
                `few-steps+tolerance:steps=2`.
            seed: Row i uses `seed + i`; or one seed per row. None takes one from `generator`, or from torch's global
                generator.
            temperature: Of the distribution over codes that the flow leads to, above 0; None takes that of the discrete
                model.
            top_k: Must be off (0): a density over vectors has no tokens to cut.
            top_p: Must be off (1): see `top_k`.
            guidance_scale: 1 and below is off; None takes that of the discrete model.
            head_steps: Euler steps of the flow, 1 to 1000.
            num_images_per_prompt: Images per caption; they are next to each other in the output.
            batch_size: Images to decode at a time, at most; None is all. The images do not depend on it.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent".
            on_step: Called with a `mmspec.decoding.step.Step` after every target call.
            callback_on_step_end: As of the pipelines of diffusers, `(pipe, target calls, latents so far, {"tokens":
                latents})`. The latents float32 [B, N, 5] are NaN where they are missing. It may set
                `pipe._interrupt = True`, which ends the call with the latents so far.
            callback_on_step_end_tensor_inputs: The tensors that it gets; "tokens" is the only one.
            measure_entropy: Ignored: a density over vectors has no entropy in bits.

        Returns:
            An `ImageOutput` whose `tokens` are latents, float32 [B, N, 5].

        Raises:
            PromptError: If a caption does not follow the grammar.
            ArgumentError: If an argument has a value that is not allowed.
            UnknownNameError: If there is no recipe or rule of that name.
        """
        check_call(
            "num_images_per_prompt", num_images_per_prompt, output_type, on_step, callback_on_step_end,
            measure_entropy=measure_entropy,
        )  # fmt: skip
        recipe = PLAIN if recipe is None else parse(recipe)
        sampling, kind = self._settings(temperature, top_k, top_p, guidance_scale, head_steps)
        prompts = [each for each in text_list("prompt", prompt) for _ in range(num_images_per_prompt)]
        features, _ = self.text_encoder.encode(prompts)
        seeds = row_seeds(seed, len(features), generator)
        rows = zip(features.split(1), seeds, strict=True)
        tokens, stats = generate_tokens(
            self,
            [image_request(self, RowPrompt(own, sampling, own_seed, kind)) for own, own_seed in rows],
            recipe,
            on_step,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
            lambda step, _: self._complete(step.tokens),
            batch_size=batch_size,
        )
        return ImageOutput(self.decode(tokens, output_type=output_type), tokens, seeds, stats)

    @torch.no_grad()
    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request of an engine; see `mmspec.batching.request.EnginePipeline`.

        Args:
            prompt: A caption.
            options: `seed`, `output_type`, and arguments of a call by name: `temperature`, `top_k`, `top_p`,
                `guidance_scale` and `head_steps`.
            recipe: How it is decoded, as in a call.

        Raises:
            PromptError: If the caption does not follow the grammar.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        given, seed, output_type = read_options(options, OPTIONS)
        sampling, kind = self._settings(**given)
        features, _ = self.text_encoder.encode(one_text("prompt", prompt))
        return image_request(self, RowPrompt(features, sampling, seed, kind), output_type)

    @torch.no_grad()
    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedLatents:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        features, sampling, kind = torch.cat([row.prompt for row in rows]), rows[0].sampling, rows[0].kind
        guided, codes = sampling.guidance_scale != 1, self.codes
        assert isinstance(kind, tuple)
        steps = int(kind[1])

        def target(trunk: Any) -> LatentTarget:
            uncond = trunk.unconditional(len(rows)) if guided else None
            return LatentTarget(kind, trunk, features, uncond, None, slack=recipe.window)

        def flow_head(count: int = steps) -> FlowHead:
            return FlowHead(codes, count, sampling.guidance_scale, sampling.temperature)

        ours = target(self.target)
        resources = DraftResources(
            latent_models={
                "draft": lambda _: LatentModel(target(self.draft), flow_head()),
                "layer-skip": lambda n: LatentModel(EarlyExitTarget(ours, EarlyExit(n, guided)), flow_head()),
                "few-steps": lambda n: LatentModel(target(self.target), flow_head(n)),
            },
            adaptive_windows=adaptive_windows_of(self.target),
        )
        grid = self.target.config.grid_size
        layout = Layout(length=grid**2, width=grid, cell=(codes.shape[1],), dtype=torch.float32)
        return PreparedLatents(ours, flow_head(), layout, resources)

    @refuse_unknown_keywords
    @torch.no_grad()
    def decode(self, tokens: Tensor, *, output_type: str = "pil") -> Any:
        """Images of latents, as of the `tokens` of an output.

        Args:
            tokens: Latents float32 [B, N, 5] in raster order. Pixels of latents that are NaN are grey.
            output_type: "pil", "np", "pt" or "latent".

        Raises:
            ArgumentError: If an argument has a value that is not allowed.
        """
        check_output_type(output_type)
        if output_type == "latent":
            return tokens
        grid = self.target.config.grid_size
        check_latents(tokens, grid**2, self.codes.shape[1])
        maps = tokens.transpose(1, 2).unflatten(2, (grid, grid)).to(self.tokenizer.device, self.tokenizer.dtype)
        images = grey_where_missing(
            self.tokenizer.decoder(maps.nan_to_num()).clamp(-1, 1).float(), tokens, (grid, grid)
        )
        return images_from_pixels(images, output_type)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of latents."""
        side = self.target.config.grid_size
        return side, side

    def preview(self, tokens: Tensor) -> Image.Image:
        """The image of the latents [n, 5] in raster order, grey where they are missing."""
        image: Image.Image = self.decode(self._complete([tokens]))[0]
        return image

    def _complete(self, rows: Sequence[Tensor]) -> Tensor:
        """Latents of whole images, NaN where they are missing."""
        return complete_latents(rows, self.target.config.grid_size**2, self.codes.shape[1])

    def _settings(
        self,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float | None = None,
        head_steps: int = STEPS,
    ) -> tuple[SamplingParams, tuple[SamplingParams, int]]:
        """Reads arguments of a call; returns the sampling parameters, and what rows of a batch have in common."""
        off: dict[str, tuple[Any, int]] = {"top_k": (top_k, 0), "top_p": (top_p, 1)}
        for name, (value, neutral) in off.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or value != neutral):
                raise ArgumentError(f"{name}={shown(value)} is not possible: the tokens of this model are vectors")
        check_integer("head_steps", head_steps, 1, 1000)
        temperature = self.config.temperature if temperature is None else temperature
        scale = guidance_of_call(self.config.guidance_scale if guidance_scale is None else guidance_scale)
        check_number("temperature", temperature, 1e-4, 1e4)
        sampling = SamplingParams(temperature, guidance_scale=scale)
        return sampling, (sampling, head_steps)
