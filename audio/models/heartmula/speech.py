"""The adapter of HeartMuLa: lyrics and tags, songs as frames; the caller brings the codec, which is flow matching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.depth.frame_windows import MAX_AHEAD
from mmspec.audio.family_options import check_integers, options_of
from mmspec.audio.models.heartmula.decoding import HeartMuLaFrames, SongPrompt
from mmspec.audio.models.heartmula.model import HeartMuLa, read_model
from mmspec.audio.published_folder import PublishedFolder
from mmspec.batching.request import PreparedBatch
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.files.checkpoint import describe
from mmspec.files.inputs import check_regular
from mmspec.heads.head import Head
from mmspec.hf.folder import read_json
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

MAX_FRAMES = 1501  # the original's two minutes, and the frame of the prompt
IDS = {"text_bos_id": 128000, "text_eos_id": 128001, "audio_eos_id": 8193, "empty_id": 0}


@dataclass(frozen=True)
class Options:
    """How songs are made.

    Attributes:
        tags: Genre, mood and instruments, separated by commas.
        frames: Frames of a song, at most; 12.5 per second.
        ahead: Frames in a window, see `mmspec.audio.depth.frame_windows.frames_ahead`.
    """

    tags: str = ""
    frames: int = MAX_FRAMES
    ahead: int = 0


class HeartMuLaAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of HeartMuLa, whose texts are lyrics.

    Lyrics are not split: a song is one piece. Guidance applies to the first code and to those along the depth.

    Args:
        codec: The codec of its codes.
        ids: The content of `gen_config.json`.
        options: How songs are made.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    guided = True
    voices: Sequence[str] = ()
    draws_voice = False

    def __init__(
        self, model: HeartMuLa, tokenizer: Tokenizer, codec: Codec, ids: Mapping[str, int], options: Options
    ) -> None:
        self.model, self.tokenizer, self.ids, self.options = model, tokenizer, ids, options
        self.codec = check_codec(codec, model.config.audio_num_codebooks, 1)
        self.ahead = options.ahead
        self.heads: dict[str, Head] = {}
        self.sampling = SamplingParams(1.0, 50, guidance_scale=1.5)

    def read(self, text: str, voice: str | None) -> PreparedText:
        tags = self.options.tags.lower()
        tags = tags if tags.startswith("<tag>") else f"<tag>{tags}"
        tags = tags if tags.endswith("</tag>") else f"{tags}</tag>"
        prompt, positions = SongPrompt(self._ids(tags), self._ids(text.lower())), self.model.config.backbone.positions
        if (length := len(prompt.tags) + 1 + len(prompt.lyrics)) + self.options.frames > positions:
            raise PromptError(
                f"text of {length} tokens with its tags is too long; of the model's {positions} positions, "
                f"{self.options.frames} are for the generated frames"
            )
        return PreparedText([prompt], texts=[text])

    def prepare_rows(
        self, parts: Sequence[SongPrompt], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        if recipe.needs_draft_model:
            raise ArgumentError(f"recipe {recipe.name!r} is not possible for HeartMuLa, which has no draft model")

        sampling, books = samplings[0], self.model.config.audio_num_codebooks

        def prompted(model: HeartMuLa, ahead: int) -> HeartMuLaFrames:
            return HeartMuLaFrames(model, parts, self.options.frames, ahead, sampling.guidance_scale != 1)

        spec = FrameSpec(self.options.frames, self.ended, self.ids["audio_eos_id"], sampling, sampling)
        return prepare_frame_rows(recipe, self.model, len(parts), prompted, spec, books, self.ahead, heads=self.heads)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = self.ended(tokens).nonzero()
        frames = tokens[: int(ends[0])] if len(ends) else tokens
        return frames.clamp(max=self.codec.codebook_size - 1).T

    def ended(self, frames: Tensor) -> Tensor:
        """Frames int64 [..., K] to bool [...]: True for frames that end their row, by any of their codes."""
        return (frames >= self.ids["audio_eos_id"]).any(-1)

    def _ids(self, text: str) -> Tensor:
        """The ids of a text between the marks that begin and end it."""
        ids = list(self.tokenizer.encode(text).ids)
        first, last = [self.ids["text_bos_id"]], [self.ids["text_eos_id"]]
        ids = ids if ids[:1] == first else first + ids
        return torch.tensor(ids if ids[-1:] == last else ids + last)


def beside(folder: Path, name: str) -> Path:
    """A file in a model's folder or in the one around it, where the original's download puts it.

    Raises:
        ModelError: If it is in neither.
    """
    for place in (folder / name, folder.resolve().parent / name):
        if place.is_file():
            return place
    raise ModelError(f"model {str(folder)!r} has no {name}, neither in the folder nor in the one around it")


def from_folder(source: PublishedFolder) -> HeartMuLaAdapter:
    """The adapter of a published folder; see `PublishedFolder`.

    The processor is a `tokenizers.Tokenizer`, or its file. `tokenizer.json` and `gen_config.json` are in the folder, or
    in the one around it.
    """
    options = options_of(Options, source.options, "HeartMuLa", ("codec",))
    check_integers(options, (("frames", 1, 2**20), ("ahead", 0, MAX_AHEAD)))
    if not isinstance(options.tags, str):
        raise ArgumentError(f"tags={options.tags!r} is not allowed; it must be a string")
    if source.draft is not None:
        raise ArgumentError("draft_model is not possible for HeartMuLa: no smaller model was published")
    if source.codec is None:
        raise ArgumentError(
            "HeartMuLa has no codec here; pass config={'codec': codec}, an object as in mmspec.audio.codec.Codec that "
            "decodes frames with HeartCodec"
        )
    ids = {**IDS, **read_json(beside(source.folder, "gen_config.json"))}
    for name in IDS:
        if isinstance(ids[name], bool) or not isinstance(ids[name], int) or ids[name] < 0:
            raise ModelError(f"gen_config.json has {name}={ids[name]!r}; it must be an integer, 0 or more")
    processor = tokenizer = source.processor
    if not isinstance(processor, (Tokenizer, str, Path, type(None))):
        raise ArgumentError(f"processor={shown(processor)} is not allowed; pass a tokenizers.Tokenizer, or its file")
    if not isinstance(processor, Tokenizer):
        file = beside(source.folder, "tokenizer.json") if processor is None else Path(processor)
        try:
            check_regular(file)
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises Exception itself
            raise ModelError(f"tokenizer {str(file)!r} cannot be read: {describe(error)}") from None
    model = source.model(read_model)
    check_ids(model, tokenizer, ids)
    return HeartMuLaAdapter(model, tokenizer, source.codec, ids, options)


def check_ids(model: HeartMuLa, tokenizer: Tokenizer, ids: Mapping[str, int]) -> None:
    """Checks that a model has the ids that it will read, and the one that ends a song.

    Raises:
        ModelError: If it lacks one.
    """
    texts, codes = model.config.text_vocab_size, model.config.audio_vocab_size
    if (count := tokenizer.get_vocab_size()) > texts:
        raise ModelError(f"the tokenizer has {count} ids, the model {texts}; they do not belong together")
    for name, size in (("text_bos_id", texts), ("text_eos_id", texts), ("audio_eos_id", codes)):
        if ids[name] >= size:
            raise ModelError(f"gen_config.json has {name}={ids[name]}; the model has ids below {size}")
