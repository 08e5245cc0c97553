"""LFM2-Audio (Liquid AI) without its speech encoder: an LFM2 over texts and frames, and layers over a frame's codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Lfm2Config, Lfm2Model
from transformers.models.lfm2.modeling_lfm2 import Lfm2RMSNorm, Lfm2RotaryEmbedding

from mmspec.audio.config_file import integer_in
from mmspec.audio.models.flat.short_convolutions import ShortConvolutionLayers
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_depths, count_blocks, load_tensors, read_model_tensors
from mmspec.hf.cache_name import cache_input
from mmspec.hf.folder import BUFFERS, read_json
from mmspec.hf.slot_cache import SlotCache

HEADS, GROUPS = 32, 8  # of the layers along the depth; config.json does not say
# Parts of the files that text to speech does not use: the speech encoder, weights of the loss, and an unused head.
UNUSED = (
    "conformer.", "audio_adapter.", "codebook_offsets", "audio_loss_weights", "audio_embedding.embedding_norm.",
    "audio_embedding.to_logits.",
)  # fmt: skip


@dataclass(frozen=True)
class Lfm2AudioConfig:
    """The part of `config.json` that decoding needs.

    Attributes:
        language: The config of the LFM2.
        depth: That of the layers along the depth.
        codebooks: K.
        codes: Codes of a codebook; the next id ends the audio.
    """

    language: Lfm2Config
    depth: Lfm2Config
    codebooks: int
    codes: int


def read_config(found: Mapping[str, Any], what: str, codes: int) -> Lfm2AudioConfig:
    """Reads a `config.json`.

    Args:
        codes: Codes of a codebook, which it does not say.

    Raises:
        ModelError: If a value is missing or not allowed.
    """
    language, depth = found.get("lfm"), found.get("depthformer")
    if not isinstance(language, Mapping) or not isinstance(depth, Mapping):
        raise ModelError(f"{what} has no lfm or no depthformer in its config.json")
    width, layers = integer_in(depth, what, "dim", least=1), integer_in(depth, what, "layers", least=1)
    if width % (2 * HEADS):
        raise ModelError(f"{what} has dim={width} in its depthformer; it must be a multiple of {2 * HEADS}")
    return Lfm2AudioConfig(
        language=Lfm2Config(**language),
        depth=Lfm2Config(
            vocab_size=1,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            num_key_value_heads=GROUPS,
            layer_types=["full_attention"] * layers,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        ),
        codebooks=integer_in(found, what, "codebooks", least=2),
        codes=codes,
    )


class CodeTable(nn.Module):
    """The embedding of a codebook's codes and its head.

    Args:
        ids: Codes, and the end.
        width: Of the layers along the depth.
    """

    def __init__(self, ids: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ids, width)
        self.embedding_norm = Lfm2RMSNorm(width, eps=1e-5)
        self.to_logits = nn.Linear(width, ids, bias=False)

    @property
    def head(self) -> tuple[nn.Module, nn.Module]:
        """What `logits` calls."""
        return self.embedding_norm, self.to_logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to logits [..., ids]."""
        out: Tensor = self.to_logits(self.embedding_norm(hidden))
        return out


