"""Default sampling parameters of a pipeline: those of its checkpoint, completed as its original code samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmspec.sampling.params import SamplingParams

# What `generate` of transformers 5 puts in place of values that a generation config leaves out.
TRANSFORMERS = SamplingParams(temperature=1.0, top_k=50, top_p=1.0)


def checkpoint_sampling(config: Any, original: SamplingParams | None = None) -> SamplingParams:
    """The sampling parameters of a generation config; a value that it has always wins.

    Args:
        config: A `GenerationConfig`, whose missing values are None.
        original: How the model's original code samples, for missing values; a config without `do_sample` then
            samples. None completes the config as `generate` of transformers does: `do_sample` is off, `top_k` is 50.
    """
    default = TRANSFORMERS if original is None else original
    do_sample = original is not None if config.do_sample is None else bool(config.do_sample)

    def value(name: str) -> Any:
        found = getattr(config, name, None)
        return getattr(default, name) if found is None else found

    return SamplingParams(
        float(value("temperature")) if do_sample else 0.0,
        int(value("top_k")),
        float(value("top_p")),
        float(value("guidance_scale")),
        min_p=float(value("min_p")),
        typical_p=float(value("typical_p")),
    )


def stage_sampling(own: SamplingParams, default: SamplingParams, called: SamplingParams) -> SamplingParams:
    """The sampling parameters of a later stage of a model: its own, except for what a call changes.

    Args:
        own: Those of the stage.
        default: Those of the pipeline, which a call gets for what it leaves out.
        called: Those of the call.
    """
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p")
    changed = {name: getattr(called, name) for name in names if getattr(called, name) != getattr(default, name)}
    return replace(own, **changed)
