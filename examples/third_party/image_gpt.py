"""The pixel GPTs of teddykoker/image-gpt (Apache-2.0), of 28x28 pixels of 16 greys: a class of transformers.

git clone https://github.com/teddykoker/image-gpt
python examples/third_party/image_gpt.py image-gpt/models/fmnist_gen.ckpt
python examples/third_party/image_gpt.py image-gpt/models/fmnist_gen.ckpt check -m image-gpt --prompt ''
"""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import Example, authors_module, main
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

import mmspec
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan
from mmspec.vision.hf.adapters.imagegpt import ImageGPTAdapter

LAYERS, HEADS, GREYS, SIDE = 8, 2, 16, 28


class Block(GPT2Block):
    """Adds attention to its normalized input; GPT-2 adds it to the input."""

    def __init__(self, config: GPT2Config, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.norm, self.ln_1 = self.ln_1, nn.Identity()

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().forward(self.norm(hidden_states), *args, **kwargs)


class PixelGPT(GPT2LMHeadModel):
    """Ids 0 to 15 are greys; 16 begins an image and is never predicted."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.transformer.h = nn.ModuleList(Block(config, i) for i in range(config.n_layer))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size - 1, bias=False)


# The adapter.


def vocab_size(model: Any) -> int:
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    refuse_inputs(model, request, "position_ids")
    found = shared_vocabulary_plan(model, model.transformer, model.get_input_embeddings(), model.lm_head, request)
    return replace(found, width=SIDE)


image_adapter = ImageGPTAdapter  # the same prompt, a start token, and colors by number

# The weights.


def read_state(file: Path) -> dict[str, Tensor]:
    """The tensors of the file; its hyperparameters are read without pytorch_lightning."""
    with torch.serialization.safe_globals([(OrderedDict, "pytorch_lightning.utilities.parsing.AttributeDict")]):
        found: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    return found


def read(file: Path) -> tuple[PixelGPT, Tensor]:
    """The model, and the greys of its ids, 0 to 1."""
    state = read_state(file)
    given = {name.removeprefix("gpt."): value for name, value in state.items()}
    names = {"attn.in_proj_": "attn.c_attn.", "attn.out_proj.": "attn.c_proj.", "ln_1.": "norm.", "ln_2.": "ln_2."}
    names |= {"mlp.0.": "mlp.c_fc.", "mlp.2.": "mlp.c_proj."}
    made = {
        "wte.weight": torch.cat([given["token_embeddings.weight"], given["sos"][None]]),
        "wpe.weight": given["position_embeddings.weight"],
        "ln_f.weight": given["ln_f.weight"],
        "ln_f.bias": given["ln_f.bias"],
    }
    for layer in range(LAYERS):
        for theirs, ours in names.items():
            weight = given[f"layers.{layer}.{theirs}weight"]
            made[f"h.{layer}.{ours}weight"] = weight.T if weight.ndim == 2 else weight
            made[f"h.{layer}.{ours}bias"] = given[f"layers.{layer}.{theirs}bias"]
    config = GPT2Config(
        vocab_size=GREYS + 1, n_positions=SIDE**2, n_embd=made["wpe.weight"].shape[1], n_layer=LAYERS, n_head=HEADS,
        activation_function="gelu", tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = PixelGPT(config).eval()
    model.transformer.load_state_dict(made)
    model.lm_head.load_state_dict({"weight": given["head.weight"]})
    model.generation_config.top_k = 0
    return model, state["centroids"]


def load(file: Path, device: str, dtype: torch.dtype) -> Any:
    """What `mmspec.load("image-gpt")` returns."""
    model, greys = read(file)
    colors = namedtuple("Processor", "clusters")((2 * greys - 1).repeat(1, 3).numpy())
    return mmspec.load(model.to(device, dtype), processor=colors)


# The comparison with the authors' code.


def checks(file: Path, pipe: Any, recipes: Sequence[str]) -> dict[str, Any]:
    """Logits against the authors' network; the lower halves of sampled images, greedy, against `generate`."""
    theirs = authors_module(file.parents[1] / "src", "gpt2").GPT2(16, HEADS, LAYERS, SIDE**2, GREYS, 10).eval()
    theirs.load_state_dict(
        {name.removeprefix("gpt."): value for name, value in read_state(file).items() if "gpt." in name}
    )
    images = pipe([""] * 16, recipe="plain", seed=range(16), output_type="latent").tokens
    ids = torch.cat([torch.full((16, 1), GREYS), images], 1)
    halves, left = ids[:, : SIDE**2 // 2 + 1], {"max_new_tokens": SIDE**2 // 2, "do_sample": False}
    own = pipe.model.generate(halves, **left)
    different = {}
    for recipe in recipes:
        ours = pipe.model.generate(halves, **left, custom_generate=mmspec.generate, recipe=recipe)
        different[recipe] = int((ours != own).any(1).sum())
    gap = (theirs(images.T).transpose(0, 1) - pipe.model(ids[:, :-1]).logits).abs().max()
    return {
        "largest difference of logits from the authors' network": float(gap),
        "greedy lower halves that differ from generate, of 16": different,
        "share of their pixels that are not black": float(
            (own[:, SIDE**2 // 2 + 1 :] != int(images.flatten().mode()[0])).float().mean()
        ),
    }


RECIPES = (
    "plain", "scd:window=8", "scd:window=16", "scd:window=32", "scd:window=64", "scd:window=16,start=left",
    "sjd:window=16", "sjd:window=32", "recycle", "stand", "layer-skip:layers=4",
)  # fmt: skip

if __name__ == "__main__":
    mmspec.register("adapter", "PixelGPT", sys.modules[__name__])
    main(Example("image-gpt", load, checks, RECIPES, rows=48))
