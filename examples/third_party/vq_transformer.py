"""The transformer over VQ-VAE codes of thiefCat/VQ-VAE-Transformer (no license is stated): a target of its own.

git clone https://github.com/thiefCat/VQ-VAE-Transformer
pip install einops  # which its code imports
python examples/third_party/vq_transformer.py VQ-VAE-Transformer/results/transformer.pt
python examples/third_party/vq_transformer.py VQ-VAE-Transformer/results/transformer.pt check -m vq-transformer
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measure import Example, authors_module, main
from PIL import Image
from torch import Tensor, nn

from mmspec.batching.call import decode_rows
from mmspec.decoding.assembly import PreparedRows
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import Watch
from mmspec.hf.slot_cache import SlotCache
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds
from mmspec.training.prepared import PreparedPrompts
from mmspec.vision.outputs import ImageOutput

CODES, START, SIDE = 128, 128, 3  # the authors' sampling begins with id 128


# The adapter.


class VQTarget:
    """The transformer. Slot 0 holds the start token, slot n + 1 position n."""

    vocab_size = CODES
    ROWS = ("_starts", "_cache")

    def __init__(self, model: Any, rows: int, slack: int) -> None:
        self.device = model.get_logit.weight.device
        self._model, self._cache = model, SlotCache(1 + SIDE**2 + slack)
        self._starts = torch.full((rows, 1), START, device=self.device)

    def prefill(self) -> Logits:
        return self._read(self._starts, np.zeros(len(self._starts), dtype=np.int64))

    def forward(self, tokens: Tensor, at: np.ndarray) -> Logits:
        return self._read(tokens, at + 1)

    def _read(self, ids: Tensor, start: np.ndarray) -> Logits:
        model, width, end = self._model, ids.shape[1], int(start.max()) + ids.shape[1]
        slots = torch.from_numpy(start[:, None] + np.arange(width)).to(self.device)
        self._cache.at_slots(slots, end)
        seen = (torch.arange(end, device=self.device) <= slots[..., None])[:, None]
        places = slots.clamp(max=model.positional_embedding.num_embeddings - 1)  # a last window ends after the table
        x = model.input_ln(model.token_embedding(ids) + model.positional_embedding(places))
        for number, layer in enumerate(model.transformer):
            heads = [getattr(layer.attention, f"{name}_proj")(x) for name in "qkv"]
            q, k, v = (each.unflatten(-1, (layer.attention.n_heads, -1)).transpose(1, 2) for each in heads)
            k, v = self._cache.update(k, v, number)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
            x = layer.feed_forward(layer.attention_ln(layer.attention.out_proj(mixed) + x))
        return Logits(model.get_logit(x))


class VQPipeline:
    """What `mmspec.load("vq-transformer")` returns."""

    layout = Layout(length=SIDE**2, width=SIDE)

    def __init__(self, model: nn.Module, vqvae: nn.Module) -> None:
        self.model, self.vqvae = model, vqvae

    def set_progress_bar_config(self, **config: Any) -> None:
        """Does nothing: this pipeline has no progress bar."""

    def prepare(self, prompts: Sequence[str], slack: int, *sampling: Any) -> PreparedPrompts:
        target = lambda: VQTarget(self.model, len(prompts), slack)  # noqa: E731
        return PreparedPrompts(target, self.layout, [SamplingParams()] * len(prompts), DraftResources())

    def own_generate(self, prompts: Sequence[str], greedy: bool, seed: int) -> Tensor:
        torch.manual_seed(seed)
        found: Tensor = self.model.sample_from_prior(
            len(prompts), 1.0, 1 if greedy else CODES, self.model.get_logit.weight.device
        )
        return found

    def __call__(
        self,
        prompts: Sequence[str],
        *,
        recipe: Any = "scd",
        seed: Any = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        num_images_per_prompt: int = 1,
        on_step: Any = None,
        measure_entropy: bool = False,
    ) -> ImageOutput:
        count = len(prompts) * num_images_per_prompt
        recipe, seeds, params = parse(recipe), row_seeds(seed, count), SamplingParams(temperature, top_k, top_p)
        with torch.inference_mode():
            target = VQTarget(self.model, count, recipe.window)
            rows = PreparedRows(target, self.layout, [params] * count, DraftResources())
            found, stats = decode_rows(rows, recipe, seeds, Watch(on_step, measure_entropy))
            tokens = torch.stack(found).to(target.device)
            vectors = self.vqvae.codebook.embedding(tokens).unflatten(1, (SIDE, SIDE)).permute(0, 3, 1, 2)
            grey = ((self.vqvae.decode(vectors) + 1) * 127.5).clamp(0, 255).round().to("cpu", torch.uint8)
        return ImageOutput([Image.fromarray(each.numpy()) for each in grey], tokens, seeds, stats)


# The weights, in the authors' classes.


def load(file: Path, device: str, dtype: torch.dtype) -> VQPipeline:
    """With the settings that are the defaults of their transformer.py."""
    checkout = file.parents[1]
    vqvae = authors_module(checkout, "source.vqvae_models").VQVAE(2, 1, 16, 8, 3, CODES, 2, 0.1)
    make = authors_module(checkout, "source.transformer_models").AutoregressiveTransformer
    model = make(3, 64, CODES, SIDE**2 + 1, 5, 64, 0.1, vqvae)
    for module, name in ((vqvae, "vqvae.pt"), (model, file.name)):
        module.load_state_dict(torch.load(file.with_name(name), map_location="cpu", weights_only=True))
    return VQPipeline(model.to(device, dtype).eval(), vqvae.to(device, dtype).eval())


# The comparison with the authors' code.


def checks(file: Path, pipe: VQPipeline, recipes: Sequence[str]) -> dict[str, Any]:
    """Logits against the authors' forward, greedy images against their loop."""
    own = pipe.own_generate([""] * 16, greedy=False, seed=0)
    ids = torch.cat([torch.full((16, 1), START), own], 1)[:, :-1]
    target, zeros = VQTarget(pipe.model, 16, 1), np.zeros(16, dtype=np.int64)
    logits = torch.cat([target.prefill().cond, target.forward(ids[:, 1:], zeros).cond], 1)
    greedy = pipe.own_generate([""], greedy=True, seed=0)
    different = {each: int((pipe([""], recipe=each, seed=0, temperature=0).tokens != greedy).sum()) for each in recipes}
    return {
        "largest difference of logits from the authors' network": float((logits - pipe.model(ids)).abs().max()),
        "greedy tokens that differ from the authors' loop, of 9": different,
    }


RECIPES = (
    "plain", "scd:window=4", "scd:window=8", "scd:window=16", "sjd:window=8", "recycle", "stand", "retrieval",
)  # fmt: skip

if __name__ == "__main__":
    main(Example("vq-transformer", load, checks, RECIPES, rows=2000))
