"""Tokens of models that two processes hold together, and of the same models in one process.

`save` saves tiny models into a folder with the tokens that they generate; `tensor_parallel.py FOLDER`, started by
torchrun, loads them in parts and writes whether their tokens are the same.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import tiny_models as tiny
import torch
from torch import Tensor
from transformers import Emu3ForConditionalGeneration, JanusForConditionalGeneration, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.generation import GenerationMixin

import mmspec

# transformers has no plan for Emu3, whose layers are those of Llama.
LAYER = "model.text_model.layers.*"
EMU3_PLAN = {
    **{f"{LAYER}.self_attn.{part}_proj": "colwise" for part in "qkv"},
    **{f"{LAYER}.mlp.{part}_proj": "colwise" for part in ("gate", "up")},
    f"{LAYER}.self_attn.o_proj": "rowwise",
    f"{LAYER}.mlp.down_proj": "rowwise",
}
RECIPES = ("plain", "scd:window=8")
CLASSES: dict[str, Any] = {
    "llama": LlamaForCausalLM,
    "janus": JanusForConditionalGeneration,
    "emu3": Emu3ForConditionalGeneration,
}


def make(name: str) -> Any:
    if name == "llama":
        config = LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        return tiny.scatter(LlamaForCausalLM(config), 0, 0.3)
    return tiny.janus() if name == "janus" else tiny.emu3()


def tokens_of(model: Any, name: str) -> dict[str, Tensor]:
    """Sampled tokens by recipe."""
    ids = torch.tensor([[1, 12, 13, 3], [1, 17, 14, 3]])
    call: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": True, "top_p": 0.9}
    if name == "janus":
        call |= {"guidance_scale": 3.0}
    else:
        call |= {"max_new_tokens": 16}
    return {
        recipe: GenerationMixin.generate(model, **call, custom_generate=mmspec.generate, recipe=recipe, seed=1)
        for recipe in RECIPES
    }


def save(folder: Path) -> None:
    """Saves the models and the tokens of this process, on one thread as in the others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in CLASSES:
        model = make(name)
        model.save_pretrained(folder / name)
        torch.save(tokens_of(model, name), folder / f"{name}.pt")
    torch.set_num_threads(threads)


def main(folder: Path) -> None:
    """Loads the models in parts, and writes whether their tokens are the saved ones."""
    found: dict[str, Any] = {}
    for name, kind in CLASSES.items():
        plan = EMU3_PLAN if name == "emu3" else "auto"
        model = kind.from_pretrained(folder / name, distributed_config=DistributedConfig(tp_plan=plan)).eval()
        split = [key for key, value in model.named_parameters() if type(value).__name__ == "DTensor"]
        expected = torch.load(folder / f"{name}.pt")
        equal = {recipe: torch.equal(ids, expected[recipe]) for recipe, ids in tokens_of(model, name).items()}
        found[name] = {"equal": equal, "split": len(split)}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
