"""Codecs of transformers after `mmspec.audio.codec.Codec`, one file each."""

from __future__ import annotations

import importlib
from typing import Any

from mmspec.audio.codec import Codec
from mmspec.errors import ModelError, did_you_mean

# By the name of the model's class, so that a codec is imported only when a model of its class is there.
CODECS = {
    "EncodecModel": "mmspec.audio.codecs.encodec:EnCodec",
    "DacModel": "mmspec.audio.codecs.dac:Dac",
    "MimiModel": "mmspec.audio.codecs.mimi:Mimi",
    "HiggsAudioV2TokenizerModel": "mmspec.audio.codecs.higgs:HiggsCodec",
    "Xcodec2Model": "mmspec.audio.codecs.xcodec2:XCodec2",
}


def codec_of(model: Any) -> Codec:
    """The codec around a model of transformers.

    Raises:
        ModelError: For a class that is none.
    """
    for kind in type(model).__mro__:
        if kind.__name__ in CODECS:
            module, _, name = CODECS[kind.__name__].partition(":")
            codec: Codec = getattr(importlib.import_module(module), name)(model)
            return codec
    name = type(model).__name__
    raise ModelError(f"{name} is no codec that mmspec knows{did_you_mean(name, CODECS)}; it knows {', '.join(CODECS)}")
