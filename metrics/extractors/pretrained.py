"""Networks of transformers from a folder or the Hub, loaded for the extractors that wrap them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mmspec.errors import ModelError
from mmspec.metrics.extractors.extractor import Images


def load(kind: Any, where: str, extractor: str) -> Any:
    """What `kind.from_pretrained(where)` gives.

    Raises:
        ModelError: When it gives nothing.
    """
    try:
        return kind.from_pretrained(where)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"extractor {extractor!r}: cannot load {kind.__name__} from {where!r} "
            f"(name a folder that save_pretrained wrote, or a Hub id): {reason}"
        ) from None


def pixels(processor: Any, images: Images, device: torch.device) -> torch.Tensor:
    """Images uint8 [B, H, W, 3] as the network wants them, float32 [B, 3, H', W'].

    They stay uint8 until here: processors take floats for numbers in 0..255 and would scale them a second time.
    """
    return torch.as_tensor(
        np.asarray(processor(images=list(images), input_data_format="channels_last", return_tensors="np").pixel_values)
    ).to(device)
