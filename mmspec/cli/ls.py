"""`mmspec ls`: what can be named on the command line."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mmspec.cli.options import Json
from mmspec.errors import unknown_name

KINDS = ("models", "adapters", "drafters", "recipes", "rules", "metrics")


def ls(
    what: Annotated[
        str | None, typer.Argument(metavar="[models|adapters|drafters|recipes|rules|metrics]", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List what can be named: exact recipes and rules keep the target distribution."""
    if what is not None and what not in KINDS:
        raise unknown_name("list", what, KINDS)
    listing = {kind: _entries(kind) for kind in KINDS if what in (None, kind)}
    if as_json:
        print(json.dumps(listing))
        return
    for kind, entries in listing.items():
        print(kind)
        width = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            guarantee = "" if "exact" not in entry else "exact    " if entry["exact"] else "relaxed  "
            knobs = f" [{', '.join(entry['knobs'])}]" if entry.get("knobs") else ""
            print(f"  {entry['name']:<{width}}  {guarantee}{entry['summary']}{knobs}")


def _entries(kind: str) -> list[dict[str, Any]]:
    from mmspec import loading, recipes, registry

    if kind == "recipes":
        return [
            {"name": name, "exact": True, "summary": info.summary, "knobs": list(info.knobs)}
            for name, info in recipes.ways_to_draft().items()
        ]
    if kind == "rules":
        return [
            {"name": name, "exact": rule.exact, "summary": rule.summary, "knobs": list(rule.knobs)}
            for name, rule in registry.rules().items()
        ]
    named = loading.models() if kind == "models" else registry.plugins(f"mmspec.{kind}")
    return [{"name": name, "summary": info.summary} for name, info in named.items()]
