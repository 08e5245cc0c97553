"""The machine and the package versions that explain a result."""

from __future__ import annotations

import importlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from mmspec import __version__


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
        "transformers": _version("transformers"),
        "diffusers": _version("diffusers"),
        "torchaudio": _importable("torchaudio"),
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _importable(package: str) -> str | None:
    """The version, followed by the reason if the import fails; None if the package is not installed."""
    number = _version(package)
    if number is None:
        return None
    try:
        importlib.import_module(package)
    except Exception as error:  # binary packages fail with OSError, RuntimeError or ImportError
        return f"{number}, not importable: {' '.join(str(error).split())}"
    return number
