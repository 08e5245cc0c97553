"""Writes the verification of windows as a repository of Hugging Face's kernel hub, which needs torch and Triton only.

    python export.py FOLDER

The kernels are those of mmspec: this copies the modules that they import, with relative imports and an own namespace of
torch's operators, so that they go along with an installed mmspec.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

NAME = "mmspec_verify"
# What the package offers, by module.
OFFERED = {
    "mmspec.kernels.accept": ("Verified", "verify_window"),
    "mmspec.kernels.residual": ("resample",),
    "mmspec.kernels.rule": ("EXACT_RULE", "KernelRule"),
    "mmspec.kernels.softmax_stats": ("SoftmaxStats", "stats_of_probs"),
}
BUILD = """[general]
name = "mmspec-verify"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cuda", "rocm", "xpu"]

[torch-noarch]
"""
_IMPORT = re.compile(r"^( *from )(mmspec\.[\w.]+)( import )", re.MULTILINE)


def source_of(module: str) -> str:
    """The text of a module."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin).read_text(encoding="utf-8")


def export(folder: Path) -> list[str]:
    """Writes the repository into a folder; returns the names of the modules that it holds."""
    package = folder / "torch-ext" / NAME
    package.mkdir(parents=True)
    waiting, sources = list(OFFERED), dict[str, str]()
    while waiting:
        if (module := waiting.pop()) not in sources:
            sources[module] = source_of(module)
            waiting += [found[1] for found in _IMPORT.findall(sources[module])]
    names = {module: module.rpartition(".")[2] for module in sources}
    if len(set(names.values())) < len(names):
        raise ValueError(f"two modules have one name: {sorted(sources)}")
    for module, text in sources.items():
        text = _IMPORT.sub(lambda found: f"{found[1]}.{names[found[2]]}{found[3]}", text)
        text = text.replace('"mmspec::', f'"{NAME}::').replace("torch.ops.mmspec.", f"torch.ops.{NAME}.")
        (package / f"{names[module]}.py").write_text(text, encoding="utf-8")
    lines = [f"from .{names[module]} import {', '.join(offered)}" for module, offered in OFFERED.items()]
    listed = sorted(name for offered in OFFERED.values() for name in offered)
    text = "\n".join([*lines, "", f"__all__ = {listed!r}", ""])
    (package / "__init__.py").write_text(f'"""Verification of speculative windows."""\n\n{text}', encoding="utf-8")
    (folder / "build.toml").write_text(BUILD, encoding="utf-8")
    return sorted(names.values())


if __name__ == "__main__":
    print(*export(Path(sys.argv[1])), sep="\n")
