"""The drafters of the methods that are trained, by the names of `mmspec train-drafter --kind`.

The other rows of a method are in `mmspec.methods.table`. Training uses recipes, so that its rows are apart: what finds
recipes does not lead to what trains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mmspec.heads.info import Trained

TRAINED: Mapping[str, Trained] = MappingProxyType(
    {
        "medusa": Trained("mmspec.methods.medusa.training:KIND", online=True),
        "hydra": Trained("mmspec.methods.hydra.training:KIND", online=True),
        "block": Trained("mmspec.methods.block.training:KIND", "block head", 15, online=True),
        "grid": Trained("mmspec.methods.grid.training:KIND", "grid head", 15, online=True),
        "kangaroo": Trained("mmspec.methods.kangaroo.training:KIND", online=True),
        "prompt": Trained("mmspec.methods.prompt.training:KIND", "set of prompt tokens"),
        "one-step": Trained("mmspec.methods.one_step.training:KIND", "one-step generator", 15, online=True),
        "outer": Trained("mmspec.methods.outer.training:KIND", "head for outer layers", 31, chain=False),
        "frame": Trained("mmspec.methods.frame.training:KIND", "frame head", 2),
        "retrieval": Trained("mmspec.methods.retrieval.training:write_datastore", depth=15, write=True),
        "swift": Trained("mmspec.methods.swift.training:write_skipped_layers", write=True),
    }
)
