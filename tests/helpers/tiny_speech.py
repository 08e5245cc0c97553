"""Tiny random speech models of each model class of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tiny_codecs
import torch
import transformers
from numpy.typing import NDArray
from tiny_models import scatter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import CharDelimiterSplit
from torch import Tensor
from transformers import (
    BarkConfig,
    BarkModel,
    CsmConfig,
    CsmForConditionalGeneration,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MoshiConfig,
    MoshiForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.sampling.logits import Logits

# Text is ids 1 to 9, then the end token, then 2 slots with 5 codes each, of one codebook each.
STREAM = StreamFormat(codes=5, first=11, end=10, slots=(0, 1))
WORDS = ["<pad>", "one", "two", "three", "[0]one", "[0]two", "[1]one", "six.", "seven.", "eight"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Splits a text at blanks into `WORDS`."""
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    model.pre_tokenizer = CharDelimiterSplit(" ")
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<pad>", pad_token="<pad>")


def flat(seed: int = 0, layers: int = 2, qwen: bool = False, spread: float = 0.3, vocab_size: int = 21) -> Any:
    kind, config = (Qwen2ForCausalLM, Qwen2Config) if qwen else (LlamaForCausalLM, LlamaConfig)
    return scatter(
        kind(
            config(
                vocab_size=vocab_size,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=0,
            )
        ),
        seed,
        spread,
    )


# Text ids 1 to 9 are offset by 30; 20 semantic codes, 2 x 8 coarse codes.
SEMANTIC = {
    "eos_token_id": 20, "text_encoding_offset": 30, "text_pad_token": 48, "semantic_infer_token": 49,
    "semantic_vocab_size": 20, "max_input_semantic_length": 6, "max_new_tokens": 14,
}  # fmt: skip
COARSE = {
    "coarse_semantic_pad_token": 36, "coarse_infer_token": 37, "max_coarse_input_length": 6, "max_coarse_history": 9,
    "sliding_window_len": 6,
}  # fmt: skip
FINE = {"n_fine_codebooks": 4, "max_fine_history_length": 8, "max_fine_input_length": 16, "n_coarse_codebooks": 2}


def bark(seed: int = 0, spread: float = 0.5, coarse_ids: int = 36, codes: int = 8) -> Any:
    """A Bark; ids 20 to 27 and 28 to 35 of its coarse head are codes, with `codes=8`.

    With other numbers of codes, semantic codes are as many.
    """
    semantics = 20 if codes == 8 else codes
    more, coarse_end = semantics - 20, semantics + 2 * codes
    coarse_ids = coarse_ids if codes == 8 else coarse_end
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_size": 16, "block_size": 32}
    codec = {
        "sampling_rate": 1000, "target_bandwidths": [1.5], "hidden_size": 8, "num_filters": 2,
        "upsampling_ratios": [4, 2], "codebook_size": codes,
    }  # fmt: skip
    config = BarkConfig(
        semantic_config={**sizes, "input_vocab_size": 50 + more, "output_vocab_size": 24 + more},
        coarse_acoustics_config={**sizes, "input_vocab_size": coarse_end + 2, "output_vocab_size": coarse_ids},
        fine_acoustics_config={
            **sizes, "input_vocab_size": codes + 1, "output_vocab_size": codes + 1, "n_codes_total": 4
        },
        codec_config={"model_type": "encodec", **codec},
    )  # fmt: skip
    model = scatter(BarkModel(config), seed, spread)
    tiny_codecs.filled(model.codec_model)
    counted = {"text_encoding_offset", "text_pad_token", "semantic_infer_token", "semantic_vocab_size", "eos_token_id"}
    # Mappings, as in a checkpoint: with a BarkGenerationConfig, whose parts are not mappings, BarkModel.generate fails.
    model.generation_config = GenerationConfig(
        semantic_config={name: value + more * (name in counted) for name, value in SEMANTIC.items()},
        coarse_acoustics_config={
            **COARSE, "coarse_semantic_pad_token": coarse_end, "coarse_infer_token": coarse_end + 1
        },
        fine_acoustics_config=dict(FINE),
        codebook_size=codes,
        sample_rate=1000,
    )  # fmt: skip
    return model


