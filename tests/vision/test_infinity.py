"""Infinity: the latents of the original with the same weights, original names, and collaborative decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden import GOLDEN, expected
from infinity_weights import BITS, LONGEST, SIZES, TEXT, texts
from safetensors.torch import save_file
from tiny_infinity import published_names, tiny_infinity

from mmspec.decoding.stats import Meter
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.params import SamplingParams
from mmspec.vision.infinity.checkpoint import load_infinity, read_text_features
from mmspec.vision.infinity.decoding import _Model, codes, decode_bits, next_input
from mmspec.vision.infinity.transformer import InfinityTransformer

GREEDY = SamplingParams(temperature=0.0)


def test_greedy_decoding_gives_the_latents_of_the_original() -> None:
    e, model = expected(GOLDEN / "infinity"), tiny_infinity()
    meter = Meter(model.device, 2)
    bits, latents = decode_bits(model, texts(), SIZES, range(2), meter, GREEDY, scale=3.0)
    torch.testing.assert_close(latents, e["latents"], atol=1e-5, rtol=1e-5)
    assert meter.target_calls == len(SIZES) and [part.shape[1:] for part in bits] == [(h * w, BITS) for h, w in SIZES]
    # All maps in one pass have the logits of the pass of each map.
    inputs, image = [], torch.zeros_like(latents)
    for size, part in zip(SIZES, bits, strict=True):
        inputs.append(next_input(image, size, 1))
        image = image + torch.nn.functional.interpolate(codes(part, size, 1), size=SIZES[-1], mode="bilinear")
    with torch.no_grad():
        z = _Model(model, texts(), True, SIZES, (64, 64)).logits(inputs, 3.0)
    torch.testing.assert_close(z[:, -36:], e["logits"], atol=2e-4, rtol=1e-3)


def test_a_row_does_not_depend_on_its_batch_and_random_bits_follow_their_logits() -> None:
    model, given = tiny_infinity(), texts()
    both, _ = decode_bits(model, given, SIZES, [5, 6], Meter(model.device, 2))
    alone, _ = decode_bits(model, given[1:], SIZES, [6], Meter(model.device, 1))
    assert all(torch.equal(a[1], b[0]) for a, b in zip(both, alone, strict=True))
    rows = 4000
    bits, _ = decode_bits(
        model, given[:1] * rows, SIZES[:1], range(rows), Meter(model.device, rows), SamplingParams(), scale=1.0
    )
    p = expected(GOLDEN / "infinity")["first"][0, 0].softmax(-1)[:, 1]
    # Five standard errors of a share.
    assert float((bits[0][:, 0].float().mean(0) - p).abs().max()) < 5 * 0.5 / rows**0.5


def test_a_small_model_generates_the_last_maps() -> None:
    large, small = tiny_infinity(), tiny_infinity("small")

    def decode(**given: object) -> tuple[list[torch.Tensor], Meter]:
        meter = Meter(large.device, 2)
        return decode_bits(large, texts(), SIZES, range(2), meter, **given)[0], meter  # type: ignore[arg-type]

    plain, _ = decode()
    mixed, meter = decode(small=small, large_maps=2)
    assert meter.target_calls == 2
    assert all(torch.equal(a, b) for a, b in zip(plain[:2], mixed[:2], strict=True))
    assert not torch.equal(plain[3], mixed[3])
    # The large model in the place of the small one reads the first maps in one pass, and generates what it would alone.
    same, _ = decode(small=large, large_maps=2)
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))


def test_original_names_and_features_from_files(tmp_path: Path) -> None:
    model = tiny_infinity()
    names, state = published_names(model), model.state_dict()
    tensors = {names[key]: value.contiguous() for key, value in state.items()}
    tensors["block_chunks.0.module.0.sa.zero_k_bias"] = torch.zeros(4)
    save_file(tensors, tmp_path / "infinity.safetensors")
    again = load_infinity(tmp_path / "infinity.safetensors", bits=BITS)
    assert all(torch.equal(again.state_dict()[key], value) for key, value in state.items())
    with pytest.raises(ModelError, match="4 numbers per place, which is neither bits=32"):
        load_infinity(tmp_path / "infinity.safetensors")
    save_file({"a": texts()[0], "b": texts()[1]}, tmp_path / "texts.safetensors")
    assert all(
        torch.equal(a, b) for a, b in zip(read_text_features(tmp_path / "texts.safetensors"), texts(), strict=True)
    )
    with pytest.raises(ModelError, match="has no features of texts"):
        read_text_features(tmp_path / "none.safetensors")
    with pytest.raises(ArgumentError, match="sizes has 40 maps; the model has embeddings for 15"):
        decode_bits(model, texts(), [(1, 1)] * 40, range(2), Meter(model.device, 2))
    with pytest.raises(ArgumentError, match=r"large_maps=2 is not allowed"):
        decode_bits(model, texts(), SIZES, range(2), Meter(model.device, 2), large_maps=2)
    with pytest.raises(ArgumentError, match=r"texts has \[9, 256\]; it must be \[1 to 8, 256\]"):
        decode_bits(model, [torch.zeros(9, 256)], SIZES, [0], Meter(model.device, 1))
    other = InfinityTransformer(16, 1, 2, 32, BITS + 1, TEXT, LONGEST)
    with pytest.raises(ArgumentError, match="small has codes of 5 bits and patch=1, the large model of 4 and 1"):
        decode_bits(model, texts(), SIZES, range(2), Meter(model.device, 2), small=other, large_maps=2)
    with pytest.raises(ArgumentError, match="seed has 1 values for 2 rows"):
        decode_bits(model, texts(), SIZES, [0], Meter(model.device, 2))
