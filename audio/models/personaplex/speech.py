"""The speech adapter of PersonaPlex: a role in text, a voice, and a recording that it answers while it hears it."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.adapter import PreparedText
from mmspec.audio.checkpoint_sampling import stage_sampling
from mmspec.audio.codec import Codec, check_codec
from mmspec.audio.codecs.mimi import Mimi
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_batch import PreparedFrames
from mmspec.audio.family_options import options_of
from mmspec.audio.models.kyutai_tts.model import KyutaiTTS, read_model
from mmspec.audio.models.personaplex.decoding import DuplexFrames
from mmspec.audio.models.personaplex.prompt import SILENCE, Conversation, SavedVoice, conversation, read_voice
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.audio.published_folder import PublishedFolder
from mmspec.audio.reference_audio import ReferenceAudio, ReferenceCodes, refuse_unread
from mmspec.audio.sentencepiece_file import read_sentencepiece
from mmspec.batching.request import PreparedBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError, ModelError
from mmspec.media.audio import read_audio
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams

FAMILY = "PersonaPlex"
BOOKS = 8
# The published `config.json` has no sizes; these are those of the original's code, whose KV cache of 3000 slots hides
# one of them.
SIZES: dict[str, Any] = {
    "dim": 4096, "text_card": 32000, "existing_text_padding_id": 3, "n_q": 2 * BOOKS, "dep_q": BOOKS, "card": 2048,
    "num_heads": 32, "num_layers": 32, "hidden_scale": 4.125, "causal": True, "layer_scale": None, "context": 2999,
    "max_period": 10000, "gating": "silu", "norm": "rms_norm_f32", "positional_embedding": "rope",
    "depformer_dim": 1024, "depformer_dim_feedforward": 4224, "depformer_num_heads": 16, "depformer_num_layers": 6,
    "depformer_multi_linear": True, "depformer_pos_emb": "none", "depformer_weights_per_step": True,
    "delays": [0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1], "conditioners": {}, "tts_config": {},
}  # fmt: skip
TEXT = SamplingParams(0.7, 25)
WORDLESS = (0, 3)  # text ids of frames that end a word, or have none


@dataclass(frozen=True)
class Options:
    """The options of a pipeline.

    Attributes:
        voice: The voice of calls that name none: a published file, a recording, or its codes [F, 8]. The original
            brings recordings to -24 LUFS before.
    """

    voice: str | Path | ReferenceCodes | None = None


class PersonaPlexAdapter:
    """The `mmspec.audio.adapter.SpeechAdapter` of PersonaPlex.

    A text is the role. Reference audio is what the user says; the output is as long, and begins a frame later.

    Args:
        tokenizer: Its `encode` makes ids of a text, its `decode` a text of ids.
        codec: The codec of its codes.
        voices: The published voices.

    Attributes:
        user: int64 [frames, 8], the codes of what the user says; None before `with_reference_audio`.
        voice: The voice of calls that name none; None for the first of the published ones.

    Raises:
        ArgumentError: For a voice that cannot be read.
        ModelError: For a codec or a voice that does not fit.
    """

    recipe = "scd:window=8"
    takes_min_p = True
    guided = False
    sampling = SamplingParams(0.8, 250)

    def __init__(self, model: KyutaiTTS, tokenizer: Any, codec: Codec, options: Options, voices: VoiceFiles) -> None:
        self.model, self.voices = model, voices.names
        self.codec = check_codec(codec, BOOKS, model.config.card)
        self._tokenizer, self._files = tokenizer, voices
        self.user: Tensor | None = None
        self.voice = None if options.voice is None else self._own_voice(options.voice)

    def with_reference_audio(self, reference: ReferenceAudio) -> PersonaPlexAdapter:
        refuse_unread(reference, FAMILY)
        other = copy(self)
        other.user = self._encode(reference)
        return other

    def read(self, text: str, voice: str | None) -> PreparedText:
        if self.user is None:
            raise ArgumentError(
                f"reference audio is missing; {FAMILY} answers a recording: call pipe.with_reference_audio, or pass "
                "--voice-file on the command line"
            )
        config, chosen = self.model.config, self.voice
        if voice is not None or chosen is None:
            if not self.voices:
                raise ArgumentError(
                    f"this {FAMILY} has no voices; pass config={{'voice': FILE}}, a .pt file or a recording"
                )
            chosen = self._files.read(voice or self.voices[0], config)
        role = text.strip()
        marked = role.startswith("<system>") and role.endswith("<system>")
        ids = self._tokenizer.encode(role if marked else f"<system> {role} <system>")
        return PreparedText([conversation(chosen, ids, self.user, config)])

    def prepare_rows(
        self, parts: Sequence[Conversation], recipe: Recipe, samplings: Sequence[SamplingParams]
    ) -> PreparedBatch:
        if recipe.needs_draft_model or recipe.drafts_frames:
            raise ArgumentError(f"recipe {recipe.name!r} is not possible for {FAMILY}, which drafts along the depth")
        called = samplings[0]
        length = len(parts[0].given)
        spec = FrameSpec(length, None, 0, stage_sampling(TEXT, self.sampling, called), called)
        resources = DraftResources(adaptive_windows=adaptive_windows_of(self.model))
        return PreparedFrames(DuplexFrames(self.model, parts), spec, resources)

    def codes(self, tokens: Tensor) -> Tensor:
        made = undelay(tokens[None, :, 1:], self.model.config.delays[:BOOKS])[0]
        # The last frame of the prompt is played before the first one that is made, as in the original.
        return torch.cat([made.new_tensor([SILENCE] * min(len(tokens), 1)).view(-1, BOOKS), made]).T

    def answer(self, tokens: Tensor) -> str:
        """The words of a row."""
        text: str = self._tokenizer.decode([number for number in tokens[:, 0].tolist() if number not in WORDLESS])
        return text

    def _encode(self, reference: ReferenceAudio) -> Tensor:
        """Codes int64 [F, 8] of a recording, whose last frame is filled up with silence."""
        if not isinstance(self.codec, Mimi):
            raise ArgumentError(
                f"this codec cannot encode recordings; {FAMILY} needs Mimi: pass tokenizer='kyutai/mimi'"
            )
        audio = reference.mono(self.codec.sampling_rate)
        return self.codec.encode(F.pad(audio, (0, -len(audio) % self.codec.hop)))[:, :BOOKS]

    def _own_voice(self, voice: str | Path | ReferenceCodes) -> Tensor | SavedVoice:
        if isinstance(voice, ReferenceCodes):
            return voice.checked(BOOKS, self.model.config.card, FAMILY).codes
        if voice in self.voices:
            return self._files.read(str(voice), self.model.config)
        if not Path(voice).is_file():
            known = f", or one of {', '.join(self.voices)}" if self.voices else ""
            raise ArgumentError(f"voice={shown(str(voice))} is not allowed; it must be a file{known}")
        if Path(voice).suffix == ".pt":
            return read_voice(Path(voice), self.model.config)
        return self._encode(ReferenceAudio(*read_audio(Path(voice))))


class VoiceFiles:
    """The voices of a published folder: in the folder `voices`, or in `voices.tgz`.

    Attributes:
        names: Their names.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {file.stem: file for file in sorted((folder / "voices").glob("*.pt"))}
        self._archive = folder / "voices.tgz"
        self._members = dict[str, str]()
        if not self._files and self._archive.is_file():
            try:
                with tarfile.open(self._archive) as archive:
                    names = sorted(member.name for member in archive if member.isfile())
            except (tarfile.TarError, OSError, EOFError) as error:
                raise ModelError(f"voices {str(self._archive)!r} cannot be read: {error}") from None
            self._members = {Path(name).stem: name for name in names if name.endswith(".pt")}
        self.names = tuple(self._files or self._members)

    def read(self, name: str, config: Any) -> SavedVoice:
        """The voice of a name."""
        if name in self._files:
            return read_voice(self._files[name], config)
        with tarfile.open(self._archive) as archive, tempfile.TemporaryDirectory() as folder:
            content = archive.extractfile(self._members[name])
            assert content is not None
            file = Path(folder) / f"{name}.pt"
            file.write_bytes(content.read())
            return read_voice(file, config)


