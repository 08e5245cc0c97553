"""`mmspec ls`: the models, adapters, drafters, recipes, rules and metrics that are installed."""

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
    """List what is installed, plug-ins included.

    Exact recipes and rules keep the target distribution. Drafters are those of plug-ins; each is a recipe.
    """
    if what is not None and what not in KINDS:
        raise unknown_name("list", what, KINDS)
    listing = {kind: _entries(kind) for kind in KINDS if what in (None, kind)}
    if as_json:
        print(json.dumps(listing))
        return
    for kind, entries in listing.items():
        print(kind if entries else f"{kind}\n  no plug-ins installed")
        width = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            guarantee = "" if "exact" not in entry else "exact    " if entry["exact"] else "relaxed  "
            knobs = f" [{', '.join(entry['knobs'])}]" if entry.get("knobs") else ""
            print(f"  {entry['name']:<{width}}  {guarantee}{entry['summary']}{knobs}")


def _entries(kind: str) -> list[dict[str, Any]]:
    """Name and summary of each; of recipes and rules also whether they are exact, and their knobs."""
    from mmspec.hf.adapters import GENERATE_ADAPTERS
    from mmspec.loading import models
    from mmspec.metrics.registry import METRICS
    from mmspec.recipes import ways_to_draft
    from mmspec.registry import plugins, rules

    if kind == "recipes":
        return [
            {"name": name, "exact": True, "summary": info.summary, "knobs": list(info.knobs)}
            for name, info in ways_to_draft().items()
        ]
    if kind == "rules":
        return [
            {"name": name, "exact": rule.exact, "summary": rule.summary, "knobs": list(rule.knobs)}
            for name, rule in rules().items()
        ]
    named: dict[str, str] = {name: info.summary for name, info in plugins(f"mmspec.{kind}").items()}
    if kind == "models":
        named = {name: info.summary for name, info in models().items()}
    elif kind == "adapters":
        named = {**GENERATE_ADAPTERS, **named}
    elif kind == "metrics":
        named = {**METRICS, **named}
    return [{"name": name, "summary": summary} for name, summary in named.items()]
