"""SNAC: against the published package, streamed, and as the codec of Orpheus.

The numbers are those of the package snac 1.2.1 with the state made by `state`, and with its `torch.randn` replaced by
`normals`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_speech as tiny
import torch
from tiny_speech import tokenizer
from torch import Tensor

import mmspec
import mmspec.audio.codecs.snac
import mmspec.hub
from mmspec.audio.codecs.snac import SnacModel, read_snac
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.speech import STYLES
from mmspec.audio.models.flat.style import Style
from mmspec.errors import ModelError
from mmspec.sampling.params import SamplingParams

CONFIG: dict[str, Any] = {
    "sampling_rate": 1000, "encoder_dim": 4, "encoder_rates": [2, 3], "decoder_dim": 16, "decoder_rates": [3, 2],
    "attn_window_size": None, "codebook_size": 16, "codebook_dim": 4, "vq_strides": [4, 2, 1],
}  # fmt: skip
# By `noise` and `depthwise`: a hash of names and shapes of the state without the encoder, and every 20th sample.
PUBLISHED = {
    True: ("a136ffa58c564e87", [-0.569131, 0.767852, 0.973854, 0.983446, 0.824025, 0.771233, 0.646578, 0.375139]),
    False: ("f29e9b289211bcdd", [-0.331107, 0.316376, 0.255215, 0.329412, 0.243615, 0.202466, 0.207629, 0.039318]),
}


def state(empty: dict[str, Tensor]) -> dict[str, Tensor]:
    """A deterministic state that needs no random number generator."""
    made = {}
    for name, tensor in empty.items():
        value = (torch.arange(tensor.numel(), dtype=torch.float64) * 0.7 + len(name)).sin().float().view(tensor.shape)
        scaled = {"alpha": 1 + 0.3 * value, "original0": 0.8 + 0.3 * value}
        made[name] = scaled.get(name.rpartition(".")[2], value)
    return made


def saved(folder: Path, **changes: Any) -> Path:
    """A folder in the published form, with a parameter of the encoder in it."""
    folder.mkdir(exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    made = state(SnacModel(config).state_dict())
    torch.save(made | {"encoder.block.0.bias": torch.zeros(4)}, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("kind", [True, False])
def test_decoder_matches_the_published_package(kind: bool, tmp_path: Path) -> None:
    digest, wanted = PUBLISHED[kind]
    names = SnacModel(CONFIG | {"noise": kind, "depthwise": kind}).state_dict()
    listed = "\n".join(sorted(f"{name} {list(tensor.shape)}" for name, tensor in names.items()))
    assert hashlib.sha256(listed.encode()).hexdigest()[:16] == digest
    codec = read_snac(saved(tmp_path, noise=kind, depthwise=kind))
    assert (codec.sampling_rate, codec.hop, codec.codebooks, codec.codebook_size) == (1000, 24, 7, 16)
    audio = codec.decode((torch.arange(42) * 5 % 16).view(1, 7, 6))
    assert audio.shape == (1, 1, 144)
    np.testing.assert_allclose(audio[0, 0, ::20].numpy(), wanted, atol=1e-4)


@pytest.mark.releases
def test_streaming_matches_decoding_at_once(tmp_path: Path) -> None:
    codec = read_snac(saved(tmp_path))
    codes = torch.randint(16, (2, 7, 40), generator=torch.Generator().manual_seed(1))
    whole = codec.decode(codes)
    for lengths in ([1] * 40, [3, 20, 1, 16], [40]):
        stream = codec.stream()
        chunks = [stream.push(chunk) for chunk in codes.split(lengths, dim=-1)]
        assert sum(chunk.shape[-1] for chunk in chunks) == 33 * codec.hop
        torch.testing.assert_close(torch.cat([*chunks, stream.finish()], dim=-1), whole, atol=2e-5, rtol=1e-4)


def test_tables_sum_to_the_decoders_input(tmp_path: Path) -> None:
    codec = read_snac(saved(tmp_path))
    tables = codec.tables()
    codes = torch.randint(16, (1, 7, 1), generator=torch.Generator().manual_seed(2))
    # The four codes of the third codebook are at 2, 3, 5 and 6; each refines one of the second.
    quarters = [(0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6)]
    summed = [sum(tables[k][codes[0, k, 0]] for k in rows) for rows in quarters]
    books = [codes[:, 0], codes[:, [1, 4], 0], codes[:, [2, 3, 5, 6], 0]]
    torch.testing.assert_close(codec._model.quantizer(books)[0].T, torch.stack(summed))  # type: ignore[arg-type]


def test_codec_of_orpheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of 7 slots of 16 codes, from id 11 on; the codec is fetched from the Hub by the style's name for it."""
    folder, fetched = saved(tmp_path / "snac"), list[str]()

    def fetch(name: str) -> Path:
        fetched.append(name)
        return folder

    monkeypatch.setattr(mmspec.hub, "fetch", fetch)
    assert STYLES["orpheus"].codec == "hubertsiuzdak/snac_24khz"
    stream = StreamFormat(codes=16, first=11, end=10, slots=STYLES["orpheus"].stream.slots)
    style = Style(
        stream, lambda t, text, voice: list(t(text)["input_ids"]), SamplingParams(0.9), (), 28, codec="some/snac"
    )
    model = tiny.flat(vocab_size=123)
    pipe = mmspec.load(model, processor=tokenizer(), config={"style": style})
    assert fetched == ["some/snac"]
    out = pipe("one two three", recipe="scd:window=8", seed=3)
    codes = pipe.adapter.codes(out.tokens[0])
    assert codes.shape[0] == 7 and out.audio.shape == (1, 24 * codes.shape[1])
    chunks = list(pipe.stream("one two three", recipe="scd:window=8", seed=3, first=1, every=1))
    np.testing.assert_allclose(np.concatenate(chunks, axis=-1), out.audio, atol=1e-5)
    named = mmspec.load(model, processor=tokenizer(), tokenizer=str(folder), config={"style": style})
    assert torch.equal(named("one two three", recipe="scd:window=8", seed=3).tokens[0], out.tokens[0])


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="attn_window_size=32, which is not supported; take hubertsiuzdak/snac_24khz"):
        read_snac(saved(tmp_path / "a", attn_window_size=32))
    folder = saved(tmp_path / "b")
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="is incomplete; missing: quantizer"):
        read_snac(folder)
    (folder / "pytorch_model.bin").write_bytes(b"no")
    with pytest.raises(ModelError, match="is refused"):
        read_snac(folder)
    (folder / "config.json").write_text(json.dumps({"vq_strides": [4, 2, 1]}))
    with pytest.raises(ModelError, match="is not a SNAC: config.json has no 'sampling_rate'"):
        read_snac(folder)
