"""EAGLE and Medusa heads: their inputs on a real KV cache, and their checkpoints; `test_grid` checks exactness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from batch_runs import run
from torch import Tensor
from transformers.generation import GenerationMixin

import mmspec
import mmspec.drafters.chain
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.eagle import EagleRunner
from mmspec.errors import ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.heads.eagle import EagleHead
from mmspec.methods.medusa.drafter import MedusaRunner
from mmspec.methods.medusa.head import MedusaHeads
from mmspec.recipes import parse
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.testing.exactness import check
from mmspec.testing.toys import FEATURES, ToyTarget
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.target import LlamaGenTarget

GRID = Layout(length=4, width=2)
RECIPES = ["eagle:window=4", "medusa:window=4", "tree-eagle:branch=2/2/1", "tree-medusa:branch=2/1", "eagle-2:window=5"]


TWINS = [f"{head}:window=3" for head in ("eagle", "medusa", "hydra", "block", "grid", "kangaroo")]


@pytest.mark.parametrize("recipe", TWINS)
def test_argmax_drafts_with_a_softmax_q_are_found(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchOps, "sample_draft", staticmethod(lambda q, u: q.argmax(-1)))
    result = check(recipe, SamplingParams(temperature=1.6), samples=20_000, layout=GRID, seed=3)
    assert not result.ok, result


# --- The input of an EAGLE head, on a real cache --------------------------------------------------------------------

V, SIDE, SLOTS = 12, 4, 3


def tiny(spread: float = 0.4) -> LlamaGenGPT:
    gpt = LlamaGenGPT(V, 32, 2, 2, 64, model_type="t2i", cls_token_num=SLOTS, caption_dim=7, grid_size=SIDE).eval()
    generator = torch.Generator().manual_seed(0)
    for p in gpt.parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * spread
    return gpt


def tiny_target(gpt: LlamaGenGPT, batch_size: int) -> LlamaGenTarget:
    condition = torch.randn(batch_size, SLOTS, 7, generator=torch.Generator().manual_seed(1))
    return LlamaGenTarget(gpt, condition, gpt.unconditional(batch_size), None, slack=16)


def tiny_head(prefix: int) -> EagleHead:
    torch.manual_seed(2)
    head = EagleHead(V, 32, 48, 2, grid_size=SIDE, prefix=prefix)
    for p in head.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return head.eval()


class RecordingRunner(EagleRunner):
    """Records each distribution with its prefix and its draft depth."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.recorded: list[tuple[Tensor, int, Tensor]] = []

    def root(self, state: BatchState) -> Tensor:
        q = dense(super().root(state))
        self.prefixes = [state.at(np.arange(n)[None].repeat(len(state.ids), 0))[b] for b, n in enumerate(state.length)]
        self.recorded += [(self.prefixes[b], 1, q[b, 0]) for b in range(len(q))]
        return q

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        q = dense(super().nodes(state, tokens, tree, first))
        if first == 1:  # the children of the root
            for b in range(len(q)):
                for i in range(q.shape[1]):
                    self.recorded.append((torch.cat([self.prefixes[b], tokens[b, i : i + 1]]), 2, q[b, i]))
        return q


