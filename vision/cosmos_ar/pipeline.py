"""The pipeline of Cosmos: frames, and for some models a text, to a video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.arguments import one_text, shown
from mmspec.arguments.keywords import check_options, refuse_unknown_keywords
from mmspec.batching.request import PreparedRequest, RowPrompt
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import OnStep
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.drafters.neighbors import NeighborDrafter
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.pipeline import Output
from mmspec.recipes import Recipe, recipe_of_call
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.calls import CallbackOnStepEnd, generate_tokens
from mmspec.vision.cosmos_ar.frames import CONTEXTS, as_frames, for_tokenizer, read_frames
from mmspec.vision.cosmos_ar.target import CosmosTarget
from mmspec.vision.cosmos_ar.tokenizer import VideoTokenizer, save_video_tokenizer
from mmspec.vision.cosmos_ar.transformer import CosmosTransformer
from mmspec.vision.folder_pipeline import FolderPipeline
from mmspec.vision.hf.image_request import read_prompts
from mmspec.vision.outputs import check_call, check_output_type, complete

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


class CosmosPipeline(FolderPipeline):
    """Continues videos with a Cosmos-1 or Cosmos-Predict1 of the autoregressive kind.

    Args:
        transformer: The target.
        video_tokenizer: Encodes frames and decodes tokens; see `mmspec.vision.cosmos_ar.tokenizer`. Without one a call
            takes and returns tokens.
        text_encoder: T5, for models with a text; without one, pass `prompt_embeds`.
        tokenizer: That of T5.
        draft_transformer: A smaller model of the same videos, for the recipe `draft`; optional.
        temperature: The default of a call, that of the published command.
        top_k: The default of a call.
        top_p: The default of a call, that of the published command.
        recipe: The default of a call.
        min_p: The default of a call.
        typical_p: The default of a call.

    Raises:
        ArgumentError: If the two transformers have other codes, videos or features of texts.
    """

    model_cpu_offload_seq = "text_encoder->draft_transformer->transformer->video_tokenizer"
    _optional_components = ["video_tokenizer", "text_encoder", "tokenizer", "draft_transformer"]
    _callback_tensor_inputs = ["tokens"]

    def __init__(
        self,
        transformer: CosmosTransformer,
        video_tokenizer: nn.Module | None = None,
        text_encoder: Any = None,
        tokenizer: Any = None,
        draft_transformer: CosmosTransformer | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.8,
        recipe: str = "scd",
        min_p: float = 0.0,
        typical_p: float = 1.0,
    ) -> None:
        super().__init__()
        check_draft(transformer, draft_transformer)
        self.register_modules(
            transformer=transformer,
            video_tokenizer=video_tokenizer,
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            draft_transformer=draft_transformer,
        )
        self.register_to_config(
            temperature=temperature, top_k=top_k, top_p=top_p, recipe=recipe, min_p=min_p, typical_p=typical_p
        )

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
        min_p: float | None = None,
        typical_p: float | None = None,
        num_videos_per_prompt: int = 1,
        batch_size: int | None = None,
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
            min_p: Keeps the tokens at least this much as likely as the most likely one, 0 all; None takes the
                pipeline's default.
            typical_p: Keeps the most typical tokens of this total probability, 1 all; None takes the pipeline's
                default.
            num_videos_per_prompt: Continuations of each video; they are next to each other in the output.
            batch_size: Videos to decode at a time, at most; None is all. The videos do not depend on it.
            generator: Random generators for seeds, one or one per row.
            output_type: "pil", "np", "pt" or "latent".
            return_dict: False returns `(frames,)`.
            on_step: Called with a `mmspec.decoding.step.Step` after every target call; its tokens are the new ones.
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
        check_call(
            "num_videos_per_prompt", num_videos_per_prompt, output_type, on_step, callback_on_step_end, return_dict,
            measure_entropy,
        )  # fmt: skip
        self._check_output(output_type)
        default = self.config
        recipe = recipe_of_call(self, recipe)
        sampling = SamplingParams(
            default.temperature if temperature is None else temperature,
            default.top_k if top_k is None else top_k,
            default.top_p if top_p is None else top_p,
            min_p=default.min_p if min_p is None else min_p,
            typical_p=default.typical_p if typical_p is None else typical_p,
        )
        given = self._given(video, tokens, num_input_frames)
        context = self._context(prompt, prompt_embeds, len(given))
        if context is not None and len(given) == 1:
            given = given.expand(len(context), -1)
        given = given.repeat_interleave(num_videos_per_prompt, 0)
        context = None if context is None else context.repeat_interleave(num_videos_per_prompt, 0)
        seeds = row_seeds(seed, len(given), generator)
        contexts = [None] * len(given) if context is None else context.split(1)
        rows = zip(given.split(1), contexts, seeds, strict=True)
        found, stats = generate_tokens(
            self,
            [self._request(*row, sampling, "latent") for row in rows],
            recipe,
            on_step,
            callback_on_step_end,
            callback_on_step_end_tensor_inputs,
            lambda step, rows: self._whole(given[rows], step.tokens),
            measure_entropy,
            batch_size,
        )
        grid = found.view(-1, *self.transformer.shape)
        images = self.decode(grid, output_type=output_type)
        self.maybe_free_model_hooks()
        return VideoOutput(images, grid, seeds, stats) if return_dict else (images,)  # type: ignore[return-value]

    @refuse_unknown_keywords
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
        shape = self.transformer.shape
        if not isinstance(tokens, Tensor) or tokens.shape[1:] != shape:
            found = list(tokens.shape) if isinstance(tokens, Tensor) else shown(tokens)
            raise ArgumentError(f"tokens is {found}; it must be codes int64 [B, {', '.join(map(str, shape))}]")
        codes = complete(tokens.flatten(1), self._total, int(self.transformer.config["vocab_size"]))
        if output_type == "latent":
            return tokens
        return as_frames(self.video_tokenizer.decode(codes.clamp(min=0).unflatten(1, shape)), output_type)

    @torch.no_grad()
    def read_request(self, prompt: Any, options: Mapping[str, Any], recipe: Recipe) -> PreparedRequest:
        """Reads a request of an engine; see `mmspec.batching.request.EnginePipeline`.

        Args:
            prompt: For models with a text, the text; else None.
            options: `video` or `tokens` (int64 [1, n, h, w]), the frames that the video begins with; `prompt_embeds`,
                `num_input_frames`, `seed`, `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, `output_type`.
            recipe: How it is decoded.

        Raises:
            PromptError: If the model has a text and none is given.
            ArgumentError: For an option of another name, or whose value is not allowed.
        """
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p")
        inputs = ("video", "tokens", "prompt_embeds", "num_input_frames")
        check_options(options, ("seed", *names, *inputs, "output_type"))
        output_type = options.get("output_type", "pil")
        self._check_output(output_type)
        sampling = SamplingParams(**{name: options.get(name, self.config[name]) for name in names})
        video, tokens, embeds, count = (options.get(name) for name in inputs)
        given = self._given(video, tokens, count)
        context = self._context(prompt if prompt is None else one_text("prompt", prompt), embeds, len(given))
        if len(given) != 1 or context is not None and len(context) != 1:
            raise ArgumentError("a request has one video; send one request for each")
        (seed,) = row_seeds(options.get("seed"), 1)
        return self._request(given, context, seed, sampling, output_type)

    def _request(
        self, given: Tensor, context: Tensor | None, seed: int, sampling: SamplingParams, output_type: str
    ) -> PreparedRequest:
        """A request of one video, from its given codes [1, n] and features of its text [1, S, C]."""

        def finish(tokens: Sequence[Tensor], stats: Stats) -> VideoOutput:
            grid = self._whole(given, [tokens[0].to(given.device)]).unflatten(1, self.transformer.shape)
            return VideoOutput(self.decode(grid, output_type=output_type), grid, [seed], stats)

        kind = given.shape[1], None if context is None else context.shape[1]
        return PreparedRequest([RowPrompt((given, context), sampling, seed, kind)], finish, seed)

    @torch.no_grad()
    def prepare_rows(self, rows: Sequence[RowPrompt], recipe: Recipe) -> PreparedRows:
        """Prepares rows of an engine; see `mmspec.batching.request.EnginePipeline`."""
        given, contexts = zip(*(row.prompt for row in rows), strict=True)
        context = None if contexts[0] is None else torch.cat(contexts)
        return self._ready(torch.cat(given), context, [row.sampling for row in rows], recipe.window)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """Saves the pipeline as diffusers does, and the TorchScript files of its video tokenizer.

        These are in the folder `video_tokenizer`, and are not loaded with the pipeline: they are programs, which run
        only if they are named, `mmspec.load(folder, tokenizer=folder / "video_tokenizer")`.
        """
        names = ("temperature", "top_k", "top_p", "recipe", "min_p", "typical_p")
        # Another pipeline of the same models: threads that use this one keep its tokenizer.
        without = type(self)(
            **{**self.components, "video_tokenizer": None}, **{name: self.config[name] for name in names}
        )
        super(CosmosPipeline, without).save_pretrained(save_directory, *args, **kwargs)
        if isinstance(self.video_tokenizer, VideoTokenizer):
            save_video_tokenizer(self.video_tokenizer, Path(save_directory) / "video_tokenizer")

    @property
    def _total(self) -> int:
        """Codes of a video."""
        frames, height, width = self.transformer.shape
        return frames * height * width

    def _whole(self, given: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """Codes of whole videos int64 [B, T * h * w], -1 where they are missing, from the given and the new ones."""
        videos = [torch.cat([a, b]) for a, b in zip(given, rows, strict=True)]
        return complete(videos, self._total, int(self.transformer.config["vocab_size"]))

    def _ready(
        self, given: Tensor, context: Tensor | None, samplings: Sequence[SamplingParams], slack: int
    ) -> PreparedRows:
        """A batch of videos: given codes, int64 [B, n * h * w], and features of the texts [B, S, C] or None."""
        _, height, width = self.transformer.shape
        layout = Layout(length=self._total - given.shape[1], width=width)
        mark = given.new_full((len(given), self.transformer.marks), int(self.transformer.config["vocab_size"]))
        read = torch.cat([mark, given], 1)

        def target(transformer: CosmosTransformer) -> CosmosTarget:
            return CosmosTarget(transformer, read, context, layout.length, slack)

        draft = self.draft_transformer
        resources = DraftResources(
            draft_model=None if draft is None else partial(target, draft),
            draft_sampling=list(samplings),
            adaptive_windows=adaptive_windows_of(self.transformer),
            continuation=partial(NeighborDrafter, given, width, height * width),
        )
        return PreparedRows(target(self.transformer), layout, list(samplings), resources)

    def _check_output(self, output_type: str) -> None:
        check_output_type(output_type)
        if self.video_tokenizer is None and output_type != "latent":
            raise ArgumentError(
                f"output_type={output_type!r} requires a video tokenizer, and this pipeline has none: load the model "
                "with tokenizer= the folder of nvidia/Cosmos-Tokenize1-DV8x16x16-720p, or use 'latent'"
            )

    def _given(self, video: Any, tokens: Tensor | None, count: Any) -> Tensor:
        """The codes of the given frames, int64 [B, n * h * w]."""
        frames, height, width = self.transformer.shape
        if (video is None) == (tokens is None):
            raise ArgumentError("video and tokens: give one of them, the frames that the video begins with")
        if tokens is not None:
            if count is not None:
                raise ArgumentError(
                    f"num_input_frames={shown(count)} is of a video, and tokens were given; leave it out"
                )
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
            if len(tokens) and int(tokens.min()) < 0:  # a code may be missing in what is shown, not in what is given
                vocab_size = int(self.transformer.config["vocab_size"])
                raise ArgumentError(f"tokens has code {int(tokens.min())}; they must be from 0 to {vocab_size - 1}")
            return complete(list(tokens.flatten(1)), tokens[0].numel(), int(self.transformer.config["vocab_size"])).to(
                self.transformer.device
            )
        if self.video_tokenizer is None:
            raise ArgumentError("video was given, and this pipeline has no video tokenizer; load one, or pass tokens")
        several = isinstance(video, (list, tuple)) and bool(video) and isinstance(video[0], (list, tuple, Tensor))
        videos = [read_frames(each) for each in (video if several else [video])]
        shortest = min(len(each) for each in videos)
        chosen: Any = max(n for n in CONTEXTS if n <= shortest) if count is None else count
        whole = isinstance(chosen, Integral) and not isinstance(chosen, bool)
        if not whole or int(chosen) not in CONTEXTS or int(chosen) > shortest:
            raise ArgumentError(f"num_input_frames={shown(count)} is not allowed; use 1, or 9 with as many frames")
        chosen = int(chosen)
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
        """Features of the texts [B, S, C], one per video; None for models without one."""
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


def check_tokenizer(transformer: CosmosTransformer, tokenizer: VideoTokenizer) -> None:
    """Checks that a video tokenizer has the codes of a model.

    Raises:
        ModelError: If it has fewer.
    """
    if tokenizer.vocab_size < transformer.config["vocab_size"]:
        raise ModelError(
            f"tokenizer has {tokenizer.vocab_size} codes, the model {transformer.config['vocab_size']}; "
            "they do not belong together"
        )


def check_draft(transformer: CosmosTransformer, draft: CosmosTransformer | None) -> None:
    """Checks that a draft model continues the same videos.

    Raises:
        ArgumentError: If it has other codes, videos or features of texts.
    """
    if draft is None:
        return
    for name, what in (("vocab_size", "codes"), ("latent_shape", "latent_shape"), ("context_dim", "context_dim")):
        ours, theirs = transformer.config[name], draft.config[name]
        if (list(ours) if name == "latent_shape" else ours) != (list(theirs) if name == "latent_shape" else theirs):
            raise ArgumentError(
                f"draft_transformer has {what} {theirs}, the transformer {ours}; they do not belong together"
            )
