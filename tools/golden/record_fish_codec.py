"""Records what the codec of Fish S2 Pro in SGLang-Omni computes for a tiny one; writes tests/golden/fish_codec.json.

Run with the folder of the unpacked package sglang-omni and that of descript-audio-codec 1.0.0, on whose quantizer it is
built, with einops on the path. Of the latter only `dac/nn` is loaded; its loading and saving of files is replaced.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from golden import GOLDEN
from tiny_fish_codec import TINY, codes, recording, weights
from torch import nn

FRAMES, SAMPLES = 140, 2_250  # more than the windows of the transformers, and no whole number of frames
EVERY = 37  # samples between those that are recorded
PLACE = "sglang_omni/models/fishaudio_s2_pro/fish_speech/models/dac"


def stub(name: str, **attributes: Any) -> None:
    module: Any = ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module


def codec(source: Path, descript: Path) -> Any:
    """The package's codec with the tiny sizes and weights."""
    mixin = type("CodecMixin", (), {"get_delay": lambda self: 0})
    stub("audiotools")
    stub("audiotools.ml", BaseModel=nn.Module)
    stub("dac", __path__=[str(descript / "dac")])
    stub("dac.nn", __path__=[str(descript / "dac/nn")])
    stub("dac.model", __path__=[])
    stub("dac.model.base", CodecMixin=mixin)
    stub("theirs", __path__=[str(source / PLACE)])
    theirs, rvq = import_module("theirs.modded_dac"), import_module("theirs.rvq")
    args = partial(theirs.ModelArgs, n_local_heads=-1, head_dim=64, rope_base=10000, norm_eps=1e-5, channels_first=True)
    latent = TINY["latent"]

    def beside() -> Any:
        config = args(n_layer=TINY["layers"], n_head=latent // 64, dim=latent, intermediate_size=TINY["inner"])
        return theirs.WindowLimitedTransformer(config, input_dim=latent, window_size=128, causal=True)

    quantizer = rvq.DownsampleResidualVectorQuantize(
        input_dim=latent, n_codebooks=len(TINY["books"]) - 1, codebook_dim=TINY["book"],
        codebook_size=TINY["books"][1], semantic_codebook_size=TINY["books"][0], downsample_factor=TINY["down"],
        pre_module=beside(), post_module=beside(),
    )  # fmt: skip
    made = theirs.DAC(
        encoder_dim=TINY["encoder"], encoder_rates=TINY["rates"], decoder_dim=TINY["decoder"],
        decoder_rates=TINY["rates"][::-1], encoder_transformer_layers=TINY["in_encoder"],
        decoder_transformer_layers=[0] * len(TINY["rates"]), quantizer=quantizer, transformer_general_config=args,
    )  # fmt: skip
    missing, unknown = made.load_state_dict(weights(), strict=False, assign=True)
    assert not missing and all(name.endswith(("freqs_cis", "causal_mask")) for name in unknown), (missing, unknown)
    return made.eval()


@torch.no_grad()
def main() -> None:
    made = codec(*(Path(argument) for argument in sys.argv[1:]))
    audio = made.from_indices(codes(FRAMES))[:, 0]
    found, _ = made.encode(recording(SAMPLES)[None])
    content = {
        "frames": FRAMES,
        "samples": SAMPLES,
        "every": EVERY,
        "length": audio.shape[-1],
        "audio": [[round(x, 6) for x in row] for row in audio[:, ::EVERY].tolist()],
        "codes": found[0].T.tolist(),
    }
    file = GOLDEN / "fish_codec.json"
    file.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(audio.std(), len({tuple(frame) for frame in content["codes"]}), len(content["codes"]))


if __name__ == "__main__":
    main()
