"""The speech adapter of CosyVoice and Chatterbox, up to their codes; the caller provides the codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mmspec.arguments.keywords import check_config
from mmspec.audio.adapter import PreparedText
from mmspec.audio.codec import Codec
from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.codebook import Codebook
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.processed_target import ProcessedTarget
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.files.checkpoint import listed, read_weights
from mmspec.heads.head import Head
from mmspec.heads.merged_vocabulary import MergedVocabulary
from mmspec.hf.folder import BUFFERS
from mmspec.recipes import Recipe
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.params import SamplingParams

MAX_LETTERS = 300  # of a part


@dataclass(frozen=True)
class TextPrompt:
    """The prompt of a piece of text, and bounds of its number of codes.

    Attributes:
        cond: Embeddings [T, D].
        uncond: Embeddings of the unconditional prompt, or None.
        min_codes: Codes before the stream may end.
        max_codes: Codes after which the stream ends.
    """

    cond: Tensor
    uncond: Tensor | None
    min_codes: int
    max_codes: int


class TextFrontend(Protocol):
    """A codec language model together with the code that makes its prompts from text.

    Attributes:
        codec_lm: The part that generates codes.
        codes: Number of codes; their ids begin at 0.
        ends: The ids that end a stream.
        start: An id that logits processors see before the first code, or None.
        sampling: Default sampling parameters of a call.
        guided: Whether the model supports guidance.
        takes_min_p: Whether `settings` passes min-p and typical-p on.
        options: The names of the model's own options of `config`.
    """

    options: tuple[str, ...]
    codec_lm: CodecLM
    codes: int
    ends: Sequence[int]
    start: int | None
    sampling: SamplingParams
    guided: bool
    takes_min_p: bool

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text, each of which is decoded separately."""
        ...

    def prompt(self, text: str) -> TextPrompt:
        """The prompt of a piece of text.

        Raises:
            PromptError: For a piece that is too long.
        """
        ...

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        """How codes are sampled, from the sampling parameters of a call."""
        ...

    def merged_vocabulary(self) -> MergedVocabulary | None:
        """How published draft heads number the codes, if their vocabulary has texts too; else None."""
        ...


@runtime_checkable
class ContinuesTexts(TextFrontend, Protocol):
    """A text frontend of a model that continues codes and their text."""

    def prompt_after(self, text: str, context: Sequence[ReferenceCodes]) -> TextPrompt:
        """The prompt of a piece of text after its voice and other pieces that were decoded.

        Raises:
            PromptError: If that is too long.
        """
        ...


@dataclass(frozen=True)
class ContinuedText:
    """A piece of text, and the pieces that it continues."""

    text: str
    context: tuple[ReferenceCodes, ...]


class CodecLMAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of codec language models.

    Args:
        frontend: The model and its text frontend.
        codec: The codec of its codes, with one codebook.
        draft: A smaller model of the same codes, with its own text frontend, or None.

    Raises:
        ModelError: If the codec or the draft model has other codes.
    """

    recipe = "recycle:window=4"
    voices: Sequence[str] = ()
    draws_voice = False

    def __init__(self, frontend: TextFrontend, codec: Codec, draft: TextFrontend | None = None) -> None:
        if codec.codebooks != 1 or codec.codebook_size < frontend.codes:
            raise ModelError(
                f"the codec has {codec.codebooks} codebooks of {codec.codebook_size}, the model one of {frontend.codes}"
            )
        ids = frontend.codec_lm.head.out_features
        if draft is not None and (draft.codec_lm.head.out_features, draft.codes) != (ids, frontend.codes):
            raise ModelError(
                f"draft_model makes {draft.codes} codes, the model {frontend.codes}; they belong to different families"
            )
        self.frontend, self.codec, self.draft = frontend, codec, draft
        self.heads: dict[str, Head] = {}
        self.sampling, self.guided = frontend.sampling, frontend.guided
        self.takes_min_p = frontend.takes_min_p

    def read(self, text: str, voice: str | None) -> PreparedText:
        pieces = self.frontend.pieces(text)
        with torch.inference_mode():
            for piece in pieces:
                self.frontend.prompt(piece)  # refuses what does not fit, before anything is decoded
        return PreparedText(pieces, texts=pieces)

    @property
    def continues_parts(self) -> bool:
        return isinstance(self.frontend, ContinuesTexts)

    def continue_from(self, part: str, context: Sequence[ReferenceCodes]) -> ContinuedText | None:
        after = ContinuedText(part, tuple(context))
        try:
            with torch.inference_mode():
                _prompt_of(self.frontend, after)
        except PromptError:
            return None
        return after

    def prepare_rows(
        self, parts: Sequence[str | ContinuedText], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedRows:
        frontend, draft = self.frontend, self.draft
        settings, prompts = frontend.settings(samplings[0]), [_prompt_of(frontend, part) for part in parts]
        layout = layout_of(prompts, frontend.ends, frontend.codec_lm.head.out_features)
        row_sampling = [settings.sampling] * len(prompts)

        def target(frontend: TextFrontend, prompts: Sequence[TextPrompt], guided: bool) -> ProcessedTarget:
            conds = [prompt.cond for prompt in prompts]
            unconds = [prompt.uncond for prompt in prompts if prompt.uncond is not None] if guided else None
            before = None if frontend.start is None else torch.full((len(prompts), 1), frontend.start)
            return frontend.codec_lm.target(conds, unconds, layout.length, recipe.window, settings, before)

        def draft_target() -> ProcessedTarget:
            assert draft is not None
            return target(draft, [_prompt_of(draft, part) for part in parts], False)

        resources = DraftResources(
            draft_model=None if draft is None else draft_target,
            draft_sampling=row_sampling,
            codebook=self.codebook,
            heads=self.heads,
            adaptive_windows=adaptive_windows_of(frontend.codec_lm.decoder),
        )
        return PreparedRows(target(frontend, prompts, settings.guidance != 1), layout, row_sampling, resources)

    def codes(self, tokens: Tensor) -> Tensor:
        ends = torch.isin(tokens, torch.tensor(self.frontend.ends, device=tokens.device)).nonzero()
        tokens = tokens[: int(ends[0])] if len(ends) else tokens
        return tokens[tokens < self.frontend.codes][None]  # special tokens have no audio

    def embedding(self) -> Tensor:
        """The embedding [V, D] of the codes and special tokens that the model generates."""
        return self.frontend.codec_lm.embed.weight.detach()[: self.frontend.codec_lm.head.out_features]

    def merged_vocabulary(self) -> MergedVocabulary | None:
        return self.frontend.merged_vocabulary()

    def codebook(self) -> Codebook:
        """The vectors that tokens stand for."""
        count = self.frontend.codes
        return Codebook(self.codec.tables()[0][:count], torch.arange(count), self.frontend.codec_lm.head.out_features)


def _prompt_of(frontend: TextFrontend, part: str | ContinuedText) -> TextPrompt:
    if isinstance(part, str):
        return frontend.prompt(part)
    assert isinstance(frontend, ContinuesTexts)
    return frontend.prompt_after(part.text, part.context)


def layout_of(prompts: Sequence[TextPrompt], ends: Sequence[int], vocab_size: int) -> Layout:
    """Streams that any of `ends` may end after a prompt's `min_codes`, and does end after its `max_codes`."""
    allowed = torch.ones(3, vocab_size, dtype=torch.bool)
    allowed[0, list(ends)] = False
    allowed[2] = ~allowed[0]
    position = torch.arange(max(prompt.max_codes for prompt in prompts))
    kinds = [(position >= prompt.min_codes).long() + (position >= prompt.max_codes) for prompt in prompts]
    device = prompts[0].cond.device
    constraint = Constraint(torch.stack(kinds).to(device), allowed.to(device))

    def was_cut(row: int, codes: Tensor) -> bool:
        """Whether a row has no end before its limit; one after it the model has not chosen."""
        return not set(codes[: prompts[row].max_codes].tolist()) & set(ends)

    return Layout(len(position), constraint=constraint, eos=frozenset(ends), pad=ends[0], cut=was_cut)


def make(
    frontend: TextFrontend, codec: Codec | None, draft: TextFrontend | None, options: dict[str, Any]
) -> CodecLMAdapter:
    """The `CodecLMAdapter` of a loaded model; see `mmspec.audio.load.from_codec_lm_folder`.

    Raises:
        ArgumentError: For unknown options, and if there is no codec.
    """
    check_config(options, "this model", ("codec", "draft_model", "voice", *frontend.options))
    if codec is None:
        raise ArgumentError(
            "this model generates codes, and the codec that decodes them belongs to another library; pass one as "
            "config={'codec': ...} (mmspec.audio.codec.Codec)"
        )
    return CodecLMAdapter(frontend, codec, draft)


def read_state(file: Path) -> dict[str, Any]:
    """The state dict in a published file.

    Raises:
        ModelError: If it cannot be read.
    """
    state = read_weights(file, "model")
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ModelError(f"model '{file}' contains a {type(state).__name__} instead of a state dict")
    return state


def fill(file: Path, module: nn.Module, state: dict[str, Any], prefix: str) -> Any:
    """The module, frozen, with the tensors of a state dict whose names begin with `prefix`.

    Args:
        file: Where the state comes from, for errors.
        state: The state dict.
        prefix: Removed from the names.

    Raises:
        ModelError: For missing and unknown tensors, and tensors of another shape.
    """
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    missing = [prefix + name for name in module.state_dict() if name not in own]
    if missing:
        raise ModelError(f"model '{file}' is incomplete; {listed({'missing': missing})}")
    if unknown := [prefix + name for name in own if name not in module.state_dict() and not BUFFERS.search(name)]:
        raise ModelError(f"model '{file}' has tensors that do not fit; {listed({'unknown': unknown})}")
    if wrong := [prefix + name for name in module.state_dict() if not isinstance(own[name], Tensor)]:
        raise ModelError(f"model '{file}' has values that are no tensors; {listed({'wrong': wrong})}")
    try:
        module.load_state_dict({name: own[name] for name in module.state_dict()})
    except RuntimeError as error:
        raise ModelError(f"model '{file}' does not fit: {' '.join(str(error).split())}") from None
    return module.requires_grad_(False)
