"""Records what the package utmos-pytorch computes with tiny weights; writes tests/golden/utmos.json.

The only argument is the folder that has the package. Its sizes are constants, for which those of `tiny_utmos` stand in.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny_utmos as tiny
import torch
from golden import GOLDEN


def main(source: Path) -> None:
    sys.path.insert(0, str(source))
    from utmos_pytorch import utmos_torch as original
    from utmos_pytorch.wav2vec2 import Wav2Vec2Config, Wav2Vec2Model

    small = Wav2Vec2Config(
        conv_feature_layers=str(tiny.CONVS), encoder_layers=tiny.LAYERS, encoder_embed_dim=tiny.DIM,
        encoder_ffn_embed_dim=tiny.INNER, encoder_attention_heads=tiny.DIM // 64, conv_pos=tiny.POSITIONS,
        conv_pos_groups=tiny.GROUPS,
    )  # fmt: skip
    wide = tiny.DIM + tiny.EMBEDDING
    listeners = original.LDConditioner(wide, tiny.EMBEDDING, tiny.JUDGES)
    listeners.decoder_rnn = torch.nn.LSTM(wide + tiny.EMBEDDING, tiny.HIDDEN, batch_first=True, bidirectional=True)
    model: Any = original.UTMOSModel.__new__(original.UTMOSModel)
    torch.nn.Module.__init__(model)
    model.feature_extractors = torch.nn.ModuleList(
        [original.SSL_model(Wav2Vec2Model(small), tiny.DIM), original.DomainEmbedding(tiny.DOMAINS, tiny.EMBEDDING)]
    )
    model.output_layers = torch.nn.ModuleList(
        [listeners, original.Projection(2 * tiny.HIDDEN, tiny.PROJECTION, torch.nn.ReLU())]
    )
    for name, parameter in model.named_parameters():
        parameter.data = tiny.values(name, parameter.shape)
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    whole: Any = original.UTMOSScoreTorch.__new__(original.UTMOSScoreTorch)
    torch.nn.Module.__init__(whole)
    whole.model, whole.device = model.eval(), "cpu"
    scores = [float(whole.score(torch.from_numpy(wave))) for wave in tiny.waves()]
    file = GOLDEN / "utmos.json"
    file.write_text(json.dumps({"scores": scores, "shapes": shapes}) + "\n", encoding="utf-8")
    print(scores)


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]))
