"""EAGLE-3 heads: against the class of `speculators`, in decoding as in training, and exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from golden_heads import eagle3_differences, eagle3_head, folder_of, recorded
from safetensors.torch import load_file, save_file
from tiny_targets import llamagen
from torch import Tensor

import mmspec.drafters.chain
import mmspec.testing.toys
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.drafters.eagle import EagleRunner
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.heads.draft_vocabulary import restrict
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.heads.speculators import write_speculators
from mmspec.recipes import parse
from mmspec.sampling.logits import split_cfg
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import sample
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import check
from mmspec.testing.toys import ToyTarget, toy_eagle3
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.target import LlamaGenTarget

CASES = ("eagle3_llama", "eagle3_qwen3", "eagle3_full", "eagle3_default", "eagle3_sliding")
SETTING = SamplingParams(temperature=0.8, top_p=0.9, guidance_scale=1.5)


def limit_of(case: str) -> float:
    """The largest difference that rounding makes; angles of 2,000 slots and more are less precise."""
    return 1e-3 if case == "eagle3_default" else 1e-4


def architecture_of(case: str) -> str:
    """That of the verifier for which a case was recorded."""
    config = json.loads((folder_of(case) / "config.json").read_text())
    return str(config["speculators_config"]["verifier"]["architectures"][0])


@pytest.mark.parametrize("case", CASES)
def test_a_folder_of_speculators_gives_the_logits_of_its_class(case: str) -> None:
    assert max(eagle3_differences(eagle3_head(folder_of(case)), recorded(folder_of(case)))) < limit_of(case)


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_what_the_class_saves(case: str, tmp_path: Path) -> None:
    """Tensors are equal, and so is every key of the configuration that is not about training or generation.

    `tests/golden/speculators/record.py FOLDER` loads a written folder with the class itself.
    """
    head = eagle3_head(folder_of(case))
    write_speculators(head, tmp_path, "some/verifier", [architecture_of(case)], 8, speculative_tokens=3)
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (folder_of(case), tmp_path))
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs)
    saved, written = (json.loads((folder / "config.json").read_text()) for folder in (folder_of(case), tmp_path))
    layer, own = saved.pop("transformer_layer_config"), written.pop("transformer_layer_config")
    saved["speculators_config"]["verifier"]["name_or_path"] = "some/verifier"
    assert {**saved, "transformers_version": None} == {**written, "transformers_version": None}
    full = {"layer_types": ["full_attention"], "sliding_window": None, "use_sliding_window": False}  # Llama's default
    assert own == {name: (full | layer)[name] for name in own}
    unimportant = {
        "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "mlp_bias",
        "use_cache", "pretraining_tp", "transformers_version", "max_window_layers",
    }  # fmt: skip
    assert layer.keys() - own.keys() <= unimportant
    assert max(eagle3_differences(eagle3_head(tmp_path), recorded(folder_of(case)))) < limit_of(case)


def test_an_own_folder(tmp_path: Path) -> None:
    head = toy_eagle3(7, 0, 4)
    head.save_pretrained(tmp_path)
    again = eagle3_head(tmp_path)
    assert again.layer_ids == (1, 2, 4) and again.prefix == 1
    assert all(torch.equal(a, b) for a, b in zip(head.state_dict().values(), again.state_dict().values(), strict=True))


def angelslim(folder: Path, head: Eagle3Head, **changes: Any) -> None:
    """Writes a head as AngelSlim does: a flat configuration, the layer's own name, and no embedding."""
    folder.mkdir()
    config = {
        "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1, "vocab_size": 24,
        "draft_vocab_size": 10, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "rope_scaling": None, "hidden_act": "silu",
        "max_position_embeddings": 64, **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name.replace("layers.0.", "midlayer."): x for name, x in head.state_dict().items()}
    save_file({name: x for name, x in tensors.items() if name != "embed_tokens.weight"}, folder / "model.safetensors")


def test_a_folder_of_angelslim(tmp_path: Path) -> None:
    head = eagle3_head(folder_of("eagle3_llama"))
    angelslim(tmp_path / "a", head)
    with pytest.raises(ModelError, match="missing: embed_tokens.weight"):
        load_head(tmp_path / "a")
    again = load_head(tmp_path / "a", embedding=head.embed_tokens.weight)
    assert isinstance(again, Eagle3Head) and again.layers_of(24) == (2, 12, 21)
    angelslim(tmp_path / "b", head, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 5, 23]})  # as SpecForge
    named = load_head(tmp_path / "b", embedding=head.embed_tokens.weight)
    assert isinstance(named, Eagle3Head) and named.layers_of(24) == (1, 6, 24)
    assert max(eagle3_differences(again, recorded(folder_of("eagle3_llama")))) < 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type='linear'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers=2"),
        ({"model_type": "gemma"}, "layers of 'gemma'"),
        ({"vocab_size": None}, "does not state vocab_size"),
    ],
)
def test_what_a_head_does_not_do_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    head = eagle3_head(folder_of("eagle3_llama"))
    angelslim(tmp_path / "a", head, **changes)
    with pytest.raises(ModelError, match=message):
        load_head(tmp_path / "a", embedding=head.embed_tokens.weight)


def test_maps_that_disagree_are_refused(tmp_path: Path) -> None:
    head = eagle3_head(folder_of("eagle3_llama"))
    assert head.t2d is not None
    head.t2d[head.t2d.nonzero()[0]] = False
    angelslim(tmp_path / "a", head)
    with pytest.raises(ModelError, match="d2t and t2d that disagree"):
        load_head(tmp_path / "a", embedding=head.embed_tokens.weight)


