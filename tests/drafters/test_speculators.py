"""Block heads in the format of `speculators`: against its classes, and exact with a reduced draft vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_heads import block_difference, block_head, folder_of, recorded
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
import mmspec.testing.toys
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.checkpoint import load_head
from mmspec.heads.draft_vocabulary import restrict
from mmspec.heads.speculators import write_speculators
from mmspec.methods.block.drafter import BlockRunner
from mmspec.methods.block.head import BlockHead
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.testing.exactness import check
from mmspec.testing.toys import FEATURES

CASES = (
    "dflash", "dflash_reduced", "dflash_default", "dflash_sliding", "dflash_non_causal",
    "dspark", "dspark_reduced", "dspark_default", "dspark_sliding",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_folder_of_speculators_gives_the_logits_of_its_class(case: str, tmp_path: Path) -> None:
    folder = folder_of(case)
    wanted = recorded(folder)
    head = block_head(folder, wanted["embed_tokens"])
    assert block_difference(head, wanted) < 1e-4
    saved = json.loads((folder / "config.json").read_text())
    stated = saved["speculators_config"]
    count = stated["proposal_methods"][0]["speculative_tokens"]
    write_speculators(head, tmp_path, None, stated["verifier"]["architectures"], 8, speculative_tokens=count)
    written = json.loads((tmp_path / "config.json").read_text())
    layer, own = saved.pop("transformer_layer_config"), written.pop("transformer_layer_config")
    assert own == {name: layer[name] for name in own}
    # The confidence head, which only vLLM's scheduling uses, is not kept.
    off = {"transformers_version": None, "enable_confidence_head": False, "confidence_head_with_markov": False}
    assert {**saved, **off} == {**written, **off}
    theirs, ours = (load_file(path / "model.safetensors") for path in (folder, tmp_path))
    theirs = {name: x for name, x in theirs.items() if not name.startswith("confidence_head")}
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert block_difference(block_head(tmp_path, wanted["embed_tokens"]), wanted) < 1e-4


def test_what_cannot_be_read_or_written_is_refused(tmp_path: Path) -> None:
    config = json.loads((folder_of("dflash") / "config.json").read_text())
    weights = (folder_of("dflash") / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights)

    def load(**changes: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        load_head(tmp_path)

    with pytest.raises(ModelError, match="missing: embed_tokens.weight"):
        load()
    with pytest.raises(ModelError, match="is of the kind 'mtp' of speculators; mmspec reads eagle3, dflash, dspark"):
        load(speculators_model_type="mtp")
    with pytest.raises(ModelError, match="does not state transformer_layer_config and mask_token_id"):
        load(mask_token_id=None)
    attentions: list[tuple[Any, Any, str]] = [
        (["full_attention", "linear_attention"], 5, r"\]; each of the 2 must be full_attention or sliding_attention"),
        (["sliding_attention"], 5, r"has layer_types=\['sliding_attention'\]; each of the 2 must be"),
        (3, 5, "is not a draft head as its config.json describes"),
        (["full_attention", "sliding_attention"], None, "sliding_window=None; it must be a positive integer"),
        (["full_attention", "sliding_attention"], 0, "sliding_window=0; it must be a positive integer"),
    ]
    for types, width, message in attentions:
        other = {"layer_types": types, "sliding_window": width}
        with pytest.raises(ModelError, match=message):
            load(transformer_layer_config=config["transformer_layer_config"] | other)
    for positions in ("long", 2):
        with pytest.raises(ModelError, match="max_position_embeddings=.*; it must be an integer of at least 4"):
            load(transformer_layer_config=config["transformer_layer_config"] | {"max_position_embeddings": positions})
    refused: list[tuple[dict[str, Any], str]] = [
        ({"grid_size": 3}, "2-D rotary embedding"),
        ({}, "mask token 9 is not one of the target's 9 tokens"),
        ({"mask_token_id": 8}, "reads the target's last features"),
    ]
    for options, message in refused:
        with pytest.raises(ArgumentError, match=message):
            write_speculators(BlockHead(9, 16, 24, 2, **options), tmp_path, None, [], 8)


@pytest.mark.parametrize("recipe", ["block:window=4", "tree-block:branch=2/1"])
def test_distribution_with_a_reduced_vocabulary(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token is never drafted; power as in `tests/testing/test_grid.py`."""

    def heads(vocab_size: int, width: int | None, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        head = BlockHead(
            vocab_size, FEATURES, 24, 2, block_size=4, markov_rank=4, prefix=1, draft_vocab_size=vocab_size - 1
        )
        for p in head.parameters():
            torch.nn.init.normal_(p, std=0.5)
        assert head.d2t is not None and head.t2d is not None
        restrict(head.d2t, head.t2d, torch.arange(1, vocab_size))
        return {"block": head}

    monkeypatch.setattr(mmspec.testing.toys, "toy_heads", heads)
    setting = SamplingParams(temperature=0.8, top_p=0.9, guidance_scale=1.5)
    result = check(recipe, setting, samples=20_000, layout=Layout(length=4, width=2), seed=3)
    assert result.ok and result.tokens_per_call > 1, result


def test_a_prompt_is_read_without_its_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first distribution of a row depends on its whole prompt, and not on the longer one beside it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes, eos_token_id=None, pad_token_id=0)).eval()
    head = BlockHead(20, 32, 48, 2, layer_ids=(0, 2, 3), block_size=4, prefix=8)
    for p in head.parameters():
        torch.nn.init.normal_(p, std=0.3)
    firsts: list[Tensor] = []

    class RecordingRunner(BlockRunner):
        def root(self, state: BatchState) -> Tensor:
            firsts.append(q := dense(super().root(state)))
            return q

    monkeypatch.setattr("mmspec.methods.block.drafter.BlockRunner", RecordingRunner)

    def first(prompts: list[list[int]]) -> Tensor:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options: dict[str, Any] = {"heads": [head], "recipe": "block:window=4", "seed": 0, "do_sample": True}
        count = len(firsts)
        model.generate(ids, attention_mask=mask, max_new_tokens=6, custom_generate=mmspec.generate, **options)
        return firsts[count][-1]

    short, long = [3, 4, 5], [7, 8, 9, 10, 11, 12]
    alone = first([short])
    assert torch.allclose(first([long, short]), alone, atol=1e-6)
    assert not torch.allclose(first([[6, 4, 5]]), alone, atol=1e-4)  # it reads the first token of the prompt
    monkeypatch.setattr(
        "mmspec.methods.block.drafter.prompt_padding", lambda target, rows: np.zeros(rows, dtype=np.int64)
    )
    assert not torch.allclose(first([long, short]), alone, atol=1e-4)
