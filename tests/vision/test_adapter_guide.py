"""docs/adding-a-model.md, followed to the letter: its files become a plug-in, which is installed, checked and used."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from guides import make_files
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import LlamaForCausalLM

import mmspec
from mmspec import registry
from mmspec.cli.app import main
from mmspec.decoding import rows
from mmspec.decoding.layout import Layout
from mmspec.errors import ArgumentError, PromptError
from mmspec.hf.adapters import adapter_of
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_samples, check_windows

MODULES = ("raster", "raster_adapter", "test_raster")


@pytest.fixture(scope="module")
def plugin(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The guide's own tests, with its files installed as a distribution would be."""
    site = tmp_path_factory.mktemp("site")
    blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", (root / "docs/adding-a-model.md").read_text(), re.S)
    assert [name for name, _ in blocks].count("pyproject.toml") == 2 and len(blocks) == 5
    lines = []
    for name, content in blocks:
        if name != "pyproject.toml":
            (site / name).write_text(content)
            continue
        for group, entries in tomllib.loads(content)["project"]["entry-points"].items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (site / "raster-0.1.dist-info").mkdir()
    (site / "raster-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: raster\nVersion: 0.1\n")
    (site / "raster-0.1.dist-info" / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path.insert(0, str(site))
    registry.installed.cache_clear()
    importlib.invalidate_caches()
    module = importlib.import_module("test_raster")
    make_files("adding-a-model.md", site)
    yield module
    sys.path.remove(str(site))
    registry.installed.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)


