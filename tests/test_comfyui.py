"""examples/comfyui: the contract of ComfyUI's nodes, on the embedded models, with a stand-in for its hooks."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from image_pipelines import llamagen
from PIL import Image

import mmspec
from mmspec.errors import ArgumentError


@pytest.fixture
def nodes(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The nodes, loaded as ComfyUI loads a folder of `custom_nodes`."""
    folder = root / "examples" / "comfyui"
    spec = importlib.util.spec_from_file_location(
        "comfy_nodes", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "comfy_nodes", module)
    spec.loader.exec_module(module)
    assert set(module.NODE_DISPLAY_NAME_MAPPINGS) == set(module.NODE_CLASS_MAPPINGS)
    found: dict[str, Any] = module.NODE_CLASS_MAPPINGS
    return found


class Interrupted(Exception):
    pass


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """ComfyUI's hooks: what the bar was given, and whether the user cancels."""
    seen: dict[str, Any] = {"updates": [], "cancelled": False}

    class ProgressBar:
        def __init__(self, total: int) -> None:
            self.total = total

        def update_absolute(self, value: int, total: int | None = None, preview: Any = None) -> None:
            seen["updates"].append((value, total, preview))

    def throw() -> None:
        if seen["cancelled"]:
            raise Interrupted

    package, utils, management = (ModuleType(name) for name in ("comfy", "comfy.utils", "comfy.model_management"))
    package.utils, package.model_management = utils, management  # type: ignore[attr-defined]
    utils.ProgressBar = ProgressBar  # type: ignore[attr-defined]
    management.throw_exception_if_processing_interrupted = throw  # type: ignore[attr-defined]
    for module in (package, utils, management):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


def test_the_contract_of_every_node(nodes: dict[str, Any]) -> None:
    assert len(nodes) == 5
    for node in nodes.values():
        inputs = node.INPUT_TYPES()
        assert set(inputs) <= {"required", "optional"} and node.CATEGORY == "mmspec"
        assert callable(getattr(node(), node.FUNCTION))
        assert isinstance(node.RETURN_TYPES, tuple) and len(node.RETURN_TYPES) == len(node.RETURN_NAMES)
        for kind, *options in (each for group in inputs.values() for each in group.values()):
            assert isinstance(kind, (str, list)) and all(isinstance(one, dict) for one in options)


def test_the_workflow_names_nodes_and_inputs_that_exist(root: Path, nodes: dict[str, Any]) -> None:
    workflow = json.loads((root / "examples" / "comfyui" / "workflow.json").read_text())
    assert {*nodes} <= {node["class_type"] for node in workflow.values()}
    for node in workflow.values():
        if node["class_type"] in nodes:
            inputs = nodes[node["class_type"]].INPUT_TYPES()
            assert {*inputs["required"]} <= {*node["inputs"]} <= {name for group in inputs.values() for name in group}


def test_an_image_of_a_class(nodes: dict[str, Any]) -> None:
    pipe = llamagen()
    pipe.set_progress_bar_config(disable=True)
    image, _ = run(nodes, "Image", pipeline=pipe, prompt="5", seed=2)
    assert torch.equal(image, torch.as_tensor(pipe(class_labels=5, seed=2, output_type="np").images))


def run(nodes: dict[str, Any], node: str, /, **inputs: Any) -> Any:
    found = nodes[f"mmspec{node}"]
    return getattr(found(), found.FUNCTION)(**inputs)


@pytest.mark.slow
def test_an_image_with_progress_and_previews(nodes: dict[str, Any], comfy: dict[str, Any]) -> None:
    (pipe,) = run(nodes, "Load", model="shapes", device="cpu", dtype="float32")
    (recipe,) = run(nodes, "Recipe", name="scd", knobs="window=32")
    assert recipe == str(mmspec.Recipe("scd:window=32"))
    image, stats = run(nodes, "Image", pipeline=pipe, prompt="a green star", seed=3, recipe=recipe)
    expected = pipe("a green star", seed=3, recipe=recipe, output_type="np").images
    assert torch.equal(image, torch.as_tensor(expected)) and image.dtype == torch.float32
    values = [value for value, _, _ in comfy["updates"]]
    assert values == sorted(values) and values[-1] == 256 and {total for _, total, _ in comfy["updates"]} == {256}
    kind, preview, size = comfy["updates"][0][2]
    assert kind == "JPEG" and isinstance(preview, Image.Image) and size == 512
    shown = run(nodes, "Statistics", stats=stats)
    assert shown["ui"]["text"] == [str(stats)] and shown["result"] == (str(stats),)
    comfy["cancelled"] = True
    with pytest.raises(Interrupted):
        run(nodes, "Image", pipeline=pipe, prompt="a green star", seed=3)


def test_audio(nodes: dict[str, Any], comfy: dict[str, Any]) -> None:
    (pipe,) = run(nodes, "Load", model="spoken", device="cpu", dtype="default")
    audio, stats = run(nodes, "Speak", pipeline=pipe, text="two", seed=1, voice="high")
    assert audio["sample_rate"] == pipe.sampling_rate and audio["waveform"].ndim == 3
    assert torch.equal(audio["waveform"][0], torch.as_tensor(pipe("two", seed=1, voice="high").audio))
    assert stats.target_calls and comfy["updates"]
    with pytest.raises(ArgumentError, match="condition_on_previous_chunks=True is not possible: this model does not"):
        run(nodes, "Speak", pipeline=pipe, text="one", seed=0, condition_on_previous_chunks=True)


def test_nodes_run_without_comfyui(nodes: dict[str, Any]) -> None:
    (pipe,) = run(nodes, "Load", model="spoken", device="cpu", dtype="float32")
    assert run(nodes, "Speak", pipeline=pipe, text="one", seed=0)[0]["waveform"].shape[-1] > 0
