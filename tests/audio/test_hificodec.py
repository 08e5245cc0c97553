"""HiFi-Codec: against the published code, streamed, and what is refused.

The numbers are those of `yangdongchao/AcademiCodec` at b6ac134 with the state made by `state`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.audio.codecs.hificodec import WEIGHT_PARTS, HiFiCodecModel
from mmspec.audio.load import read_codec
from mmspec.errors import ModelError

CONFIG: dict[str, Any] = {
    "sampling_rate": 1200, "n_code_groups": 2, "n_codes": 16, "upsample_rates": [4, 3], "upsample_kernel_sizes": [8, 7],
    "upsample_initial_channel": 16, "resblock_kernel_sizes": [3, 5],
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "1": {"resblock": "1", "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]]},
    "2": {"resblock": "2", "resblock_dilation_sizes": [[1, 3], [1, 3]]},
}
# By kind of residual block: a hash of names and shapes of the state without the encoder, and every 9th sample.
PUBLISHED = {
    "1": ("bea0a2e1467130f6", [-0.952723, -0.182778, -0.298698, -0.137713, -0.042741, -0.053593, -0.322373, -0.231657]),
    "2": ("e4ef1e8010b4a906", [0.018208, 0.658291, 0.643863, 0.65755, 0.700875, 0.711313, 0.647721, 0.65988]),
}


def state(config: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """A deterministic state that needs no random number generator, under the published names."""
    made: dict[str, dict[str, Tensor]] = {"quantizer": {}, "generator": {}, "encoder": {"a": torch.zeros(1)}}
    for name, tensor in HiFiCodecModel(config).state_dict().items():
        for published, own in WEIGHT_PARTS.items():
            name = name.replace(own, published)
        part, _, name = name.partition(".")
        value = (torch.arange(tensor.numel(), dtype=torch.float64) * 0.7 + len(name)).sin().float().view(tensor.shape)
        made[part][name] = 0.8 + 0.3 * value if name.endswith("weight_g") else value
    return made


def saved(folder: Path, kind: str = "1") -> Path:
    config = CONFIG | KINDS[kind]
    (folder / "config_1k_12d.json").write_text(json.dumps(config))
    torch.save(state(config), folder / "HiFi-Codec-1k-12d")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_audio_is_that_of_the_published_code(kind: str, tmp_path: Path) -> None:
    digest, wanted = PUBLISHED[kind]
    codec = read_codec(saved(tmp_path, kind), "cpu")
    parts = state(CONFIG | KINDS[kind])
    names = [f"{part}.{n} {list(t.shape)}" for part in ("quantizer", "generator") for n, t in parts[part].items()]
    assert hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16] == digest
    assert (codec.sampling_rate, codec.hop, codec.codebooks, codec.codebook_size) == (1200, 12, 4, 16)
    audio = codec.decode((torch.arange(24) * 5 % 16).view(1, 4, 6))
    assert audio.shape == (1, 1, 72)
    np.testing.assert_allclose(audio[0, 0, ::9].numpy(), wanted, atol=1e-5)
    assert [table.shape for table in codec.tables()] == [(16, 256)] * 4


def test_streaming_matches_decoding_at_once(tmp_path: Path) -> None:
    codec = read_codec(saved(tmp_path), "cpu")
    codes = torch.randint(16, (2, 4, 60), generator=torch.Generator().manual_seed(1))
    stream = codec.stream()
    chunks = [stream.push(codes[..., :25]), stream.push(codes[..., 25:50]), stream.push(codes[..., 50:])]
    assert chunks[0].shape[-1] > 0
    torch.testing.assert_close(torch.cat([*chunks, stream.finish()], -1), codec.decode(codes), atol=1e-5, rtol=1e-4)


def test_what_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    parts = state(CONFIG | KINDS["1"])
    del parts["generator"]["conv_post.bias"]
    torch.save(parts, folder / "HiFi-Codec-1k-12d")
    with pytest.raises(ModelError, match="missing: generator.conv_post.bias"):
        read_codec(folder, "cpu")
    torch.save({"generator": parts["generator"]}, folder / "HiFi-Codec-1k-12d")
    with pytest.raises(ModelError, match="it has no 'quantizer'"):
        read_codec(folder, "cpu")
    torch.save({**parts, "quantizer": {"a": 3}}, folder / "HiFi-Codec-1k-12d")
    with pytest.raises(ModelError, match="it has no 'quantizer' of tensors"):
        read_codec(folder, "cpu")
    good, file = CONFIG | KINDS["1"], folder / "config_1k_12d.json"
    for wrong in (
        {"sampling_rate": "x"}, {"sampling_rate": 0}, {"upsample_rates": [4.0, 3.0]}, {"upsample_rates": [0, 3]},
        {"upsample_kernel_sizes": [8, 6]},
    ):  # fmt: skip
        file.write_text(json.dumps(good | wrong))
        with pytest.raises(ModelError, match="must be integers above 0, and kernels longer than their rates by an"):
            read_codec(folder, "cpu")
    file.write_text(json.dumps(good))
    (folder / "HiFi-Codec-1k-12d").unlink()
    with pytest.raises(ModelError, match="must have one checkpoint"):
        read_codec(folder, "cpu")
    (folder / "config_1k_12d.json").write_text(json.dumps({"n_code_groups": 2}))
    with pytest.raises(ModelError, match="has no 'n_codes'"):
        read_codec(folder, "cpu")
