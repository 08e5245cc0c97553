"""That `warm` compiles what decodes launch, so that nothing is compiled within one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specialization_key import key
from triton.runtime.interpreter import InterpretedFunction

from mmspec.codebook import Codebook
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.ngram import NGramTable
from mmspec.engine import run
from mmspec.errors import ArgumentError
from mmspec.kernels import fused_sampler
from mmspec.recipes import parse
from mmspec.sampling.constraints import Constraint
from mmspec.sampling.params import SamplingParams
from mmspec.setup_work import setups
from mmspec.testing.toys import ToyTarget
from mmspec.warm_up import RandomTarget, warm

VOCAB, LENGTH = 16, 4
SAMPLING = SamplingParams(0.9, top_k=5, top_p=0.9, guidance_scale=2.0)


def resources(rows: int, device: str = "cpu", vocab_size: int = VOCAB) -> DraftResources:
    vectors = torch.rand(VOCAB, 3, generator=torch.Generator().manual_seed(0))
    table = NGramTable(torch.zeros(vocab_size + 1, vocab_size, dtype=torch.int64, device=device))
    return DraftResources(
        table=table, codebook=lambda: Codebook(vectors), draft_model=lambda: ToyTarget(rows, VOCAB, LENGTH, 3)
    )


def layout(length: int) -> Layout:
    allowed = torch.ones(2, VOCAB, dtype=torch.bool)
    allowed[1, 0] = False
    return Layout(length, 2, Constraint(torch.arange(length) % 2, allowed), eos=frozenset({VOCAB - 1}))


@pytest.mark.skipif(
    not isinstance(fused_sampler._fused_sample, InterpretedFunction), reason="kernels are compiled on a CUDA device"
)
@pytest.mark.parametrize(
    "recipe",
    [
        "scd:window=3",
        *[
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "draft+typical:window=3",
                "lantern:window=4,k=2",
                "tree:branch=2/1",
                "scd:window=3,coupling=gumbel",
            )
        ],
    ],
)
def test_a_decode_after_it_meets_no_new_kernel(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are told apart as Triton does: by types, alignment, and integers that are 1 or divisible by 16."""
    met = list[tuple[object, ...]]()
    own = InterpretedFunction.run

    def recording(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        met.append(key(self, args, kwargs))
        return own(self, *args, grid=grid, warmup=warmup, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "run", recording)
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    rows = 2
    warm(recipe, layout(LENGTH), [SAMPLING] * rows, VOCAB, "cpu", resources=resources(rows))
    known = set(met)
    met.clear()
    target = ToyTarget(rows, VOCAB, LENGTH, 0, guided=True)
    run(target, parse(recipe), layout(LENGTH), [SAMPLING] * rows, [4, 5], resources(rows))
    assert len(set(met)) >= 3
    assert not set(met) - known, sorted(map(str, set(met) - known))


@pytest.mark.gpu
def test_nothing_is_compiled_after_it() -> None:
    given = resources(2, "cuda", 1000)
    warm("scd:window=4", Layout(20, 5), [SAMPLING] * 2, 1000, "cuda", torch.bfloat16, given)
    before = setups()
    target = RandomTarget(2, 1000, torch.device("cuda"), torch.bfloat16, guided=True)
    run(target, parse("scd:window=4"), Layout(20, 5), [SAMPLING] * 2, [4, 5], given)
    assert setups() == before


def test_nothing_is_done_where_kernels_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_KERNELS", "torch")
    monkeypatch.setattr(RandomTarget, "prefill", lambda self: pytest.fail("a decode ran"))
    warm("scd:window=4", Layout(20, 5), [SAMPLING], 1000, "cpu")


def test_settings_are_refused_before_any_work() -> None:
    with pytest.raises(ArgumentError, match="samplings"):
        warm("scd", Layout(20, 5), [], 1000, "cpu")
    with pytest.raises(ArgumentError, match="vectors"):
        warm("few-steps", Layout(20, 5), [SAMPLING], 1000, "cpu")
