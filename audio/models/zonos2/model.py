"""ZONOS2 (Zyphra): a decoder of gated attention and experts, whose router hands a state from layer to layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.models.zonos2.config import FILE, Zonos2Config, read_config
from mmspec.files.checkpoint import building, check_depths, load_tensors, read_tensors
from mmspec.files.documents import read_object
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.hf.grouped_queries import fold

WEIGHTS = "model.pth"
UNREAD = (".router.ent_denom", ".router.normalized_entropy")  # of training
QK_EPS = 1e-6


class Chunks(nn.Module):
    """Several linear maps whose weights are stacked: [maps, out, in]."""

    def __init__(self, maps: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(maps, out, width))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [..., in], by each of the maps, [..., out]."""
        return F.linear(x, self.weight.flatten(0, 1)).chunk(len(self.weight), dim=-1)


class Attention(nn.Module):
    """Attention whose heads have a temperature and a gate."""

    def __init__(self, config: Zonos2Config, number: int) -> None:
        super().__init__()
        self.head, self.number, inner = config.head, number, config.heads * config.head
        self.wq = nn.Linear(config.dim, inner, bias=False)
        self.wkv = Chunks(2, config.dim, config.kv_heads * config.head)
        self.wo = nn.Linear(inner, config.dim, bias=False)
        self.gater = nn.Linear(config.dim, config.heads, bias=False)
        self.temp = nn.Parameter(torch.ones(1, config.heads, 1))

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Any) -> Tensor:
        """x [R, W, D] to what it attends to, [R, W, D]."""
        query, key, value = (each.unflatten(-1, (-1, self.head)) for each in (self.wq(x), *self.wkv(x)))
        query = F.rms_norm(query, (self.head,), eps=QK_EPS) * self.temp.abs()
        key = F.rms_norm(key, (self.head,), eps=QK_EPS)
        query, key = (turned(each.transpose(1, 2), *rotation) for each in (query, key))
        key, value = cache.update(key, value.transpose(1, 2), self.number)
        seen = fold(query, key, value, mask).transpose(1, 2) * self.gater(x).sigmoid()[..., None]
        out: Tensor = self.wo(seen.flatten(2))
        return out


class FeedForward(nn.Module):
    """A gated feed-forward of a layer without experts."""

    def __init__(self, config: Zonos2Config) -> None:
        super().__init__()
        self.w_in = Chunks(2, config.dim, config.inner)
        self.w_out = nn.Linear(config.inner, config.dim, bias=False)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [R, W, D] to [R, W, D], and no state of a router."""
        up, gate = self.w_in(x)
        return self.w_out(up * F.silu(gate)), None


class Router(nn.Module):
    """Chooses experts by a state, to which that of the layer before is added."""

    def __init__(self, config: Zonos2Config, number: int) -> None:
        super().__init__()
        width = config.router
        self.count, self.adds = config.chosen[number], config.adds_biases
        self.down_proj = nn.Linear(config.dim, width)
        self.router_mlp = nn.Sequential(
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, config.experts, bias=False),
        )
        self.rmsnorm_eda = nn.RMSNorm(width, config.eps)
        follows = number != config.first_sparse
        self.router_states_scale = nn.Parameter(torch.ones(width)) if follows else None
        self.register_buffer("balancing_biases", torch.zeros(config.experts))

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The experts of x [n, D].

        Returns:
            Their weights, float32 [n, k]; their numbers, int64 [n, k]; and the state, [n, width].
        """
        own = self.down_proj(x)
        if state is not None and self.router_states_scale is not None:
            own = own + state * self.router_states_scale
        probs = self.router_mlp(self.rmsnorm_eda(own)).float().softmax(-1)
        biases = self.balancing_biases.float()
        chosen = (probs + biases if self.adds else probs - biases).topk(self.count, dim=-1).indices
        return probs.gather(-1, chosen), chosen, own


class Experts(nn.Module):
    """Feed-forwards of which a token has some. The host never waits for which."""

    def __init__(self, config: Zonos2Config) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(config.experts, 2 * config.inner, config.dim))
        self.down_proj = nn.Parameter(torch.empty(config.experts, config.dim, config.inner))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The sum of the experts `chosen`, int64 [n, k], of x [n, D], by their weights, float32 [n, k]."""
        if chosen.numel() <= len(self.down_proj):  # their weights alone are read
            which, each = chosen.flatten(), x[:, None].expand(*chosen.shape, -1).flatten(0, 1)
            gate, up = (self.gate_up_proj[which] @ each[..., None]).chunk(2, dim=1)
            each = (self.down_proj[which] @ (F.silu(gate) * up)).view(*chosen.shape, -1)
            return (each * weights[..., None]).sum(1).to(x.dtype)
        total = torch.zeros_like(x, dtype=torch.float32)
        for number, (enter, leave) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            gate, up = F.linear(x, enter).chunk(2, dim=-1)
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            total = total + share * F.linear(F.silu(gate) * up, leave)
        return total.to(x.dtype)


class SparseFeedForward(nn.Module):
    """A feed-forward of experts."""

    def __init__(self, config: Zonos2Config, number: int) -> None:
        super().__init__()
        self.router, self.experts = Router(config, number), Experts(config)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [R, W, D] to [R, W, D], and the state [R * W, width] of the router for the next layer."""
        flat = x.flatten(0, 1)
        weights, chosen, state = self.router(flat, state)
        return self.experts(flat, weights, chosen).view_as(x), state


class Zonos2Layer(nn.Module):
    """A layer, with the names of the published weights."""

    def __init__(self, config: Zonos2Config, number: int) -> None:
        super().__init__()
        self.attention = Attention(config, number)
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(config.dim, config.eps) for _ in range(2))
        self.feed_forward = SparseFeedForward(config, number) if config.chosen[number] else FeedForward(config)


