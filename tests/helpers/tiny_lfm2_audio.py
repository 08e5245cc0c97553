"""A folder of a tiny LFM2-Audio in its published form, and of the decoder of LFM2.5-Audio."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_chatterbox import MeanLevels
from tiny_xtts import fill
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

BOOKS, CODES, WIDTH, DEPTH, TEXT_IDS = 3, 12, 32, 64, 136
WORDS = ["system", "user", "assistant", "\n", "Perform", "TTS.", "Use", "the", "UK", "US", "male", "female", "voice."]
WORDS += ["one", "two", "three", "four."]
# With the ids that the original has in its code.
MARKS = {
    "<|startoftext|>": 1, "<|im_start|>": 6, "<|im_end|>": 7, "<|audio_start|>": 128, "<|text_end|>": 130,
}  # fmt: skip
TEXTS = ["one two three", "two", "three four. one one"]
LANGUAGE: dict[str, Any] = {
    "vocab_size": TEXT_IDS, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention", "conv", "conv"],
    "block_auto_adjust_ff_dim": False, "max_position_embeddings": 1024,
}  # fmt: skip
DETOKENIZER = {**LANGUAGE, "num_hidden_layers": 3, "layer_types": ["conv", "sliding_attention", "sliding_attention"]}
DETOKENIZER |= {"sliding_window": 7}
BINS = 33


def config() -> dict[str, Any]:
    return {
        "architectures": ["Lfm2AudioForConditionalGeneration"],
        "codebooks": BOOKS,
        "tie_audio_embeddings": False,
        "semantic_codebook_factor": 100,
        "codebook_weight": "log",
        "interleaved_n_text": 6,
        "interleaved_n_audio": 12,
        "preprocessor": {
            "sample_rate": 16000, "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01,
            "window": "hann", "features": 128, "n_fft": 512, "log": True, "frame_splicing": 1, "dither": 1e-5,
            "pad_to": 0, "pad_value": 0.0,
        },
        "encoder": {
            "feat_in": 128, "feat_out": -1, "n_layers": 1, "d_model": 16, "subsampling": "dw_striding",
            "subsampling_factor": 8, "subsampling_conv_channels": 8, "causal_downsampling": False, "reduction": None,
            "reduction_position": None, "reduction_factor": 1, "ff_expansion_factor": 2,
            "self_attention_model": "rel_pos", "n_heads": 2, "att_context_size": [-1, -1], "xscaling": False,
            "untie_biases": True, "pos_emb_max_len": 64, "conv_kernel_size": 9, "conv_norm_type": "batch_norm",
            "conv_context_size": None, "dropout": 0.0, "dropout_pre_encoder": 0.0, "dropout_emb": 0.0,
            "dropout_att": 0.0,
        },
        "lfm": LANGUAGE,
        "depthformer": {"layers": 2, "dim": DEPTH, "tie": True},
    }  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    ids = {mark: i for mark, i in MARKS.items()} | {word: 10 + i for i, word in enumerate(WORDS)} | {"<unk>": 0}
    made = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = Split(Regex(r"\n|[^\s]+"), "removed", invert=True)
    made.add_special_tokens([AddedToken(name, special=True) for name in MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def language_shapes(prefix: str, found: dict[str, Any]) -> dict[str, list[int]]:
    """The names of an LFM2's weights, and their shapes."""
    width, inner = found["hidden_size"], found["intermediate_size"]
    keys = width // found["num_attention_heads"] * found["num_key_value_heads"]
    head = width // found["num_attention_heads"]
    made = {f"{prefix}embed_tokens.weight": [found["vocab_size"], width], f"{prefix}embedding_norm.weight": [width]}
    for number, kind in enumerate(found["layer_types"]):
        own: dict[str, list[int]] = {
            "conv.conv": [width, 1, 3], "conv.in_proj": [3 * width, width], "conv.out_proj": [width, width],
        } if kind == "conv" else {
            "self_attn.q_proj": [width, width], "self_attn.k_proj": [keys, width], "self_attn.v_proj": [keys, width],
            "self_attn.out_proj": [width, width], "self_attn.q_layernorm": [head], "self_attn.k_layernorm": [head],
        }  # fmt: skip
        own |= {"feed_forward.w1": [inner, width], "feed_forward.w3": [inner, width], "feed_forward.w2": [width, inner]}
        own |= {"operator_norm": [width], "ffn_norm": [width]}
        made |= {f"{prefix}layers.{number}.{name}.weight": shape for name, shape in own.items()}
    return made


