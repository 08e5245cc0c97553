"""Grouped-query attention without copies: the same numbers, only inside decoding, and fewer bytes."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_speech
import torch
import torch.nn.functional as F
from fake_targets import made_targets, traced_reads
from transformers import GenerationMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import mmspec
from mmspec.decoding.graph_capture import without_plans
from mmspec.hf import grouped_queries
from mmspec.hf.grouped_queries import fold, folded_groups

pytestmark = pytest.mark.releases

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(("groups", "size", "width", "rows"), [(2, 4, 5, 3), (1, 7, 1, 2), (3, 1, 4, 1)])
def test_folding_is_attention_to_repeated_keys(groups: int, size: int, width: int, rows: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(rows, width, groups * size, 8).transpose(1, 2)
    k, v = torch.randn(2, rows, groups, 12, 8)
    mask = torch.where(torch.rand(rows, 1, width, 12) < 0.3, -torch.inf, torch.randn(rows, 1, width, 12))
    mask[..., 0] = 0
    keys, values = (t.repeat_interleave(size, dim=1) for t in (k, v))
    for bias in (mask, mask[:1]):
        wanted = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=0.3)
        assert torch.allclose(fold(q, k, v, bias, 0.3), wanted, atol=1e-6)


def test_models_give_the_same_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function is installed once, and transformers' own runs outside of decoding."""
    model = tiny_speech.flat()
    assert model.config.num_attention_heads > model.config.num_key_value_heads
    calls = list[int]()

    def counting(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return fold(*args, **kwargs)

    monkeypatch.setattr(grouped_queries, "fold", counting)
    ids = torch.arange(12).view(2, 6)
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    mask = torch.zeros(2, 1, 6, 6).masked_fill_(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    with torch.inference_mode():
        outside = model.model(ids, attention_mask=mask).last_hidden_state
        with folded_groups(CPU):
            assert torch.equal(model.model(ids, attention_mask=mask).last_hidden_state, outside) and not calls
        with folded_groups(CUDA):
            inside = model.model(ids, attention_mask=mask).last_hidden_state
        assert len(calls) == model.config.num_hidden_layers
        assert torch.allclose(inside, outside, atol=1e-5)
        assert torch.equal(model.model(ids, attention_mask=mask).last_hidden_state, outside)
    ALL_ATTENTION_FUNCTIONS.register("sdpa", before)
    grouped_queries._install.cache_clear()


def test_a_window_copies_no_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_speech.flat()
    ids = torch.arange(12).view(2, 6)
    with made_targets(monkeypatch) as made:
        GenerationMixin.generate(model, ids, max_new_tokens=90, custom_generate=mmspec.generate, do_sample=False)
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    step, window = traced_reads(made[0])
    copies = [launch.bytes for launch, n in window.launches.items() for _ in range(n) if launch.name == "clone"]
    queries, mask = 2 * (2 * 4 * 3 * 8 * 4), 2 * (2 * 2 * 3 * 100 * 4)
    # Copied are queries and, from the layout of the fused backends, outputs twice, in each of two layers, and one mask;
    # keys and values would be more than any.
    assert len(copies) <= 7 and max(copies) <= mask and sorted(copies)[-2] <= queries < 2 * 2 * 2 * 96 * 8 * 4
    assert window.count <= step.count + 5
    ALL_ATTENTION_FUNCTIONS.register("sdpa", before)


def test_cudnn_is_off_while_any_call_is_inside() -> None:
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    assert enabled()
    with without_plans(CPU):
        assert enabled()
    with without_plans(CUDA):
        with without_plans(CUDA):
            assert not enabled()
        assert not enabled()
    assert enabled()
