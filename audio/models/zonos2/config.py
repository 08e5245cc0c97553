"""The `params.json` of a ZONOS2: sizes, and the ids after those of bytes, with which a prompt is conditioned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from mmspec.arguments import shown
from mmspec.audio.config_file import LARGEST, integer_in
from mmspec.errors import ModelError

FILE = "params.json"
FIRST_BYTE = 192  # the id of byte 0 in the column of text
BYTES_END = FIRST_BYTE + 256
# Names of the ways to balance experts; whether their biases are added.
BALANCING = {
    "old": True, "legacy": True, "aux": True, "aux_loss": True,
    "current": False, "quantile": False, "qbalancing": False,
}  # fmt: skip


@dataclass(frozen=True)
class Zonos2Config:
    """The content of `params.json`.

    Attributes:
        dim: D, the width.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        head: Width of a head.
        inner: Width inside a feed-forward, and inside an expert.
        eps: Of the norms.
        theta: Base of the rotary embedding.
        positions: Positions of a sequence.
        codebooks: K.
        codes: Codes of a codebook; two more ids are the end and padding.
        end: The id with which a codebook ends.
        pad: The id of an empty cell.
        text: Ids of the column of text; the next one is padding.
        cap: Logits are at most this far from 0; 0 is no bound.
        chosen: For each layer, how many experts a token has; 0 for a layer without.
        first_sparse: The first layer with experts.
        experts: How many there are.
        router: Width of the router's state.
        adds_biases: Whether the biases that balance experts are added to their probabilities; else subtracted.
        voice: Width of a voice's embedding; None for models without voices.
        lda: Width to which it is projected first; None for none.
        rates: How many rates of speech have an id.
        qualities: The features of quality, and how many values of each have an id.
        marks_background: Whether two ids say that a voice's recording is clean, or noisy.
        marks_accuracy: Whether an id asks for a voice close to the recording.
    """

    dim: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    eps: float
    theta: float
    positions: int
    codebooks: int
    codes: int
    end: int
    pad: int
    text: int
    cap: float
    chosen: tuple[int, ...]
    first_sparse: int
    experts: int
    router: int
    adds_biases: bool
    voice: int | None
    lda: int | None
    rates: int
    qualities: tuple[tuple[str, int], ...]
    marks_background: bool
    marks_accuracy: bool

    @property
    def first_rate(self) -> int:
        """The id of the first rate of speech; those of qualities, backgrounds and accuracy follow, up to `text`."""
        counts = self.rates, sum(count for _, count in self.qualities), 2 * self.marks_background, self.marks_accuracy
        return self.text - sum(counts)

    @property
    def first_quality(self) -> int:
        """The id of the first value of the first feature of quality."""
        return self.first_rate + self.rates

    @property
    def clean(self) -> int:
        """The id of a clean recording; the next one is that of a noisy one, and the one after it of accuracy."""
        return self.text - 2 * self.marks_background - self.marks_accuracy


def is_zonos2(found: Mapping[str, Any]) -> bool:
    """Whether the content of a `params.json` is that of a ZONOS2."""
    own = settings(found)
    return own.get("model_type") in (None, "zonos2") and "n_codebooks" in own


def settings(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the model in the content of a `params.json`, which may hold others beside."""
    own = found.get("model", found)
    return own if isinstance(own, Mapping) else {}


def read_config(found: Mapping[str, Any], what: str) -> Zonos2Config:
    """Reads a `params.json`; missing values are those of the original.

    Raises:
        ModelError: If a value is missing or not allowed.
    """
    own = settings(found)
    value = partial(integer_in, own, what, file=FILE)

    def number(name: str, default: float, least: float) -> float:
        given = own.get(name, default)
        if isinstance(given, bool) or not isinstance(given, Real) or not least <= float(given) < LARGEST:
            raise ModelError(f"{what} has {name}={shown(given)} in its {FILE}, which is not allowed")
        return float(given)

    dim, head, layers = value("dim", 512, 1), value("head_dim", 128, 2), value("n_layers", 8, 1)
    heads = value("n_heads", dim // head, 1)
    kv_heads, rounded = value("n_kv_heads", heads, 1), value("multiple_of", 256, 1)
    codes, experts = value("codebook_size", 1024, 1), value("moe_n_experts", 1, 1)
    strategy = str(own.get("moe_balancing_strategy", "legacy")).strip().lower().replace("-", "_")
    if heads % kv_heads or head % 2 or strategy not in BALANCING:
        raise ModelError(
            f"{what} has n_heads={heads}, n_kv_heads={kv_heads}, head_dim={head} and moe_balancing_strategy="
            f"{strategy[:80]!r}, which are not possible together or at all"
        )
    first = value("moe_start_from_layer", 0)
    last = layers - value("moe_end_from_layer", 0) if experts > 1 else 0
    special = own.get("special_topk_layers") or {}
    usual = value("moe_router_topk", 1, 1)
    own_counts = partial(integer_in, special, f"special_topk_layers of {what}", file=FILE)
    chosen = tuple(own_counts(str(n), usual, 1) if first <= n < last else 0 for n in range(layers))
    if max(chosen) > experts:
        raise ModelError(f"{what} has layers with {shown(chosen)} of {experts} experts, which is not possible")
    buckets = own.get("quality_buckets") or {}
    features = own.get("quality_features") or list(buckets)
    has_voice, background = bool(own.get("speaker_enabled")), bool(own.get("speaker_background_token_enabled"))
    config = Zonos2Config(
        dim,
        heads,
        kv_heads,
        head,
        inner=rounded * math.ceil(int(number("ffn_dim_multiplier", 4.0, 0) * dim) / rounded),
        eps=number("norm_eps", 1e-5, 0),
        theta=number("rope_theta", 10000.0, 1),
        positions=value("max_seqlen", 2048, 1),
        codebooks=value("n_codebooks", 9, 2),
        codes=codes,
        end=value("eoa_id", 1024),
        pad=value("audio_pad_id", 1025),
        text=value("text_vocab"),
        cap=number("loss_softcap", 15.0, 0),
        chosen=chosen,
        first_sparse=first,
        experts=experts,
        router=value("moe_router_dim", 128, 1),
        adds_biases=BALANCING[strategy],
        voice=value("speaker_embedding_dim", 128, 1) if has_voice else None,
        lda=value("speaker_lda_dim", least=1) if has_voice and own.get("speaker_lda_dim") else None,
        rates=value("speaking_rate_num_buckets", 0),
        qualities=tuple((str(feature), len(buckets.get(feature, ()))) for feature in features),
        marks_background=background,
        marks_accuracy=background and bool(own.get("accurate_mode_token_enabled")),
    )
    if config.first_rate < BYTES_END or {config.end, config.pad} != {codes, codes + 1}:
        raise ModelError(
            f"{what} has text_vocab={config.text}, codebook_size={codes}, eoa_id={config.end} and audio_pad_id="
            f"{config.pad} in its {FILE}, which contradict each other"
        )
    return config
