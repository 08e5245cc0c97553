"""Codecs of transformers with the interface of `mmspec.audio.codec.Codec`, one file each."""

from __future__ import annotations

from typing import Any

from mmspec.audio.codec import Codec
from mmspec.environment.importing import resolve
from mmspec.errors import ModelError, did_you_mean

# Model class -> codec, by name, so that a codec is imported only when a model of its class is used.
CODECS = {
    "EncodecModel": "mmspec.audio.codecs.encodec:EnCodec",
    "DacModel": "mmspec.audio.codecs.dac:Dac",
    "MimiModel": "mmspec.audio.codecs.mimi:Mimi",
    "HiggsAudioV2TokenizerModel": "mmspec.audio.codecs.higgs:HiggsCodec",
    "XcodecModel": "mmspec.audio.codecs.xcodec:XCodec",
    "Xcodec2Model": "mmspec.audio.codecs.xcodec2:XCodec2",
    "NeuCodecModel": "mmspec.audio.codecs.xcodec2:XCodec2",
}


def codec_of(model: Any) -> Codec:
    """The codec around a codec model of transformers.

    Raises:
        ModelError: If mmspec has no codec for the model's class.
    """
    for model_class in type(model).__mro__:
        if model_class.__name__ in CODECS:
            codec: Codec = resolve(CODECS[model_class.__name__])(model)
            return codec
    name = type(model).__name__
    supported = ", ".join(CODECS)
    raise ModelError(f"{name} is not a codec that mmspec supports{did_you_mean(name, CODECS)}; supported: {supported}")
