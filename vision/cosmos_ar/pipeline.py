"""The pipeline of Cosmos: frames, and for some models a text, to a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch import Tensor, nn

from mmspec.arguments import check_callback, shown
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.drafters.neighbors import NeighborDrafter
from mmspec.engine import run
from mmspec.errors import ArgumentError, PromptError
from mmspec.keywords import refuse_unknown_keywords
from mmspec.output import Output
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.callbacks import CallbackOnStepEnd, Interrupted, observer
from mmspec.vision.cosmos_ar.frames import CONTEXTS, as_frames, for_tokenizer, read_frames
from mmspec.vision.cosmos_ar.target import CosmosTarget
from mmspec.vision.cosmos_ar.transformer import CosmosTransformer
from mmspec.vision.hf.image_request import read_prompts
from mmspec.vision.outputs import check_call, check_output_type, memory_for
from mmspec.vision.previews import complete

TEXT_TOKENS = 512  # of T5, which the published models read, padded with zeros


@dataclass(eq=False)
class VideoOutput(Output):
    """The output of a video pipeline.

    Attributes:
        frames: By `output_type`: a list of PIL images per video ("pil"), floats in 0..1 [B, F, H, W, 3] ("np") or
            [B, F, 3, H, W] ("pt"), or the tokens ("latent").
        tokens: The codes of the whole videos, those of the given frames included, int64 [B, T, h, w]. After an
            interrupted call, codes that are missing are -1.
        seeds: The seed of each row.
        stats: Target calls, acceptance and seconds.
    """

    frames: Any
    tokens: Tensor
    seeds: list[int]
    stats: Stats


class CosmosPipeline(DiffusionPipeline):
    """Continues videos with a Cosmos-1 or Cosmos-Predict1 of the autoregressive kind.

    Args:
        transformer: The target.
        video_tokenizer: Encodes frames and decodes tokens; see `mmspec.vision.cosmos_ar.tokenizer`. Without one a call
            takes and returns tokens.
        text_encoder: T5, for models with a text; without one, pass `prompt_embeds`.
        tokenizer: That of T5.
        temperature: The default of a call, that of the published command.
        top_k: The default of a call.
        top_p: The default of a call, that of the published command.
        recipe: The default of a call.
    """

    model_cpu_offload_seq = "text_encoder->transformer->video_tokenizer"
    _optional_components = ["video_tokenizer", "text_encoder", "tokenizer"]
    _callback_tensor_inputs = ["tokens"]

    def __init__(
        self,
        transformer: CosmosTransformer,
        video_tokenizer: nn.Module | None = None,
        text_encoder: Any = None,
        tokenizer: Any = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.8,
        recipe: str = "scd",
    ) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer, video_tokenizer=video_tokenizer, text_encoder=text_encoder, tokenizer=tokenizer
        )
        self.register_to_config(temperature=temperature, top_k=top_k, top_p=top_p, recipe=recipe)

    @refuse_unknown_keywords
    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        video: Any = None,
        tokens: Tensor | None = None,
        prompt_embeds: Tensor | None = None,
        num_input_frames: int | None = None,
        recipe: str | Recipe | None = None,
        seed: int | Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_videos_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        on_step: OnStep | None = None,
        callback_on_step_end: CallbackOnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        measure_entropy: bool = False,
    ) -> VideoOutput:
        """Continues frames to a video.

        Args:
            prompt: For models with a text, one for all videos or one per video.
            video: The frames to continue: an image, a list of images or a tensor [F, 3, H, W] in 0..1; or a list of
                several of them, one per video. Frames are scaled and cropped to the model's size.
            tokens: Instead of `video`, the codes of the given frames, int64 [B, n, h, w] with n latent frames.
            prompt_embeds: Instead of `prompt`, features of T5 [B, S, C], with zeros where they are padded.
            num_input_frames: 1 or 9, how many of the last given frames are continued; None takes 9 where there are
                as many, else 1.
            recipe: How to decode, e.g. `"scd:window=32"`; None takes the pipeline's default.
            seed: Row i uses `seed + i`; or one seed per row. None takes one from `generator`, or else from torch's
                global generator.
            temperature: 0 takes the most likely token; None takes the pipeline's default.
            top_k: Keeps the k most likely tokens, 0 all; None takes the pipeline's default.
            top_p: Keeps the most likely tokens of this total probability, 1 all; None takes the pipeline's default.
            num_videos_per_prompt: Continuations of each video; they are next to each other in the output.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent".
            return_dict: False returns `(frames,)`.
            on_step: Called with a `mmspec.decoding.batch.Step` after every target call; its tokens are the new ones.
            callback_on_step_end: Called as diffusers does, `(pipe, target calls, tokens so far, {"tokens": codes})`,
                with the codes of the whole videos, int64 [B, T * h * w], -1 where they are missing. It may set
                `pipe._interrupt = True`, which ends the call with the codes so far, and cannot change them.
            callback_on_step_end_tensor_inputs: The tensors that it gets; "tokens" is the only one.
            measure_entropy: Also report the entropy of the target distribution.

        Raises:
            PromptError: If the model has a text and none is given, or one is empty.
            ArgumentError: If an argument has a value that is not allowed, or is not an option of the model.
            UnknownNameError: If there is no recipe or rule of that name.
        """
        check_call(num_videos_per_prompt, output_type)
        check_callback("on_step", on_step)
        check_callback("callback_on_step_end", callback_on_step_end)
        self._check_output(output_type)
        default, transformer = self.config, self.transformer
        recipe = parse(default.recipe if recipe is None else recipe)
        sampling = SamplingParams(
            default.temperature if temperature is None else temperature,
            default.top_k if top_k is None else top_k,
            default.top_p if top_p is None else top_p,
        )
        given = self._given(video, tokens, num_input_frames)
        context = self._context(prompt, prompt_embeds, len(given))
        if context is not None and len(given) == 1:
            given = given.expand(len(context), -1)
        given = given.repeat_interleave(num_videos_per_prompt, 0)
        context = None if context is None else context.repeat_interleave(num_videos_per_prompt, 0)
        frames, height, width = transformer.shape
        codes, total = int(transformer.config["vocab_size"]), frames * height * width
        layout = Layout(length=total - given.shape[1], width=width)
        mark = given.new_full((len(given), transformer.marks), codes)
        seeds = row_seeds(seed, len(given), generator)
        resources = DraftResources(
            adaptive_windows=adaptive_windows_of(transformer),
            continuation=partial(NeighborDrafter, given, width, height * width),
        )

        def whole(rows: Sequence[Tensor]) -> Tensor:
            return complete([torch.cat([a, b]) for a, b in zip(given, rows, strict=True)], total, codes)

        with memory_for(len(given)), self.progress_bar(total=len(given) * layout.length) as bar:
            observe = observer(
                self,
                bar,
                on_step,
                callback_on_step_end,
                callback_on_step_end_tensor_inputs,
                lambda step: whole(step.tokens),
            )
            try:
                target = CosmosTarget(transformer, torch.cat([mark, given], 1), context, layout.length, recipe.window)
                decoded = run(
                    target, recipe, layout, [sampling] * len(given), seeds, resources, observe, measure_entropy
                )
                found, stats = whole(list(decoded.tokens)), decoded.stats
            except Interrupted as end:
                found, stats = end.tokens, end.stats
        grid = found.unflatten(1, transformer.shape)
        images = self.decode(grid, output_type=output_type)
        self.maybe_free_model_hooks()
        return VideoOutput(images, grid, seeds, stats) if return_dict else (images,)  # type: ignore[return-value]

    @torch.no_grad()
    def decode(self, tokens: Tensor, *, output_type: str = "pil") -> Any:
        """Videos of codes, as of the `tokens` of an output.

        Args:
            tokens: int64 [B, T, h, w]; missing ones, -1, are taken for code 0.
            output_type: "pil", "np", "pt" or "latent".

        Raises:
            ArgumentError: If an argument has a value that is not allowed, or there is no video tokenizer.
        """
        self._check_output(output_type)
        if not isinstance(tokens, Tensor) or tokens.ndim != 4:
            raise ArgumentError("tokens is not allowed; give codes int64 [B, T, h, w]")
        if output_type == "latent":
            return tokens
        return as_frames(self.video_tokenizer.decode(tokens.clamp(min=0)), output_type)

    def _check_output(self, output_type: str) -> None:
        check_output_type(output_type)
        if self.video_tokenizer is None and output_type != "latent":
            raise ArgumentError(
                f"output_type={output_type!r} requires a video tokenizer, and this pipeline has none: load the model "
                "with tokenizer= the folder of nvidia/Cosmos-Tokenize1-DV8x16x16-720p, or use 'latent'"
            )

    def _given(self, video: Any, tokens: Tensor | None, count: int | None) -> Tensor:
        """The codes of the given frames, int64 [B, n * h * w].

        Raises:
            ArgumentError: If there are none, or not in a form that is allowed.
        """
        frames, height, width = self.transformer.shape
        if (video is None) == (tokens is None):
            raise ArgumentError("video and tokens: give one of them, the frames that the video begins with")
        if tokens is not None:
            if (
                not isinstance(tokens, Tensor)
                or tokens.ndim != 4
                or tokens.dtype != torch.int64
                or tokens.shape[2:] != (height, width)
                or not 1 <= tokens.shape[1] < frames
                or not len(tokens)
            ):
                raise ArgumentError(
                    f"tokens={shown(tokens)} is not allowed; give codes int64 [B, n, {height}, {width}] with n from 1 "
                    f"to {frames - 1}"
                )
            return complete(list(tokens.flatten(1)), tokens[0].numel(), int(self.transformer.config["vocab_size"])).to(
                self.transformer.device
            )
        if self.video_tokenizer is None:
            raise ArgumentError("video was given, and this pipeline has no video tokenizer; load one, or pass tokens")
        several = isinstance(video, (list, tuple)) and bool(video) and isinstance(video[0], (list, tuple, Tensor))
        videos = [read_frames(each) for each in (video if several else [video])]
        shortest = min(len(each) for each in videos)
        chosen = max(n for n in CONTEXTS if n <= shortest) if count is None else count
        if chosen not in CONTEXTS or chosen > shortest:
            raise ArgumentError(f"num_input_frames={count!r} is not allowed; use 1, or 9 with as many frames")
        latents = CONTEXTS.index(chosen) + 1
        if latents >= frames:
            raise ArgumentError(
                f"num_input_frames={count!r} is not allowed for videos of {frames} latent frames; use 1"
            )
        tokenizer = self.video_tokenizer
        size = height * tokenizer.factor, width * tokenizer.factor
        pixels = torch.stack([for_tokenizer(each, chosen, tokenizer.frames, size) for each in videos])
        codes: Tensor = tokenizer.encode(pixels)[:, :latents]
        return codes.flatten(1).to(self.transformer.device)

    def _context(self, prompt: Any, embeds: Tensor | None, videos: int) -> Tensor | None:
        """Features of the texts [B, S, C], one per video; None for models without one.

        Raises:
            PromptError: If the model has a text and none is given, or one is empty.
            ArgumentError: If the model has no text, or the encoder is missing or another one.
        """
        features = self.transformer.config["context_dim"]
        if features is None:
            for name, value in (("prompt", prompt), ("prompt_embeds", embeds)):
                if value is not None:
                    raise ArgumentError(f"{name} was given, but this model continues videos without a text")
            return None
        if embeds is None:
            prompts = read_prompts(prompt)
            if any(not text.strip() for text in prompts):
                raise PromptError(f"prompt={prompt!r} is empty; describe the video"[:400])
            embeds = self._encode(prompts)
        elif prompt is not None:
            raise ArgumentError("prompt and prompt_embeds were given; give one of them")
        if not isinstance(embeds, Tensor) or embeds.ndim != 3 or embeds.shape[2] != features:
            raise ArgumentError(f"prompt_embeds={shown(embeds)} is not allowed; give features [B, S, {features}]")
        if len(embeds) != videos and videos > 1:
            if len(embeds) > 1:
                raise ArgumentError(f"there are {len(embeds)} texts for {videos} videos; give one, or one per video")
            embeds = embeds.expand(videos, -1, -1)
        return embeds.to(self.transformer.device)

    def _encode(self, prompts: list[str]) -> Tensor:
        """Features of texts [B, 512, C], zero where they are padded."""
        if self.text_encoder is None or self.tokenizer is None:
            raise ArgumentError(
                "prompt was given, but this pipeline has no text_encoder with its tokenizer (T5-11B); add them, or "
                "pass prompt_embeds"
            )
        encoded = self.tokenizer(
            prompts, max_length=TEXT_TOKENS, padding="max_length", truncation=True, return_tensors="pt"
        ).to(self.text_encoder.device)
        features = self.text_encoder(**encoded).last_hidden_state
        return features * encoded["attention_mask"][..., None]
