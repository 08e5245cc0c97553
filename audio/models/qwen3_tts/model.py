"""The modules of Qwen3-TTS (arXiv 2601.15621), with the parameter names of the published files.

Talker and code predictor are Qwen3 decoders of transformers, the speaker encoder is the ECAPA-TDNN of Qwen2.5-Omni.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Model
from transformers.activations import ACT2FN
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import ECAPA_TimeDelayNet
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from mmspec.audio.models.qwen3_tts.config import Qwen3TTSConfig, read_config
from mmspec.files.checkpoint import building, check_depths, load_tensors, read_model_tensors
from mmspec.hf.folder import BUFFERS, read_json


class TextProjection(nn.Module):
    """Embeddings of text to the talker's width.

    Args:
        width: Width of the embeddings.
        out: The talker's width.
        act: Name of the activation.
    """

    def __init__(self, width: int, out: int, act: str) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(width, width)
        self.linear_fc2 = nn.Linear(width, out)
        self.act_fn = ACT2FN[act]

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.linear_fc2(self.act_fn(self.linear_fc1(x)))
        return projected


class CodePredictor(nn.Module):
    """Generates the codes of a frame after the first."""

    def __init__(self, config: Qwen3TTSConfig) -> None:
        super().__init__()
        sizes, width = config.predictor, config.talker.hidden_size
        self.model = _decoder(sizes)
        rest = range(config.codebooks - 1)
        self.model.codec_embedding = nn.ModuleList(nn.Embedding(sizes.vocab_size, width) for _ in rest)
        self.lm_head = nn.ModuleList(nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False) for _ in rest)
        same = sizes.hidden_size == width
        self.small_to_mtp_projection = nn.Identity() if same else nn.Linear(width, sizes.hidden_size)


class Talker(nn.Module):
    """Generates the first code of each frame."""

    def __init__(self, config: Qwen3TTSConfig) -> None:
        super().__init__()
        sizes = config.talker
        self.model = _decoder(sizes)
        self.model.codec_embedding = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.model.text_embedding = nn.Embedding(config.text_vocab_size, config.text_width)
        self.text_projection = TextProjection(config.text_width, sizes.hidden_size, sizes.hidden_act)
        self.codec_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config)


class Qwen3TTS(nn.Module):
    """A Qwen3-TTS model.

    Args:
        config: Its configuration.

    Attributes:
        talker: Talker and code predictor.
        speaker_encoder: Maps mel spectrograms [B, F, mel_dim] to vectors [B, talker's width]; None unless the model
            clones voices.
    """

    def __init__(self, config: Qwen3TTSConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config)
        self.speaker_encoder = ECAPA_TimeDelayNet(config.speaker_encoder) if config.kind == "base" else None

    @property
    def device(self) -> torch.device:
        return self.talker.codec_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.talker.codec_head.weight.dtype

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text ids int64 [...] to embeddings [..., D]."""
        projected: Tensor = self.talker.text_projection(self.talker.model.text_embedding(ids))
        return projected

    def embed_first(self, ids: Tensor) -> Tensor:
        """Ids of the talker's vocabulary, int64 [...], to embeddings [..., D]."""
        embeds: Tensor = self.talker.model.codec_embedding(ids)
        return embeds

    def embed_code(self, book: int, codes: Tensor) -> Tensor:
        """Codes of codebook `book`, 1 to K - 1, int64 [...], to embeddings [..., D]; larger ids count as the last."""
        table = self.talker.code_predictor.model.codec_embedding[book - 1]
        embeds: Tensor = table(codes.clamp(max=table.num_embeddings - 1))
        return embeds

    def first_ids(self, tokens: Tensor) -> Tensor:
        """First tokens of frames, int64 [...], as ids of the talker's vocabulary; `config.codes` is the end."""
        return torch.where(tokens == self.config.codes, self.config.eos, tokens)

    def first_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states of the talker, [..., D], to logits over first tokens, [..., codes + 1]; the end is the last."""
        logits = self.talker.codec_head(hidden)
        return torch.cat([logits[..., : self.config.codes], logits[..., self.config.eos, None]], dim=-1)

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Frames int64 [..., K] to embeddings [..., D]: the sum of those of their codes."""
        embeds = [self.embed_first(self.first_ids(frames[..., 0]))]
        embeds += [self.embed_code(book, frames[..., book]) for book in range(1, self.config.codebooks)]
        return torch.stack(embeds, dim=-2).sum(-2)


def _decoder(sizes: Any) -> Any:
    """A `Qwen3Model` without its embedding of tokens."""
    model = Qwen3Model(sizes)
    del model.embed_tokens
    return model


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> Qwen3TTS:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    what, found = f"model {str(folder)!r}", read_json(folder / "config.json")
    state = read_model_tensors(folder)
    check_depths(what, found, len(state))
    return build_model(read_config(found, what), state, what, device, dtype)


def build_model(
    config: Qwen3TTSConfig, state: Mapping[str, Tensor], what: str, device: str, dtype: torch.dtype | str
) -> Qwen3TTS:
    """A model with the given weights; the arguments are those of `read_model`.

    Raises:
        ModelError: If weights are missing, unknown or of another shape.
    """
    with building(what, "a Qwen3-TTS"):
        model = Qwen3TTS(config)
    # A fine-tuned model with named speakers may still have the speaker encoder that it was trained with.
    unused = () if config.kind == "base" else ("speaker_encoder.",)
    used = {name: value for name, value in state.items() if not BUFFERS.search(name) and not name.startswith(unused)}
    load_tensors(what, used, model, device, dtype)
    for decoder in (model.talker.model, model.talker.code_predictor.model):
        decoder.rotary_emb = Qwen3RotaryEmbedding(decoder.config).to(device)  # it has no weights in the files
    return model.requires_grad_(False).eval()
