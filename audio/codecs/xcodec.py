"""X-codec: residual codes and a DAC decoder without its final tanh, as in Higgs Audio's."""

from __future__ import annotations

from torch import Tensor

from mmspec.audio.codecs.higgs import HiggsCodec


class XCodec(HiggsCodec):
    """An `XcodecModel` as a codec."""

    def tables(self) -> list[Tensor]:
        return [each.codebook.embed.detach().float() for each in self._model.quantizer.quantizers]
