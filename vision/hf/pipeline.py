"""The pipeline around transformers' own classes: prompts to images, by any recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers.generation import GenerationMixin

from mmspec.decoding.loop import OnStep
from mmspec.errors import ArgumentError, PromptError
from mmspec.heads.checkpoint import Head, load_head, load_heads, save_heads
from mmspec.hf.generate import GenerateJob, generate, prepare
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds
from mmspec.training.prepared import PreparedPrompts
from mmspec.vision.hf.image_adapter import Components, DecodingJob
from mmspec.vision.hf.image_request import ImageRequest
from mmspec.vision.hf.registry import image_adapter_of
from mmspec.vision.outputs import ImageOutput, check_call, memory_for, observer


class TransformersPipeline(DiffusionPipeline):
    """Images from a model of transformers: Janus, Emu3, Chameleon (Anole, Lumina-mGPT), GLM-Image, ImageGPT.

    Args:
        model: The target.
        processor: What transformers loads beside it. ImageGPT can do without one, and has no colours then.
        vqvae: For Chameleon, the decoder of its codes, see `mmspec.vision.hf.vqgan.load_vqgan`. Without one a call
            gives tokens only (`output_type="latent"`).
        draft_model: A smaller model of the same class, for the recipe `draft`; optional.
        layout: For Chameleon, "anole" (None is the same) or "lumina".
        temperature: The defaults of a call; None is what the model's own `generate` takes, or its published sampler
            where it has none.
        top_k: As for `temperature`.
        top_p: As for `temperature`.
        guidance_scale: As for `temperature`.
        recipe: The default one.

    Raises:
        ArgumentError: For a class that has no adapter, for a processor that is missing and for options of another
            class.
        ModelError: When model and `vqvae` do not have the same codes.
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
        )
        self.heads: dict[str, Head] = {}

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        negative_prompt: str | None = None,
        height: int | None = None,
        width: int | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        guidance_scale: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        on_step: OnStep | None = None,
        callback_on_step_end: Callable[[Any, int, int, dict[str, Any]], dict[str, Any]] | None = None,
        measure_entropy: bool = False,
    ) -> ImageOutput:
        """Draws images of prompts.

        An exception from a callback ends the call.

        Args:
            prompt: One or more prompts; None for ImageGPT, which takes none.
            negative_prompt: What guidance leads away from (Emu3); None is the one of the model's documentation.
            height: In pixels, both or neither (Emu3, Lumina-mGPT, GLM-Image).
            width: In pixels, both or neither (Emu3, Lumina-mGPT, GLM-Image).
            recipe: How to decode, e.g. `"scd:window=32"`; None takes the pipeline's own.
            seed: Row i uses `seed + i`; or one seed per row (prompts x images per prompt). None draws one, from
                `generator` where that is given.
            temperature: See `mmspec.sampling.params.SamplingParams`; None takes the pipeline's own.
            top_k: See `mmspec.sampling.params.SamplingParams`; None takes the pipeline's own.
            top_p: See `mmspec.sampling.params.SamplingParams`; None takes the pipeline's own.
            guidance_scale: See `mmspec.sampling.params.SamplingParams`; None takes the pipeline's own.
            num_images_per_prompt: Images per prompt; they lie next to each other in the output.
            output_type: "pil", "np", "pt" or "latent"; floats are those of the 8-bit image.
            return_dict: False returns `(images,)`.
            on_step: Called with a `mmspec.decoding.batch.Step` after every target call; its tokens are ids of the
                model.
            callback_on_step_end: The diffusers form of it, `(pipe, target call, tokens so far, {"tokens": ...})`.
            measure_entropy: Also report the entropy of the target distribution.

        Returns:
            An `ImageOutput`; its `tokens` are codes of the image's codebook, whatever the model calls them.

        Raises:
            PromptError: When a prompt cannot be read by the model.
            ArgumentError: When an argument has a value that is not allowed.
            UnknownNameError: When a model, recipe, rule or drafter of that name does not exist.
        """
        check_call(num_images_per_prompt, output_type)
        adapter = image_adapter_of(self.model, Components(self.processor, self.vqvae, self.config.layout))
        if output_type != "latent" and adapter.no_pixels is not None:
            raise ArgumentError(f"output_type={output_type!r} cannot be had: {adapter.no_pixels}")
        default = self.config
        sampling = SamplingParams(
            temperature=default.temperature if temperature is None else temperature,
            top_k=default.top_k if top_k is None else top_k,
            top_p=default.top_p if top_p is None else top_p,
            guidance_scale=default.guidance_scale if guidance_scale is None else guidance_scale,
        )
        prompts = [text for text in read_prompts(prompt) for _ in range(num_images_per_prompt)]
        rows = len(prompts)
        job = adapter.job(ImageRequest(prompts, sampling.guidance_scale != 1, negative_prompt, height, width))
        check_room(job, adapter.room)
        device = home(self.model)
        arguments = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in job.arguments.items()}
        seeds = row_seeds(seed, rows, generator)
        with memory_for(rows), self.progress_bar(total=rows * job.length) as bar:
            out = GenerationMixin.generate(
                self.model,
                **arguments,
                **settings(sampling),
                max_new_tokens=job.length,
                return_dict_in_generate=True,
                custom_generate=generate,
                recipe=parse(recipe if recipe is not None else default.recipe),
                seed=seeds,
                draft_model=self.draft_model,
                heads=list(self.heads.values()),
                on_step=observer(self, bar, on_step, callback_on_step_end),
                measure_entropy=measure_entropy,
            )
        codes = adapter.codes(out.sequences[:, job.picture.to(out.sequences.device)])
        images = codes if output_type == "latent" else as_asked(adapter.pixels(codes, job.grid), output_type)
        self.maybe_free_model_hooks()
        if not return_dict:
            return (images,)  # type: ignore[return-value]
        return ImageOutput(images, codes, seeds, out.stats)

    def prepare(self, prompts: Sequence[str], slack: int) -> PreparedPrompts:
        """Prompts, ready to be decoded with the defaults; see `mmspec.training.prepared.TrainablePipeline`.

        Raises:
            PromptError: When a prompt cannot be read by the model.
            ArgumentError: For a class whose tokens are no plain numbers.
        """
        c = self.config
        sampling = SamplingParams(c.temperature, c.top_k, c.top_p, c.guidance_scale)
        adapter = image_adapter_of(self.model, Components(self.processor, self.vqvae, c.layout))
        image_job = adapter.job(
            ImageRequest(read_prompts(list(prompts)), sampling.guidance_scale != 1, None, None, None)
        )
        check_room(image_job, adapter.room)
        device = home(self.model)
        arguments = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in image_job.arguments.items()}
        jobs: list[GenerateJob] = []

        def take(model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, **given: Any) -> Tensor:
            config = given.pop("generation_config")
            jobs.append(prepare(model, input_ids, logits_processor, stopping_criteria, config, given))
            return input_ids

        with torch.no_grad():
            settled = settings(sampling)
            GenerationMixin.generate(
                self.model, **arguments, **settled, max_new_tokens=image_job.length, custom_generate=take
            )
        (job,) = jobs
        resources = job.resources(self.draft_model, slack, list(self.heads.values()))
        return PreparedPrompts(
            partial(job.target, job.plan, slack), job.layout, [job.sampling] * len(prompts), resources
        )

    def new_small(self) -> Any:
        """Refuses to make a smaller model.

        Raises:
            ArgumentError: Always; a smaller model of the class is trained as transformers trains it.
        """
        raise ArgumentError(
            f"--kind: no small model is trained for a {type(self.model).__name__}; train one by other means and pass "
            "it as draft_model, or take eagle or medusa"
        )

    def add_drafter(self, folder: str | Path) -> None:
        """Takes a head in place of the one of its kind, if there is one.

        Args:
            folder: Of `mmspec train-drafter`.

        Raises:
            ModelError: When it holds none.
        """
        head = load_head(folder)
        self.heads[head.kind] = head.to(self.model.dtype)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, *args, **kwargs)
        save_heads(self.heads, Path(save_directory))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> TransformersPipeline:
        pipe: TransformersPipeline = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        pipe.heads = load_heads(Path(pretrained_model_name_or_path))
        return pipe


