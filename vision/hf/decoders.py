"""Decoders that are parts of a transformers model."""

from __future__ import annotations

from typing import Any

# Classes whose `model.vqmodel` turns codes into pixels; that of a Chameleon only encodes.
WITH_DECODER = ("JanusForConditionalGeneration", "Emu3ForConditionalGeneration")


def keep_decoder_in_float32(model: Any) -> None:
    """Converts the decoder of a model to float32, in place; its errors would be visible in the image."""
    if any(kind.__name__ in WITH_DECODER for kind in type(model).__mro__):
        model.model.vqmodel.float()
