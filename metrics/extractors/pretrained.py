"""Loading networks of transformers, from a folder or the Hub, for the extractors that wrap them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from mmspec.documents import one_line
from mmspec.errors import ModelError
from mmspec.metrics.extractors.image import Images


def load_pretrained(kind: Any, where: str, extractor: str) -> Any:
    """The result of `kind.from_pretrained(where)`; no code from there is run, and none is offered to be run.

    Args:
        kind: A class of transformers.
        where: A folder or Hub id.
        extractor: The extractor's name, for the message.

    Raises:
        ModelError: If nothing can be loaded, or a model's tensors are incomplete.
    """
    is_model = issubclass(kind, PreTrainedModel)
    options = {"output_loading_info": True} if is_model else {}
    try:
        found = kind.from_pretrained(where, trust_remote_code=False, **options)
    # Files of unknown origin make the loaders raise nearly anything.
    except Exception as error:
        raise ModelError(
            f"extractor {extractor!r}: cannot load {kind.__name__} from {where!r} "
            f"(name a folder that save_pretrained wrote, or a Hub id): {one_line(error)}"
        ) from None
    if not is_model:
        return found
    model, loading = found
    check_complete(loading, where, extractor)
    return model


def check_complete(loading: Mapping[str, Any], where: str, extractor: str) -> None:
    """Checks that every tensor of a network came from its files, and none was left at random.

    Args:
        loading: The second result of `from_pretrained(..., output_loading_info=True)`.
        where: The folder or Hub id, for the message.
        extractor: The extractor's name, for the message.

    Raises:
        ModelError: If tensors are missing or have other shapes.
    """
    absent = sorted(map(str, [*loading["missing_keys"], *loading.get("mismatched_keys", ())]))
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise ModelError(
            f"extractor {extractor!r}: {where!r} lacks {', '.join(absent[:3])}{more}; its network is another one"
        )


def pixel_values(processor: Any, images: Images, device: torch.device) -> torch.Tensor:
    """Preprocesses images uint8 [B, H, W, 3] to the network's input, float32 [B, 3, H', W'].

    Images stay uint8 until here: processors take floats for numbers in 0..255 and would scale them a second time.
    """
    return torch.as_tensor(
        np.asarray(processor(images=list(images), input_data_format="channels_last", return_tensors="np").pixel_values)
    ).to(device)
