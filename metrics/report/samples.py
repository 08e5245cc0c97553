"""Samples of the same prompts and seeds side by side, recipe by recipe, as images or audio players."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.metrics.evaluation.journal import sample_path

PROMPTS = 8  # maximum number of prompts shown
SIDE = 256  # pixels; larger images are scaled down
AUDIO_BYTES = 12_000_000  # of recordings in one page; fewer prompts are shown if they are long

Record = Mapping[str, Any]


def samples(config: Record, folder: Path) -> str:
    """The first prompts under the first seed, as an HTML table; "" if none of their files exists."""
    recipes, seed = config["recipes"], config["seeds"][0]
    lines: list[str] = []
    size = 0
    for prompt in config["prompts"][:PROMPTS]:
        paths = [_find(folder, recipe, prompt, seed) for recipe in recipes]
        size += sum(path.stat().st_size for path in paths if path is not None and path.suffix == ".wav")
        if not any(paths) or (lines and size > AUDIO_BYTES):
            break
        cells = [_cell(path, f"{recipe}: {prompt}") for path, recipe in zip(paths, recipes, strict=True)]
        lines.append(f"<tr><th>{escape(prompt)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if not lines:
        return ""
    heads = "".join(f"<th>{_breakable(name)}</th>" for name in ["", *recipes])
    table = f'<table class="samples"><thead><tr>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<h2>Side by side, seed {seed}</h2><div class="scroll">{table}</div>'


def _breakable(recipe: str) -> str:
    """A recipe's text with line breaks allowed after its name and its knobs."""
    return escape(recipe).replace(":", ":<wbr/>").replace(",", ",<wbr/>").replace("+", "+<wbr/>")


def _find(folder: Path, recipe: str, prompt: str, seed: int) -> Path | None:
    found: Sequence[Path] = [folder / sample_path(recipe, prompt, seed, suffix) for suffix in (".png", ".wav")]
    return next((path for path in found if path.is_file()), None)


def _cell(path: Path | None, description: str) -> str:
    if path is None:
        return "-"
    if path.suffix == ".wav":
        code = base64.b64encode(path.read_bytes()).decode()
        source = f'aria-label="{escape(description)}" src="data:audio/wav;base64,{code}"'
        return f'<audio controls="controls" preload="none" {source}></audio>'
    try:
        with Image.open(path) as image:
            small = image.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return "cannot be read"
    coarse = max(small.size) <= 128  # so few pixels that each should be visible
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    small.save(data, format="PNG", optimize=True)
    code = base64.b64encode(data.getvalue()).decode()
    kind = ' class="coarse"' if coarse else ""
    return f'<img{kind} alt="{escape(description)}" src="data:image/png;base64,{code}"/>'
