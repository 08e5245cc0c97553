"""How many kernels a decode compiles: window widths, batch sizes and addresses that vary must not add any."""

from __future__ import annotations

from typing import Any

import pytest
from batch_runs import run
from specialization_key import key
from triton.runtime.interpreter import InterpretedFunction

from mmspec.decoding.layout import Layout
from mmspec.kernels import (
    accept,
    column_drafts,
    column_rules,
    columns,
    commit,
    coupling,
    draft_tree,
    end_channel,
    forced_cells,
    fused_sampler,
    grow_tree,
    head_window,
    k_seq,
    likeliest,
    philox,
    residual,
    siblings,
    softmax_stats,
    token_init,
    tree,
    tree_shape,
)
from mmspec.kernels.specialization import COUNTS, WIDE
from mmspec.methods.draft_stop import kernel as stopping
from mmspec.methods.dyspec import kernel as sampled_tree
from mmspec.methods.recycle import kernel as recycle
from mmspec.methods.stand import kernel as stand
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget

KERNELS = [
    accept._verify_window, columns._verify_columns, columns._couple_columns, column_drafts._draft_columns,
    column_drafts._recycle_columns, forced_cells._force_cells,
    column_rules._cells_after, column_rules._forced_logits, end_channel._end_channel_logits,
    coupling._couple_by_noise, coupling._couple_maximally,
    fused_sampler._fused_sample, philox._uniforms, residual._resample, softmax_stats._at, token_init._draft_window,
    tree._walk_tree, commit._begin_window, commit._reread_window, k_seq._verify_drafts, draft_tree._draft_tree,
    siblings._sample_siblings, recycle._recycle, stand._draft_stored, stand._store,
    stopping._stop_draft, likeliest._likeliest, grow_tree._grow_level, grow_tree._choose_nodes, tree_shape._tree_shape,
    sampled_tree._sample_depth, head_window._attention_bias, head_window._store_window,
]  # fmt: skip

pytestmark = pytest.mark.skipif(
    not isinstance(fused_sampler._fused_sample, InterpretedFunction), reason="kernels are compiled on a CUDA device"
)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.fn.__name__)
def test_counts_and_small_tensors_are_not_specialized(kernel: Any) -> None:
    names = set(kernel.arg_names)
    assert set(kernel.kwargs["do_not_specialize"]) == names & COUNTS
    assert not set(kernel.kwargs["do_not_specialize_on_alignment"]) & (WIDE | {"vocab", "stride_row"})
    integers = {name for name in names if name in COUNTS or "stride" in name or name == "vocab"}
    assert {"drafts", "us", "tokens"} & names <= set(kernel.kwargs["do_not_specialize_on_alignment"]) | integers


@pytest.mark.slow
def test_a_decode_compiles_each_kernel_once_or_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 1 and 2, steps and windows of several widths; a kernel without drafts differs from one with."""
    met = set[tuple[object, ...]]()
    own = InterpretedFunction.run

    def recording(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        met.add(key(self, args, kwargs))
        return own(self, *args, grid=grid, warmup=warmup, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "run", recording)
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    for rows, recipe in ((1, "plain"), (1, "scd:window=3"), (2, "scd:window=4")):
        params = [SamplingParams(0.9, top_k=5)] * rows
        run(ToyTarget(rows, 16, 5, 0), parse(recipe), Layout(5), params, range(rows))
    by_name = [name for name, *_ in met]
    assert len(met) <= 6 and max(map(by_name.count, by_name)) <= 2, sorted(map(str, met))