def home(model: Any) -> torch.device:
    """Where a model takes its inputs."""
    device: torch.device = model.device
    # What accelerate offloads is nowhere ("meta") between calls, and its hooks take inputs from anywhere.
    return torch.device("cpu") if device.type == "meta" else device


def read_prompts(prompt: str | Sequence[str] | None) -> list[str]:
    """Prompts as a list.

    Raises:
        PromptError: For what is no text, and for an empty list.
    """
    prompts: list[Any] = list(prompt) if isinstance(prompt, (list, tuple)) else ["" if prompt is None else prompt]
    if not prompts:
        raise PromptError("prompt=[] is empty; give at least one prompt")
    for text in prompts:
        if not isinstance(text, str):
            raise PromptError(f"prompt={text!r} is no text; describe an image")
    return prompts


def check_room(job: DecodingJob, room: int) -> None:
    """Checks that prompt and picture fit into the model's positions.

    Raises:
        PromptError: When a prompt leaves too little room for an image, whose positions come after it.
    """
    longest = int(job.arguments["attention_mask"].sum(1).max())
    if longest + job.length > room:
        raise PromptError(
            f"prompt is too long: {longest} tokens, and the image's {job.length}, are more than the {room} "
            f"positions of this model; at most {max(room - job.length, 0)} are left for a prompt"
        )


def settings(sampling: SamplingParams) -> dict[str, Any]:
    """How tokens are drawn, as `generate` takes it."""
    guidance = {"guidance_scale": sampling.guidance_scale}
    if sampling.temperature == 0:
        return {"do_sample": False, **guidance}
    names = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    return {"do_sample": True, **names, **guidance}


def as_asked(pixels: NDArray[np.uint8], output_type: str) -> Any:
    """Images [B, H, W, 3] as "pil", "np" or "pt"."""
    if output_type == "pil":
        return [Image.fromarray(picture) for picture in pixels]
    floats = pixels.astype(np.float32) / 255
    return floats if output_type == "np" else torch.from_numpy(floats).permute(0, 3, 1, 2)
