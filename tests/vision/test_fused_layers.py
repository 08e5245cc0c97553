"""LlamaGen's layers with few launches: the same features and cache, and how many launches a layer is."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from fake_targets import traced_reads

pytest.importorskip("triton")

from mmspec.decoding.target import EarlyExit
from mmspec.vision.llamagen.fused_layers import can_fuse
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.llamagen.transformer import LlamaGenTransformer

MOST = {torch.float32: 10, torch.bfloat16: 5}  # launches of a layer


SIZE: dict[str, Any] = {"vocab_size": 20, "dim": 24, "n_head": 2, "num_classes": 5, "grid_size": 4, "ffn_dim": 40}


def llamagen(layers: int = 2, dtype: torch.dtype = torch.float32, **more: Any) -> LlamaGenTransformer:
    """In bfloat16 with the width of a model whose products are those of `mmspec.kernels.linear`."""
    torch.manual_seed(0)
    wide = {"dim": 64, "ffn_dim": 128} if dtype == torch.bfloat16 else {}
    return LlamaGenTransformer(n_layer=layers, **SIZE | wide, **more).eval().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_features_are_those_of_the_model(device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at places of their own, in a window and a single token, with and without the kernels."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    gpt, found = llamagen(dtype=dtype).to(device), []
    with torch.inference_mode():
        for kernels in ("torch", "triton"):
            monkeypatch.setenv("MMSPEC_KERNELS", kernels)
            labels = torch.arange(2, device=device)
            target = LlamaGenTarget(gpt, labels, gpt.unconditional(2), None, 8)
            assert target._fuses == (kernels == "triton")
            target.prefill()
            read: list[torch.Tensor] = []
            for width, start in ((3, [1, 1, 1, 1]), (2, [4, 2, 3, 4]), (1, [5, 4, 5, 6])):
                slots = torch.tensor(start, device=device)[:, None] + torch.arange(width, device=device)
                tokens = (slots * 7 + torch.arange(4, device=device)[:, None]) % 20
                read += target.read(tokens, slots, 8)
            found.append([*read, *target.tensors()[:2]])
    for one, other in zip(*found, strict=True):
        # Triton's interpreter truncates where a device rounds to the nearest bfloat16.
        atol = 1e-5 if dtype == torch.float32 else 0.04 * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=atol)
    assert float(found[0][-1].abs().max()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_states_of_layers_are_those_of_the_model(
    device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a call keeps, and what its outer layers make of them; slots without a change stay as they are."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    gpt, found = llamagen(4, dtype).to(device), []
    outer = EarlyExit(4, guided=True, skip=(1, 2), reuse=True)
    with torch.inference_mode():
        for kernels in ("torch", "triton"):
            monkeypatch.setenv("MMSPEC_KERNELS", kernels)
            labels = torch.arange(2, device=device)
            target = LlamaGenTarget(gpt, labels, gpt.unconditional(2), None, 8)
            target.collect_layers((0, *outer.gap, 4))
            target.prefill()
            states = torch.zeros(4, 5, 4 * gpt.config.dim, dtype=dtype, device=device)[:, :3]
            slots = torch.tensor([1, 1, 3, 2], device=device)[:, None] + torch.arange(3, device=device)
            tokens = (slots * 7 + torch.arange(4, device=device)[:, None]) % 20
            logits, features = target.read(tokens, slots, 8, None, states)
            target.collect_layers(outer.gap)
            both = states.unflatten(-1, (4, -1))[:, :, 1:3].flatten(2)
            caches = [cache.clone() for cache in target.tensors()[:2]]
            again, _ = target.read(tokens, slots, 8, outer, both)
            assert torch.equal(again, logits) and all(map(torch.equal, caches, target.tensors()[:2]))
            other, _ = target.read(torch.cat([tokens[:, :1], tokens[:, 1:] + 1], 1) % 20, slots, 8, outer, both)
            assert torch.equal(other[:, 0], logits[:, 0]) and not torch.equal(other[:, 1], logits[:, 1])
            found.append([states, features, other])
    for one, theirs in zip(*found, strict=True):
        atol = 1e-5 if dtype == torch.float32 else 0.04 * float(theirs.abs().max())
        torch.testing.assert_close(one, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_launches_of_a_layer(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on a fake CUDA device, for one token and for a window."""
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def counts(layers: int) -> list[int]:
        gpt = llamagen(layers, dtype)
        found = traced_reads(LlamaGenTarget(gpt, torch.arange(2), gpt.unconditional(2), None, 8))
        assert not any(one.waits for one in found)
        return [one.operators for one in found]

    for more, fewer in zip(counts(3), counts(2), strict=True):
        assert more - fewer <= MOST[dtype]


def test_other_layers_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert can_fuse(llamagen())
    assert not can_fuse(llamagen(qk_norm=True))
    hooked = llamagen()
    hooked.layers[0].register_forward_hook(lambda *_: None)
    assert not can_fuse(hooked)
    assert LlamaGenTarget(llamagen(), torch.arange(2), None, None, 8)._fuses
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    assert not LlamaGenTarget(llamagen(), torch.arange(2), None, None, 8)._fuses
