"""`mmspec.generate` on models that are in half precision, dispatched, offloaded, quantised or compiled, with any cache
and attention. Greedy tokens equal those of the model's own generate.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, Emu3ForConditionalGeneration, StaticCache
from transformers.generation import GenerationMixin

from mmspec.hf.cache_name import RELEASE
from mmspec.hf.causal_target import slice_head
from mmspec.hf.generate import generate

pytestmark = pytest.mark.releases

RECIPES = ["plain", "sjd:window=5", "scd:window=4", "draft:window=3"]
IDS = torch.tensor([[0, 0, 1, 31, 32, 3], [1, 31, 33, 34, 30, 3]])
NEGATIVE = torch.tensor([[0, 1, 31], [1, 30, 33]])
CALL: dict[str, Any] = {
    "input_ids": IDS,
    "attention_mask": (IDS != 0).long(),
    "guidance_scale": 2.0,
    "negative_prompt_ids": NEGATIVE,
    "negative_prompt_attention_mask": (NEGATIVE != 0).long(),
    "max_new_tokens": 12,
    "do_sample": False,
}
UNGUIDED = {name: value for name, value in CALL.items() if "negative" not in name and name != "guidance_scale"}


def loaded(folder: Path, **options: Any) -> Any:
    """A model that `from_pretrained` loads with these options."""
    if "device_map" in options:
        pytest.importorskip("accelerate")
    tiny_models.emu3().save_pretrained(folder)
    return Emu3ForConditionalGeneration.from_pretrained(folder, **options).eval()


class PackedLinear(nn.Module):
    """A linear layer with int8 weights, as in bitsandbytes: only its own forward can read them."""

    codes: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", (linear.weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    @property
    def weight(self) -> Tensor:
        raise AssertionError("the weight of a quantised layer was read")

    def forward(self, x: Tensor) -> Tensor:
        assert self.codes.dtype == torch.int8, "a quantised layer was cast"
        return F.linear(x, self.codes * self.scale)


class PackedTensor(Tensor):
    """An int8 weight inside an ordinary `nn.Linear`, as in torchao: it supports `F.linear` only."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, weight: Tensor) -> PackedTensor:
        return torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype)

    def __init__(self, weight: Tensor) -> None:
        self.scale = weight.abs().amax(1, keepdim=True) / 127
        self.codes = (weight / self.scale).round().to(torch.int8)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, *bias = args
            return F.linear(x, weight.codes * weight.scale, *bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise AssertionError(f"{func} on a quantised weight")


def packed_layers(folder: Path) -> Any:
    model = tiny_models.emu3()
    for parent in [*model.model.text_model.modules(), model]:
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
    assert isinstance(model.lm_head, PackedLinear)
    return model


def packed_weights(folder: Path) -> Any:
    model = tiny_models.emu3()
    for layer in [*model.model.text_model.modules(), model.lm_head]:
        if type(layer) is nn.Linear:
            layer.weight = nn.Parameter(PackedTensor(layer.weight.detach()), requires_grad=False)
    return model


def offloaded(folder: Path) -> Any:
    return pytest.importorskip("accelerate").cpu_offload(tiny_models.emu3(), torch.device("cpu"))


def small() -> Any:
    return tiny_models.emu3(num_hidden_layers=1)


def compiled_forward(folder: Path) -> Any:
    model = small()
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_decoder(folder: Path) -> Any:
    model = small()
    model.model.text_model.compile(backend="eager")
    return model


# A CPU is a single device; offloaded parts go through the same hooks as parts on another device.
PARTS = {f"model.text_model.{part}": "cpu" for part in ("embed_tokens", "layers.0", "norm", "rotary_emb")}
PARTS |= {"model.vqmodel": "cpu", "model.text_model.layers.1": "disk", "lm_head": "disk"}
SETUPS: dict[str, Callable[[Path], Any]] = {
    "device_map": lambda folder: loaded(folder, device_map="cpu"),
    "parts on disk": lambda folder: loaded(folder, device_map=PARTS, offload_folder=folder / "offloaded"),
    "offloaded whole": offloaded,
    "eager attention": lambda folder: loaded(folder, attn_implementation="eager"),
    "sdpa attention": lambda folder: loaded(folder, attn_implementation="sdpa"),
    "quantised layers": packed_layers,
    "quantised weights": packed_weights,
    "compiled forward": compiled_forward,
    "compiled model": lambda folder: torch.compile(small(), backend="eager"),
    "compiled decoder": compiled_decoder,
}


@pytest.mark.parametrize("setup", SETUPS)
def test_greedy_equals_the_models_own_generate(setup: str, tmp_path: Path) -> None:
    model, draft = SETUPS[setup](tmp_path), tiny_models.emu3(5)
    compiled = setup.startswith("compiled")  # takes a second for each new shape
    call = UNGUIDED | {"max_new_tokens": 4} if compiled else CALL
    expected = (small() if compiled else model).generate(**call)
    for recipe in RECIPES[2:3] if compiled else RECIPES:
        ours = model.generate(**call, custom_generate=generate, recipe=recipe, draft_model=draft)
        assert torch.equal(ours, expected), recipe


def test_a_wrapped_draft_model_is_used(tmp_path: Path) -> None:
    model = tiny_models.emu3()
    expected = model.generate(**CALL)
    for setup in ("compiled model", "offloaded whole", "quantised weights"):
        draft = SETUPS[setup](tmp_path)
        ours = model.generate(**CALL, custom_generate=generate, recipe="draft:window=3", draft_model=draft)
        assert torch.equal(ours, expected), setup


def test_a_compiled_janus_equals_its_own_generate() -> None:
    """`GenerationMixin.generate` is called with the module that `torch.compile` returned."""
    janus = tiny_models.janus()
    ids = torch.tensor([[1, 12, 13, 3]])
    call: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "guidance_scale": 3.0}
    expected = janus.generate(ids, **call, generation_mode="image")
    compiled = torch.compile(janus, backend="eager")
    ours = GenerationMixin.generate(compiled, ids, **call, max_new_tokens=16, custom_generate=generate)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("cache", ["static", "DynamicCache", "StaticCache"])
