"""Original MAR checkpoints: `checkpoint-last.pth` with its averaged weights, and flat safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import building, check_tensors, count_blocks, sizes_of
from mmspec.vision.llamagen.checkpoint import read_config, read_tensors
from mmspec.vision.mar.transformer import MARTransformer

# Width -> heads of the published sizes, which cannot be inferred from shapes.
_HEADS = {768: 12, 1024: 16, 1280: 16}
# Original argument names -> those of MARTransformer, for arguments that the tensors determine.
_ARGUMENTS = {
    "encoder_embed_dim": "encoder_dim",
    "encoder_depth": "encoder_depth",
    "decoder_embed_dim": "decoder_dim",
    "decoder_depth": "decoder_depth",
    "vae_embed_dim": "token_dim",
    "class_num": "class_num",
    "diffloss_d": "head_depth",
    "diffloss_w": "head_width",
}


def mar_config(path: Path, tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `MARTransformer`.

    Args:
        path: The file, for errors.
        tensors: The tensors, whose shapes determine most arguments.
        given: Original argument names and values.

    Raises:
        ModelError: If the tensors are not those of a MAR, or contradict `given`.
        ArgumentError: If the number of attention heads is unknown.
    """
    for key in ("z_proj.weight", "diffusion_pos_embed_learned", "diffloss.net.input_proj.weight", "class_emb.weight"):
        if key not in tensors:
            raise ModelError(f"checkpoint {str(path)!r} is not a MAR: {key} is missing")

    places = tensors["diffusion_pos_embed_learned"].shape[1]
    grid = round(places**0.5)
    if grid**2 != places:
        raise ModelError(f"checkpoint {str(path)!r} has {places} latents per image, which is not a square number")
    encoder_dim, token_dim = tensors["z_proj.weight"].shape
    decoder_dim = tensors["diffusion_pos_embed_learned"].shape[2]
    found = {
        "grid_size": grid,
        "token_dim": token_dim,
        "encoder_dim": encoder_dim,
        "encoder_depth": count_blocks(tensors, "encoder_blocks"),
        "decoder_dim": decoder_dim,
        "decoder_depth": count_blocks(tensors, "decoder_blocks"),
        "class_num": tensors["class_emb.weight"].shape[0],
        "buffer_size": tensors["encoder_pos_embed_learned"].shape[1] - places,
        "mlp_ratio": tensors["encoder_blocks.0.mlp.fc1.weight"].shape[0] / encoder_dim,
        "head_depth": count_blocks(tensors, "diffloss.net.res_blocks"),
        "head_width": tensors["diffloss.net.input_proj.weight"].shape[0],
    }
    for theirs, ours in _ARGUMENTS.items():
        if given.get(theirs, found[ours]) != found[ours]:
            raise ModelError(f"config has {theirs}={given[theirs]}, the tensors of {str(path)!r} have {found[ours]}")
    if given.get("buffer_size", found["buffer_size"]) != found["buffer_size"]:
        raise ModelError(f"config has buffer_size={given['buffer_size']}, the tensors have {found['buffer_size']}")
    if given.get("patch_size", 1) != 1:
        raise ModelError(f"config patch_size={given['patch_size']} is not supported; it must be 1")
    heads = {side: given.get(f"{side}_num_heads", _HEADS.get(found[f"{side}_dim"])) for side in ("encoder", "decoder")}
    if None in heads.values():
        raise ArgumentError(
            f"encoder_num_heads and decoder_num_heads of {str(path)!r} cannot be inferred from its tensors; add a "
            "config.json with the original argument names to its folder or pass config={...} (published sizes need "
            "neither)"
        )
    return {**found, "encoder_heads": heads["encoder"], "decoder_heads": heads["decoder"]}


def load_mar(path: str | Path, config: Mapping[str, Any] | None = None) -> MARTransformer:
    """A MAR backbone and head from an original file.

    Args:
        path: `checkpoint-last.pth`, whose averaged weights (`model_ema`) are loaded, a flat `.safetensors`, or a folder
            with one of them.
        config: Original `MAR` argument names; overrides the `config.json` in the folder. Published files need none.

    Raises:
        ModelError: If the file cannot be read, or its tensors do not fit a `MARTransformer`.
        ArgumentError: If the number of attention heads is unknown.
    """
    path = Path(path)
    if (path / "checkpoint-last.pth").is_file():
        path = path / "checkpoint-last.pth"
    tensors = read_tensors(path, ("model_ema", "model"))
    what, given = f"checkpoint {str(path)!r}", read_config(path, config)
    with sizes_of(what, "a MAR"):
        arguments = mar_config(path, tensors, given)
    with building(what, "a MAR"):
        model = MARTransformer(**arguments)
    check_tensors(what, tensors, model)
    model.load_state_dict(tensors, assign=True)
    return model.eval()
