"""Exactness checks and toy models, for the tests of mmspec and of adapters, drafters and rules outside it.

`check`, `check_columns` and `check_latents` compare a recipe with plain decoding on a toy model; they are what `mmspec
check` runs. `check_windows` and `check_samples` test an adapter, that is, a target around a real model.
"""

from mmspec.testing.adapters import check_samples, check_windows, joint_probs
from mmspec.testing.columns import check_columns
from mmspec.testing.exactness import ExactnessResult, check, noise_floor
from mmspec.testing.latents import LatentExactnessResult, check_latents
from mmspec.testing.toys import ColumnToy, ToyBackbone, ToyHead, ToyTarget, toy_resources

__all__ = [
    "ColumnToy",
    "ExactnessResult",
    "LatentExactnessResult",
    "ToyBackbone",
    "ToyHead",
    "ToyTarget",
    "check",
    "check_columns",
    "check_latents",
    "check_samples",
    "check_windows",
    "joint_probs",
    "noise_floor",
    "toy_resources",
]
