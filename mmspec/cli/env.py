"""`mmspec env`: versions and devices for bug reports."""

from __future__ import annotations

import json

from mmspec.cli.options import Json
from mmspec.versions import TESTED, is_tested, tested_range


def env(as_json: Json = False) -> None:
    """Print versions, beside those that mmspec is tested with, devices and threads for bug reports."""
    from mmspec.metrics.environment import environment

    facts = environment()
    if as_json:
        print(json.dumps({**facts, "tested": TESTED}))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {'-' if value is None else value}{_beside(name, value)}")


def _beside(name: str, value: str | int | None) -> str:
    """The tested range of a package, in brackets."""
    if name not in TESTED:
        return ""
    outside = value is not None and not is_tested(name, str(value))
    return f"  ({'not tested; tested: ' if outside else 'tested: '}{tested_range(name)})"
