"""Windows of every model give the logits of single tokens, in rows whose prompts have several lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_pipe import IMAGES, SIZES
from pipe_cases import CASES, WORDS, Case

from mmspec.audio.pipeline import SpeechPipeline
from mmspec.recipes import parse
from mmspec.testing.adapters import check_windows

# Truncated logits differ without end where rounding changes what is cut.
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"top_p": 1.0, "min_p": 0.0} for name in ("chatterbox", "chatterbox-multilingual")},
    **SIZES,
    "glm": {"height": 32, "width": 32},
    **{name: {"top_p": 1.0, "top_k": 0} for name in ("chatterbox-turbo", "minicpm-o")},
    "yue": {"temperature": 0.0},
}
# Bark's stages are closed; a masked model has no windows; latents have no logits; frames come one by one.
WITHOUT = {"bark", "magnet", "pocket", "vibevoice", "moss-local-v1", "personaplex"}
DEPTHS = (
    "csm", "fish-s2", "moss-local", "moss-local-v1", "kyutai-tts", "lfm2-audio", "personaplex", "qwen3-tts",
    "heartmula", "qwen3-omni",
)  # fmt: skip
# Images that take long in engines.
MORE = {name: Case(IMAGES[name], WORDS) for name in ("liquid", "emu3.5", "x-omni")}
NAMES = [name for name in CASES if not name.endswith("ahead")]


def prepare(name: str, folder: Path, ahead: int = 0) -> Callable[[int, int], Any]:
    """Prepares (rows, window)."""
    case = (CASES | MORE)[name]
    pipe = case.make(folder)
    options = {
        "seed": 0,
        **OPTIONS.get(name, {}),
        **({} if isinstance(pipe, SpeechPipeline) else {"output_type": "latent"}),
    }
    if ahead:
        pipe.adapter.ahead = ahead

    def prepared(rows: int, window: int) -> Any:
        recipe, prompts = parse(f"scd:window={max(window, 2)}"), (list(case.prompts[:3]) * rows)[:rows]
        with torch.inference_mode():
            requests = [pipe.read_request(prompt, options, recipe) for prompt in prompts]
            return pipe.prepare_rows([request.rows[0] for request in requests], recipe)

    return prepared


@pytest.mark.releases
@pytest.mark.parametrize("name", [name for name in (*NAMES, *MORE) if name not in WITHOUT])
def test_windows_match_single_tokens(name: str, tmp_path: Path) -> None:
    """Those of frames begin anywhere in a frame and reach into the next ones."""
    frames = name.startswith(DEPTHS)
    make = prepare(name, tmp_path, ahead=3 * frames)
    layout = make(1, 4).layout
    length = min(layout.length, 20)
    window = min(6 if frames else 4, length - 2)
    limit = 1e-3 if name.startswith(("chatterbox", "ace-step", "lfm2-audio")) else 1e-4  # their logits are large
    assert check_windows(lambda rows, wide: make(rows, wide).target, length, window, cell=layout.cell) < limit


@pytest.mark.releases
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(DEPTHS)])
def test_windows_of_a_depth_match_single_codes(name: str, tmp_path: Path) -> None:
    make = prepare(name, tmp_path)

    def depth(rows: int, window: int) -> Any:
        model = make(rows, window).model
        model.start()
        return model.depth(torch.zeros(rows, 1, dtype=torch.int64), 0, window)

    assert check_windows(depth, make(1, 2).model.codes, 1) < 1e-4
