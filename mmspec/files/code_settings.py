"""Settings of a model's files that choose code: they are left out before transformers or diffusers sees them.

A folder may come from a stranger. Which code runs is decided by the class that mmspec loads, and by what is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmspec.errors import ModelError

_KERNELS = "may name a repository of the Hub, whose kernels would be fetched and imported"
LEFT_OUT: Mapping[str, str] = {
    "attn_implementation": _KERNELS,
    "_attn_implementation": _KERNELS,
    "_attn_implementation_internal": _KERNELS,
    "_attn_implementation_autoset": "says where the former comes from",
    "experts_implementation": _KERNELS,
    "_experts_implementation": _KERNELS,
    "_experts_implementation_internal": _KERNELS,
    "use_kernels": "replaces layers by kernels of the Hub",
    "kernel_config": "names the kernels",
    "auto_map": "names Python files; that of a part of a model is not covered by trust_remote_code",
    "custom_generate": "names a repository with a Python function",
    "custom_pipelines": "names Python files of a repository",
    "configuration_files": "names another file that is read instead of this one",
    "fusion_config": "replaces modules of the class by others",
    "distributed_config": "divides the model among processes",
    "base_model_tp_plan": "replaces layers by those of tensor parallelism",
    "tp_plan": "likewise",
    "compile_config": "names the compiler of the model's calls",
}
"""Keys, at any depth, and what each would decide."""

# Values of the attention and the experts that are part of transformers' own classes.
_OWN = ("eager", "sdpa", "grouped_mm", "batched_mm", True)

# The library that replaces the layers decides what runs, and some of them fetch kernels from the Hub.
QUANTIZED = ("quantization_config", "compression_config")


def without_code(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of settings without the keys of `LEFT_OUT`, at any depth."""
    return {key: _kept(value) for key, value in values.items() if key not in LEFT_OUT}


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_code(value)
    return [_kept(one) for one in value] if isinstance(value, list) else value


def refuse_quantized(values: Mapping[str, Any], what: str) -> None:
    """Checks that settings, at any depth, do not name a library that replaces layers by quantized ones.

    Raises:
        ModelError: If they do.
    """
    for key, value in _entries(values):
        if key in QUANTIZED and value:
            method = value.get("quant_method") if isinstance(value, Mapping) else value
            raise ModelError(
                f"{what}: config.json has {key} ({str(method)!r}), whose library would choose the code; load the model "
                "with transformers and pass it: mmspec.load(model, processor=...)"
            )


def refuse_code(values: Mapping[str, Any], what: str) -> None:
    """Checks that settings which cannot be left out do not choose code, at any depth.

    Raises:
        ModelError: If they do.
    """
    refuse_quantized(values, what)
    for key, value in _entries(values):
        if key in LEFT_OUT and value and not ("_implementation" in key and value in _OWN):
            raise ModelError(f"{what}: config.json has {key!r}, which {LEFT_OUT[key]}; remove it")


def _entries(values: Any) -> Iterator[tuple[str, Any]]:
    """The keys and values of mappings at any depth."""
    if isinstance(values, Mapping):
        yield from values.items()
    for inner in values.values() if isinstance(values, Mapping) else values:
        if isinstance(inner, (Mapping, list)):
            yield from _entries(inner)