class Lfm2Audio(nn.Module):
    """An LFM2-Audio that speaks.

    The published names are kept but for the layers along the depth, whose shape is that of LFM2's layers of attention.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: Lfm2AudioConfig) -> None:
        super().__init__()
        self.config = config
        width, depth, ids = config.language.hidden_size, config.depth.hidden_size, config.codes + 1
        self.lfm = Lfm2Model(config.language)
        self.audio_embedding = nn.Embedding(config.codebooks * ids, width)
        self.depth_linear = nn.Linear(width, config.codebooks * depth)
        self.depthformer: Any = Lfm2Model(config.depth)
        del self.depthformer.embed_tokens, self.depthformer.embedding_norm
        self.depth_embeddings = nn.ModuleList(CodeTable(ids, depth) for _ in range(config.codebooks))

    @property
    def device(self) -> torch.device:
        return self.audio_embedding.weight.device

    @cached_property
    def layers(self) -> ShortConvolutionLayers:
        """The layers of the LFM2; one object, by which batches know that their rows may join."""
        return ShortConvolutionLayers(self.lfm)

    def table(self, book: int) -> CodeTable:
        """The embedding and the head of a codebook."""
        table = self.depth_embeddings[book]
        assert isinstance(table, CodeTable)
        return table

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Frames int64 [..., K] to embeddings [..., D]."""
        offsets = (self.config.codes + 1) * torch.arange(self.config.codebooks, device=frames.device)
        embeds: Tensor = self.audio_embedding(frames + offsets)
        return embeds.sum(-2)

    def run_depth(self, x: Tensor, mask: Tensor, positions: Tensor, cache: SlotCache | None) -> Tensor:
        """The layers along the depth: [R, W, D] at positions int64 [R, W] of a frame to hidden states [R, W, D].

        Args:
            mask: Added to the attention scores, [R or 1, 1, W, end].
            cache: The KV cache, at the slots of this call; None for a call that attends to itself alone.
        """
        rotations = self.depthformer.rotary_emb(x, position_ids=positions)
        for layer in self.depthformer.layers:
            x = layer(x, position_embeddings=rotations, attention_mask=mask, **cache_input(layer, cache))
        return x

    def first_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to logits [..., codes + 1] of the first code, and of the end after them."""
        width = self.config.depth.hidden_size
        first = nn.functional.linear(hidden, self.depth_linear.weight[:width], self.depth_linear.bias[:width])
        alone = first.reshape(-1, 1, width)
        positions = torch.zeros(1, 1, dtype=torch.int64, device=hidden.device)
        out = self.run_depth(alone, alone.new_zeros(1, 1, 1, 1), positions, None)
        return self.table(0).logits(out).view(*hidden.shape[:-1], -1)


def renamed(state: Mapping[str, Tensor], config: Lfm2AudioConfig) -> dict[str, Tensor]:
    """Published weights under the names of `Lfm2Audio`.

    The original rotates pairs of neighboring dimensions of queries and keys, transformers the two halves.
    """
    out, rows = dict[str, Tensor](), [config.depth.hidden_size * part // HEADS for part in (HEADS, GROUPS, GROUPS)]
    for name, tensor in state.items():
        name = name.replace("audio_embedding.embedding.", "audio_embedding.")
        if BUFFERS.search(name) or name.startswith(UNUSED):
            continue
        if not name.startswith("depthformer."):
            out[name] = tensor
            continue
        name = name.replace(".operator.bounded_attention.", ".operator.").replace(".operator.", ".self_attn.")
        if name.endswith(".qkv_proj.weight") and len(tensor) == sum(rows):
            place, (q, k, v) = name.removesuffix("qkv_proj.weight"), tensor.split(rows)
            out[f"{place}q_proj.weight"], out[f"{place}k_proj.weight"] = halves(q, HEADS), halves(k, GROUPS)
            out[f"{place}v_proj.weight"] = v
            continue
        whole = name.endswith("_layernorm.weight") and tensor.ndim == 1 and len(tensor) % 2 == 0
        out[name] = halves(tensor, 1) if whole else tensor
    return out


def halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of `heads` heads, in each of which pairs of neighbors become two halves."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> Lfm2Audio:
    """The model in a published folder; see `mmspec.audio.published_folder.read_published`."""
    what, found, state = f"model {str(folder)!r}", read_json(folder / "config.json"), read_model_tensors(folder)
    check_depths(what, {name: found.get(name) for name in ("lfm", "depthformer")}, len(state))
    with building(what, "an LFM2-Audio"):
        ids = len(state["depth_embeddings.0.embedding.weight"])
        config, books = read_config(found, what, ids - 1), count_blocks(state, "depth_embeddings")
        if config.codebooks != books:
            raise ModelError(f"{what} has codebooks={config.codebooks} in its config.json, and weights of {books}")
        model = Lfm2Audio(config)
    load_tensors(what, renamed(state, model.config), model, device, dtype)
    for part in (model.lfm, model.depthformer):
        part.rotary_emb = Lfm2RotaryEmbedding(part.config).to(device)  # it has no weights in the files
    return model.requires_grad_(False).eval()
