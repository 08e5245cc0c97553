"""The machine and the package versions that explain a result."""

from __future__ import annotations

import importlib
import os
import platform

import torch

from mmspec import __version__
from mmspec.versions import installed


def environment() -> dict[str, str | int | None]:
    """Versions, devices and threads, in reading order; None for what is absent.

    `torchaudio` carries the reason if it is installed but cannot be imported, since it may be built against another
    torch.
    """
    return {
        "mmspec": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "transformers": installed("transformers"),
        "diffusers": installed("diffusers"),
        "huggingface_hub": installed("huggingface_hub"),
        "torchaudio": _importable("torchaudio"),
        "torchmetrics": installed("torchmetrics"),
        "triton": installed("triton"),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
    }


def _importable(package: str) -> str | None:
    """The version, followed by the reason if the import fails; None if the package is not installed."""
    number = installed(package)
    if number is None:
        return None
    try:
        importlib.import_module(package)
    except Exception as error:  # binary packages fail with OSError, RuntimeError or ImportError
        return f"{number}, not importable: {' '.join(str(error).split())}"
    return number
