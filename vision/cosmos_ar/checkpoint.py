"""Published checkpoints of Cosmos-1 and Cosmos-Predict1: `model.pt`, in a folder of its own."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec import hub
from mmspec.arguments import shown
from mmspec.arguments.keywords import check_config
from mmspec.errors import ArgumentError, MMSpecError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, read_header, read_tensors, sizes_of
from mmspec.vision.cosmos_ar.pipeline import CosmosPipeline, check_tokenizer
from mmspec.vision.cosmos_ar.tokenizer import load_video_tokenizer
from mmspec.vision.cosmos_ar.transformer import CosmosTransformer
from mmspec.vision.llamagen.checkpoint import cast

FILE = "model.pt"
# A tensor that each of these checkpoints has, and no other that mmspec reads.
MARK = "layers.0.attention.q_norm.weight"
# The width of the published 12B and 13B, whose rotary frequencies are stretched.
YARN_DIM = 5120
LATENT_SHAPE = (5, 40, 64)
# Names that the published file has in addition: states of another library, and a causal mask.
_UNUSED = ("_extra_state", "causal_mask", "cos_cached", "sin_cached")
_NAMES_END = 2**26  # bytes of a pickle's names that are searched


def is_cosmos_ar(path: Path) -> bool:
    """Whether `path` is a checkpoint of Cosmos, or a folder with one."""
    file = path / FILE if path.is_dir() else path
    try:
        if file.suffix == ".safetensors":
            return any(name.endswith(MARK) for name in read_header(file, "model"))
        if file.suffix not in (".pt", ".pth") or not zipfile.is_zipfile(file):
            return False
        with zipfile.ZipFile(file) as archive:
            names = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(names) as stream:
                return MARK.encode() in stream.read(_NAMES_END)
    except (OSError, zipfile.BadZipFile, StopIteration, MMSpecError):
        return False


def load_cosmos_ar(path: Path, config: Mapping[str, Any] | None = None) -> CosmosTransformer:
    """A transformer from a published file, or a folder with it.

    Args:
        path: The file, or the folder with `model.pt`.
        config: `video_latent_shape` and `apply_yarn`, arguments of the original code, for models that are not
            published.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit.
        ArgumentError: If `config` has another option, or a value that is not allowed.
    """
    file = path / FILE if path.is_dir() else path
    given = dict(config or {})
    shape, yarn = given.pop("video_latent_shape", LATENT_SHAPE), given.pop("apply_yarn", None)
    check_config(given, "Cosmos", ("video_latent_shape", "apply_yarn", "draft_model"))
    if (
        not isinstance(shape, (list, tuple))
        or len(shape) != 3
        or not all(type(size) is int and 1 <= size <= 1024 for size in shape)
    ):
        raise ArgumentError(f"config video_latent_shape={shown(shape)} is not allowed; give [frames, rows, columns]")
    if yarn is not None and not isinstance(yarn, bool):
        raise ArgumentError(f"config apply_yarn={shown(yarn)} is not allowed; use True or False")
    tensors = {
        name.removeprefix("model."): value
        for name, value in read_tensors(file, "model", ("model",)).items()
        if not name.endswith(_UNUSED)
    }
    what = f"model {str(file)!r}"
    with sizes_of(what, "a Cosmos"):
        arguments = sizes(tensors)
    with building(what, "a Cosmos"):
        model = CosmosTransformer(
            **arguments, latent_shape=list(shape), yarn=arguments["dim"] == YARN_DIM if yarn is None else yarn
        )
    check_tensors(what, tensors, model)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def sizes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of `CosmosTransformer` that tensors determine."""
    head_dim = len(tensors[MARK])
    rows = {name: tensors[f"layers.0.attention.{name}.weight"].shape[0] for name in ("wq", "wk")}
    text = tensors.get("layers.0.cross_attention.wk.weight")
    input_ids, dim = tensors["tok_embeddings.weight"].shape
    return {
        "vocab_size": tensors["output.weight"].shape[0],
        "input_ids": input_ids,
        "dim": dim,
        "n_layers": count_blocks(tensors, "layers"),
        "n_heads": rows["wq"] // head_dim,
        "n_kv_heads": rows["wk"] // head_dim,
        "head_dim": head_dim,
        "hidden_dim": tensors["layers.0.feed_forward.w1.weight"].shape[0],
        "context_dim": None if text is None else text.shape[1],
    }


def from_checkpoints(
    path: Path,
    tokenizer: Path | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> CosmosPipeline:
    """A pipeline from published files.

    Args:
        path: `model.pt`, or the folder with it.
        tokenizer: The folder of the video tokenizer, with `encoder.jit` and `decoder.jit`; without it a call takes and
            returns tokens only.
        config: Options of `load_cosmos_ar`, and `draft_model`, a file or folder of a smaller model of the same videos.
        device: Where to put the pipeline.
        dtype: The type of the transformer's weights, or "auto" for that of the file.

    Raises:
        ModelError: If a file cannot be read, or does not fit.
        ArgumentError: If an option is not allowed.
    """
    options = dict(config or {})
    draft = options.pop("draft_model", None)
    smaller = None if draft is None else find_draft(draft)
    tokens = None if tokenizer is None else load_video_tokenizer(tokenizer)
    transformer = cast(load_cosmos_ar(path, options), dtype)
    if tokens is not None:
        check_tokenizer(transformer, tokens)
    # Whether frequencies are stretched is a matter of each model.
    shared = {name: value for name, value in options.items() if name != "apply_yarn"}
    small = None if smaller is None else cast(load_cosmos_ar(smaller, shared), dtype)
    return CosmosPipeline(transformer, tokens, draft_transformer=small).to(device)


def find_draft(draft: Any) -> Path:
    """The draft model of a path or a Hub id.

    Raises:
        ArgumentError: If it is neither.
    """
    if not isinstance(draft, (str, Path)) or not str(draft):
        raise ArgumentError(f"config draft_model={shown(draft)} is not allowed; give a path or a Hub id")
    path = Path(draft) if Path(draft).exists() else hub.fetch(str(draft))
    if path is None:
        raise ArgumentError(f"draft_model={str(draft)!r} is neither a path nor a Hub id")
    return path
