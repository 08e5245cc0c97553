"""Loading networks of transformers, from a folder or the Hub, for the extractors that wrap them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mmspec.errors import ModelError
from mmspec.metrics.extractors.image import Images


def load_pretrained(kind: Any, where: str, extractor: str) -> Any:
    """The result of `kind.from_pretrained(where)`.

    Args:
        kind: A class of transformers.
        where: A folder or Hub id.
        extractor: The extractor's name, for the message.

    Raises:
        ModelError: If nothing can be loaded.
    """
    try:
        return kind.from_pretrained(where)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"extractor {extractor!r}: cannot load {kind.__name__} from {where!r} "
            f"(name a folder that save_pretrained wrote, or a Hub id): {reason}"
        ) from None


def pixel_values(processor: Any, images: Images, device: torch.device) -> torch.Tensor:
    """Preprocesses images uint8 [B, H, W, 3] to the network's input, float32 [B, 3, H', W'].

    Images stay uint8 until here: processors take floats for numbers in 0..255 and would scale them a second time.
    """
    return torch.as_tensor(
        np.asarray(processor(images=list(images), input_data_format="channels_last", return_tensors="np").pixel_values)
    ).to(device)