def test_every_cache_with_every_attention(cache: str, attention: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, attn_implementation=attention)
    config = model.config.get_text_config()
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "static": lambda: {"cache_implementation": "static"},
        "DynamicCache": lambda: {RELEASE: DynamicCache(config=config)},
        "StaticCache": lambda: {RELEASE: StaticCache(config=config, max_cache_len=20)},
    }
    expected = model.generate(**CALL, **kinds[cache]())
    for recipe in RECIPES[:3]:
        ours = model.generate(**CALL, **kinds[cache](), custom_generate=generate, recipe=recipe)
        assert torch.equal(ours, expected), recipe


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_differs_at_near_ties_only(dtype: torch.dtype, tmp_path: Path) -> None:
    """A window rounds differently from single tokens, so that near ties may be decided differently."""
    model = loaded(tmp_path, dtype=dtype)
    for recipe in RECIPES[:3]:
        ids = model.generate(**UNGUIDED, custom_generate=generate, recipe=recipe)
        assert ids.dtype == torch.int64 and all(p.dtype == dtype for p in model.parameters())
        mask = torch.cat([UNGUIDED["attention_mask"], torch.ones_like(ids[:, 6:])], dim=1)
        with torch.no_grad():
            logits = model(ids, attention_mask=mask).logits[:, 5:-1].float()
        best, chosen = logits.max(-1).values, logits.gather(2, ids[:, 6:, None])[..., 0]
        assert (best - chosen).max() < 0.02 * logits.abs().max(), recipe
    assert torch.equal(model.generate(**UNGUIDED), model.generate(**UNGUIDED, custom_generate=generate, recipe="plain"))


def test_the_logits_of_a_quantised_head_are_sliced() -> None:
    """A plain head computes only the logits that are needed; a quantised one computes all."""
    head = nn.Linear(4, 9, bias=False)
    packed = nn.Linear(4, 9, bias=False)
    packed.weight = nn.Parameter(PackedTensor(head.weight.detach()), requires_grad=False)
    hidden = torch.randn(2, 3, 4)
    for kind in (packed, PackedLinear(head)):
        assert torch.allclose(slice_head(kind, 2, 7)(hidden), head(hidden)[..., 2:7], atol=0.05)
