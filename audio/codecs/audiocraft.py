"""EnCodec as audiocraft publishes it beside its models, read into the class of transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import EncodecConfig, EncodecModel

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_depths, check_tensors, sizes_of

PADDING = ("constant", "reflect", "replicate")
# Names of audiocraft -> those of transformers, in this order.
_NAMES = (
    (r"^(encoder|decoder)\.model\.", r"\1.layers."),
    (r"\.(?:conv|convtr)\.(?:conv|convtr)\.", ".conv."),
    (r"\.weight_g$", ".parametrizations.weight.original0"),
    (r"\.weight_v$", ".parametrizations.weight.original1"),
    (r"^quantizer\.vq\.layers\.(\d+)\._codebook\.", r"quantizer.layers.\1.codebook."),
)


def renamed(name: str) -> str:
    """The name of a tensor in transformers."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def read_encodec(named: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], device: str) -> EncodecModel:
    """The codec of settings and weights of audiocraft.

    Args:
        named: The file, for errors.
        settings: `xp.cfg` of the file.
        tensors: The weights.
        device: Where to load it.

    Raises:
        ModelError: If the weights are not those of an EnCodec with these settings.
    """
    sea, own = settings.get("seanet"), settings.get("encodec", {})
    if settings.get("compression_model") != "encodec" or not isinstance(sea, Mapping) or not isinstance(own, Mapping):
        raise ModelError(f"{named} is not an EnCodec: its compression_model is {settings.get('compression_model')!r}")
    weights = {renamed(name): value for name, value in tensors.items()}
    if (padding := sea.get("pad_mode", "constant")) not in PADDING:
        raise ModelError(f"{named} has pad_mode={str(padding)[:40]!r}; it must be one of {', '.join(PADDING)}")
    with sizes_of(named, "an EnCodec"):
        books = sum(name.endswith("codebook.embed") for name in weights)
        codes, width = weights["quantizer.layers.0.codebook.embed"].shape
        ratios, rate = [int(each) for each in sea["ratios"]], int(settings["sample_rate"])
        if not all(1 <= each <= rate for each in ratios) or len(ratios) > len(tensors):
            raise ModelError(f"{named} has ratios={str(ratios)[:40]}; they must be a few factors of its sample rate")
        frames = math.ceil(rate / math.prod(ratios))
        config = EncodecConfig(
            # The bandwidth from which transformers computes the number of codebooks, rounded down.
            target_bandwidths=[frames * math.ceil(math.log2(codes)) * (books + 0.4) / 1000],
            sampling_rate=rate,
            audio_channels=int(settings.get("channels", 1)),
            hidden_size=width,
            num_filters=int(sea["n_filters"]),
            num_residual_layers=int(sea.get("n_residual_layers", 1)),
            upsampling_ratios=ratios,
            norm_type=sea.get("norm", "weight_norm"),
            kernel_size=int(sea.get("kernel_size", 7)),
            last_kernel_size=int(sea.get("last_kernel_size", 7)),
            residual_kernel_size=int(sea.get("residual_kernel_size", 3)),
            dilation_growth_rate=int(sea.get("dilation_base", 2)),
            use_causal_conv=bool(own.get("causal", False)),
            pad_mode=padding,
            compress=int(sea.get("compress", 2)),
            num_lstm_layers=int(sea.get("lstm", 2)),
            codebook_size=codes,
            codebook_dim=width,
            use_conv_shortcut=not sea.get("true_skip", True),
        )
    depths = {"num_lstm_layers": config.num_lstm_layers, "num_residual_layers": config.num_residual_layers}
    check_depths(named, depths, len(tensors))
    with building(named, "an EnCodec"):
        model = EncodecModel(config)
    # Buffers of training, which transformers has too, may be missing.
    weights |= {k: v for k, v in _untrained(model).items() if k not in weights}
    check_tensors(named, weights, model)
    encodec = EncodecModel(config)  # with its constants, which a model on "meta" has not
    encodec.load_state_dict(weights)
    encodec.to(device).eval().requires_grad_(False)
    return encodec


def _untrained(model: EncodecModel) -> dict[str, Tensor]:
    return {
        name: torch.zeros(value.shape, dtype=value.dtype)
        for name, value in model.state_dict().items()
        if name.endswith((".inited", ".cluster_size", ".embed_avg"))
    }
