"""A folder of a tiny Chatterbox in its published form, and a codec of one codebook."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase, Replace, Sequence
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.audio.codec import OverlapStream

WIDTH = 64
T3 = {
    "cond_enc.emotion_adv_fc.weight": [WIDTH, 1],
    "cond_enc.perceiver.pre_attention_query": [1, 4, WIDTH],
    **{f"cond_enc.perceiver.attn.{part}.bias": [WIDTH] for part in ("norm", "proj_out", "to_k", "to_q", "to_v")},
    "cond_enc.perceiver.attn.norm.weight": [WIDTH],
    **{f"cond_enc.perceiver.attn.{part}.weight": [WIDTH, WIDTH] for part in ("proj_out", "to_k", "to_q", "to_v")},
    "cond_enc.spkr_enc.bias": [WIDTH],
    "cond_enc.spkr_enc.weight": [WIDTH, 8],
    "speech_emb.weight": [8194, WIDTH],
    "speech_head.weight": [8194, WIDTH],
    "speech_pos_emb.emb.weight": [64, WIDTH],
    "text_emb.weight": [300, WIDTH],
    "text_head.weight": [300, WIDTH],
    "text_pos_emb.emb.weight": [42, WIDTH],
    "tfmr.embed_tokens.weight": [8, WIDTH],
    "tfmr.norm.weight": [WIDTH],
}
for layer in ("tfmr.layers.0.", "tfmr.layers.1."):
    T3 |= {f"{layer}{norm}_layernorm.weight": [WIDTH] for norm in ("input", "post_attention")}
    T3 |= {f"{layer}self_attn.{part}_proj.weight": [WIDTH, WIDTH] for part in "kqvo"}
    T3 |= {f"{layer}mlp.{part}_proj.weight": [48, WIDTH] for part in ("gate", "up")}
    T3[f"{layer}mlp.down_proj.weight"] = [WIDTH, 48]


class Levels:
    """A codec of one codebook that maps each code to a constant level for a few samples."""

    sampling_rate, channels, hop, codebooks = 1000, 1, 4, 1

    def __init__(self, codes: int) -> None:
        self.codebook_size = codes

    def decode(self, codes: Tensor) -> Tensor:
        return (codes.float() / self.codebook_size - 0.5).repeat_interleave(4, dim=-1)

    def stream(self) -> OverlapStream:
        return OverlapStream(self, 0, 0)

    def tables(self) -> list[Tensor]:
        return [torch.arange(self.codebook_size)[:, None].float()]


class MeanLevels(Levels):
    """A codec of several codebooks whose audio is the mean of their levels."""

    def __init__(self, codebooks: int, codes: int) -> None:
        super().__init__(codes)
        self.codebooks = codebooks

    def decode(self, codes: Tensor) -> Tensor:
        return super().decode(codes.float().mean(1, keepdim=True))

    def tables(self) -> list[Tensor]:
        return super().tables() * self.codebooks


TURBO = {
    "cond_enc.spkr_enc.bias": [WIDTH], "cond_enc.spkr_enc.weight": [WIDTH, 8], "speech_emb.weight": [6563, WIDTH],
    "speech_head.weight": [6563, WIDTH], "speech_head.bias": [6563], "text_emb.weight": [50, WIDTH],
    "text_head.weight": [50, WIDTH], "tfmr.wte.weight": [8, WIDTH], "tfmr.wpe.weight": [64, WIDTH],
    "tfmr.ln_f.weight": [WIDTH], "tfmr.ln_f.bias": [WIDTH],
}  # fmt: skip
for layer in ("tfmr.h.0.", "tfmr.h.1."):
    TURBO |= {f"{layer}{norm}.{part}": [WIDTH] for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
    for name, inner, outer in (
        ("attn.c_attn", WIDTH, 3 * WIDTH),
        ("attn.c_proj", WIDTH, WIDTH),
        ("mlp.c_fc", WIDTH, 4 * WIDTH),
        ("mlp.c_proj", 4 * WIDTH, WIDTH),
    ):
        TURBO |= {f"{layer}{name}.weight": [inner, outer], f"{layer}{name}.bias": [outer]}


def state(shapes: dict[str, list[int]] = T3) -> dict[str, Tensor]:
    """A deterministic state that needs no random number generator."""
    made = {}
    for name, shape in shapes.items():
        n = torch.arange(math.prod(shape), dtype=torch.float64)
        value = ((n * 12.9898 + sum(map(ord, name))).sin() * 43758.5453 % 1 - 0.5).float().view(shape)
        norm = name.endswith("norm.weight") or ".ln_" in name and name.endswith("weight")
        made[name] = 1 + 0.2 * value if norm else value * (0.9 if "self_attn" in name else 0.4)
    return made


def chatterbox(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(state() | changes, folder / "t3_cfg.safetensors")
    codes = torch.tensor([[5, 70, 900, 6000, 33]])
    voice = {"speaker_emb": torch.linspace(-1, 1, 8)[None], "cond_prompt_speech_tokens": codes, "emotion_adv": 0.5}
    torch.save({"t3": voice, "gen": {}}, folder / "conds.pt")
    words = {"one": 20, "two": 30, "[space]": 2, "three": 40, "[UNK]": 1}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = Sequence([Lowercase(), Replace(".", "")])  # what normalizing punctuation adds
    tokenizer.pre_tokenizer = Split(Regex(r"\[space\]"), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def turbo(folder: Path, file: str = "t3_turbo_v1.safetensors") -> Path:
    """A folder of a tiny Chatterbox Turbo in its published form."""
    folder.mkdir(exist_ok=True)
    save_file(state(TURBO), folder / file)
    codes = torch.tensor([[5, 70, 900, 6000, 33]])
    voice = {"speaker_emb": torch.linspace(-1, 1, 8)[None], "cond_prompt_speech_tokens": codes, "emotion_adv": 0.5}
    torch.save({"t3": voice, "gen": {}}, folder / "conds.pt")
    words = {"[UNK]": 0, "One": 20, "Two": 30, "two": 31, "three": 40, ".": 7, "[laugh]": 48}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split(Regex(r" |(?=\.)"), "removed")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    return folder


# Characters and their Cangjie codes; two of them share one.
CANGJIE = ["\u65e5\ta", "\u66f0\ta", "\u6708\tb", "\u4f60\tonf", "\u597d\tvnd", "\u4e16\tpt", "\u754c\twoll"]


def multilingual_tokenizer() -> Tokenizer:
    words = {
        "[UNK]": 1, "[SPACE]": 2, "[START]": 255, "[STOP]": 0, "[fr]": 270, "[de]": 271, "[zh]": 272, "un": 20,
        "deux": 30, "trois": 40, "eins": 50, "zwei": 60, "drei": 70, ",": 7, "!": 8, ".": 9, "\u4f60": 10, "[cj_o]": 11,
        "[cj_n]": 12, "[cj_f]": 13, "[cj_.]": 14,
    }  # fmt: skip
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split(Regex(r"\[[\w.]+\]|[,!.]"), "isolated")
    return tokenizer


def multilingual(folder: Path, file: str = "t3_mtl23ls_v3.safetensors") -> Path:
    """A folder of a tiny Chatterbox Multilingual in its published form; it has a voice and no English model."""
    chatterbox(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "t3_cfg.safetensors").rename(folder / file)
    (folder / "Cangjie5_TC.json").write_text(json.dumps(CANGJIE), encoding="utf-8")
    multilingual_tokenizer().save(str(folder / "grapheme_mtl_merged_expanded_v1.json"))
    return folder
