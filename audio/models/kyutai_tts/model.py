"""Kyutai TTS's parts, with the names of the published weights of github.com/kyutai-labs/moshi."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.arguments import shown
from mmspec.audio.config_file import LARGEST, integer_in
from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, load_tensors, read_tensors
from mmspec.hf.folder import read_json
from mmspec.hf.slot_cache import SlotCache

# Options of the original: the value of a config that leaves one out, and the only value that is supported.
FIXED: dict[str, tuple[Any, Any]] = {
    "causal": (True, True),
    "layer_scale": (None, None),
    "gating": ("none", "silu"),
    "kv_repeat": (1, 1),
    "positional_embedding": ("sin", "rope"),
    "norm": ("layer_norm", "rms_norm_f32"),
    "norm_emb": (False, False),
    "bias_proj": (False, False),
    "depformer_multi_linear": (False, True),
    "depformer_weights_per_step": (False, True),
    "depformer_pos_emb": ("sin", "none"),
    "depformer_gating": ("silu", "silu"),  # that of `gating`, where it is left out
    "depformer_layer_scale": (None, None),
    "depformer_norm": (None, None),
    "quantize": (False, False),
    "lora": (False, False),
}
# Names of weights of one step along the depth.
AT_STEPS = re.compile(r"(linears|depformer_(in|emb)|depformer\.layers\.\d+\.(gating|self_attn\.(in|out)_projs))\.\d+\.")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a transformer.

    Attributes:
        dim: Its width.
        heads: Attention heads.
        layers: Number of layers.
        inner: The size that the width of the gated MLPs follows from.
    """

    dim: int
    heads: int
    layers: int
    inner: int


@dataclass(frozen=True)
class Table:
    """A condition of one word, such as the strength of guidance that a distilled model imitates.

    Attributes:
        bins: Number of words.
        dim: Width of their vectors.
        words: The words; None for a hash of the word.
    """

    bins: int
    dim: int
    words: tuple[str, ...] | None


@dataclass(frozen=True)
class KyutaiConfig:
    """The part of `config.json` that decoding needs.

    Attributes:
        main: The transformer over the frames.
        depth: The one over the codes of a frame.
        codebooks: K, those that the model makes.
        user_books: Codebooks of a user, which the model reads after its own.
        card: Codes of a codebook.
        text_card: Text ids.
        text_card_out: Text ids that the model predicts.
        delays: Delays of the codebooks, those of a user last, in frames.
        demuxed: Whether a text id stands for two.
        low_rank: Width of the tables of the depth's embeddings; None for its own.
        schedule: K numbers of the weights of the depth's steps.
        context: Frames that a frame attends to.
        max_period: Of the rotary embeddings.
        tables: The conditions that are words, by name.
        voice: Width of the vectors of a voice; None for models whose voice is the beginning of the audio.
        voice_positions: Scale of the positions of these vectors; 0 for none.
        delay_steps: Steps by which audio follows the text.
        look_ahead: Words by which the second text stream is ahead; 0 without it.
    """

    main: Sizes
    depth: Sizes
    codebooks: int
    user_books: int
    card: int
    text_card: int
    text_card_out: int
    delays: tuple[int, ...]
    demuxed: bool
    low_rank: int | None
    schedule: tuple[int, ...]
    context: int
    max_period: float
    tables: Mapping[str, Table]
    voice: int | None
    voice_positions: float
    delay_steps: int
    look_ahead: int