@pytest.mark.parametrize("recipe", ["eagle:window=4", "tree-eagle:branch=2/2/1"])
@torch.no_grad()
def test_a_head_reads_the_same_in_decoding_as_in_training(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected drafts leave nothing in the cache: at every depth, distributions are those of `EagleHead.unroll`."""
    gpt, head, sampling = tiny(), tiny_head(0), SamplingParams(temperature=0.9, guidance_scale=1.5)
    runners: list[RecordingRunner] = []

    def new_runner(*arguments: Any) -> RecordingRunner:
        runners.append(RecordingRunner(*arguments))
        return runners[0]

    monkeypatch.setattr("mmspec.drafters.eagle.EagleRunner", new_runner)
    target, layout = tiny_target(gpt, 1), Layout(SIDE**2, SIDE)
    run(target, parse(recipe), layout, [sampling], [7], DraftResources(heads={"eagle": head}))
    sampler = TokenSampler([sampling], None, gpt.device)
    assert len(runners[0].recorded) > 8
    for tokens, depth, q in runners[0].recorded:
        if len(tokens) > layout.length:
            continue
        fresh = tiny_target(gpt, 1)
        fresh.prefill()
        first = fresh.features()[:, -1:]
        fresh.forward(tokens[None, :-1], np.zeros(1, dtype=np.int64)) if len(tokens) > 1 else None
        features = torch.cat([first, fresh.features()], 1) if len(tokens) > 1 else first
        predicted = head.unroll(tokens[None].repeat(2, 1), features, depth)[-1][:, -1:]
        cond, uncond = fresh.head(predicted).chunk(2)
        expected = sampler.probs(mmspec.sampling.logits.Logits(cond, uncond), np.array([[len(tokens)]]))[0, 0]
        assert (expected - q).abs().max() < 1e-3


@pytest.mark.parametrize("prefix", [0, 2, 5])
@torch.no_grad()
def test_a_head_reads_the_features_of_the_prompt(prefix: int) -> None:
    gpt, head = tiny(), tiny_head(prefix)
    target = tiny_target(gpt, 2)
    target.prefill()
    state = BatchState([1, 2], Layout(SIDE**2, SIDE), 4, gpt.device)
    state.append(torch.tensor([[3], [4]]))
    sampler = TokenSampler([SamplingParams(guidance_scale=2.0)] * 2, None, gpt.device)
    q = dense(EagleRunner(head, target, sampler, SIDE**2, 4).root(state))
    before = target.features()[:, -1 - prefix :]
    before = torch.nn.functional.pad(before, (0, 0, prefix + 1 - before.shape[1], 0))
    tokens = torch.nn.functional.pad(torch.tensor([[3], [4], [3], [4]]), (prefix, 0))
    cond, uncond = target.head(head.unroll(tokens, before, 1)[0][:, -1:]).chunk(2)
    assert (sampler.probs(mmspec.sampling.logits.Logits(cond, uncond), state.positions(1)) - q).abs().max() < 1e-3


def test_a_head_that_is_missing_or_does_not_fit_is_refused() -> None:
    layout, sampling = Layout(4), [SamplingParams()]
    heads = {"medusa": MedusaHeads(3, FEATURES, 2)}
    refreshed = parse("scd:window=4,refresh=medusa,refreshed=2")  # only as many heads as leftovers are refreshed
    run(ToyTarget(1, 3, 4, 0), refreshed, layout, sampling, [0], DraftResources(heads=heads))


@pytest.mark.parametrize("recipe", ["medusa:window=4", "tree-medusa:branch=2/1/1"])
def test_medusa_heads_read_the_feature_of_the_last_token(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained head repeats the target's distribution of the last token, after the prompt and every window."""
    calls: list[list[Tensor]] = []

    class Recorded(MedusaRunner):
        def root(self, state: BatchState) -> Tensor:
            q = dense(super().root(state))
            calls.append([state.at(np.arange(n)[None].repeat(len(q), 0))[b] for b, n in enumerate(state.length)])
            for b, tokens in enumerate(calls[-1]):
                before = len(tokens) - 1
                number = (tokens[:-1] * 3 ** torch.arange(before - 1, -1, -1)).sum()
                p = sampler.probs(target.logits(torch.tensor([[before]]), number.view(1, 1)), np.array([[before]]))
                assert torch.allclose(q[b, 0], p[0, 0], atol=1e-6), tokens
            return q

    monkeypatch.setattr("mmspec.methods.medusa.drafter.MedusaRunner", Recorded)
    settings = SamplingParams(guidance_scale=1.5)
    sampler, target = TokenSampler([settings], None, torch.device("cpu")), ToyTarget(1, 3, 7, 0, guided=True)
    layout = Layout(7)  # rows advance at their own pace, and end at different calls
    resources = DraftResources(heads={"medusa": MedusaHeads(3, FEATURES, 3)})
    toy = ToyTarget(20, 3, 7, 0, guided=True)
    decoded = run(toy, parse(recipe), layout, [settings] * 20, range(20), resources)
    assert len(calls) > 2 and len(calls[-1]) < 20 and decoded.stats.tokens_per_call > 1.1


def test_heads_draft_for_transformers_models() -> None:
    model = tiny_models.janus(side=3)
    eagle = EagleHead(20, 32, 48, 2, grid_size=3)
    heads = [eagle, MedusaHeads(20, 32, 4)]
    prompts = torch.tensor([[0, 1, 5, 6, 3], [1, 7, 8, 9, 3]])
    call = {"attention_mask": prompts != 0, "custom_generate": mmspec.generate, "do_sample": False, "heads": heads}
    call |= {"max_new_tokens": 9, "guidance_scale": 5.0}
    plain = GenerationMixin.generate(model, prompts, **call, recipe="plain")
    for recipe in RECIPES:
        assert torch.equal(GenerationMixin.generate(model, prompts, **call, recipe=recipe), plain)


# --- Checkpoints ----------------------------------------------------------------------------------------------------

LANTERN = {"hidden_act": "silu", "num_hidden_layers": 1, "pretraining_tp": 1, "max_position_embeddings": 2048}


def published(hidden: int, inner: int, heads: int, vocab: int, chameleon: bool) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a published LANTERN drafter."""
    layer = "layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab, hidden),
        "fc.weight": (hidden, 2 * hidden),
        "fc.bias": (hidden,),
        **{f"{layer}self_attn.{x}_proj.weight": (hidden, hidden) for x in "qkvo"},
        **{f"{layer}mlp.{x}_proj.weight": (inner, hidden) for x in ("gate", "up")},
        f"{layer}mlp.down_proj.weight": (hidden, inner),
        f"{layer}post_attention_layernorm.weight": (hidden,),
    }
    if chameleon:
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
        norms = [f"{layer}self_attn.{x}_norm.{part}" for x in "qk" for part in ("weight", "bias")]
        shapes |= dict.fromkeys(norms, (heads, hidden // heads))
    return shapes


def write_published(folder: Path, chameleon: bool, **changes: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {k: torch.randn(s, generator=generator) for k, s in published(32, 48, 2, V, chameleon).items()}
    config = LANTERN | {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    config |= {
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        **({} if chameleon else {"input_type": "t2i"}),
        **changes,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "pytorch_model.bin")
    return tensors


@pytest.mark.parametrize("chameleon", [False, True])
def test_a_published_drafter_is_loaded_and_saved_unchanged(chameleon: bool, tmp_path: Path) -> None:
    tensors = write_published(tmp_path / "lantern", chameleon)
    head = load_head(tmp_path / "lantern")
    assert isinstance(head, EagleHead) and head.prefix == (0 if chameleon else 119)
    assert head.rotary.at(torch.tensor([[0, 119 + 255]]))[0].shape == (1, 1, 2, 16)
    head.save_pretrained(tmp_path / "again")
    for loaded in (head, load_head(tmp_path / "again"), EagleHead.from_pretrained(tmp_path / "again")):
        state = loaded.state_dict()
        assert state.keys() == tensors.keys() and all(torch.equal(state[k], v) for k, v in tensors.items())


@pytest.mark.parametrize(
    ("shape", "count"),
    [((1280, 3584, 20, 16384, False), 44_567_040), ((4096, 11008, 32, 65536, True), 504_393_728)],
    ids=["llamagen", "anole"],
)
def test_parameter_shapes_are_those_of_published_drafters(shape: Any, count: int) -> None:
    hidden, inner, heads, vocab, chameleon = shape
    with torch.device("meta"):
        head = EagleHead(vocab, hidden, inner, heads, input_layernorm=chameleon, qk_norm=chameleon)
    assert {k: tuple(v.shape) for k, v in head.state_dict().items()} == published(*shape)
    assert sum(p.numel() for p in head.parameters()) == count


def test_files_that_are_not_a_drafter_are_refused(tmp_path: Path) -> None:
    tensors = write_published(tmp_path / "a", False)
    del tensors["fc.bias"]
    torch.save({**tensors, "lm_head.weight": torch.zeros(V, 32)}, tmp_path / "a" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"missing: fc.bias; unknown: lm_head.weight"):
        load_head(tmp_path / "a")
    write_published(tmp_path / "b", False, intermediate_size=50)
    with pytest.raises(
        ModelError, match=r"wrong shape: layers.0.mlp.gate_proj.weight \[48, 32\] instead of \[50, 32\]"
    ):
        load_head(tmp_path / "b")
    write_published(tmp_path / "c", False, num_hidden_layers=2)
    with pytest.raises(ModelError, match="num_hidden_layers=2; an EAGLE head has one"):
        load_head(tmp_path / "c")
    (tmp_path / "c" / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"has no weights; there must be model.safetensors or pytorch_model.bin"):
        load_head(tmp_path / "c")
    with pytest.raises(ModelError, match=r"cannot read '.*config.json'"):
        load_head(tmp_path / "d")
