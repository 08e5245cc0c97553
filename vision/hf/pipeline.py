"""The pipeline of transformers models: prompts to images, by any recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers.generation import GenerationMixin

from mmspec.arguments import one_text, processor_errors
from mmspec.arguments.keywords import check_options, refuse_unknown_keywords
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep
from mmspec.errors import ArgumentError
from mmspec.heads.checkpoint import load_head, load_heads, save_heads
from mmspec.heads.head import Head
from mmspec.hf.generate import GenerateJob, captured_job, salted
from mmspec.recipes import Recipe, recipe_of_call
from mmspec.sampling.params import SamplingParams, guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.training.prepared import PreparedPrompts
from mmspec.vision.calls import CallbackOnStepEnd, generate_tokens
from mmspec.vision.component_dtypes import component_dtypes
from mmspec.vision.folder_pipeline import FolderPipeline
from mmspec.vision.hf.decoders import keep_decoder_in_float32
from mmspec.vision.hf.image_adapter import Components, DecodingJob, ImageAdapter
from mmspec.vision.hf.image_request import ImageRequest, read_negative_prompts, read_prompts
from mmspec.vision.hf.image_tokens import check_length, check_whole, codes_so_far, sequences_of
from mmspec.vision.hf.registry import image_adapter_of
from mmspec.vision.image_stream import StreamsImages
from mmspec.vision.outputs import ImageOutput, check_call, check_output_type, complete, visible

# The value of pixels whose codes are missing.
GREY = np.uint8(128)


class TransformersPipeline(StreamsImages, FolderPipeline):
    """Generates images with a transformers model: Janus, Emu3, Chameleon (Anole, Lumina-mGPT), GLM-Image, ImageGPT.

    Args:
        model: The target.
        processor: The model's processor. Without one, ImageGPT returns tokens only.
        vqvae: For Chameleon, the decoder of its codes, see `mmspec.vision.hf.vqgan.load_vqgan`. Without one a call
            returns tokens only (`output_type="latent"`).
        draft_model: A smaller model of the same class, for the recipe `draft`; optional.
        layout: For Chameleon, "anole" (the default) or "lumina".
        temperature: The default of a call. For this and the next three, None takes the value of the model's generation
            config, or of its published sampler.
        top_k: The default of a call.
        top_p: The default of a call.
        guidance_scale: The default of a call.
        recipe: The default of a call.
        min_p: The default of a call; None takes that of the model's published sampler.

    Attributes:
        heads: Draft heads by kind; see `add_drafter`.

    Raises:
        ArgumentError: If the class has no adapter, the processor is missing, or an option belongs to another class.
        ModelError: If model and `vqvae` have different numbers of codes.
    """

    model_cpu_offload_seq = "draft_model->model->vqvae"
    _optional_components = ["processor", "vqvae", "draft_model"]
    _callback_tensor_inputs = ["tokens"]

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        vqvae: Any = None,
        draft_model: Any = None,
        layout: str | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float | None = None,
        recipe: str = "scd",
        min_p: float | None = None,
    ) -> None:
        super().__init__()
        own = image_adapter_of(model, Components(processor, vqvae, layout)).sampling
        self.register_modules(model=model, processor=processor, vqvae=vqvae, draft_model=draft_model)
        self.register_to_config(
            layout=layout,
            temperature=own.temperature if temperature is None else temperature,
            top_k=own.top_k if top_k is None else top_k,
            top_p=own.top_p if top_p is None else top_p,
            guidance_scale=own.guidance_scale if guidance_scale is None else guidance_scale,
            recipe=recipe,
            min_p=own.min_p if min_p is None else min_p,
        )
        self.heads: dict[str, Head] = {}

    @refuse_unknown_keywords
    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
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
        """Generates images for prompts.

        An exception from a callback ends the call.

        Args:
            prompt: One or more prompts; None for ImageGPT, which takes none.
            negative_prompt: The text of the unconditional prompt (Emu3), or one text per prompt; None is that of the
                original code. Without guidance it has no effect, as in diffusers.
            height: In pixels, with `width` (Emu3, Lumina-mGPT, GLM-Image).
            width: In pixels, with `height`.
            recipe: How to decode, e.g. `"scd:window=32"`; None takes the pipeline's default.
            seed: Row i uses `seed + i`; or one seed per row (prompts x images per prompt). None takes one from
                `generator`, or else from torch's global generator.
            temperature: 0 takes the most likely token; None takes the pipeline's default.
            top_k: Keeps the k most likely tokens, 0 all; None takes the pipeline's default.
            top_p: Keeps the most likely tokens of this total probability, 1 all; None takes the pipeline's default.
            min_p: Keeps the tokens at least this much as likely as the most likely one, 0 all; None takes the
                pipeline's default.
            typical_p: Keeps the tokens with the most typical information up to this total probability, 1 all; None
                takes the model's own.
            guidance_scale: Classifier-free guidance, 1 and below is off; None takes the pipeline's default.
            num_images_per_prompt: Images per prompt; they are next to each other in the output.
            batch_size: Images to decode at a time, at most; None is all. The images do not depend on it.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent"; floats have the values of the 8-bit image.
            return_dict: False returns `(images,)`.
            on_step: Called with a `mmspec.decoding.step.Step` after every target call; its tokens are ids of the
                model.
            callback_on_step_end: Called as diffusers does, `(pipe, target calls, tokens so far, {"tokens": codes})`.
                The codes int64 [B, h * w] are -1 where they are missing; `decode` makes previews of them. It may set
                `pipe._interrupt = True`, which ends the call with the codes so far, and cannot change them.
            callback_on_step_end_tensor_inputs: The tensors that it gets; "tokens" is the only one.
            measure_entropy: Also report the entropy of the target distribution.

        Returns:
            An `ImageOutput` whose `tokens` are codes of the image's codebook.

        Raises:
            PromptError: If the model does not accept a prompt, or it is too long.
            ArgumentError: If an argument has a value that is not allowed, or is not an option of the model.
            UnknownNameError: If there is no recipe or rule of that name.
        """
        check_call(
            "num_images_per_prompt", num_images_per_prompt, output_type, on_step, callback_on_step_end, return_dict,
            measure_entropy,
        )  # fmt: skip
        self._check_pixels(output_type)
        sampling = self._sampling(temperature, top_k, top_p, min_p, typical_p, guidance_scale)
        given = read_prompts(prompt)
        negatives = read_negative_prompts(negative_prompt, len(given))
        chosen = recipe_of_call(self, recipe)
        seeds = row_seeds(seed, len(given) * num_images_per_prompt, generator)
        guided = sampling.guidance_scale != 1
        texts = [(text, None if negatives is None else [negatives[i]]) for i, text in enumerate(given)]
        images = [ImageRequest([text], guided, negative, height, width) for text, negative in texts]
        read = [(image, self._image_job(image)) for image in images]
        rows = [pair for pair in read for _ in range(num_images_per_prompt)]
        codes, stats = generate_tokens(
            self,
            [self._request(*row, sampling, own_seed, "latent") for row, own_seed in zip(rows, seeds, strict=True)],
            chosen,
            on_step,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
            lambda step, _: codes_so_far(self._adapter(), rows[0][1], step),
            measure_entropy,
            batch_size,
        )
        images = self.decode(codes, height=height, width=width, output_type=output_type)
        self.maybe_free_model_hooks()
        if not return_dict:
            return (images,)  # type: ignore[return-value]
        return ImageOutput(images, codes, seeds, stats)

    @refuse_unknown_keywords
    @torch.no_grad()
    def decode(
        self,
        tokens: Tensor | Sequence[Tensor],
        *,
        height: int | None = None,
        width: int | None = None,
        output_type: str = "pil",
    ) -> Any:
        """Images of codes, as of the `tokens` of an output or of a callback.

        Args:
            tokens: Codes int64 [B, n] in raster order, or int64 [n_row] per row. Pixels of codes that are missing at
                the end, or that are -1, are grey.
            height: Of the image, in pixels, as in a call.
            width: As `height`.
            output_type: "pil", "np", "pt" or "latent".

        Returns:
            Images; see `mmspec.vision.outputs.ImageOutput`.

        Raises:
            ArgumentError: If an argument has a value that is not allowed, or the model cannot return pixels.
        """
        check_output_type(output_type)
        if output_type == "latent":
            return tokens
        self._check_pixels(output_type)
        adapter = self._adapter()
        grid = adapter.grid(height, width)
        codes = complete(tokens, grid[0] * grid[1], adapter.codebook_size)
        pixels = adapter.pixels(codes.clamp(min=0), grid)
        if (codes < 0).any():
            pixels = np.where(visible(codes >= 0, grid, pixels.shape[1:3]).cpu().numpy()[..., None], pixels, GREY)
        return convert_images(pixels, output_type)

    def prepare(
        self,
        prompts: Sequence[str],
        slack: int,
        temperature: float | None = None,
        guidance_scale: float | None = None,
    ) -> PreparedPrompts:
        """A batch of prompts, ready to be decoded with the defaults; see `mmspec.training.prepared.TrainablePipeline`.

        Args:
            prompts: One per row.
            slack: Tokens that a window may extend past the end of the image.

        Raises:
            PromptError: If the model does not accept a prompt, or it is too long.
            ArgumentError: If the model does not support the pipeline's defaults.
        """
        sampling = self._sampling(temperature, guidance_scale=guidance_scale)
        job = self._generate_job(
            ImageRequest(read_prompts(list(prompts)), sampling.guidance_scale != 1, None, None, None), sampling
        )
        resources = job.resources(self.draft_model, slack, list(self.heads.values()))
        return PreparedPrompts(
            partial(job.target, job.plan, slack), job.layout, [job.sampling] * len(prompts), resources
        )

    def sequences(self, prompts: Sequence[str], codes: Tensor) -> Tensor:
        """The sequences of images in the tokens of `prepare`; see `mmspec.training.prepared.GivesOutCodes`."""
        sampling = self._sampling()
        request = ImageRequest(read_prompts(list(prompts)), sampling.guidance_scale != 1, None, None, None)
        job, adapter = self._generate_job(request, sampling), self._adapter()
        return sequences_of(codes, adapter, adapter.job(request), job.layout, job.plan.first_id)

    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request of an engine; see `mmspec.batching.request.EnginePipeline`.

        Args:
            prompt: A prompt; None for ImageGPT.
            options: `seed`, `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, `guidance_scale`, `negative_prompt`,
                `height`, `width`, `output_type`.
            recipe: How it is decoded.

        Raises:
            PromptError: If the model does not accept the prompt.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale")
        check_options(options, ("seed", *names, "negative_prompt", "height", "width", "output_type"))
        output_type = options.get("output_type", "pil")
        check_output_type(output_type)
        self._check_pixels(output_type)
        sampling = self._sampling(*(options.get(name) for name in names))
        (text,) = read_prompts(prompt if prompt is None else one_text("prompt", prompt))
        negatives = read_negative_prompts(options.get("negative_prompt"), 1)
        size = options.get("height"), options.get("width")
        image = ImageRequest([text], sampling.guidance_scale != 1, negatives, *size)
        (seed,) = row_seeds(options.get("seed"), 1)
        return self._request(image, self._image_job(image), sampling, seed, output_type)

    def _image_job(self, request: ImageRequest) -> DecodingJob:
        """A request as its adapter reads it."""
        adapter, prompts = self._adapter(), list(dict.fromkeys(request.prompts))
        with processor_errors("prompt", prompts[0] if len(prompts) == 1 else prompts):
            job = adapter.job(request)
        check_length(job, adapter.max_length)
        return job

    def _request(
        self, request: ImageRequest, image_job: DecodingJob, sampling: SamplingParams, seed: int, output_type: str
    ) -> PreparedRequest:
        """A request of one image."""
        adapter, size = self._adapter(), (request.height, request.width)

        def codes_of(tokens: Tensor) -> Tensor:
            return adapter.codes(tokens[None, image_job.image[image_job.image < len(tokens)]])[0]

        def finish(tokens: Sequence[Tensor], stats: Stats) -> ImageOutput:
            codes = tokens[0][None]
            check_whole(codes, image_job)
            images = self.decode(codes, height=size[0], width=size[1], output_type=output_type)
            return ImageOutput(images, codes, [seed], stats)

        kind = sampling, *size, request.negative_prompts is None
        return PreparedRequest([RowPrompt(request, sampling, seed, kind)], finish, seed, codes=codes_of)

    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedRows:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        sampling, seeds, first = rows[0].sampling, [row.seed for row in rows], rows[0].prompt
        negatives = None
        if first.negative_prompts is not None:
            negatives = [text for row in rows for text in row.prompt.negative_prompts]
        request = replace(
            first, prompts=[text for row in rows for text in row.prompt.prompts], negative_prompts=negatives
        )
        job = self._generate_job(request, sampling)
        resources = job.resources(self.draft_model, recipe.window, list(self.heads.values()))
        target, samplings, plan = job.target(job.plan, recipe.window), [job.sampling] * len(rows), job.plan
        seeds = salted(seeds, plan.salt)
        return PreparedRows(
            target, job.layout, samplings, resources, None, seeds, lambda tokens: tokens + plan.first_id
        )

    def _sampling(
        self,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        guidance_scale: float | None = None,
    ) -> SamplingParams:
        """The sampling parameters of a call, with the pipeline's defaults, or the model's own, in place of None."""
        default = self.config
        if typical_p is None:
            typical_p = self.model.generation_config.typical_p
        return SamplingParams(
            default.temperature if temperature is None else temperature,
            default.top_k if top_k is None else top_k,
            default.top_p if top_p is None else top_p,
            guidance_of_call(default.guidance_scale if guidance_scale is None else guidance_scale),
            min_p=default.min_p if min_p is None else min_p,
            typical_p=1.0 if typical_p is None else typical_p,
        )

    def _check_pixels(self, output_type: str) -> None:
        """Refuses images of a model that cannot return pixels."""
        if output_type != "latent" and (reason := self._adapter().no_pixels) is not None:
            raise ArgumentError(f"output_type={output_type!r} is not possible: {reason}")

    def _adapter(self) -> ImageAdapter:
        return image_adapter_of(self.model, Components(self.processor, self.vqvae, self.config.layout))

    def _generate_job(self, request: ImageRequest, sampling: SamplingParams) -> GenerateJob:
        """A request as the loop decodes it."""
        image_job = self._image_job(request)
        device = input_device(self.model)
        arguments = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in image_job.arguments.items()}
        arguments |= sampling_arguments(sampling)
        return captured_job(
            lambda capture: GenerationMixin.generate(
                self.model, **arguments, max_new_tokens=image_job.length, custom_generate=capture
            )
        )

    def new_small(self) -> Any:
        """Raises an error: mmspec trains no small transformers models.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError(
            f"--kind: mmspec cannot train a small {type(self.model).__name__}; train one with transformers and pass it "
            "as draft_model, or use --kind eagle or medusa"
        )

    def add_drafter(self, folder: str | Path) -> None:
        """Adds a draft head; it replaces one of the same kind.

        Args:
            folder: Written by `mmspec train-drafter`.

        Raises:
            ModelError: If the folder does not contain a draft head.
        """
        head = load_head(folder)
        self.heads[head.kind] = head.to(self.model.dtype)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, *args, **kwargs)
        save_heads(self.heads, Path(save_directory))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> TransformersPipeline:
        folder = Path(pretrained_model_name_or_path)
        kwargs["dtype"] = component_dtypes(folder, kwargs.get("dtype"), "model", "vqvae")
        pipe: TransformersPipeline = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        keep_decoder_in_float32(pipe.model)
        pipe.heads = load_heads(Path(pretrained_model_name_or_path))
        return pipe


def input_device(model: Any) -> torch.device:
    """The device of a model's inputs."""
    device: torch.device = model.device
    # Weights that accelerate offloads are on the device "meta" between calls; its hooks accept inputs on any device.
    return torch.device("cpu") if device.type == "meta" else device


def sampling_arguments(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling parameters as arguments of `generate`."""
    guidance = {"guidance_scale": sampling.guidance_scale}
    if sampling.temperature == 0:
        return {"do_sample": False, **guidance}
    names = ("top_k", "top_p", "min_p", "typical_p")
    # transformers refuses a temperature that is an integer.
    warm = {"temperature": float(sampling.temperature), **{name: getattr(sampling, name) for name in names}}
    return {"do_sample": True, **warm, **guidance}


def convert_images(pixels: NDArray[np.uint8], output_type: str) -> Any:
    """Images uint8 [B, H, W, 3] as "pil", "np" or "pt"; see `ImageOutput`."""
    if output_type == "pil":
        return [Image.fromarray(image) for image in pixels]
    floats = pixels.astype(np.float32) / 255
    return floats if output_type == "np" else torch.from_numpy(floats).permute(0, 3, 1, 2)
