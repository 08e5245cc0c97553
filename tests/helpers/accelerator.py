"""A device that is neither a CPU nor CUDA, for tests of code that must run on any.

Its tensors hold CPU tensors, so that it computes what a CPU does. Unlike a CPU it refuses what other devices refuse:
operators that mix its tensors with a CPU's (numbers without dimensions excepted), NumPy and, like Apple's `mps`,
float64 and asynchronous copies from a CPU, which `mps` may read after their memory was freed.

`python accelerator.py OUTPUT.pt NAME...` runs cases and saves their tokens; see `CASES`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from mmspec.sampling import probs

NAME = "fakegpu"
# Copies between devices, whose arguments may be on two.
COPIES = ("aten._to_copy.default", "aten.copy_.default", "aten._local_scalar_dense.default", "aten.lift_fresh.default")


class AcceleratorTensor(Tensor):
    """A tensor of the device."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: Tensor) -> AcceleratorTensor:
        if host.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"the {NAME} device has no {host.dtype}")
        made: AcceleratorTensor = Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=torch.device(f"{NAME}:0"),
        )  # fmt: skip
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return dispatch(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.host.tolist()


def dispatch(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Runs an operator on the tensors that tensors of the device hold."""
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    own = [leaf for leaf in leaves if isinstance(leaf, AcceleratorTensor)]
    others = [leaf for leaf in leaves if not isinstance(leaf, AcceleratorTensor) and leaf.ndim]
    index = str(func).startswith("aten.index")  # a CPU's indices are copied
    if own and others and str(func) not in COPIES and not (index and isinstance(leaves[0], AcceleratorTensor)):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {NAME}:0 and cpu")
    wanted = kwargs.get("device")
    there = bool(own) if wanted is None else torch.device(wanted).type == NAME
    asynchronous = bool(kwargs.get("non_blocking"))
    if str(func) == "aten.copy_.default":
        there, asynchronous = isinstance(args[0], AcceleratorTensor), len(args) > 2 and bool(args[2])
    if there and asynchronous and any(not isinstance(leaf, AcceleratorTensor) for leaf in leaves):
        raise RuntimeError(f"{func}: an asynchronous copy from memory that is not page-locked")
    args, kwargs = tree_map(_to_host, (args, dict(kwargs)))
    found = func(*args, **kwargs)
    if not there:
        return found
    return tree_map(lambda leaf: AcceleratorTensor(leaf) if isinstance(leaf, Tensor) else leaf, found)


def _to_host(leaf: Any) -> Any:
    if isinstance(leaf, AcceleratorTensor):
        return leaf.host
    return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == NAME else leaf


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return dispatch(func, args, kwargs or {})


@contextmanager
def accelerator() -> Iterator[str]:
    """A context in which the device exists; yields its name. A process can enter it once."""
    _setup_privateuseone_for_python_backend(NAME)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)  # a tensor of a list is made on the CPU and copied, as an operator
    try:
        with _Mode():
            yield NAME
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


def images(device: str, recipe: str, **call: Any) -> Tensor:
    from mmspec.vision.shapes.model import load

    pipe = load(device=device)
    pipe.set_progress_bar_config(disable=True)
    prompts = ["a red circle above a blue square", "a green star"]
    out = pipe(prompts, recipe=recipe, seed=0, output_type="pil", **call)
    assert len(out.images) == 2
    return out.tokens.cpu()


def latents(device: str, recipe: str) -> Tensor:
    import mmspec

    pipe = mmspec.load("shapes-latent", device=device)
    pipe.set_progress_bar_config(disable=True)
    out = pipe(["a red circle"], recipe=recipe, seed=0)
    return out.tokens.cpu()


def speech(device: str, recipe: str) -> Tensor:
    import mmspec

    return mmspec.load("spoken", device=device)("seven o'clock", recipe=recipe, seed=0).tokens[0].cpu()


def emu3(device: str, recipe: str) -> Tensor:
    import tiny_models as tiny

    import mmspec

    model = tiny.emu3().to(device)
    ids = torch.tensor([[0, 0, 1, 31, 32, 3], [1, 31, 33, 34, 30, 3]], device=device)
    call: dict[str, Any] = {"input_ids": ids, "attention_mask": (ids != 0).long(), "max_new_tokens": 12}
    found: Tensor = model.generate(
        **call, do_sample=True, top_p=0.9, custom_generate=mmspec.generate, recipe=recipe, seed=1
    )
    return found.cpu()


CASES: dict[str, Callable[[str], Tensor]] = {
    "plain": lambda device: images(device, "plain"),
    "scd": lambda device: images(device, "scd:window=8"),
    "top-p": lambda device: images(device, "scd:window=8", top_p=0.8, top_k=20, guidance_scale=2.0),
    "draft": lambda device: images(device, "draft:window=4"),
    "table": lambda device: images(device, "table"),
    "tree": lambda device: images(device, "tree-sampled"),
    "gsd": lambda device: images(device, "gsd"),
    "latents": lambda device: latents(device, "scd+smoothed:window=8,sigma=0.05"),
    "spoken": lambda device: speech(device, "table:window=8"),
    "emu3": lambda device: emu3(device, "scd:window=4"),
    "emu3 plain": lambda device: emu3(device, "plain"),
}


def main(output: Path, names: Sequence[str]) -> None:
    # Views of tensors of a class of its own are not possible in inference mode; the operators are the same.
    vars(torch)["inference_mode"] = lambda mode=True: torch.set_grad_enabled(mode is False)
    # The CPU adds as the device does.
    vars(probs)["_has_float64"] = lambda kind: False
    found = dict[str, Any]()
    expected = {name: CASES[name]("cpu") for name in names}
    with accelerator() as device:
        for name in names:
            try:
                tokens, like = CASES[name](device), expected[name]
                close = tokens.shape == like.shape and torch.allclose(tokens, like, atol=1e-4)
                found[name] = "equal" if close else "different"
            except Exception:
                found[name] = traceback.format_exc()
    torch.save(found, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