def test_a_head_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    flat = Eagle3Head(24, 16, 24, 2, layer_ids=(1, 2, 3), grid_size=4)
    with pytest.raises(ArgumentError, match=r"2-D rotary embedding \(grid_size=4\)"):
        write_speculators(flat, tmp_path, None, [], 8)
    with pytest.raises(ArgumentError, match="4 different tokens below 7"):
        restrict(torch.zeros(4, dtype=torch.int64), torch.zeros(7, dtype=torch.bool), torch.tensor([1, 2, 3, 3]))


# --- In decoding ----------------------------------------------------------------------------------------------------

EXACT = ["eagle:window=3", "tree-eagle:branch=2/2", "eagle-2:window=6,depth=3,top=2", "scd:window=4,refresh=eagle"]


def use_eagle3(monkeypatch: pytest.MonkeyPatch, reduced: bool) -> None:
    """The toys' EAGLE head becomes an EAGLE-3 head, which does not draft the first token if `reduced`."""

    def heads(vocab_size: int, width: int | None, seed: int) -> dict[str, Any]:
        return {"eagle": toy_eagle3(vocab_size, seed, vocab_size - reduced)}

    monkeypatch.setattr(mmspec.testing.toys, "toy_heads", heads)


@pytest.mark.parametrize(("recipe", "reduced"), [("eagle:window=4", False), *((recipe, True) for recipe in EXACT)])
def test_distribution(recipe: str, reduced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power as in `tests/testing/test_grid.py`."""
    use_eagle3(monkeypatch, reduced)
    result = check(recipe, SETTING, samples=20_000, layout=Layout(length=4, width=2), seed=3)
    assert result.ok and result.tokens_per_call > 1, result


def test_tokens_that_are_mapped_without_their_distribution_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the draft is a token of the target, its q still the next one's."""
    use_eagle3(monkeypatch, True)
    monkeypatch.setattr(TorchOps, "sample_draft", staticmethod(lambda q, u: sample(q.roll(1, -1), u)))
    result = check("eagle:window=3", SETTING, samples=20_000, layout=Layout(length=4, width=2), seed=3)
    assert not result.ok, result


def test_a_row_does_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(seeds: list[int]) -> Tensor:
        target = ToyTarget(len(seeds), 5, 5, 1, True)
        resources = DraftResources(heads={"eagle": toy_eagle3(5, 1, 3)})
        return run(target, parse("eagle:window=3"), Layout(5), [SETTING] * len(seeds), seeds, resources).tokens

    together = decode(list(range(12)))
    assert torch.equal(together, torch.cat([decode([seed]) for seed in range(12)]))


@pytest.mark.parametrize("recipe", ["eagle:window=4", "tree-eagle:branch=2/1"])
@torch.no_grad()
def test_a_head_reads_the_same_in_decoding_as_in_training(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft distributions of every depth are those of `Eagle3Head.unroll` on the hidden states of a fresh target."""
    vocab, side, ids = 12, 4, (0, 1, 3)
    gpt = LlamaGenGPT(vocab, 32, 3, 2, 64, model_type="t2i", cls_token_num=3, caption_dim=7, grid_size=side).eval()
    head = Eagle3Head(vocab, 32, 48, 4, 2, layer_ids=ids, draft_vocab_size=9, grid_size=side)
    generator = torch.Generator().manual_seed(0)
    for p in (*gpt.parameters(), *head.parameters()):
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * 0.3
    assert head.d2t is not None and head.t2d is not None
    restrict(head.d2t, head.t2d, torch.tensor([0, 1, 2, 4, 5, 6, 8, 10, 11]))

    def target_of() -> LlamaGenTarget:
        condition = torch.randn(1, 3, 7, generator=torch.Generator().manual_seed(1))
        return LlamaGenTarget(gpt, condition, gpt.unconditional(1), None, slack=16)

    roots: list[tuple[Tensor, Tensor]] = []
    original = EagleRunner.root

    def root(self: EagleRunner, state: Any) -> Tensor:
        q = dense(original(self, state))
        roots.append((state.at(np.arange(state.length[0])[None])[0], q[0, 0]))
        return q

    monkeypatch.setattr(EagleRunner, "root", root)
    resources = DraftResources(heads={"eagle": head})
    sampling = SamplingParams(temperature=0.9, guidance_scale=1.5)
    run(target_of(), parse(recipe), Layout(side**2, side), [sampling], [7], resources)
    sampler = TokenSampler([sampling], None, gpt.device)
    assert len(roots) > 4
    for tokens, q in roots:
        fresh = target_of()
        fresh.collect_layers(ids)
        fresh.prefill()
        hidden = fresh.layer_features()[:, -1:]
        if len(tokens) > 1:
            fresh.forward(tokens[None, :-1], np.zeros(1, dtype=np.int64))
            hidden = torch.cat([hidden, fresh.layer_features()], dim=1)
        outputs = head.unroll(tokens[None].repeat(2, 1), hidden, 1)[0][:, -1:]
        expected_q = sampler.probs(split_cfg(head.logits(outputs), True), np.array([[len(tokens)]]))[0, 0]
        assert (expected_q - q).abs().max() < 1e-4


def test_a_model_of_two_layers_can_have_a_head() -> None:
    """Such models have no usual layers for a head to be trained on."""
    target = llamagen(layers=2)
    assert not target.fused_layers
    head = Eagle3Head(target.vocab_size, 32, 48, 4, 2, layer_ids=(0, 1, 2))
    EagleRunner(head, target, TokenSampler([SETTING], None, target.device), 4, 3)
    target.prefill()
    assert target.layer_features().shape[-1] == 3 * 32
