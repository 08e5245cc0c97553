"""The configuration of a published Qwen3-TTS checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from transformers import Qwen3Config

from mmspec.errors import ArgumentError, did_you_mean
from mmspec.files.checkpoint import sizes_of

SPECIAL = 1024  # the last ids of the talker's vocabulary are no codes
# What the class of the original fills in for a speaker encoder.
SPEAKER_ENCODER = {
    "mel_dim": 128, "enc_dim": 1024, "enc_channels": [512, 512, 512, 512, 1536], "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1], "enc_attention_channels": 128, "enc_res2net_scale": 8, "enc_se_channels": 128,
    "sample_rate": 24000,
}  # fmt: skip
_DECODER = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias",
)  # fmt: skip


@dataclass(frozen=True)
class Qwen3TTSConfig:
    """What `config.json` says.

    Attributes:
        kind: "base", which clones voices, "custom_voice", which has speakers by name, or "voice_design", whose voices
            are described.
        instructs: Whether the model follows instructions.
        talker: Sizes of the talker.
        predictor: Sizes of the code predictor.
        codebooks: K, codes of a frame.
        text_vocab_size: Ids of text.
        text_width: Width of their embeddings.
        text_bos: The text id that begins a text.
        text_eos: The text id that ends one.
        text_pad: The text id of frames without text.
        bos: The talker's id before the first frame.
        eos: The talker's id that ends a row.
        pad: The talker's id of text without a frame.
        think: The talker's ids that announce a language, before and after it: think, think_bos, think_eos.
        no_think: The talker's id in place of `think` if the language is not given.
        languages: The talker's id of each language and dialect.
        speakers: The talker's id of each speaker.
        dialects: The dialect of each speaker, or False.
        speaker_encoder: Sizes of the speaker encoder.
    """

    kind: str
    instructs: bool
    talker: Any
    predictor: Any
    codebooks: int
    text_vocab_size: int
    text_width: int
    text_bos: int
    text_eos: int
    text_pad: int
    bos: int
    eos: int
    pad: int
    think: tuple[int, int, int]
    no_think: int
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, Any]
    speaker_encoder: Any

    @property
    def codes(self) -> int:
        """The ids of the talker's vocabulary that are codes, 0 to `codes` - 1."""
        return int(self.talker.vocab_size) - SPECIAL

    def language(self, name: str, speaker: str | None) -> int | None:
        """The talker's id of a language, by name; of "auto" None, and of a speaker of a dialect the dialect.

        Raises:
            ArgumentError: If the model does not have the language.
        """
        known = [each for each in self.languages if "dialect" not in each]
        if name.lower() != "auto" and name.lower() not in known:
            listed = ", ".join(known)
            raise ArgumentError(
                f"language={name[:80]!r} is not allowed{did_you_mean(name, known)}; it is one of auto, {listed}"
            )
        dialect = self.dialects.get(speaker) if speaker is not None else None
        if name.lower() in ("auto", "chinese") and dialect:
            return self.languages[str(dialect)]
        return None if name.lower() == "auto" else self.languages[name.lower()]


def read_config(found: Mapping[str, Any], what: str) -> Qwen3TTSConfig:
    """The content of a published `config.json`.

    Args:
        found: The content.
        what: The checkpoint, for errors.

    Raises:
        ModelError: If a value is missing or of another type.
    """
    with sizes_of(what, "a Qwen3-TTS"):
        talker, predictor = found["talker_config"], found["talker_config"]["code_predictor_config"]
        kind = found["tts_model_type"]
        if kind not in ("base", "custom_voice", "voice_design"):
            raise ValueError(f"tts_model_type is {kind!r}")
        if predictor["num_code_groups"] != talker["num_code_groups"]:
            raise ValueError("talker and code predictor differ in num_code_groups")
        if talker["vocab_size"] - SPECIAL != predictor["vocab_size"]:
            raise ValueError(f"vocab_size of the talker must be {SPECIAL} more than that of the code predictor")
        return Qwen3TTSConfig(
            kind=kind,
            # The original drops instructions for the small model with named speakers.
            instructs=kind == "voice_design" or (kind == "custom_voice" and found.get("tts_model_size") != "0b6"),
            talker=_decoder(talker),
            predictor=_decoder(predictor),
            codebooks=int(talker["num_code_groups"]),
            text_vocab_size=int(talker["text_vocab_size"]),
            text_width=int(talker["text_hidden_size"]),
            text_bos=int(found["tts_bos_token_id"]),
            text_eos=int(found["tts_eos_token_id"]),
            text_pad=int(found["tts_pad_token_id"]),
            bos=int(talker["codec_bos_id"]),
            eos=int(talker["codec_eos_token_id"]),
            pad=int(talker["codec_pad_id"]),
            think=(
                int(talker["codec_think_id"]),
                int(talker["codec_think_bos_id"]),
                int(talker["codec_think_eos_id"]),
            ),
            no_think=int(talker["codec_nothink_id"]),
            languages={str(name): int(value) for name, value in (talker.get("codec_language_id") or {}).items()},
            speakers={str(name): int(value) for name, value in (talker.get("spk_id") or {}).items()},
            dialects=dict(talker.get("spk_is_dialect") or {}),
            speaker_encoder=SimpleNamespace(**{**SPEAKER_ENCODER, **(found.get("speaker_encoder_config") or {})}),
        )


def _decoder(sizes: Mapping[str, Any]) -> Any:
    """The sizes of a decoder as a `Qwen3Config`."""
    # The talker's three position axes are equal for speech, so that its interleaved rotary embedding is the plain one.
    own = {name: sizes[name] for name in _DECODER if name in sizes}
    rope = {"rope_type": "default", "rope_theta": float(sizes.get("rope_theta", 10000))}
    scaling = sizes.get("rope_scaling") or {}
    if scaling.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type is {scaling['rope_type']!r}")
    if sizes.get("use_sliding_window"):
        raise ValueError("use_sliding_window is true")
    return Qwen3Config(
        **own, vocab_size=sizes["vocab_size"], rope_parameters=rope, tie_word_embeddings=False, use_cache=True
    )
