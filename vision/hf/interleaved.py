"""Emu3.5's answers of text and images: stories and illustrated instructions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerationMixin

from mmspec.arguments import check_integer, processor_errors, shown
from mmspec.arguments.keywords import check_options, refuse_unknown_keywords
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError, MMSpecError, PromptError, unknown_name
from mmspec.hf.generate import generate, salted
from mmspec.pipeline import Output
from mmspec.recipes import Recipe, parse, recipe_of_call
from mmspec.sampling.params import SamplingParams, guidance_of_call
from mmspec.sampling.seeds import row_seeds
from mmspec.vision.hf.adapters.flat import FlatImageAdapter
from mmspec.vision.hf.flat_formats import token_id
from mmspec.vision.hf.image_adapter import AllowedByPosition
from mmspec.vision.hf.image_request import check_size, read_prompts, refuse_empty
from mmspec.vision.hf.pipeline import TransformersPipeline, input_device, sampling_arguments
from mmspec.vision.outputs import check_output_type, memory_for

FACTOR = 16  # pixels per code
CHUNK = 1024  # tokens of text that are decoded before the next look at what is left
BEGIN_IMAGE, CODES, END_IMAGE, END = "<|image start|>", "<|image token|>", "<|image end|>", "<|extra_204|>"
SILENT = ("<|extra_101|>", END)  # marks that are not part of a text
# Thoughts, of the whole answer and of an image, between two marks.
THOUGHTS = {"global_cot": ("<|extra_60|>", "<|extra_61|>"), "image_cot": ("<|extra_50|>", "<|extra_51|>")}
UNCONDITIONAL = "<|extra_203|>You are a helpful assistant. USER:  ASSISTANT: <|extra_100|>"


@dataclass(frozen=True)
class InterleavedTask:
    """How a kind of answer is asked for and sampled.

    Attributes:
        prompt: The text before the answer; `{prompt}` is filled in.
        text: The sampling parameters of text.
        image: The sampling parameters of codes, guidance included, and of sizes, which are not guided.
    """

    prompt: str
    text: SamplingParams
    image: SamplingParams = SamplingParams(top_k=10240, guidance_scale=3.0)


# configs/example_config_visual_narrative.py and example_config_visual_guidance.py of baaivision/Emu3.5 (Apache 2.0).
TASKS = {
    "story": InterleavedTask(
        "<|extra_203|>You are a helpful assistant for story task. USER: {prompt} ASSISTANT: <|extra_100|>",
        SamplingParams(top_k=1024, top_p=0.9),
    ),
    "howto": InterleavedTask(
        "<|extra_203|>You are a helpful assistant for howto task. Please generate a response with interleaved text and "
        "images. USER: {prompt} ASSISTANT: <|extra_100|>",
        SamplingParams(temperature=0.7, top_k=200, top_p=0.8),
    ),
}


@dataclass(frozen=True)
class Piece:
    """A part of an answer.

    Attributes:
        kind: "text", "image", or a thought: "global_cot" or "image_cot".
        text: The text; empty for an image.
        image: The image, by `output_type`; None for a text.
        codes: The codes of the image, int64 [h, w]; None for a text.
    """

    kind: str
    text: str = ""
    image: Any = None
    codes: Tensor | None = None


@dataclass(eq=False)
class InterleavedOutput(Output):
    """The output of `InterleavedGenerator`.

    Attributes:
        pieces: The parts of each answer, in order.
        tokens: The ids of each answer after its prompt, int64 [n].
        seeds: The seed of each row.
        truncated: Whether an answer was cut off by its limit; an image that did not fit is left out.
        stats: Of all calls of the model.
    """

    pieces: list[list[Piece]]
    tokens: list[Tensor]
    seeds: list[int]
    truncated: list[bool]
    stats: Stats


@dataclass
class _Row:
    """An answer so far.

    Attributes:
        ids: The prompt and the answer.
        uncond: The unconditional prompt of the next image: a text without the question, and the images so far.
        prompt: Tokens of the prompt.
        size: Rows and columns of codes, of all its images; None before the first one, if the model chooses.
        state: What comes next: "text", "size", "image" or "done".
        begun: Where the latest text begins in `ids`.
        segment: How many times the model was called for it, which its seeds depend on.
    """

    ids: list[int]
    uncond: list[int]
    prompt: int
    seed: int
    size: tuple[int, int] | None
    state: str = "text"
    begun: int = field(default=0)
    segment: int = 0
    truncated: bool = False

    def end(self, *, truncated: bool) -> None:
        self.state, self.truncated = "done", truncated


class InterleavedGenerator:
    """Generates answers of text and images with Emu3.5.

    An answer is decoded in segments: text until an image begins, the size of the first image, and the codes of an
    image, with guidance. The unconditional prompt of an image has all images before it, and no text. Each segment is
    decoded by a recipe, from the distribution of the original code; what lies before it is read again.

    Args:
        pipe: A pipeline of the layout `emu3.5`; its draft model and draft heads are used.

    Raises:
        ArgumentError: If it has another layout.
    """

    def __init__(self, pipe: TransformersPipeline) -> None:
        adapter = pipe._adapter() if isinstance(pipe, TransformersPipeline) else None
        if not isinstance(adapter, FlatImageAdapter) or pipe.config.layout != "emu3.5":
            raise ArgumentError(
                f"pipe is a {type(pipe).__name__} that does not write text and images in turn; load an Emu3.5"
            )
        self.pipe, self._adapter = pipe, adapter
        self._tokenizer = pipe.processor
        names = (BEGIN_IMAGE, CODES, END_IMAGE, END)
        self._begin, self._codes, self._end_image, self._end = (token_id(self._tokenizer, name) for name in names)
        self._first = adapter._first
        self._digits = [token_id(self._tokenizer, digit) for digit in "0123456789"]
        self._times = token_id(self._tokenizer, "*")

    def __call__(self, prompt: str | Sequence[str], **options: Any) -> InterleavedOutput:
        """The whole answers; the arguments are those of `stream`."""
        check_options(options, OPTIONS)
        run = _Run(self, prompt, **options)
        pieces: list[list[Piece]] = [[] for _ in run.rows]
        for row, piece in run:
            pieces[row].append(piece)
        tokens = [torch.tensor(row.ids[row.prompt :]) for row in run.rows]
        assert run.stats is not None, "a row begins with text"
        return InterleavedOutput(
            pieces, tokens, [row.seed for row in run.rows], [row.truncated for row in run.rows], run.stats
        )

    @refuse_unknown_keywords
    def stream(
        self,
        prompt: str | Sequence[str],
        *,
        task: str = "story",
        height: int | None = None,
        width: int | None = None,
        max_new_tokens: int = 32768,
        recipe: str | Recipe | None = None,
        text_recipe: str | Recipe = "plain",
        text_sampling: SamplingParams | None = None,
        image_sampling: SamplingParams | None = None,
        seed: int | Sequence[int] | None = None,
        output_type: str = "pil",
    ) -> Iterator[tuple[int, Piece]]:
        """Yields the number of a prompt and a part of its answer, as soon as it is complete.

        Args:
            prompt: One or more prompts.
            task: "story", or "howto" for instructions.
            height: Of all images, in pixels, with `width`; None lets the model choose once for an answer.
            width: As `height`.
            max_new_tokens: Tokens of an answer at most.
            recipe: How images are decoded; None takes the pipeline's default.
            text_recipe: How text is decoded, such as `"draft"` with a draft model.
            text_sampling: The sampling parameters of text; None takes those of the original code for the task.
            image_sampling: The sampling parameters of images; None takes those of the original code.
            seed: Row i uses `seed + i`; or one seed per row.
            output_type: Of images: "pil", "np", "pt" or "latent".

        Raises:
            PromptError: If a prompt is empty.
            ArgumentError: If an argument has a value that is not allowed.
            UnknownNameError: If there is no task, recipe or rule of that name.
        """
        return iter(
            _Run(
                self, prompt, task=task, height=height, width=width, max_new_tokens=max_new_tokens, recipe=recipe,
                text_recipe=text_recipe, text_sampling=text_sampling, image_sampling=image_sampling, seed=seed,
                output_type=output_type,
            )
        )  # fmt: skip


class _Run:
    """One call of an `InterleavedGenerator`; the arguments are those of `stream`."""

    def __init__(
        self,
        generator: InterleavedGenerator,
        prompt: str | Sequence[str],
        *,
        task: str = "story",
        height: int | None = None,
        width: int | None = None,
        max_new_tokens: int = 32768,
        recipe: str | Recipe | None = None,
        text_recipe: str | Recipe = "plain",
        text_sampling: SamplingParams | None = None,
        image_sampling: SamplingParams | None = None,
        seed: int | Sequence[int] | None = None,
        output_type: str = "pil",
    ) -> None:
        self._of, pipe = generator, generator.pipe
        if not isinstance(task, str) or task not in TASKS:
            raise unknown_name("task", str(task), TASKS)
        for name, given in (("text_sampling", text_sampling), ("image_sampling", image_sampling)):
            if not isinstance(given, (SamplingParams, type(None))):
                raise ArgumentError(f"{name}={shown(given)} is not allowed; pass a SamplingParams, or None")
        check_integer("max_new_tokens", max_new_tokens, 1, 2**20)
        check_output_type(output_type)
        if output_type != "latent" and generator._adapter.no_pixels is not None:
            raise ArgumentError(f"output_type={output_type!r} is not possible: {generator._adapter.no_pixels}")
        pixels = check_size(height, width, FACTOR)
        if pixels is not None and max(pixels) > 99 * FACTOR:
            raise ArgumentError(f"height={height}, width={width} is not allowed; at most {99 * FACTOR} pixels")
        self._text = TASKS[task].text if text_sampling is None else text_sampling
        image = TASKS[task].image if image_sampling is None else image_sampling
        self._image = replace(image, guidance_scale=guidance_of_call(image.guidance_scale))
        if self._text.guidance_scale != 1:
            raise ArgumentError(
                f"text_sampling guidance_scale={self._text.guidance_scale} is not allowed; it must be 1"
            )
        chosen = recipe_of_call(pipe, recipe)
        try:
            writing = parse(text_recipe)
        except MMSpecError as error:
            raise type(error)(f"text_recipe: {error}") from None
        self._recipes = {"text": writing, "size": parse("plain"), "image": chosen}
        self._max_new, self._output_type = max_new_tokens, output_type
        prompts = read_prompts(prompt)
        refuse_empty(prompts)
        with processor_errors("prompt", prompts):
            ids = [self._ids(TASKS[task].prompt.format(prompt=text)) for text in prompts]
        if (longest := max(map(len, ids))) >= (positions := generator._adapter.max_length):
            raise PromptError(f"prompt of {longest} tokens is too long; the model has {positions} positions")
        size = None if pixels is None else (pixels[0] // FACTOR, pixels[1] // FACTOR)
        self.rows = [
            _Row(row, self._ids(UNCONDITIONAL), len(row), one, size, begun=len(row))
            for row, one in zip(ids, row_seeds(seed, len(ids)), strict=True)
        ]
        self.stats: Stats | None = None

    def __iter__(self) -> Iterator[tuple[int, Piece]]:
        while any(row.state != "done" for row in self.rows):
            for state, step in (("text", self._write), ("size", self._choose), ("image", self._draw)):
                waiting = [n for n, row in enumerate(self.rows) if row.state == state]
                # Together with rows of as many tokens, so that a row does not depend on the others.
                kinds = {n: self._kind(self.rows[n]) for n in waiting}
                for kind in dict.fromkeys(kinds.values()):
                    yield from step([n for n in waiting if kinds[n] == kind])

    def _kind(self, row: _Row) -> object:
        """Rows of equal kinds are decoded together in the state that they share."""
        if row.state == "text":
            return min(CHUNK, self._room(row))
        return row.size if row.state == "image" else None

    def _write(self, chosen: list[int]) -> Iterator[tuple[int, Piece]]:
        """Decodes text until an image or the end, or a chunk of it."""
        of = self._of
        rows = self._with_room(chosen, 1)
        if rows:
            length = min(CHUNK, self._room(self.rows[rows[0]]))
            ends = [of._end, of._begin]
            allowed = [range(of._first)] * length
            for n, tokens in zip(rows, self._decode("text", rows, allowed, None, ends), strict=True):
                row = self.rows[n]
                last = next((i for i, token in enumerate(tokens) if token in ends), None)
                tokens = tokens if last is None else tokens[: last + 1]
                row.ids += tokens
                # A mark without an image is read by the unconditional side too, as in the original code.
                row.uncond += [token for token in tokens if token == of._end_image]
                if row.ids[-1] == of._begin:
                    row.uncond.append(of._begin)
                    row.state = "size"
                elif row.ids[-1] == of._end:
                    row.end(truncated=False)
        for n in chosen:
            if self.rows[n].state != "text":
                yield from ((n, piece) for piece in self._texts(self.rows[n]))

    def _choose(self, chosen: list[int]) -> Iterator[tuple[int, Piece]]:
        """Lets the model choose the size of an answer's first image, and writes the size of each."""
        of = self._of
        new = [n for n in chosen if self.rows[n].size is None]
        rows = self._with_room(new, 6)
        if rows:
            tens, ones = of._digits[1:], of._digits
            allowed: list[Sequence[int]] = [tens, ones, [of._times], tens, ones]
            for n, tokens in zip(rows, self._decode("size", rows, allowed, None), strict=True):
                values = [of._digits.index(token) for token in tokens if token != of._times]
                self.rows[n].size = values[0] * 10 + values[1], values[2] * 10 + values[3]
        for n in chosen:
            row = self.rows[n]
            if row.size is not None and row.state == "size":
                said = [*self._ids(f"{row.size[0]}*{row.size[1]}"), of._codes]
                row.ids += said
                row.uncond += said
                row.state = "image"
        yield from ()

    def _draw(self, chosen: list[int]) -> Iterator[tuple[int, Piece]]:
        """Decodes images of one size."""
        of, size = self._of, self.rows[chosen[0]].size
        assert size is not None, "chosen before"
        places, allowed, width = of._adapter.lines(size)
        rows = self._with_room(chosen, len(allowed) + 1)
        if not rows:
            return
        pixels = {"height": size[0] * FACTOR, "width": size[1] * FACTOR}
        for n, tokens in zip(rows, self._decode("image", rows, allowed, width), strict=True):
            row = self.rows[n]
            row.ids += [*tokens, of._end_image]
            row.uncond += [*tokens, of._end_image]
            row.state, row.begun = "text", len(row.ids)
            codes = of._adapter.codes(torch.tensor(tokens)[places])
            images = of.pipe.decode(codes[None].to(of.pipe.device), **pixels, output_type=self._output_type)
            yield n, Piece("image", image=images[0], codes=codes.view(size))

    @torch.no_grad()
    def _decode(
        self,
        state: str,
        chosen: list[int],
        allowed: Sequence[Sequence[int]],
        width: int | None,
        ends: list[int] | None = None,
    ) -> list[list[int]]:
        """The next tokens of rows, as many as `allowed` has positions; those after an end are to be ignored."""
        pipe, rows = self._of.pipe, [self.rows[n] for n in chosen]
        device = input_device(pipe.model)
        ids, mask = self._padded([row.ids for row in rows])
        sampling = self._text if state == "text" else self._image
        arguments = sampling_arguments(sampling)
        if state != "image":
            arguments["guidance_scale"] = 1.0
        elif sampling.guidance_scale != 1:
            negative, negative_mask = self._padded([row.uncond for row in rows])
            arguments["negative_prompt_ids"] = negative.to(device)
            arguments["negative_prompt_attention_mask"] = negative_mask.to(device)
        with memory_for(len(rows)):
            out = GenerationMixin.generate(
                pipe.model,
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                prefix_allowed_tokens_fn=AllowedByPosition(allowed, ids.shape[1], width),
                **arguments,
                **({} if ends is None else {"eos_token_id": ends, "pad_token_id": ends[0]}),
                max_new_tokens=len(allowed),
                return_dict_in_generate=True,
                custom_generate=generate,
                recipe=self._recipes[state],
                seed=salted([row.seed for row in rows], [row.segment for row in rows]),
                draft_model=pipe.draft_model,
                heads=list(pipe.heads.values()),
            )
        self.stats = out.stats if self.stats is None else self.stats.followed_by(out.stats)
        for row in rows:
            row.segment += 1
        found: list[list[int]] = out.sequences[:, ids.shape[1] :].tolist()
        return found

    def _texts(self, row: _Row) -> list[Piece]:
        """The text that has ended, with the thoughts in it."""
        ids = row.ids[row.begun :]
        text = self._of._tokenizer.decode([i for i in ids if i != self._of._begin], skip_special_tokens=False)
        for mark in SILENT:
            text = text.replace(mark, "")
        pattern = "|".join(f"{re.escape(a)}.*?{re.escape(b)}" for a, b in THOUGHTS.values())
        pieces = []
        for part in re.split(f"({pattern})", text, flags=re.DOTALL):
            kind = next((name for name, (a, b) in THOUGHTS.items() if part.startswith(a) and part.endswith(b)), "text")
            for mark in THOUGHTS.get(kind, ()):
                part = part.replace(mark, "")
            if part.strip():
                pieces.append(Piece(kind, part))
        return pieces

    def _with_room(self, chosen: list[int], count: int) -> list[int]:
        """The rows for which `count` tokens are left; the others end."""
        for n in chosen:
            if self._room(self.rows[n]) < count:
                self.rows[n].end(truncated=True)
        return [n for n in chosen if self.rows[n].state != "done"]

    def _room(self, row: _Row) -> int:
        """Tokens that may follow."""
        return min(self._max_new - (len(row.ids) - row.prompt), self._of._adapter.max_length - len(row.ids))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._of._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 [B, T], padded on the left."""
        longest, pad = max(map(len, rows)), self._of._end
        ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        return ids, mask


OPTIONS = tuple(inspect.signature(_Run).parameters)[2:]  # of a call, besides the prompt
