"""A tiny Kani-TTS with the published ids, as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_models import scatter
from tiny_speech import fill_convolutions
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedTokenizerFast

SPEAKERS = ["andrew", "katie"]


def config(speakers: list[str] | None = None, vocab_size: int = 64410 + 4 * 4032) -> Lfm2Config:
    settings = {"speaker_settings": {"status": "multispeaker", "speaker_list": speakers}} if speakers else {}
    return Lfm2Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=64402 if vocab_size > 64402 else None,
        pad_token_id=0,
        **settings,
    )


def model(speakers: list[str] | None = None, seed: int = 0, vocab_size: int = 64410 + 4 * 4032) -> Any:
    made = scatter(Lfm2ForCausalLM(config(speakers, vocab_size)), seed, 0.3)
    fill_convolutions(made, seed)
    made.model.layers[2].self_attn.out_proj.weight.data *= 6  # texts matter beyond the reach of the convolutions
    codes = made.model.embed_tokens.weight.data[64410:]
    if len(codes):  # few codes are likely, so that they are repeated
        codes.view(4, 4032, -1)[:, :6] *= 3
    return made


def tokenizer() -> PreTrainedTokenizerFast:
    """Puts its begin before every text, as that of LFM2 does."""
    words = ["<pad>", "<|startoftext|>", "<|endoftext|>", "<unk>", "one", "two", "three", "katie", "andrew", ":", "."]
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<|startoftext|> $A", special_tokens=[("<|startoftext|>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|startoftext|>", eos_token="<|endoftext|>", unk_token="<unk>"
    )


def kani(folder: Path, speakers: list[str] | None = None) -> Path:
    """Writes the folder."""
    model(speakers).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
