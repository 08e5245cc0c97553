"""The classes of the package `qwen-tts` under their names, decoded by mmspec.

The package needs transformers 4.57.3, beside which mmspec does not run. A script changes one import:
`from mmspec.compat.qwen_tts import Qwen3TTSModel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.arguments import shown
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import prepare_frame_rows
from mmspec.audio.models.qwen3_tts.decoding import Qwen3TTSFrames, frame_ends
from mmspec.audio.models.qwen3_tts.prompt import (
    Continuation,
    Qwen3TTSPrompt,
    embed_prompt,
    instruction_text,
    reference_text,
    spoken_text,
)
from mmspec.audio.models.qwen3_tts.speaker import embed_voice
from mmspec.audio.models.qwen3_tts.speech import Qwen3TTSAdapter
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.batching.call import decode_rows
from mmspec.compat.recordings import read_recording
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError, ModelError
from mmspec.loading import load
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds

# Of the original, for settings that neither a call nor generation_config.json has.
DEFAULTS: Mapping[str, Any] = {
    "do_sample": True, "top_k": 50, "top_p": 1.0, "temperature": 0.9, "repetition_penalty": 1.05,
    "subtalker_dosample": True, "subtalker_top_k": 50, "subtalker_top_p": 1.0, "subtalker_temperature": 0.9,
    "max_new_tokens": 2048,
}  # fmt: skip

# Of a voice_clone_prompt that is a mapping.
FIELDS = ("ref_code", "ref_spk_embedding", "x_vector_only_mode", "icl_mode")

Waves = tuple[list[NDArray[np.float32]], int]


@dataclass
class VoiceClonePromptItem:
    """A voice to clone.

    Attributes:
        ref_code: The codes of the recording, int64 [F, K]; None if only the speaker is used.
        ref_spk_embedding: The vector of the speaker, [D].
        x_vector_only_mode: Whether only the speaker is used.
        icl_mode: Whether the text continues the recording.
        ref_text: The words spoken in the recording.
    """

    ref_code: Tensor | None
    ref_spk_embedding: Tensor
    x_vector_only_mode: bool
    icl_mode: bool
    ref_text: str | None = None


@dataclass(frozen=True)
class _Row:
    """A text to speak, with the vector of its speaker and the codes that it continues."""

    prompt: Qwen3TTSPrompt
    voice: Tensor | None = None

    @property
    def before(self) -> Tensor | None:
        return None if self.prompt.continuation is None else self.prompt.continuation.codes.T


class Qwen3TTSModel:
    """A Qwen3-TTS; see `from_pretrained`.

    Args:
        model: A model that mmspec has loaded.
        recipe: How its frames are decoded.

    Attributes:
        stats: Statistics of the last call; None before the first one.
    """

    def __init__(self, model: Qwen3TTSAdapter, recipe: str | Recipe) -> None:
        self.model, self._recipe = model, parse(recipe)
        self.stats: Stats | None = None

    @property
    def recipe(self) -> Recipe:
        """How frames are decoded; it may be set, also by name."""
        return self._recipe

    @recipe.setter
    def recipe(self, recipe: str | Recipe) -> None:
        self._recipe = parse(recipe)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str,
        *,
        device_map: Any = None,
        dtype: Any = None,
        torch_dtype: Any = None,
        attn_implementation: str | None = None,
        revision: str | None = None,
        cache_dir: str | None = None,
        token: str | bool | None = None,
        recipe: str | Recipe | None = None,
    ) -> Qwen3TTSModel:
        """Loads a model of the Hub or a folder, with other arguments of `mmspec.load`.

        Args:
            pretrained_model_name_or_path: A Hub id, or a folder.
            device_map: A device, such as "cuda:0"; "auto" is the GPU if there is one; None is the CPU.
            torch_dtype: Another name of `dtype`.
            attn_implementation: Has no effect: attention is that of mmspec.
            recipe: How to decode, e.g. "scd:window=8"; None is the default of Qwen3-TTS.

        Raises:
            ArgumentError: For a `device_map` of several devices, and as `mmspec.load`.
            ModelError: If it is another model, and as `mmspec.load`.
        """
        if device_map == "auto":
            device_map = "cuda" if torch.cuda.is_available() else "cpu"
        one = device_map is None or isinstance(device_map, str | int | torch.device)
        if not one or isinstance(device_map, bool) or (isinstance(device_map, int) and device_map < 0):
            raise ArgumentError(f"device_map={shown(device_map)} is not allowed; it must be one device, or 'auto'")
        device = f"cuda:{device_map}" if isinstance(device_map, int) else device_map
        pipe = load(
            pretrained_model_name_or_path,
            device=None if device is None else str(device),
            dtype=torch_dtype if dtype is None else dtype,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
        )
        adapter = getattr(pipe, "adapter", None)
        if not isinstance(adapter, Qwen3TTSAdapter):
            raise ModelError(f"model '{pretrained_model_name_or_path}' is not a Qwen3-TTS")
        return cls(adapter, adapter.recipe if recipe is None else recipe)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.model.device

    def get_supported_speakers(self) -> list[str]:
        """The names of speakers, sorted."""
        return sorted(name.lower() for name in self.model.model.config.speakers)

    def get_supported_languages(self) -> list[str]:
        """The names of languages, sorted."""
        return sorted(["auto", *(name for name in self.model.model.config.languages if "dialect" not in name)])

    @torch.inference_mode()
    def create_voice_clone_prompt(
        self,
        ref_audio: Any,
        ref_text: str | Sequence[str | None] | None = None,
        x_vector_only_mode: bool | Sequence[bool] = False,
    ) -> list[VoiceClonePromptItem]:
        """Voices of recordings, for `generate_voice_clone`.

        Args:
            ref_audio: A recording, or a list; see `mmspec.compat.recordings.read_recording`.
            ref_text: The words spoken in it.
            x_vector_only_mode: Whether to use the speaker alone.

        Raises:
            ArgumentError: For a recording that cannot be read, a missing transcript, and lists of unequal lengths.
        """
        self._check("base", "create_voice_clone_prompt")
        recordings = [read_recording(each) for each in _listed(ref_audio)]
        texts = _words("ref_text", ref_text, len(recordings))
        alone = _repeated("x_vector_only_mode", x_vector_only_mode, len(recordings))
        codec: Any = self.model.codec
        items = []
        for recording, text, only in zip(recordings, texts, alone, strict=True):
            if not only and not text:
                raise ArgumentError("ref_text is missing; it is the words of ref_audio (or set x_vector_only_mode)")
            codes = None
            if not only:
                codes = codec.encode(recording.mono(codec.sampling_rate))[:, : self.model.model.config.codebooks]
            items.append(
                VoiceClonePromptItem(codes, embed_voice(self.model.model, recording), bool(only), not only, text)
            )
        return items

    def generate_voice_clone(
        self,
        text: str | Sequence[str],
        language: str | Sequence[str] | None = None,
        ref_audio: Any = None,
        ref_text: str | Sequence[str | None] | None = None,
        x_vector_only_mode: bool | Sequence[bool] = False,
        voice_clone_prompt: Sequence[VoiceClonePromptItem] | Mapping[str, Sequence[Any]] | None = None,
        non_streaming_mode: bool = False,
        **settings: Any,
    ) -> Waves:
        """Speaks texts with the voice of a recording.

        Args:
            text: A text, or a list.
            language: Names of languages; None is "auto".
            voice_clone_prompt: What `create_voice_clone_prompt` returned, in place of the three before.
            non_streaming_mode: Whether a prompt has all of its text, instead of one token per frame.
            **settings: Those of `DEFAULTS`.

        Returns:
            The audio of each text, float32 [samples], and the sampling rate.

        Raises:
            ArgumentError: For a model of another kind, and for arguments that are not allowed.
        """
        self._check("base", "generate_voice_clone")
        if voice_clone_prompt is None and ref_audio is None:
            raise ArgumentError("ref_audio is missing; give a recording, or voice_clone_prompt")
        texts = _texts(text)
        names = _words("language", language, len(texts))
        if voice_clone_prompt is None:
            items = self.create_voice_clone_prompt(ref_audio, ref_text, x_vector_only_mode)
        else:
            items = [self._checked(item) for item in _items(voice_clone_prompt)]
        rows = []
        for spoken, name, item in zip(texts, names, _repeated("voice_clone_prompt", items, len(texts)), strict=True):
            continuation = None
            if item.icl_mode:
                assert item.ref_text is not None and item.ref_code is not None
                continuation = Continuation(self._ids(reference_text(item.ref_text)), item.ref_code)
            prompt = self._prompt(spoken, name, non_streaming_mode, continuation=continuation)
            rows.append(_Row(prompt, item.ref_spk_embedding))
        return self._speak(rows, settings)

    def generate_voice_design(
        self,
        text: str | Sequence[str],
        instruct: str | Sequence[str],
        language: str | Sequence[str] | None = None,
        non_streaming_mode: bool = True,
        **settings: Any,
    ) -> Waves:
        """Speaks texts with voices that are described.

        Args:
            instruct: The description of each voice; "" is none.

        Returns:
            As `generate_voice_clone`.

        Raises:
            ArgumentError: As `generate_voice_clone`.
        """
        self._check("voice_design", "generate_voice_design")
        return self._speak(self._named(text, None, language, instruct, non_streaming_mode), settings)

    def generate_custom_voice(
        self,
        text: str | Sequence[str],
        speaker: str | Sequence[str],
        language: str | Sequence[str] | None = None,
        instruct: str | Sequence[str] | None = None,
        non_streaming_mode: bool = True,
        **settings: Any,
    ) -> Waves:
        """Speaks texts with voices of the model.

        Args:
            speaker: The name of each voice.
            instruct: How to speak; a model of 0.6B drops it.

        Returns:
            As `generate_voice_clone`.

        Raises:
            ArgumentError: As `generate_voice_clone`, and for an unknown speaker.
        """
        self._check("custom_voice", "generate_custom_voice")
        if not self.model.model.config.instructs:
            instruct = None
        return self._speak(self._named(text, speaker, language, instruct, non_streaming_mode), settings)

    def _checked(self, item: VoiceClonePromptItem) -> VoiceClonePromptItem:
        """A voice that fits the model.

        Raises:
            ArgumentError: If its vector or its codes have another shape, or it has no text to continue.
        """
        config, vector = self.model.model.config, item.ref_spk_embedding
        width = int(config.talker.hidden_size)
        if not isinstance(vector, Tensor) or not vector.is_floating_point() or list(vector.shape) != [width]:
            found = f"of shape {list(vector.shape)} and type {vector.dtype}" if isinstance(vector, Tensor) else vector
            raise ArgumentError(f"voice_clone_prompt has a ref_spk_embedding {found}; it must be floats [{width}]")
        if not item.icl_mode:
            return item
        if not item.ref_text or item.ref_code is None:
            raise ArgumentError("voice_clone_prompt has no ref_text or no ref_code, which icl_mode needs")
        codes = ReferenceCodes(item.ref_text, item.ref_code)
        try:
            return replace(
                item, ref_code=codes.checked(config.codebooks, config.codes, "Qwen3-TTS", "transcript").codes
            )
        except ArgumentError as error:
            raise ArgumentError(f"voice_clone_prompt: {error}") from None

    def _check(self, kind: str, method: str) -> None:
        """Refuses a model of another kind than a method needs."""
        if (own := self.model.model.config.kind) != kind:
            raise ArgumentError(f"{method} is not possible: this is a {own} model; it needs one of kind {kind}")

    def _named(self, text: Any, speaker: Any, language: Any, instruct: Any, whole: bool) -> list[_Row]:
        texts = _texts(text)
        columns = (
            _words(name, value, len(texts))
            for name, value in (("language", language), ("speaker", speaker), ("instruct", instruct))
        )
        rows = zip(texts, *columns, strict=True)
        return [_Row(self._prompt(spoken, name, whole, *more)) for spoken, name, *more in rows]

    def _prompt(
        self,
        text: str,
        language: str | None,
        whole: bool,
        speaker: str | None = None,
        instruct: str | None = None,
        continuation: Continuation | None = None,
    ) -> Qwen3TTSPrompt:
        config, name = self.model.model.config, (speaker or "").lower() or None
        if name is not None and name not in config.speakers:
            known = ", ".join(self.get_supported_speakers())
            raise ArgumentError(f"speaker={shown(speaker)} is not allowed; it is one of {known}")
        return Qwen3TTSPrompt(
            ids=self._ids(spoken_text(text)),
            instruction=self._ids(instruction_text(instruct)) if instruct else None,
            language=config.language("auto" if language is None else language, name),
            speaker=None if name is None else config.speakers[name],
            continuation=continuation,
            whole_text=whole,
        )

    def _ids(self, text: str) -> Tensor:
        return torch.tensor(self.model.tokenizer(text)["input_ids"], dtype=torch.int64)

    @torch.inference_mode()
    def _speak(self, rows: Sequence[_Row], settings: Mapping[str, Any]) -> Waves:
        """Decodes rows as one batch; seeds come from torch's global generator."""
        adapter, model = self.model, self.model.model
        if unknown := sorted(set(settings) - set(DEFAULTS)):
            raise ArgumentError(f"{unknown[0]} is not an argument that has a meaning here; use {', '.join(DEFAULTS)}")
        given = {name: value for name, value in settings.items() if value is not None}
        chosen = {**DEFAULTS, **{name: adapter.generation[name] for name in DEFAULTS if name in adapter.generation}}
        chosen |= given
        for name in ("max_new_tokens", "repetition_penalty"):
            value = chosen[name]
            if isinstance(value, bool) or not isinstance(value, Real) or value != value:  # NaN
                raise ArgumentError(f"{name}={shown(chosen[name])} is not allowed; it must be a number")
        # The original's last token begins a frame that is not completed. Its limit may be any number, and the model
        # has so many positions.
        frames = int(max(min(chosen["max_new_tokens"], model.config.talker.max_position_embeddings), 0)) - 1
        if frames < 1:
            raise ArgumentError(f"max_new_tokens={chosen['max_new_tokens']} is not allowed; it must be 2 or more")

        def prompted(target: Any, ahead: int) -> Qwen3TTSFrames:
            prompts = [embed_prompt(target, row.prompt, row.voice) for row in rows]
            return Qwen3TTSFrames(target, prompts, frames, ahead, float(chosen["repetition_penalty"]))

        first, rest = (_sampling(chosen, *names) for names in (("", "do_sample"), ("subtalker_", "subtalker_dosample")))
        spec = FrameSpec(frames, frame_ends(model), model.config.codes, first, rest)
        prepared = prepare_frame_rows(
            self.recipe, model, len(rows), prompted, spec, model.config.codebooks, heads=adapter.heads
        )
        found, self.stats = decode_rows(prepared, self.recipe, row_seeds(None, len(rows)))
        codes = [adapter.codes(each) for each in found]
        waves = [self._wave(each, row.before) for each, row in zip(codes, rows, strict=True)]
        return waves, adapter.codec.sampling_rate

    def _wave(self, codes: Tensor, before: Tensor | None) -> NDArray[np.float32]:
        """The audio of codes [K, F], without that of the codes before them."""
        codec, dropped = self.model.codec, 0
        if before is not None:
            codes, dropped = torch.cat([before.to(codes.device), codes], 1), before.shape[1] * codec.hop
        if not codes.shape[1]:
            return np.zeros(0, np.float32)
        wave: NDArray[np.float32] = codec.decode(codes[None].to(self.device))[0, 0, dropped:].float().cpu().numpy()
        return wave


