"""Loading by name, and errors for unknown names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec import loading, registry
from mmspec.codebook import Codebook
from mmspec.environment import importing
from mmspec.errors import ArgumentError, MMSpecError, ModelError, UnknownNameError
from mmspec.hf.adapters import GENERATE_ADAPTERS
from mmspec.testing.toys import toy_heads
from mmspec.ways_to_draft import RECIPES


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "shape"}, UnknownNameError, "unknown model 'shape' (did you mean 'shapes'?); known: scenes"),
        ({"model": "./no/such/folder"}, UnknownNameError, "unknown model './no/such/folder': there is no such file or"),
        ({"model": "no/such"}, ModelError, "model 'no/such' is not a local path, and its download failed"),
        ({"device": "meta"}, ArgumentError, "device='meta' cannot be used"),
        ({"model": None}, ArgumentError, "model=None is not allowed; give a name, a path, a Hub id or a loaded model"),
        ({"device": "gpuu"}, ArgumentError, "device='gpuu' cannot be used"),
    ],
)
def test_bad_loads(arguments: dict[str, Any], error: type[MMSpecError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        mmspec.load(**arguments)


@pytest.mark.parametrize("index", ["{}", "garbage", '{"_class_name": "StableDiffusionPipeline"}'])
def test_folders_without_a_pipeline(tmp_path: Path, index: str) -> None:
    (tmp_path / "model_index.json").write_text(index)
    with pytest.raises(ModelError, match="not a pipeline that mmspec can load|is not valid JSON"):
        mmspec.load(str(tmp_path))


def test_every_name_resolves() -> None:
    for info in loading.models().values():
        assert info.summary and callable(importing.resolve(info.where))
    for recipe in RECIPES.values():
        assert recipe.summary and all(callable(importing.resolve(where)) for where in recipe.builders.values())
    for where in GENERATE_ADAPTERS.values():
        assert importing.resolve(where) is not None


def test_every_rule_can_be_made() -> None:
    codebook = Codebook(torch.eye(3))
    for rule in registry.rules().values():
        assert rule.summary and callable(
            rule.build({name: knob.default for name, knob in rule.knobs.items()}, codebook, toy_heads(3, None, 0))
        )


def test_the_public_names() -> None:
    for name in mmspec.__all__:
        assert getattr(mmspec, name)
    assert dir(mmspec) == sorted(mmspec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        mmspec.nosuch  # noqa: B018
