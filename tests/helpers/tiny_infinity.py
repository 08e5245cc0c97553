"""A tiny Infinity whose weights are those that the original was run with."""

from __future__ import annotations

from infinity_weights import BITS, CHUNKS, DEPTH, DIM, HEADS, HIDDEN, LONGEST, TEXT, weight

from mmspec.vision.infinity.transformer import InfinityTransformer


def published_names(model: InfinityTransformer) -> dict[str, str]:
    """The original name of each parameter, with layers in chunks of one."""
    per_chunk = DEPTH // CHUNKS

    def name(key: str) -> str:
        if not key.startswith("blocks."):
            return key
        _, number, rest = key.split(".", 2)
        return f"block_chunks.{int(number) // per_chunk}.module.{int(number) % per_chunk}.{rest}"

    return {key: name(key) for key in model.state_dict()}


def tiny_infinity(seed: str = "") -> InfinityTransformer:
    """The tiny model; another `seed` gives other weights."""
    model = InfinityTransformer(DIM, DEPTH, HEADS, HIDDEN, BITS, TEXT, LONGEST).eval()
    names = published_names(model)
    model.load_state_dict({key: weight(seed + names[key], value.shape) for key, value in model.state_dict().items()})
    return model