def other_backbone(name: str, seed: int = 0, vocab_size: int = 21) -> Any:
    """A flat model that is not a Llama, by the name of its family."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    if name == "GPT2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 64, "vocab_size": vocab_size}
        sizes |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    elif name.startswith("Gemma"):
        sizes["head_dim"] = 8
    elif name == "Lfm2":
        sizes |= {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_bias": True}
        sizes["block_auto_adjust_ff_dim"] = False
    config, kind = {
        "Gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
        "Gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
        "GPT2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "Phi": (transformers.PhiConfig, transformers.PhiForCausalLM),
        "Phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
        "Lfm2": (transformers.Lfm2Config, transformers.Lfm2ForCausalLM),
        "Mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "Qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "Qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[name]
    model = scatter(kind(config(**sizes)), seed, 0.3)
    if name == "Lfm2":
        fill_convolutions(model, seed)
    return model


def fill_convolutions(model: Any, seed: int = 0) -> None:
    """Sets the taps of the convolutions of an LFM2, so that earlier tokens matter."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        if not layer.is_attention_layer:
            layer.conv.conv.weight.data = torch.randn(layer.conv.conv.weight.shape, generator=generator)


def csm(seed: int = 0, codebooks: int = 4, codes: int = 9, layers: int = 2, spread: float = 0.3) -> Any:
    """A CSM; a frame of zeros ends a row."""
    sizes = {
        "hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12,
        "max_position_embeddings": 64,
    }  # fmt: skip
    config = CsmConfig(
        num_codebooks=codebooks,
        vocab_size=codes,
        codebook_size=codes,
        text_vocab_size=20,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        codebook_pad_token_id=codes - 1,
        codebook_eos_token_id=0,
        audio_token_id=18,
        audio_eos_token_id=19,
        num_hidden_layers=layers,
        depth_decoder_config={
            **sizes,
            "num_codebooks": codebooks,
            "vocab_size": codes,
            "backbone_hidden_size": 24,
            "num_hidden_layers": 2,
        },
        codec_config=tiny_codecs.mimi(codebooks, 8).config,
        **sizes,
    )
    model = scatter(CsmForConditionalGeneration(config), seed, spread)
    generator = torch.Generator().manual_seed(seed + 100)
    head = model.depth_decoder.codebooks_head.weight
    head.data = torch.randn(head.shape, generator=generator) * spread
    tiny_codecs.filled(model.codec_model)
    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0)
    return model


def moshi(seed: int = 0, codebooks: int = 4, codes: int = 8, spread: float = 0.3) -> Any:
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 8, "ffn_dim": 32}
    config = MoshiConfig(
        vocab_size=12,
        hidden_size=16,
        max_position_embeddings=64,
        audio_vocab_size=codes,
        num_codebooks=codebooks,
        audio_encoder_config={**tiny_codecs.mimi(codebooks, codes).config.to_dict(), "model_type": "mimi"},
        depth_decoder_config={
            **sizes,
            "hidden_size": 16,
            "input_size": 16,
            "vocab_size": 12,
            "audio_vocab_size": codes,
            "num_codebooks": codebooks,
        },
        **sizes,
    )
    model = scatter(MoshiForConditionalGeneration(config), seed, spread)
    generator = torch.Generator().manual_seed(seed + 100)
    for p in model.depth_decoder.parameters():
        if p.ndim == 3:
            p.data = torch.randn(p.shape, generator=generator) * spread
    tiny_codecs.filled(model.audio_encoder)
    return model


class Corrupted:
    """A target whose most likely token is wrong at every fifth position, including the third."""

    ROWS = ("_target",)

    def __init__(self, target: Any, start: int = 0) -> None:
        self.vocab_size, self.device = target.vocab_size, target.device
        self._target, self._start = target, start

    def prefill(self) -> Logits:
        return self._target.prefill()

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        logits = self._target.forward(tokens, at).cond
        places = torch.from_numpy(at[:, None] - self._start + 1 + np.arange(tokens.shape[1])) % 5 == 3
        return Logits(torch.where(places[..., None], logits.roll(1, -1), logits), None)


def calls_with_corrupted(length: int, window: int) -> int:
    """Target calls of greedy decoding with drafts from a `Corrupted` target."""
    done, calls = 1, 1
    while done < length:
        wrong = [n for n in range(done, done + window - 1) if n % 5 == 3]
        done, calls = (wrong[0] + 1 if wrong else done + window), calls + 1
    return calls