def _sampling(chosen: Mapping[str, Any], stage: str, switch: str) -> SamplingParams:
    """The sampling parameters of a stage, the talker "" or "subtalker_"; `switch` turns sampling on."""
    if not chosen[switch]:
        return SamplingParams(0.0)
    try:
        return SamplingParams(*(chosen[stage + name] for name in ("temperature", "top_k", "top_p")))
    except ArgumentError as error:  # which begins with the name
        raise ArgumentError(f"{stage}{error}") from None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(text: Any) -> list[str]:
    """The texts to speak."""
    texts = list(text) if isinstance(text, list | tuple) else [text]
    if not texts or not all(isinstance(each, str) for each in texts):
        raise ArgumentError(f"text={shown(text)} is not allowed; it must be a text, or a list of at least one")
    return texts


def _words(name: str, value: Any, count: int) -> list[str | None]:
    """A text or None for each text to speak, repeated as by `_repeated`."""
    values = _repeated(name, list(value) if isinstance(value, tuple) else value, count)
    for each in values:
        if not isinstance(each, str | None):
            raise ArgumentError(f"{name}={shown(each)} is not allowed; it must be a text, or None")
    return values


def _items(given: Any) -> list[VoiceClonePromptItem]:
    """The voices of a `voice_clone_prompt`, or of the mapping of its fields."""
    if isinstance(given, Mapping):
        try:
            columns = [list(given[field]) for field in FIELDS]
            return [VoiceClonePromptItem(*values) for values in zip(*columns, strict=True)]
        except (KeyError, TypeError, ValueError):
            raise ArgumentError(f"voice_clone_prompt must have lists of one length: {', '.join(FIELDS)}") from None
    items = list(given) if isinstance(given, list | tuple) else [given]
    if not all(isinstance(item, VoiceClonePromptItem) for item in items):
        raise ArgumentError("voice_clone_prompt must be what create_voice_clone_prompt returns, or a mapping of fields")
    return items


def _repeated(name: str, value: Any, count: int) -> list[Any]:
    """A value for each text: a list of as many, or one for all."""
    values = _listed(value)
    if len(values) not in (1, count):
        raise ArgumentError(f"{name} has {len(values)} items; it must have 1, or {count} as there are texts")
    return values * count if len(values) != count else values
