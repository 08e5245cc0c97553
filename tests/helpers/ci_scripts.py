"""The scripts of `.ci`, as modules."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest


def script(root: Path, name: str) -> Any:
    """The script `.ci/NAME` of a checkout; without one, the test is skipped."""
    path = root / ".ci" / name
    if not path.exists():
        pytest.skip("only a checkout has .ci")
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
