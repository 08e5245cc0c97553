"""Layers of transformers decoders with few launches: the same features and cache, and how many launches a layer is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_targets import traced_reads
from torch import nn
from transformers import (
    CsmBackboneModel,
    CsmConfig,
    Emu3TextConfig,
    Emu3TextModel,
    LlamaConfig,
    LlamaModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
)

pytest.importorskip("triton")

from mmspec.decoding.target import EarlyExit
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.fused_layers import can_fuse
from mmspec.kernels import layers as kernels

pytestmark = pytest.mark.releases
MOST = 12  # launches of a layer with grouped queries, attention as one; 41 without the kernels
SIZE: dict[str, Any] = {
    "vocab_size": 20, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
    "attn_implementation": "sdpa",
}  # fmt: skip


SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "dtype": torch.bfloat16}


def decoder(kind: str = "llama", layers: int = 2, **more: Any) -> Any:
    torch.manual_seed(0)
    dtype = more.pop("dtype", torch.float32)
    settings = SIZE | {"num_hidden_layers": layers} | more
    models: dict[str, Callable[..., Any]] = {
        "llama": lambda **size: LlamaModel(LlamaConfig(**size)),
        "qwen2": lambda **size: Qwen2Model(Qwen2Config(**size)),
        "qwen3": lambda **size: Qwen3Model(Qwen3Config(**{"head_dim": 16} | size)),
        "emu3": lambda **size: Emu3TextModel(Emu3TextConfig(**size, **SPECIAL)),
        "csm": lambda **size: CsmBackboneModel(CsmConfig(**{"head_dim": 8} | size, codebook_size=20, **SPECIAL)),
    }
    model = models[kind](**settings)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval().to(dtype)


def target_of(model: Any, by_token: bool = False) -> CausalTarget:
    """Two rows, of which one has a padded prompt; `by_token`: the memory of embeddings is in another order."""
    width, like = model.config.hidden_size, {"device": model.device, "dtype": model.dtype}
    table = nn.Embedding(20, width, **like)  # CSM's own is of columns

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = table(tokens.t()).transpose(0, 1) if by_token else table(tokens)
        return found

    backbone = Backbone(model, embed, nn.Linear(width, 20, bias=False, **like), 20, model.device)
    mask = torch.tensor([[True, True, True], [False, True, True]], device=model.device)
    positions = torch.tensor([[[0, 1, 2], [0, 0, 1]]], device=model.device)
    return CausalTarget(backbone, Prompt(torch.randn(2, 3, width).to(**like), mask, positions), None, 8, 4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, {}) for kind in ("llama", "qwen2", "qwen3", "emu3", "csm")),
        *((kind, WIDE) for kind in ("llama", "qwen2", "qwen3", "csm")),
        ("llama", WIDE | {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_the_features_are_those_of_the_model(
    kind: str, more: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows at places of their own, in a window and a single token, with and without the kernels."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    model, found = decoder(kind, **more).to(device), []
    with torch.inference_mode():
        for chosen in ("torch", "triton"):
            monkeypatch.setenv("MMSPEC_KERNELS", chosen)
            torch.manual_seed(1)
            target = target_of(model)
            assert target._fuses == (chosen == "triton")
            target.prefill()
            read: list[torch.Tensor] = []
            for width, start in ((3, [3, 3]), (2, [6, 4]), (1, [6, 5])):
                slots = torch.tensor(start, device=device)[:, None] + torch.arange(width, device=device)
                read += target.read((slots * 7) % 20, slots, 12)[1:]
            found.append([*read, target._cache.layers[1].keys, target._cache.layers[1].values])
    for one, other in zip(*found, strict=True):
        # Triton's interpreter truncates where a device rounds to the nearest bfloat16.
        error = (1e-4 if model.dtype == torch.float32 else 0.05) * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=error)
    assert float(found[0][-1].abs().max()) > 0.1


@pytest.mark.parametrize("more", [{}, WIDE])
def test_states_of_layers_are_those_of_the_model(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a call keeps, and what its outer layers make of them; slots without a change stay as they are."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    model, found = decoder(layers=4, **more), []
    outer = EarlyExit(4, guided=True, skip=(1, 2), reuse=True)
    slots = torch.tensor([[3, 4, 5], [4, 5, 6]])
    with torch.inference_mode():
        for chosen in ("torch", "triton"):
            monkeypatch.setenv("MMSPEC_KERNELS", chosen)
            torch.manual_seed(1)
            target = target_of(model)
            target.collect_layers((0, *outer.gap, 4))
            target.prefill()
            assert (
                target._fuses == (chosen == "triton") and target._reads_fused(target.layer_features()) == target._fuses
            )
            states = torch.zeros(2, 5, 4 * model.config.hidden_size, dtype=model.dtype)[:, :3]
            logits, features = target.read(slots * 7 % 20, slots, 12, None, states)
            target.collect_layers(outer.gap)
            both = states.unflatten(-1, (4, -1))[:, :, 1:3].flatten(2)
            again, _ = target.read(slots * 7 % 20, slots, 12, outer, both)
            assert torch.equal(again, logits)
            other, _ = target.read((slots * 7 + torch.tensor([0, 1, 2])) % 20, slots, 12, outer, both)
            assert torch.equal(other[:, 0], logits[:, 0]) and not torch.equal(other[:, 1], logits[:, 1])
            found.append([states, features, other])
    for one, theirs in zip(*found, strict=True):
        error = (1e-4 if model.dtype == torch.float32 else 0.05) * float(theirs.abs().max())
        torch.testing.assert_close(one, theirs, rtol=0, atol=error)
    assert all(torch.equal(states[..., -model.config.hidden_size :], last) for states, last, _ in found)


@pytest.mark.parametrize("more", [{}, WIDE])
def test_embeddings_may_lie_in_memory_in_any_order(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are added to the residual stream in place."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    model, found = decoder(**more), []
    slots = torch.tensor([[3, 4, 5], [3, 4, 5]])
    with torch.inference_mode():
        for by_token in (False, True):
            torch.manual_seed(1)
            target = target_of(model, by_token)
            assert target._fuses
            target.prefill()
            found.append(target.read(slots * 7 % 20 + torch.tensor([[0], [1]]), slots, 12)[1])
    assert torch.equal(*found)


@pytest.mark.parametrize(("most", "more"), [(MOST, {}), (5, WIDE)])
def test_launches_of_a_layer(most: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on a fake CUDA device, for one token and for a window."""
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def counts(layers: int) -> list[int]:
        model = decoder(layers=layers, **more)
        target = target_of(model)
        with torch.inference_mode():
            target.prefill()
        found = traced_reads(target)
        assert not any(one.waits for one in found)
        return [one.operators for one in found]

    for three, two in zip(counts(3), counts(2), strict=True):
        assert three - two <= most, (three, two)