def shapes(codes: int = CODES) -> dict[str, list[int]]:
    """The published names of the weights, and their shapes."""
    ids, inner = codes + 1, 256
    made = language_shapes("lfm.", LANGUAGE)
    made |= {"depth_linear.weight": [BOOKS * DEPTH, WIDTH], "depth_linear.bias": [BOOKS * DEPTH]}
    for name, count, width in (("audio_embedding", BOOKS * ids, WIDTH), *(
        (f"depth_embeddings.{book}", ids, DEPTH) for book in range(BOOKS)
    )):  # fmt: skip
        made |= {f"{name}.{part}.weight": [count, width] for part in ("embedding", "to_logits")}
        made[f"{name}.embedding_norm.weight"] = [width]
    for layer in ("depthformer.layers.0.", "depthformer.layers.1."):
        for name, shape in (
            ("operator.qkv_proj", [DEPTH * 3 // 2, DEPTH]), ("operator.out_proj", [DEPTH, DEPTH]),
            ("operator.bounded_attention.q_layernorm", [2]), ("operator.bounded_attention.k_layernorm", [2]),
            ("feed_forward.w1", [inner, DEPTH]), ("feed_forward.w3", [inner, DEPTH]),
            ("feed_forward.w2", [DEPTH, inner]), ("operator_norm", [DEPTH]), ("ffn_norm", [DEPTH]),
        ):  # fmt: skip
            made[f"{layer}{name}.weight"] = shape
    return made


def weights(codes: int = CODES, end: float = 0.7) -> dict[str, Tensor]:
    """Deterministic weights, with which audio begins at once, and rows end at different places."""
    state = filled(shapes(codes))
    for name, value in state.items():
        if name.endswith("conv.conv.weight"):
            value *= 2
    for book in range(BOOKS):
        state[f"depth_embeddings.{book}.to_logits.weight"] = state[f"depth_embeddings.{book}.embedding.weight"]
    text, first = state["lfm.embed_tokens.weight"], state["depth_embeddings.0.embedding.weight"]
    text[MARKS["<|audio_start|>"], [2, 4, 29]] = torch.tensor([-1.5, -1.5, 1.5])  # as hidden states of prompts have
    first[codes] = end * (first[2] + first[7])
    return state


def filled(found: dict[str, list[int]]) -> dict[str, Tensor]:
    parameters = {name: nn.Parameter(torch.empty(shape)) for name, shape in found.items()}
    fill(iter(parameters.items()), 0.9)
    return {name: value.detach().clone() for name, value in parameters.items()}


Codec = partial(MeanLevels, BOOKS, CODES)


def lfm2_audio(folder: Path, codes: int = CODES, end: float = 0.7) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    tokenizer().save_pretrained(folder)
    unused = {"conformer.pre_encode.out.bias": torch.zeros(3), "audio_adapter.model.0.bias": torch.zeros(3)}
    unused |= {"codebook_offsets": torch.arange(BOOKS), "audio_loss_weights": torch.ones(BOOKS)}
    state = {name: value.clone() for name, value in (weights(codes, end) | unused).items()}
    save_file(state, folder / "model.safetensors")
    return folder


def detokenizer_weights() -> dict[str, Tensor]:
    found = language_shapes("lfm.", DETOKENIZER)
    found |= {"emb.emb.weight": [BOOKS * CODES, WIDTH], "lin.weight": [2 * BINS, WIDTH], "lin.bias": [2 * BINS]}
    return filled(found)


def add_detokenizer(folder: Path) -> Path:
    own = folder / "audio_detokenizer"
    own.mkdir()
    (own / "config.json").write_text(json.dumps(DETOKENIZER))
    state = detokenizer_weights() | {"istft.window": torch.hann_window(2 * (BINS - 1))}
    save_file(state, own / "model.safetensors")
    return folder


def some_codes() -> Tensor:
    """Codes int64 [2, K, 9]."""
    return (torch.arange(2 * BOOKS * 9) * 7 % CODES).view(2, BOOKS, 9)
