"""Files of weights: nothing is run, no stated size is believed, and differences are listed."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_llamagen import tiny

from mmspec.audio.codecs.snac import read_snac
from mmspec.audio.models.codec_lm.speech import read_state
from mmspec.errors import MMSpecError, ModelError
from mmspec.files.checkpoint import check_depths, check_tensors, count_blocks, read_header, read_tensors
from mmspec.heads.checkpoint import load_head
from mmspec.vision.hf.vqgan import load_vqgan
from mmspec.vision.llamagen.checkpoint import load_gpt
from mmspec.vision.llamagen.tokenizer import load_tokenizer
from mmspec.vision.mar.checkpoint import load_mar
from mmspec.vision.mar.kl16 import load_kl16


class Code:
    """Pickles as a call that creates the file `ran`."""

    def __reduce__(self) -> Any:
        return exec, ("open('ran', 'w')",)


def compressed() -> bytes:
    """A checkpoint of 64 MiB of zeros as an archive of 64 KiB."""
    plain, small = io.BytesIO(), io.BytesIO()
    torch.save({"x": torch.zeros(2**24)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return small.getvalue()


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "noise": bytes(range(256)) * 4,
    "cut": saved({"x": torch.zeros(100)})[:-300],
    "code": pickle.dumps(Code()),
    "code in a checkpoint": saved({"x": Code()}),
    "no tensors": saved({"a": 1}),
    "a list": saved([torch.zeros(2)]),
    "keys that are numbers": saved({1: torch.zeros(2)}),
    "a tensor": saved(torch.zeros(2)),
    "compressed": compressed(),
    "repeated": saved({"x": torch.zeros(1).expand(2**40)}),
    "shared": saved({str(i): view for i, view in enumerate([torch.zeros(9999)] * 99)}),
    "meta": saved({"x": torch.empty(2**40, device="meta")}),
    "sparse": saved({"x": torch.zeros(3, 3).to_sparse()}),
}
BROKEN_SAFETENSORS: dict[str, bytes] = {
    "noise": bytes(range(256)) * 2,
    "no header": b"",
    "long header": (2**62).to_bytes(8, "little") + b"{}",
    "beyond the file": header(x={"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}),
    "other length": header(x={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(4),
    "no offsets": header(x={"dtype": "F32", "shape": [2]}),
    "not json": (4).to_bytes(8, "little") + b"{{{{",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_pickles_that_are_broken_or_hostile_are_refused(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "x.pt"
    file.write_bytes(content)
    with pytest.raises(
        ModelError, match=r"checkpoint '.*x.pt' (is refused|cannot be read|contains no tensors)"
    ) as error:
        read_tensors(file, "checkpoint")
    assert str(error.value).count("\n") == 0
    assert not Path("ran").exists()


LOADERS: dict[str, Any] = {
    "gpt": load_gpt, "tokenizer": load_tokenizer, "mar": load_mar, "kl16": load_kl16, "vqgan": load_vqgan,
    "codec language model": read_state,
}  # fmt: skip


@pytest.mark.parametrize("content", BROKEN_SAFETENSORS.values(), ids=BROKEN_SAFETENSORS)
def test_safetensors_that_are_broken_are_refused_by_every_loader(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    (tmp_path / "config.json").write_text("{}")
    for load in (*LOADERS.values(), lambda file: load_head(file.parent), lambda file: read_header(file, "checkpoint")):
        with pytest.raises(ModelError, match="cannot be read"):
            load(file)


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("name", ["a list", "keys that are numbers", "noise", "compressed"])
def test_pickles_that_are_broken_are_refused_by_every_loader(load: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    file.write_bytes(BROKEN[name])
    with pytest.raises(ModelError):
        load(file)


def test_broken_files_of_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "vocab_size": 9}')
    for content in BROKEN.values():
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ModelError):
            load_head(tmp_path)
        with pytest.raises(ModelError):
            read_snac(tmp_path, "cpu")


def test_differences_are_listed() -> None:
    module = torch.nn.Linear(3, 2)
    state = {"weight": torch.zeros(2, 4), "more": torch.zeros(1)}
    with pytest.raises(ModelError) as error:
        check_tensors("checkpoint 'x'", state, module)
    assert str(error.value) == (
        "checkpoint 'x' does not fit a Linear; missing: bias; unknown: more; "
        "wrong shape: weight [2, 4] instead of [2, 3]"
    )
    with pytest.raises(ModelError, match="wrong dtype: bias int64 instead of float32"):
        check_tensors("x", {"weight": torch.zeros(2, 3), "bias": torch.zeros(2, dtype=torch.int64)}, module)
    with pytest.raises(ModelError, match="unknown: 0, 1, 2, 3, 4, 5 and 94 more"):
        check_tensors("x", module.state_dict() | {str(i): torch.zeros(1) for i in range(100)}, module)


def test_blocks_are_counted_by_their_tensors(tmp_path: Path) -> None:
    assert count_blocks(["a.0.x", "a.1.x", "a.1.y", "a.3.x", "b.2.x", "a.99999999.x", f"a.{'9' * 5000}.x"], "a") == 2
    assert count_blocks([], "a") == 0
    file = tmp_path / "model.safetensors"
    save_file({**tiny().state_dict(), "layers.99999999.x": torch.zeros(1)}, file)
    with pytest.raises(ModelError, match=r"unknown: layers.99999999.x"):
        load_gpt(file, {"n_head": 2, "block_size": 9})


def test_layers_of_a_config_are_bounded_by_the_tensors() -> None:
    check_depths("x", {"n_layer": 3, "inner": [{"num_hidden_layers": 2, "layer_norm_eps": 1e-5}], "depth": None}, 3)
    for config in ({"n_layer": 10**9}, {"a": [{"num_hidden_layers": 4}]}, {"n_layer": -5}, {"n_layer": "3"}):
        with pytest.raises(ModelError, match=r"x: config has \w+=.*, which is not a number of layers"):
            check_depths("x", config, 3)


@pytest.mark.parametrize(
    "config",
    [
        {"n_head": 0, "block_size": 9}, {"n_head": 10**9, "block_size": 9}, {"n_head": "two", "block_size": 9},
        {"n_head": 2, "block_size": 10**18}, {"n_head": 2, "block_size": -9}, {"n_head": 2, "block_size": 9.5},
        {"n_head": 2, "block_size": 0},
    ],
)  # fmt: skip
def test_sizes_that_no_tensor_explains_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(tiny().state_dict(), file)
    with pytest.raises(MMSpecError, match="|".join(config)):
        load_gpt(file, config)