def test_other_decoders_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert can_fuse(decoder())
    assert not can_fuse(decoder(hidden_act="gelu"))
    assert not can_fuse(decoder("qwen2", use_sliding_window=True, sliding_window=8))
    hooked, other = decoder(), decoder()
    hooked.layers[0].mlp.register_forward_hook(lambda *_: None)
    other.layers[1].mlp.up_proj = nn.Sequential(nn.Linear(32, 40))
    assert not can_fuse(hooked)
    assert not can_fuse(lambda **_: None)
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    assert not can_fuse(decoder())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [8, 24])
def test_kernels_are_their_references(dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the slots of the window is written, and all of the output: the buffers hold NaN before."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, heads * size).to(dtype) for heads in (4, 2, 2))
    angle = torch.randn(2, 3, size // 2).repeat(1, 1, 2)
    slots = torch.tensor([[4, 5, 6], [0, 2, 1]])
    weight = torch.randn(4 * size).to(dtype)
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda t, *a, **k: empty(t, *a, **k).fill_(torch.nan if t.is_floating_point() else -1),
    )
    found = []
    for chosen in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", chosen)
        keys, values = (torch.full((2, 2, 8, size), torch.nan, dtype=dtype) for _ in range(2))
        out = kernels.rotate_halves_and_store(
            q, k, v, angle.cos().to(dtype), angle.sin().to(dtype), slots, keys, values
        )
        found.append((out, keys, values, kernels.rms_norm(q, weight, 1e-5)))
    for one, other in zip(*found, strict=True):
        # Triton's interpreter truncates where a device rounds to the nearest bfloat16.
        rtol, atol = (0.02, 0.02) if dtype == torch.bfloat16 else (1e-5, 1e-6)
        torch.testing.assert_close(one, other, equal_nan=True, rtol=rtol, atol=atol)
    assert int(found[0][1].isnan().sum()) == 2 * 2 * 5 * size and not bool(found[0][0].isnan().any())
