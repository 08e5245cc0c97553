"""`mmspec env`: versions and devices for bug reports."""

from __future__ import annotations

import json

from mmspec.cli.options import Json


def env(as_json: Json = False) -> None:
    """Print versions, devices and threads for bug reports."""
    from mmspec.metrics.environment import environment

    facts = environment()
    if as_json:
        print(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {'-' if value is None else value}")
