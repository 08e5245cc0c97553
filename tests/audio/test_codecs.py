"""Codecs of transformers: streaming matches decoding at once, and both match the model's own `decode`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_codecs as tiny
import torch

from mmspec.audio.codecs import codec_of
from mmspec.errors import ModelError

MODELS: dict[str, Callable[[], Any]] = {
    "encodec-24k": tiny.encodec,
    "encodec-32k": lambda: tiny.encodec(use_causal_conv=False),
    "dac": tiny.dac,
    "dac-odd": lambda: tiny.dac((2, 3)),
    "higgs": tiny.higgs,
    "xcodec": tiny.xcodec,
    "mimi": tiny.mimi,
    "xcodec2": tiny.xcodec2,
    "neucodec": tiny.neucodec,
}


@pytest.mark.releases
@pytest.mark.parametrize("name", MODELS)
def test_streaming_matches_decoding_at_once(name: str) -> None:
    codec = codec_of(MODELS[name]())
    frames = 70
    codes = torch.randint(codec.codebook_size, (2, codec.codebooks, frames), generator=torch.Generator().manual_seed(1))
    whole = codec.decode(codes)
    assert whole.shape == (2, codec.channels, frames * codec.hop)
    assert whole.std() > 1e-4  # not constant; how loud random weights are differs by version of torch
    for lengths in ([1] * frames, [3, 20, 1, 46], [frames]):
        stream, chunks = codec.stream(), []
        for chunk in codes.split(lengths, dim=-1):
            chunks.append(stream.push(chunk))
        early = sum(chunk.shape[-1] for chunk in chunks)
        chunks.append(stream.finish())
        assert early > 0 or name in ("xcodec2", "neucodec")
        torch.testing.assert_close(torch.cat(chunks, dim=-1), whole, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_tables_sum_to_the_decoders_input(name: str) -> None:
    model = MODELS[name]()
    codec = codec_of(model)
    tables = codec.tables()
    assert [len(table) for table in tables] == [codec.codebook_size] * codec.codebooks
    codes = torch.randint(codec.codebook_size, (1, codec.codebooks, 5), generator=torch.Generator().manual_seed(1))
    summed = sum(table[codes[0, k]] for k, table in enumerate(tables))
    quantizer = model.quantizer
    if name.startswith("dac"):
        own = quantizer.from_codes(codes)[0]
        own = own - sum(q.out_proj.bias for q in quantizer.quantizers)[None, :, None]
        summed = summed - sum(q.out_proj.bias for q in quantizer.quantizers)
    elif name in ("xcodec2", "neucodec"):
        own, summed = quantizer.from_codes(codes.transpose(1, 2)).transpose(1, 2), quantizer.project_out(summed)
    else:
        own = quantizer.decode(codes.transpose(0, 1) if name.startswith(("encodec", "higgs", "xcodec")) else codes)
    torch.testing.assert_close(own[0].T, summed)


def test_errors() -> None:
    with pytest.raises(ModelError, match="chunk_length_s"):
        codec_of(tiny.encodec(chunk_length_s=1.0, overlap=0.1))
    with pytest.raises(ModelError, match="Linear is not a codec that mmspec supports"):
        codec_of(torch.nn.Linear(1, 1))
