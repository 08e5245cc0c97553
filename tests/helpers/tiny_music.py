"""Tiny random models of transformers that generate columns of codes."""

from __future__ import annotations

from typing import Any

import torch
from tiny_codecs import filled
from tiny_models import scatter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    DiaConfig,
    DiaForConditionalGeneration,
    EncodecConfig,
    GenerationConfig,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    MusicgenConfig,
    MusicgenForConditionalGeneration,
    MusicgenMelodyConfig,
    MusicgenMelodyForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
)
from transformers.models.musicgen import MusicgenDecoderConfig
from transformers.models.musicgen_melody import MusicgenMelodyDecoderConfig

WORDS = ["<pad>", "slow", "quiet", "piano", "loud", "drums", "fast", "happy", "guitar"]
FRAME = 0.008  # seconds of the tiny EnCodec


def tokenizer() -> PreTrainedTokenizerFast:
    """Splits a text at blanks into `WORDS`, padded on the right."""
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<pad>", pad_token="<pad>", padding_side="right")


def musicgen(
    seed: int = 0,
    codebooks: int = 4,
    codes: int = 16,
    channels: int = 1,
    melody: bool = False,
    spread: float = 0.3,
    layers: int = 2,
    **decoder: Any,
) -> Any:
    """A MusicGen whose text encoder has another width than its decoder. Words are ids 1 to 29, 0 is padding."""
    torch.manual_seed(seed)
    kinds: Any = (MusicgenMelodyDecoderConfig, MusicgenMelodyConfig, MusicgenMelodyForConditionalGeneration)
    kind = kinds if melody else (MusicgenDecoderConfig, MusicgenConfig, MusicgenForConditionalGeneration)
    text = T5Config(vocab_size=30, d_model=24, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    codec = EncodecConfig(
        target_bandwidths=[1.25 * codebooks / channels],  # the bandwidth of that many codebooks
        sampling_rate=1000,
        hidden_size=8,
        num_filters=4,
        upsampling_ratios=[4, 2],
        codebook_size=codes,
        use_causal_conv=False,
    )
    made = kind[0](
        vocab_size=codes, num_codebooks=codebooks, audio_channels=channels, hidden_size=32, num_hidden_layers=layers,
        num_attention_heads=4, ffn_dim=64, max_position_embeddings=16, pad_token_id=codes, bos_token_id=codes,
        **decoder,
    )  # fmt: skip
    extra = {"num_chroma": 12, "chroma_length": 5} if melody else {}
    model = kind[2](kind[1](text_encoder=text, audio_encoder=codec, decoder=made, **extra))
    scatter(model, seed, spread)
    filled(model.audio_encoder)
    model.generation_config = GenerationConfig(
        pad_token_id=codes, bos_token_id=codes, decoder_start_token_id=codes, do_sample=False, max_length=20
    )
    return model.eval()


def long_musicgen(**kind: Any) -> Any:
    """A MusicGen whose table of positions is longer than a piece of a few frames."""
    model = musicgen(**kind)
    model.decoder.config.max_position_embeddings = 100
    return model


def dia(
    seed: int = 0,
    codes: int = 16,
    delays: tuple[int, ...] = (0, 2, 3),
    spread: float = 0.3,
    layers: int = 2,
    text_ids: int = 30,
) -> Any:
    """A Dia with `codes` codes; the next ids are the end token, padding, the start token and an unused one.

    Its attention scores are not scaled, so that its weights are smaller than those of the other models.
    """
    config = DiaConfig(
        encoder_config={
            "hidden_size": 24,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": text_ids,
        },
        decoder_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "cross_num_attention_heads": 2,
            "cross_head_dim": 8,
            "cross_num_key_value_heads": 2,
            "cross_hidden_size": 24,
            "vocab_size": codes + 4,
            "num_channels": len(delays),
            "eos_token_id": codes,
            "pad_token_id": codes + 1,
            "bos_token_id": codes + 2,
        },
        delay_pattern=list(delays),
    )
    model = scatter(DiaForConditionalGeneration(config), seed, spread)
    model.generation_config = GenerationConfig(
        eos_token_id=codes, pad_token_id=codes + 1, bos_token_id=codes + 2, decoder_start_token_id=codes + 2
    )
    return model


def higgs(
    seed: int = 0, codebooks: int = 3, codes: int = 16, spread: float = 0.3, layers: int = 2, words: int = 40
) -> Any:
    """A Higgs Audio. Words are ids 1 to 29, 0 is padding, 30 the end, 31 begins audio, 32 is audio, 33 its end.

    Code `codes` begins a codebook, the next one ends it.
    """
    config = HiggsAudioV2Config(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=30,
        num_codebooks=codebooks,
        codebook_size=codes + 2,
        audio_bos_token_id=31,
        audio_token_id=32,
        audio_delay_token_id=33,
        audio_stream_bos_id=codes,
        audio_stream_eos_id=codes + 1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = scatter(HiggsAudioV2ForConditionalGeneration(config), seed, spread)
    model.generation_config = GenerationConfig(eos_token_id=30, pad_token_id=0)
    return model
