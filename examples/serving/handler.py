"""A custom handler for Inference Endpoints of the Hugging Face Hub.

Put this file into the repository of a model as `handler.py`, next to a `requirements.txt` with the line `mmspec`. The
endpoint calls it with `{"inputs": PROMPT, "parameters": {"seed": 0, "recipe": "scd"}}` and returns base64 of PNG or WAV
files, and what they cost.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import mmspec
from mmspec.errors import MMSpecError


class EndpointHandler:
    """Loads a model once, and generates for each request.

    Args:
        path: The folder of the repository; one without a model gives the embedded `shapes`.
    """

    def __init__(self, path: str = "") -> None:
        import torch

        known = any((Path(path) / name).is_file() for name in ("config.json", "model_index.json")) if path else False
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.pipe = mmspec.load(path if known else "shapes", device=device)

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """The outputs of a request.

        Args:
            data: "inputs", a text or a list of texts, and "parameters", the arguments of the pipeline's call.
        """
        inputs, parameters = data.get("inputs"), data.get("parameters") or {}
        texts = [inputs] if isinstance(inputs, str) else inputs
        try:
            out = self.pipe(texts, **parameters)
        except MMSpecError as error:
            return {"error": str(error)}
        if hasattr(out, "images"):
            return {"images": [_png(image) for image in out.images], "seeds": out.seeds, "stats": out.stats.to_dict()}
        return {
            "audio": [_wav(each) for each in out],
            "seeds": [each.seed for each in out],
            "stats": out.stats.to_dict(),
        }


def _png(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _wav(output: Any) -> str:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, output.audio.T, output.sampling_rate, format="WAV", subtype="PCM_16")
    return base64.b64encode(file.getvalue()).decode()
