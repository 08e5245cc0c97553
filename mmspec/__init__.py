"""mmspec: speculative decoding for autoregressive image and audio generators."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

# A wheel contains vision, audio, kernels and metrics inside this package; a checkout has them next to it.
_here = Path(__file__).parent
if not (_here / "vision").is_dir():
    __path__.append(str(_here.parent))

if TYPE_CHECKING:
    from mmspec.batching.async_engine import AsyncEngine
    from mmspec.batching.engine import Engine
    from mmspec.bulk.generator import Generator
    from mmspec.drop_in.accelerate import accelerate, accelerated, last_stats
    from mmspec.hf.generate import generate
    from mmspec.loading import load
    from mmspec.recipes import Recipe
    from mmspec.registry.registration import register
    from mmspec.sampling.params import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "AsyncEngine",
    "Engine",
    "Generator",
    "Recipe",
    "SamplingParams",
    "__version__",
    "accelerate",
    "accelerated",
    "generate",
    "last_stats",
    "load",
    "register",
]

_HOMES = {
    "load": "mmspec.loading",
    "Generator": "mmspec.bulk.generator",
    "Recipe": "mmspec.recipes",
    "generate": "mmspec.hf.generate",
    "accelerate": "mmspec.drop_in.accelerate",
    "accelerated": "mmspec.drop_in.accelerate",
    "last_stats": "mmspec.drop_in.accelerate",
    "Engine": "mmspec.batching.engine",
    "AsyncEngine": "mmspec.batching.async_engine",
    "SamplingParams": "mmspec.sampling.params",
    "register": "mmspec.registry.registration",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