def read_config(found: Mapping[str, Any], what: str, user_books: int = 0) -> KyutaiConfig:
    """Reads a `config.json`.

    Args:
        found: Its content.
        what: The model, for errors.
        user_books: Codebooks of a user, among those that the model reads.

    Raises:
        ModelError: If a value is missing, not allowed or not supported.
    """

    def value(name: str, default: int | None = None, least: int = 1, place: Mapping[str, Any] = found) -> int:
        return integer_in(place, what, name, default, least)

    def mapping(place: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        inner = place.get(name)
        if not isinstance(inner, Mapping):
            raise ModelError(f"{what} has no {name} in its config.json")
        return inner

    conditioners = mapping(found, "conditioners")
    fuser = mapping(found, "fuser") if conditioners or found.get("fuser") is not None else {}
    cross = ["speaker_wavs"] if "speaker_wavs" in conditioners else []
    for name, (default, only) in {**FIXED, "cross_attention": (False, bool(cross))}.items():
        if (given := found.get(name, default)) != only:
            raise ModelError(f"{what} has {name}={shown(given)}; {only!r} is supported")
    books, read = value("n_q", least=user_books + 1) - user_books, value("n_q")
    schedule = found.get("depformer_weights_per_step_schedule") or list(range(books))
    delays = found.get("delays")
    for name, numbers, count in (("delays", delays, read + 1), ("schedule", schedule, books)):
        listed = numbers if isinstance(numbers, list) else []
        if len(listed) != count or not all(type(n) is int and 0 <= n < 256 for n in listed):
            raise ModelError(f"{what} has {name}={shown(numbers)}; it must be {count} integers")
    assert isinstance(delays, list)
    if value("dep_q", least=1) != books or delays[0] != 0:
        raise ModelError(
            f"{what} has dep_q={found.get('dep_q')} and a text delay of {delays[0]}; all codebooks are made"
        )
    tables = {}
    for name, place in conditioners.items():
        if name == "speaker_wavs":
            continue
        inner = mapping(place, "lut") if isinstance(place, Mapping) and place.get("type") == "lut" else {}
        words = inner.get("possible_values")
        if not inner or name not in fuser.get("sum", []) or not isinstance(words, (list, type(None))):
            raise ModelError(f"{what} has a conditioner {name!r} that is not supported")
        known = None if words is None else tuple(map(str, words))
        tables[name] = Table(value("n_bins", place=inner), value("dim", place=inner), known)
    voice = value("dim", place=mapping(mapping(conditioners, "speaker_wavs"), "tensor")) if cross else None
    if (fuser.get("cross") or []) != cross or fuser.get("prepend"):
        raise ModelError(f"{what} has a fuser that is not supported")
    scale = float(fuser.get("cross_attention_pos_emb_scale", 1.0)) if fuser.get("cross_attention_pos_emb") else 0.0
    tts, dim, depth = mapping(found, "tts_config"), value("dim"), value("depformer_dim")
    if tts.get("multistream"):
        raise ModelError(f"{what} has multistream=True in its tts_config, which is not supported")
    delay, period = float(tts.get("audio_delay", 0)), float(found.get("max_period", 10_000))
    for name, number, low, high in (("audio_delay", delay, 0, 60), ("max_period", period, 1, 1e12)):
        if not low <= number <= high:
            raise ModelError(f"{what} has {name}={number:g}; it must be {low:g} to {high:g}")
    hidden, own = float(found.get("hidden_scale", 4)), found.get("depformer_dim_feedforward")
    if isinstance(own, list):
        if len(set(map(str, own))) != 1:
            raise ModelError(f"{what} has MLPs of several widths along the depth, which is not supported")
        own = own[0]
    inner_size = value("depformer_dim_feedforward", int(hidden * depth), place={"depformer_dim_feedforward": own})
    low_rank = found.get("depformer_low_rank_embeddings")
    sizes = Sizes(dim, value("num_heads"), value("num_layers"), int(hidden * dim))
    depths = Sizes(
        depth, value("depformer_num_heads", sizes.heads), value("depformer_num_layers", sizes.layers), inner_size
    )
    for each in (sizes, depths):
        if each.dim % (2 * each.heads):
            raise ModelError(f"{what} has a width of {each.dim}, which {each.heads} heads do not share")
    text_card = value("text_card")
    return KyutaiConfig(
        main=sizes,
        depth=depths,
        codebooks=books,
        user_books=user_books,
        card=value("card", least=2),
        text_card=text_card,
        text_card_out=value("text_card_out", text_card, least=4),
        delays=tuple(delays[1:]),
        demuxed=bool(found.get("demux_second_stream", found.get("demux_second_text_stream", False))),
        low_rank=None if low_rank is None else value("depformer_low_rank_embeddings"),
        schedule=tuple(schedule),
        context=value("context", LARGEST - 1),
        max_period=period,
        tables=tables,
        voice=voice,
        voice_positions=scale,
        delay_steps=int(delay * 12.5),
        look_ahead=value("second_stream_ahead", 0, 0, tts),
    )


class RMSNorm(nn.Module):
    """A root mean square norm in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., dim], normed."""
        wide = x.float()
        scale = self.alpha[0, 0].float() * torch.rsqrt(1e-8 + wide.square().mean(-1, keepdim=True))
        return (wide * scale).to(x.dtype)


class Gating(nn.Module):
    """A gated MLP."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        hidden = 21 * dim // 8 if size == 4 * dim else 2 * size // 3
        self.linear_in = nn.Linear(dim, 2 * hidden, bias=False)
        self.linear_out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., dim], through the MLP."""
        gate, value = self.linear_in(x).chunk(2, dim=-1)
        out: Tensor = self.linear_out(F.silu(gate) * value)
        return out


class Attention(nn.Module):
    """The projections of an attention; `count` of each, for the steps of the depth."""

    def __init__(self, sizes: Sizes, count: int = 1) -> None:
        super().__init__()
        self.in_projs = nn.ModuleList(nn.Linear(sizes.dim, 3 * sizes.dim, bias=False) for _ in range(count))
        self.out_projs = nn.ModuleList(nn.Linear(sizes.dim, sizes.dim, bias=False) for _ in range(count))


class MainLayer(nn.Module):
    """A layer of the transformer over the frames; `cross` is whether it attends to a voice."""

    def __init__(self, sizes: Sizes, cross: bool) -> None:
        super().__init__()
        self.self_attn = Attention(sizes)
        self.cross_attention = Attention(sizes) if cross else None
        self.norm1, self.norm2 = RMSNorm(sizes.dim), RMSNorm(sizes.dim)
        self.norm_cross = nn.LayerNorm(sizes.dim, 1e-5) if cross else None
        self.gating = Gating(sizes.dim, sizes.inner)


class DepthLayer(nn.Module):
    """A layer along the depth, with its weights for each step."""

    def __init__(self, sizes: Sizes, count: int) -> None:
        super().__init__()
        self.self_attn = Attention(sizes, count)
        self.norm1, self.norm2 = RMSNorm(sizes.dim), RMSNorm(sizes.dim)
        self.gating = nn.ModuleList(Gating(sizes.dim, sizes.inner) for _ in range(count))


class Layers(nn.Module):
    """The layers of a transformer."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class Embedding(nn.Embedding):
    """A table whose id -1 is zero.

    Args:
        count: Number of ids.
        dim: Width of the embeddings.
        rank: Width of the table; None for `dim`.
        demuxed: Whether an id stands for two: itself modulo `count`, and the quotient less one, where there is one.
    """

    def __init__(self, count: int, dim: int, rank: int | None = None, demuxed: bool = False) -> None:
        super().__init__(count, rank or dim)
        self.low_rank = None if rank is None else nn.Linear(rank, dim, bias=False)
        self.out1, self.out2 = (nn.Linear(rank or dim, dim, bias=False) if demuxed else None for _ in range(2))

    @property
    def projections(self) -> list[nn.Linear]:
        """What `forward` multiplies vectors of the table by."""
        found = (self.low_rank,) if self.out1 is None else (self.out1, self.out2)
        return [each for each in found if each is not None]

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [...] to [..., dim]."""
        absent, ids = (ids < 0)[..., None], ids.clamp(min=0)
        if self.out1 is not None and self.out2 is not None:
            second = ids // self.num_embeddings - 1
            both = self.out2(super().forward(second.clamp(min=0))).masked_fill((second < 0)[..., None], 0)
            both = self.out1(super().forward(ids % self.num_embeddings)) + both
            return both.masked_fill(absent, 0)
        out = super().forward(ids).masked_fill(absent, 0)
        return out if self.low_rank is None else self.low_rank(out)


class Condition(nn.Module):
    """A condition, projected to the model's width.

    Args:
        bins: Words of its table; None for a condition that is vectors.
        dim: Width of its vectors.
        out: The model's width.
    """

    def __init__(self, bins: int | None, dim: int, out: int) -> None:
        super().__init__()
        self.embed = None if bins is None else nn.Embedding(bins + 1, dim)
        self.output_proj = nn.Linear(dim, out, bias=False)
        self.learnt_padding = nn.Parameter(torch.zeros(1, 1, out))


class KyutaiTTS(nn.Module):
    """A Kyutai TTS, with the parameter names of the published files.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: KyutaiConfig) -> None:
        super().__init__()
        self.config = config
        dim, depth, books, ids = config.main.dim, config.depth.dim, config.codebooks, config.card + 1
        steps = max(config.schedule) + 1
        self.emb = nn.ModuleList(Embedding(ids, dim) for _ in range(books + config.user_books))
        self.text_emb = Embedding(config.text_card + 1, dim, None, config.demuxed)
        self.text_linear = nn.Linear(dim, config.text_card_out, bias=False)
        self.transformer = Layers([MainLayer(config.main, config.voice is not None) for _ in range(config.main.layers)])
        self.out_norm = RMSNorm(dim)
        self.depformer_in = nn.ModuleList(nn.Linear(dim, depth, bias=False) for _ in range(steps))
        self.depformer_emb = nn.ModuleList(Embedding(ids, depth, config.low_rank) for _ in range(books - 1))
        self.depformer_text_emb = Embedding(config.text_card + 1, depth, config.low_rank, config.demuxed)
        self.depformer = Layers([DepthLayer(config.depth, steps) for _ in range(config.depth.layers)])
        self.linears = nn.ModuleList(nn.Linear(depth, config.card, bias=False) for _ in range(books))
        conditions = {name: Condition(table.bins, table.dim, dim) for name, table in config.tables.items()}
        if config.voice is not None:
            conditions["speaker_wavs"] = Condition(None, config.voice, dim)
        self.condition_provider = nn.ModuleDict({"conditioners": nn.ModuleDict(conditions)})

    @property
    def device(self) -> torch.device:
        return self.text_linear.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.text_linear.weight.dtype

    def embed_columns(self, columns: Tensor) -> Tensor:
        """Columns int64 [..., 1 + K + user_books] of a text id and codes to embeddings [..., D]; -1 is zero."""
        embeds: Tensor = self.text_emb(columns[..., 0])
        for table, codes in zip(self.emb, columns[..., 1:].unbind(-1), strict=True):
            embeds = embeds + table(codes)
        return embeds

    def condition_sum(self, words: Mapping[str, str | None]) -> Tensor:
        """What the words of the conditions add to the embeddings of all frames, [D]; None is an absent word."""
        total = torch.zeros(self.config.main.dim, device=self.device)
        for name, word in words.items():
            table, part = self.config.tables[name], self._condition(name)
            assert part.embed is not None
            if word is None:
                total = total + part.learnt_padding[0, 0].float()
                continue
            if table.words is None:
                index = int(hashlib.sha256(word.encode()).hexdigest(), 16) % table.bins
            else:
                index = table.words.index(word)
            total = total + F.linear(part.embed.weight[index].float(), part.output_proj.weight.float())
        return total.to(self.dtype)

    def voice_states(self, voices: Sequence[Tensor]) -> Tensor:
        """What the frames attend to, [5 * S, D], of up to 5 voices, float [S, width] each."""
        part, length = self._condition("speaker_wavs"), voices[0].shape[0]
        vectors = torch.cat([voice.to(self.device).float() for voice in voices])
        states = F.linear(vectors, part.output_proj.weight.float())
        rest = part.learnt_padding[0].float().expand((5 - len(voices)) * length, -1)
        states = torch.cat([states, rest])
        if self.config.voice_positions:
            half = states.shape[1] // 2
            steps = torch.arange(half, device=states.device).float() / (half - 1)
            phase = torch.arange(len(states), device=states.device).float()[:, None] / 10_000.0**steps
            states = states + self.config.voice_positions * torch.cat([phase.cos(), phase.sin()], dim=-1)
        return states.to(self.dtype)

    def _condition(self, name: str) -> Condition:
        conditioners = self.condition_provider["conditioners"]
        assert isinstance(conditioners, nn.ModuleDict)
        part = conditioners[name]
        assert isinstance(part, Condition)
        return part


def rotated(x: Tensor, positions: Tensor, max_period: float) -> Tensor:
    """Queries or keys [R, heads, W, d] with rotary embeddings of neighboring pairs at positions int64 [R, W]."""
    size = x.shape[-1]
    speed = torch.exp(torch.arange(size // 2, device=x.device).float() * (-math.log(max_period) * 2 / size))
    angle = (positions[..., None] * speed)[:, None]
    cos, sin, wide = angle.cos(), angle.sin(), x.float()
    even, odd = wide[..., ::2], wide[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def attend(x: Tensor, heads: int, mask: Tensor | None, cache: SlotCache, layer: int, rotate: Any = None) -> Tensor:
    """Queries, keys and values [R, W, 3 * D] to what they attend to, [R, W, D]; `rotate` turns the first two."""
    query, key, value = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in x.chunk(3, dim=-1))
    if rotate is not None:
        query, key = rotate(query), rotate(key)
    key, value = cache.update(key, value, layer)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def read_model(
    folder: Path,
    device: str,
    dtype: torch.dtype | str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    user_books: int = 0,
) -> KyutaiTTS:
    """The model in a published folder, in evaluation mode.

    Args:
        folder: Contains `config.json` and the weights that it names.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files.
        defaults: What `config.json` leaves out.
        user_books: See `read_config`; the weights of steps that would make these codes are left out.

    Raises:
        ModelError: If files are missing, damaged or of another model.
    """
    what, found = f"model {str(folder)!r}", {**defaults, **read_json(folder / "config.json")}
    name = found.get("moshi_name", "model.safetensors")
    if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
        raise ModelError(f"{what} has no weights; there must be {shown(name)}, which its config.json names")
    state = read_tensors(folder / name, "model")
    with building(what, "a Kyutai TTS"):
        model = KyutaiTTS(read_config(found, what, user_books))
    used = split_steps({key: value for key, value in state.items() if not key.startswith("extra_heads.")})
    if user_books:
        kept = model.state_dict().keys()
        used = {key: value for key, value in used.items() if key in kept or not AT_STEPS.match(key)}
    load_tensors(what, used, model, device, dtype)
    return model.requires_grad_(False).eval()


def split_steps(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published weights whose projections of all steps may lie in one tensor, with one tensor per step."""
    out = dict[str, Tensor]()
    gates = [re.match(r"depformer\.layers\.\d+\.gating\.(\d+)\.", name) for name in state]
    steps = 1 + max((int(found[1]) for found in gates if found), default=0)
    for name, tensor in state.items():
        found = re.fullmatch(r"(.+\.)(in|out)_proj(_weight|\.weight)", name)
        if found is None:
            out[name] = tensor
            continue
        count = steps if name.startswith("depformer.") else 1
        if tensor.ndim == 2 and len(tensor) % count == 0:
            for step, part in enumerate(tensor.chunk(count)):
                out[f"{found[1]}{found[2]}_projs.{step}.weight"] = part
    return out