def from_folder(source: PublishedFolder) -> PersonaPlexAdapter:
    """The adapter of a published folder; see `PublishedFolder`.

    The processor is an object with the methods `encode` and `decode`, or the file of a sentencepiece model.
    """
    options = options_of(Options, source.options, FAMILY, ("codec",))
    if not isinstance(options.voice, (str, Path, ReferenceCodes, type(None))):
        raise ArgumentError(f"voice={shown(options.voice)} is not allowed; it must be a file, ReferenceCodes, or None")
    if source.draft is not None:
        raise ArgumentError(f"draft_model is not possible for {FAMILY}: no smaller model was published")
    if source.codec is None:
        raise ArgumentError(f"{FAMILY} needs Mimi in the layout of transformers; pass tokenizer='kyutai/mimi'")
    tokenizer = source.processor
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = read_sentencepiece(tokenizer or source.folder / "tokenizer_spm_32k_3.model", FAMILY)
    elif not all(hasattr(tokenizer, name) for name in ("encode", "decode")):
        raise ArgumentError(f"processor={shown(tokenizer)} is not allowed; it needs encode and decode, or is a file")
    model = source.model(partial(read_model, defaults=SIZES, user_books=BOOKS))
    return PersonaPlexAdapter(model, tokenizer, source.codec, options, VoiceFiles(source.folder))