class Zonos2Layers(DecoderLayers):
    """The layers of a `Zonos2`, between which the state of the router goes along with the hidden states."""

    def __init__(self, model: Zonos2) -> None:
        super().__init__(model.layers, model.out_norm)
        self.module, self._config = model, model.config

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        width, state = self._config.head, list[Tensor | None]([None])
        speed = self._config.theta ** -(torch.arange(0, width, 2, device=embeds.device).float() / width)
        angle = (positions[..., None] * speed)[:, None]
        rotation = angle.cos(), angle.sin()

        def run(layer: Any, hidden: Tensor) -> Tensor:
            hidden = hidden + layer.attention(layer.attention_norm(hidden), rotation, mask, cache)
            out, state[0] = layer.feed_forward(layer.ffn_norm(hidden), state[0])
            found: Tensor = hidden + out
            return found

        return embeds, run


class Zonos2(nn.Module):
    """The model, with the parameter names of the published weights but for those of experts.

    Args:
        config: Its configuration.
    """

    def __init__(self, config: Zonos2Config) -> None:
        super().__init__()
        self.config = config
        ids, width = config.codes + 2, config.dim
        tables = [nn.Embedding(ids, width) for _ in range(config.codebooks)]
        self.multi_embedder = nn.ModuleDict(
            {"embedders": nn.ModuleList([*tables, nn.Embedding(config.text + 1, width)])}
        )
        self.emb_norm = nn.RMSNorm(width, config.eps, elementwise_affine=False)
        if config.voice is not None:
            if config.lda is not None:
                self.speaker_lda_projection = nn.Linear(config.voice, config.lda)
            self.speaker_projection = nn.Linear(config.lda or config.voice, width)
        self.layers = nn.ModuleList(Zonos2Layer(config, number) for number in range(len(config.chosen)))
        self.out_norm = nn.RMSNorm(width, config.eps)
        self.multi_output = nn.Linear(width, ids * config.codebooks, bias=False)

    @property
    def device(self) -> torch.device:
        return self.multi_output.weight.device

    def embed(self, columns: Tensor) -> Tensor:
        """Columns int64 [..., K + 1] of codes and an id of text to embeddings [..., D], normed."""
        tables = self.multi_embedder["embedders"]
        assert isinstance(tables, nn.ModuleList)
        embeds = tables[0](columns[..., 0])
        for table, ids in zip(tables[1:], columns[..., 1:].unbind(-1), strict=True):
            embeds = embeds + table(ids)
        normed: Tensor = self.emb_norm(embeds)
        return normed

    def embed_columns(self, columns: Tensor) -> Tensor:
        """Columns int64 [..., K] after a prompt to embeddings [..., D]; ids past its codebook's count as the last."""
        return self.embed(F.pad(columns.clamp(max=self.config.codes + 1), (0, 1), value=self.config.text))

    def embed_voice(self, voice: Tensor) -> Tensor:
        """The embedding of a voice, float [width], as the position of a prompt, [D]."""
        own = voice.to(self.device, self.multi_output.weight.dtype)
        own = own if self.config.lda is None else self.speaker_lda_projection(own)
        normed: Tensor = self.emb_norm(self.speaker_projection(own))
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to logits [..., K, codes + 3]: those of its ids, and the end of a row at -inf."""
        cap, z = self.config.cap, self.multi_output(hidden).unflatten(-1, (self.config.codebooks, -1))
        return F.pad(cap * torch.tanh(z / cap) if cap else z, (0, 1), value=-torch.inf)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys [R, heads, W, d], whose neighboring pairs are turned by angles [R, 1, W, d / 2]."""
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published weights under the names of `Zonos2`: those of experts have one of three forms.

    They are taken out of `state`, so that the experts of one layer at a time are in memory twice.
    """
    out = dict[str, Tensor]()
    for name in list(state):
        tensor = state.pop(name)
        if ".parametrizations." in name:
            name = name.replace(".parametrizations.", ".").replace(".original", "")
        if not any(part in name for part in UNREAD):
            out[name] = tensor
    for name in [each for each in out if ".experts." in each]:
        place, _, own = name.rpartition(".experts.")
        place += ".experts."
        if own == "w13" and (both := out.pop(name)).ndim == 3:  # their rows alternate
            out[place + "gate_up_proj"] = torch.cat([both[:, ::2], both[:, 1::2]], dim=1)
        elif own == "w1.weight" and place + "w3.weight" in out:
            out[place + "gate_up_proj"] = torch.cat([out.pop(name), out.pop(place + "w3.weight")], dim=1)
        elif own in ("w2", "w2.weight"):
            out[place + "down_proj"] = out.pop(name)
    return out


def read_model(folder: Path, device: str, dtype: torch.dtype | str) -> Zonos2:
    """The model in a published folder, in evaluation mode.

    Args:
        folder: Contains `params.json` and `model.pth`.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the file; the biases that balance experts are float32.

    Raises:
        ModelError: If files are missing, damaged or of another model.
    """
    what, found = f"model {str(folder)!r}", read_object(folder / FILE)
    state = read_tensors(folder / WEIGHTS, "model", wrappers=("model",))
    check_depths(what, found, len(state))
    with building(what, "a ZONOS2"):
        model = Zonos2(read_config(found, what))
        used = renamed(state)
    load_tensors(what, used, model, device, dtype)
    for name, module in model.named_modules():
        if isinstance(module, Router):
            module.balancing_biases = used[f"{name}.balancing_biases"].float().to(device)
    return model.requires_grad_(False).eval()
