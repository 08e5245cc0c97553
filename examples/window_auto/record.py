"""Records the tokens that windows of each width gain on embedded models, which `replay.py` replays.

python examples/window_auto/record.py shapes:scd shapes:draft -o examples/window_auto/gains.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

import mmspec
from mmspec.decoding.step import Step
from mmspec.decoding.window_policy import FixedWindow

EXAMPLES = Path(__file__).parent.parent
PROMPTS = {
    "shapes": "quality_vs_speed/prompts.txt",
    "rough": "quality_vs_speed/prompts.txt",
    "scenes": "scenes/prompts.txt",
    "spoken": "speech/sentences.txt",
}
FOLDERS = {"rough": str(EXAMPLES / "quality_vs_speed/model")}
WIDTHS = (2, 4, 8, 16, 32)
ROWS = 16
PLACES = 64  # of a row, at which gains are kept
DIGITS = "0123456789abcdefghijklmnopqrstuvw"


class Alternating(FixedWindow):
    """A plain step after each window, so that no window has drafts that an earlier one refined."""

    def choose(self) -> int:
        object.__setattr__(self, "turn", not getattr(self, "turn", False))
        return 1 if getattr(self, "turn", False) else self.width

    settled = choose


def gains(pipe: object, name: str, recipe: str, policy: FixedWindow) -> list[str]:
    """The gain of the window at each place of each row: one string per row, a digit per place."""
    lengths: list[NDArray[np.int64]] = []

    def on_step(step: Step) -> None:
        lengths.append(np.array(step.lengths))

    lines = (EXAMPLES / PROMPTS[name]).read_text(encoding="utf-8").splitlines()
    prompts = [line for line in lines if line and not line.startswith("#")][:ROWS]
    sampling = {} if name == "spoken" else {"temperature": 1.0, "guidance_scale": 1.0}
    with patch("mmspec.decoding.assembly.window_policy", lambda *_: policy):
        pipe(prompts, recipe=f"{recipe}:window={policy.width}", seed=0, on_step=on_step, **sampling)  # type: ignore[operator]
    found = []
    for row in np.array(lengths).T:
        gained = np.diff(row)
        at = np.flatnonzero(gained)
        starts, gained = row[at], gained[at]
        if isinstance(policy, Alternating):  # the windows among the plain steps
            starts, gained = starts[1::2], gained[1::2]
        starts, gained = starts[:-1], gained[:-1]  # the end of the row cuts the last window
        index = np.searchsorted(starts * PLACES / row[-1], np.arange(PLACES)).clip(0, len(gained) - 1)
        found.append("".join(DIGITS[gain] for gain in gained[index]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", help=f"MODEL:RECIPE, where MODEL is one of {', '.join(PROMPTS)}")
    parser.add_argument("-o", "--output", type=Path, default=EXAMPLES / "window_auto/gains.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(args.output.read_text()) if args.output.exists() else {}
    for setting in args.settings:
        name, recipe = setting.split(":", 1)
        pipe = mmspec.load(FOLDERS.get(name, name))
        found[setting] = {
            f"{width}{after}": gains(pipe, name, recipe, policy(width))
            for width in WIDTHS
            for policy, after in ((FixedWindow, ""), (Alternating, " after a step"))
        }
        args.output.write_text(json.dumps(found, indent=1) + "\n")
        print(
            setting,
            {
                width: round(float(np.mean([DIGITS.index(c) for row in rows for c in row])), 2)
                for width, rows in found[setting].items()
            },
            flush=True,
        )


if __name__ == "__main__":
    main()
