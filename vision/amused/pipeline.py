"""The aMUSEd pipeline: texts to images by the published decoding, in fewer calls, or in fewer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from diffusers import AmusedScheduler, UVit2DModel, VQModel
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from torch import Tensor
from transformers import CLIPTextModelWithProjection, CLIPTokenizer

from mmspec.arguments import check_integer, check_number, one_text, processor_errors, shown, text_list
from mmspec.arguments.keywords import refuse_keywords, refuse_unknown_keywords
from mmspec.batching.closed import PreparedClosed
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.step import OnStep, Step
from mmspec.errors import ArgumentError
from mmspec.masked.keeping import Keeper
from mmspec.masked.loop import MaskedBatch
from mmspec.recipes import Recipe, parse, recipe_of_call
from mmspec.sampling.params import SamplingParams, guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.amused.process import AmusedProcess, Unmasking
from mmspec.vision.calls import CallbackOnStepEnd, generate_tokens, image_request, read_options
from mmspec.vision.component_dtypes import component_dtypes
from mmspec.vision.folder_pipeline import FolderPipeline
from mmspec.vision.hf.image_request import read_negative_prompts
from mmspec.vision.image_stream import StreamsImages
from mmspec.vision.outputs import ImageOutput, check_call, check_output_type, complete

AESTHETIC_SCORE = 6.0  # the published default of the micro-conditioning
PLAIN = parse("plain")
OPTIONS = ("steps", "guidance_scale", "temperature", "ahead", "confidence", "keep", "refresh")
# Pooled embeddings [n, C] and hidden states [n, T, C] of a text; n is 2 with guidance, the negative text last.
TextStates = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class AmusedSettings:
    """The settings of a call, but for those of `SamplingParams`.

    Attributes:
        unmasking: The schedule.
        ahead: States of each image in a call.
        refresh: Steps for which layers reuse what they computed, at most.
        keep: Decides which tokens are kept beyond the schedule.
    """

    unmasking: Unmasking
    ahead: int
    refresh: int
    keep: Keeper | None = field(compare=False)


class AmusedPipeline(StreamsImages, FolderPipeline):
    """Generates images of texts with aMUSEd; its folders are those of the pipeline of the same name in diffusers.

    Args:
        vqvae: The decoder of tokens.
        tokenizer: The tokenizer of the text encoder.
        text_encoder: CLIP's text encoder with projection.
        transformer: The masked model.
        scheduler: Names the mask token and the schedule.
        steps: The default of a call.
        guidance_scale: The default of a call.
        recipe: The default of a call; "plain" is the only one, see `__call__`.
    """

    model_cpu_offload_seq = "text_encoder->transformer->vqvae"
    _callback_tensor_inputs = ["tokens"]

    def __init__(
        self,
        vqvae: VQModel,
        tokenizer: CLIPTokenizer,
        text_encoder: CLIPTextModelWithProjection,
        transformer: UVit2DModel,
        scheduler: AmusedScheduler,
        steps: int = 12,
        guidance_scale: float = 10.0,
        recipe: str = "plain",
    ) -> None:
        super().__init__()
        self.register_modules(
            vqvae=vqvae, tokenizer=tokenizer, text_encoder=text_encoder, transformer=transformer, scheduler=scheduler
        )
        self.register_to_config(steps=steps, guidance_scale=guidance_scale, recipe=recipe)
        self.image_processor = VaeImageProcessor(do_normalize=False)

    @refuse_keywords(
        "every step of its scheduler samples from all codes",
        "top_k", "top_p", "min_p", "typical_p",
    )  # fmt: skip
    @refuse_unknown_keywords
    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        negative_prompt: str | Sequence[str] | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        steps: int | None = None,
        guidance_scale: float | None = None,
        temperature: Any = (2.0, 0.0),
        ahead: int = 1,
        confidence: float = 1.0,
        keep: Keeper | None = None,
        refresh: int = 1,
        num_images_per_prompt: int = 1,
        batch_size: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        on_step: OnStep | None = None,
        callback_on_step_end: CallbackOnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
    ) -> ImageOutput:
        """Generates images of texts. An exception from a callback ends the call.

        Args:
            prompt: One or more texts.
            negative_prompt: What guidance leads away from, one text or one per prompt; None is an empty text.
            recipe: "plain": the drafts of a masked model are states, not tokens; see `ahead`.
            seed: Row i uses `seed + i`; or one seed per row. None takes one from `generator`, or from torch's global
                generator.
            steps: Steps of the schedule. Fewer steps follow another distribution.
            guidance_scale: 1 and below is off.
            temperature: Factor of the noise of the confidence, a number in the first and one in the last step; one
                number alone falls to 0.01.
            ahead: States of each image in a call. Above 1, later steps are drafted and verified in one call, which
                gives the tokens of one step per call (Free Draft-and-Verification, arXiv 2510.00294).
            confidence: Tokens with a larger probability are kept beyond the schedule, so that an image may need fewer
                steps; lossy. 1 keeps the schedule.
            keep: Decides which tokens are kept beyond the schedule, besides those of `confidence`: a
                `mmspec.masked.keeping.NearSure` or `Credit`, or a `mmspec.masked.filter.LearnedFilter`; lossy.
            refresh: Above 1, layers reuse what they computed for known tokens, for at most this many steps; lossy. See
                `mmspec.vision.amused.cached`.
            num_images_per_prompt: Images per prompt; they are next to each other in the output.
            batch_size: Images to decode at a time, at most; None is all. The images do not depend on it.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent".
            return_dict: False returns `(images,)`.
            on_step: Called with a `mmspec.decoding.step.Step` after every call of the transformer.
            callback_on_step_end: Called as diffusers does, `(pipe, calls, tokens so far, {"tokens": tokens})`. The
                tokens int64 [B, N] are -1 where they are missing. It may set `pipe._interrupt = True`.
            callback_on_step_end_tensor_inputs: The tensors that it gets; "tokens" is the only one.

        Returns:
            An `ImageOutput` whose `tokens` are int64 [B, N] in raster order.

        Raises:
            PromptError: If the prompts are not texts.
            ArgumentError: If an argument has a value that is not allowed.
            UnknownNameError: If there is no recipe of that name.
        """
        check_call(
            "num_images_per_prompt", num_images_per_prompt, output_type, on_step, callback_on_step_end, return_dict
        )
        sampling, settings = self._settings(
            recipe, steps, guidance_scale, temperature, ahead, confidence, keep, refresh
        )
        given = text_list("prompt", prompt)
        texts = self._read(given, read_negative_prompts(negative_prompt, len(given)), sampling)
        texts = [text for text in texts for _ in range(num_images_per_prompt)]
        seeds = row_seeds(seed, len(texts), generator)
        requests = [
            self._request(text, sampling, settings, own_seed) for text, own_seed in zip(texts, seeds, strict=True)
        ]
        tokens, stats = generate_tokens(
            self,
            requests,
            PLAIN,
            on_step,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
            tokens_so_far,
            batch_size=batch_size,
        )
        images = self.decode(tokens, output_type=output_type)
        self.maybe_free_model_hooks()
        return ImageOutput(images, tokens, seeds, stats) if return_dict else (images,)  # type: ignore[return-value]

    @torch.no_grad()
    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request of an engine; see `mmspec.batching.request.EnginePipeline`.

        Args:
            prompt: A text.
            options: `seed`, `output_type`, and arguments of a call by name: `negative_prompt`, `steps`,
                `guidance_scale`, `temperature`, `ahead`, `confidence`, `keep` and `refresh`.
            recipe: "plain", as in a call.

        Raises:
            PromptError: If the prompt is not a text.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        given, seed, output_type = read_options(options, ("negative_prompt", *OPTIONS))
        negatives = read_negative_prompts(given.pop("negative_prompt", None), 1)
        sampling, settings = self._settings(recipe, **given)
        (text,) = self._read(one_text("prompt", prompt), negatives, sampling)
        return self._request(text, sampling, settings, seed, output_type)

    @torch.no_grad()
    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedClosed:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        texts, settings = [row.prompt[0] for row in rows], rows[0].prompt[1]
        # All own texts, and after them all negative ones.
        pooled, hidden = (torch.stack(parts, dim=1).flatten(0, 1) for parts in zip(*texts, strict=True))
        side = self.transformer.config.sample_size
        size = float(side * 2 ** (len(self.vqvae.config.block_out_channels) - 1))
        micro = torch.tensor([size, size, 0.0, 0.0, AESTHETIC_SCORE], device=hidden.device, dtype=hidden.dtype)
        process = AmusedProcess(
            self.transformer, pooled, hidden, micro, rows[0].sampling.guidance_scale, (side, side), settings.unmasking,
            [row.seed for row in rows], settings.keep, settings.refresh,
        )  # fmt: skip
        return PreparedClosed(partial(MaskedBatch, process, settings.ahead))

    @refuse_unknown_keywords
    @torch.no_grad()
    def decode(self, tokens: Tensor, *, output_type: str = "pil") -> Any:
        """Images of tokens, as of the `tokens` of an output or of a callback.

        Args:
            tokens: int64 [B, n] in raster order; those that are -1, or missing at the end, are shown as token 0.
            output_type: "pil", "np", "pt" or "latent".

        Raises:
            ArgumentError: If an argument has a value that is not allowed.
        """
        check_output_type(output_type)
        if output_type == "latent":
            return tokens
        side = self.transformer.config.sample_size
        tokens = complete(tokens, side**2, self.transformer.config.codebook_size)
        shape = (len(tokens), side, side, self.vqvae.config.latent_channels)
        grid = tokens.clamp(min=0).unflatten(1, (side, side)).to(self.vqvae.device)
        pixels = self.vqvae.decode(grid, force_not_quantize=True, shape=shape).sample.float().clip(0, 1)
        return self.image_processor.postprocess(pixels, output_type=output_type)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        side = self.transformer.config.sample_size
        return side, side

    def preview(self, tokens: Tensor) -> Image.Image:
        """The image of the tokens int64 [n] in raster order; those that are missing are shown as token 0."""
        image: Image.Image = self.decode(tokens[None])[0]
        return image

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> AmusedPipeline:
        folder = Path(pretrained_model_name_or_path)
        kwargs["dtype"] = component_dtypes(folder, kwargs.get("dtype"), "transformer", "vqvae")
        pipe: AmusedPipeline = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        return pipe

    def _settings(
        self,
        recipe: str | Recipe | None,
        steps: int | None = None,
        guidance_scale: float | None = None,
        temperature: Any = (2.0, 0.0),
        ahead: int = 1,
        confidence: float = 1.0,
        keep: Keeper | None = None,
        refresh: int = 1,
    ) -> tuple[SamplingParams, AmusedSettings]:
        """Reads arguments of a call, with the pipeline's defaults in place of None."""
        steps = self.config.steps if steps is None else steps
        scale = guidance_of_call(self.config.guidance_scale if guidance_scale is None else guidance_scale)
        if isinstance(temperature, Real):
            temperature = temperature, 0.01
        if not isinstance(temperature, (list, tuple)) or len(temperature) != 2:
            raise ArgumentError(f"temperature={shown(temperature)} is not allowed; it must be a number, or two of them")
        first, last = temperature
        check_integer("steps", steps, 1, self.transformer.config.sample_size**2)
        check_integer("ahead", ahead, 1, steps)
        check_number("confidence", confidence, 0, 1)
        check_integer("refresh", refresh, 1, steps)
        if keep is not None and (
            isinstance(keep, type) or not all(hasattr(keep, name) for name in ("start", "keep", "remembers"))
        ):
            raise ArgumentError(f"keep={shown(keep)} is not allowed; it must be a mmspec.masked.keeping.Keeper")
        if ahead > 1 and (refresh > 1 or (keep is not None and keep.remembers)):
            raise ArgumentError(
                f"ahead={ahead} is not possible with {'refresh' if refresh > 1 else 'this keep'}: later steps "
                "are verified out of order; use ahead=1"
            )
        for value in (first, last):
            check_number("temperature", value, 0, 1e4)
        if recipe_of_call(self, recipe).name != "plain":
            raise ArgumentError(
                f"recipe={str(recipe)!r} is not possible here: a masked model fills places in any order; use 'plain', "
                "and ahead=4 for fewer calls or confidence=0.9 for fewer steps"
            )
        config = self.scheduler.config
        unmasking = Unmasking(
            config.mask_token_id, steps, config.masking_schedule == "cosine", float(first), float(last), confidence
        )
        return SamplingParams(guidance_scale=scale), AmusedSettings(unmasking, ahead, refresh, keep)

    def _request(
        self, text: TextStates, sampling: SamplingParams, settings: AmusedSettings, seed: int,
        output_type: str = "latent",
    ) -> PreparedRequest:  # fmt: skip
        """A request of one text."""
        kind = settings, id(settings.keep)  # keepers need not be hashable
        return image_request(self, RowPrompt((text, settings), sampling, seed, kind), output_type)

    def _read(
        self, texts: Sequence[str], negatives: Sequence[str] | None, sampling: SamplingParams
    ) -> list[TextStates]:
        """What the transformer reads of texts, and of their negative ones if there is guidance."""
        with processor_errors("prompt", texts):
            states = [self._encode(texts)]
        if sampling.guidance_scale > 1:
            negatives = [""] * len(texts) if negatives is None else negatives
            with processor_errors("negative_prompt", negatives):
                states.append(self._encode(negatives))
        pooled, hidden = (torch.stack(parts, dim=1) for parts in zip(*states, strict=True))
        return list(zip(pooled, hidden, strict=True))

    def _encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Pooled embeddings [B, C] and hidden states of the last layer but one, [B, T, C]."""
        length = self.tokenizer.model_max_length
        ids = self.tokenizer(
            list(texts), return_tensors="pt", padding="max_length", truncation=True, max_length=length
        ).input_ids.to(self._execution_device)
        out = self.text_encoder(ids, return_dict=True, output_hidden_states=True)
        return out.text_embeds, out.hidden_states[-2]


def tokens_so_far(step: Step, rows: slice) -> Tensor:
    """The tokens of a step of the rows, int64 [B, N], with -1 where they are missing."""
    return torch.stack(list(step.tokens))