CHECKS = (
    "test_windows_are_single_tokens",
    "test_greedy_is_the_models_own_greedy",
    "test_samples_follow_the_target_distribution",
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_of_the_guide_pass(plugin: ModuleType, check: str) -> None:
    assert [name for name in vars(plugin) if name.startswith("test_")] == list(CHECKS)
    getattr(plugin, check)()


def test_the_plugin_loads_by_name(plugin: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = mmspec.load("raster")(["3", "7"], seed=0, recipe="scd:window=4")
    assert out.tokens.shape == (2, 16) and [image.size for image in out.images] == [(4, 4)] * 2
    with pytest.raises(PromptError, match="give numbers of classes, 0 to 9"):
        mmspec.load("raster")(["a dog"])
    assert main(["image", "3", "-m", "raster", "-n", "2", "-o", str(tmp_path)]) == 0
    with Image.open(capsys.readouterr().out.split()[0]) as image:
        assert image.size == (4, 4)
    assert main(["ls", "models"]) == 0 and "raster" in capsys.readouterr().out


def test_the_page_of_the_plugin_is_whole(plugin: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-m", "raster", "--prompt", "3", "--rows", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    unchecked = [check["name"] for check in found["checks"] if check["status"] != "passed"]
    assert unchecked == ["kernels and CUDA graphs = eager torch"]  # on a CPU
    calls = {speed["name"]: speed["target_calls"] for speed in found["speeds"]}
    assert calls["plain"] == calls["own generate"] == 16 and calls["scd"] < 16


@pytest.mark.parametrize("guided", [False, True])
def test_mmspec_generate_decodes_the_class(plugin: ModuleType, guided: bool) -> None:
    model, adapter = plugin.tiny(16), importlib.import_module("raster_adapter")
    assert adapter_of(model) is adapter
    ids = torch.tensor([[26, 19], [17, 23]])
    call: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 14, "do_sample": False}
    if guided:
        call |= {"guidance_scale": 2.0, "negative_prompt_ids": torch.full_like(ids, 26)}
    for allowed in (None, lambda row, ids: list(range(16))):
        expected = model.generate(ids, **call, prefix_allowed_tokens_fn=allowed)
        for recipe in ("plain", "sjd:window=5", "scd:window=4"):
            ours = model.generate(
                ids, **call, prefix_allowed_tokens_fn=allowed, custom_generate=mmspec.generate, recipe=recipe
            )
            assert torch.equal(ours, expected), recipe


def test_the_guide_leaves_other_models_alone(plugin: ModuleType) -> None:
    assert adapter_of(LlamaForCausalLM(plugin.tiny(3).config)).__name__ == "mmspec.audio.models.flat.decoding"  # type: ignore[attr-defined]


def test_the_image_of_the_guide_has_its_width(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, widths = sys.modules["raster_adapter"], []
    plan = adapter.plan

    def seen(*arguments: Any) -> Any:
        found = plan(*arguments)
        widths.append(found.width)
        return found

    monkeypatch.setattr(adapter, "plan", seen)
    ids = torch.tensor([[19]])
    plugin.tiny(16).generate(ids, max_new_tokens=16, do_sample=False, custom_generate=mmspec.generate, recipe="scd")
    assert widths == [4]


def test_the_error_for_other_classes_names_the_guide(plugin: ModuleType) -> None:
    with pytest.raises(ArgumentError, match=r"no adapter for Linear.*LlamaForCausalLM.*docs/adding-a-model\.md"):
        adapter_of(torch.nn.Linear(1, 1))


# --- The checks themselves: each of them finds some kind of mistake --------------------------------------------------

Break = Callable[[pytest.MonkeyPatch, Any], None]


def positions_off(patch: pytest.MonkeyPatch, target: Any) -> None:
    """All rows use the positions of the longest row."""
    read = target._read

    def shifted(self: Any, ids: Tensor, start: NDArray[np.int64]) -> Logits:
        return read(self, ids, np.full_like(start, start.max()))

    patch.setattr(target, "_read", shifted)


def no_mask(patch: pytest.MonkeyPatch, target: Any) -> None:
    """Every token of a window attends to the whole window."""
    patch.setattr(torch.Tensor, "masked_fill_", lambda self, *args: self)


def stale_rows(patch: pytest.MonkeyPatch, target: Any) -> None:
    """Dropped rows stay in the cache."""
    patch.setattr(target, "ROWS", ())


def cfg_halves_swapped(patch: pytest.MonkeyPatch, target: Any) -> None:
    """After a row is dropped, the conditional and unconditional halves of the batch are swapped."""

    def swapped(row_ids: list[int], count: int, guided: bool, device: torch.device) -> Tensor:
        index = torch.tensor(row_ids)
        return torch.cat([index + count, index]) if guided else index

    patch.setattr(rows, "cfg_rows", swapped)


@pytest.mark.parametrize("mistake", [positions_off, no_mask, stale_rows, cfg_halves_swapped])
def test_check_windows_finds_mistakes(plugin: ModuleType, mistake: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    raster = sys.modules["raster"]
    make = plugin.targets(plugin.tiny(16), 16, True)
    mistake(monkeypatch, raster.RasterTarget)
    assert check_windows(make, length=16) > 0.1


def test_check_samples_finds_another_distribution(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that depend on the width of the window, as those of a badly quantised model do."""
    target = sys.modules["raster"].RasterTarget
    forward = target.forward

    def sharper(self: Any, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        cond, uncond = forward(self, tokens, at)
        return Logits(cond * (1.5 if tokens.shape[1] > 1 else 1.0), uncond)

    monkeypatch.setattr(target, "forward", sharper)
    make = plugin.targets(plugin.tiny(3, 0.2), 4, True)
    found = check_samples(make, Layout(4, width=2), "scd:window=3", SamplingParams(0.9, guidance_scale=1.5))
    assert not found.ok, found


def test_check_samples_enumerates_rows_that_end_early(plugin: ModuleType) -> None:
    layout = Layout(length=4, width=2, eos=frozenset({2}))
    found = check_samples(plugin.targets(plugin.tiny(3, 0.2), 4, False), layout, "sjd:window=3", SamplingParams(0.8))
    assert found.ok, found


def test_checks_refuse_what_they_cannot_check(plugin: ModuleType) -> None:
    make = plugin.targets(plugin.tiny(16), 16, False)
    with pytest.raises(ArgumentError, match=r"16 tokens in 16 positions make \d+ sequences, of which 4096"):
        check_samples(make, Layout(16), "scd")
    broken = plugin.tiny(16)
    broken.lm_head.weight.data[0] = torch.nan
    with pytest.raises(ArgumentError, match="logits are NaN"):
        check_windows(plugin.targets(broken, 16, False), length=16)
