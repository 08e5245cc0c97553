"""Predicts what windows gain on a GPU that is not at hand, from counted kernels, bytes and operations.

    python examples/gpu/predict.py -m llamagen-xl,csm --window 4,8,16,32
    python examples/gpu/predict.py -m janus-7b --batch 1,8 --window 16:3.24,32:4.02    # measured tokens per call

Nothing runs on a device. `--measured FILE` compares a record of `day.sh` with its predictions instead.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gpu_bench.comparison import compared
from gpu_bench.devices import DEVICES
from gpu_bench.prediction import Prediction, predict, tokens_per_window
from gpu_bench.published import PUBLISHED

NOTE = "Nothing here was measured on a GPU."


def main(words: list[str] | None = None) -> None:
    """Prints predicted times per call and gains over captured plain decoding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEVICES, default="h100")
    parser.add_argument("-m", "--model", default="llamagen-xl", help=f"by commas, or all: {', '.join(PUBLISHED)}")
    parser.add_argument("--acceptance", default="0.7", help="rates of the slots of a window, by commas")
    parser.add_argument("--batch", default="1,8,64", help="rows, by commas")
    parser.add_argument("--window", default="2,4,8,16,32", help="widths, by commas; 16:3.2 gives its tokens per call")
    parser.add_argument("--measured", type=Path, help="a record of day.sh, to be compared with its predictions")
    given = parser.parse_args(words)
    if given.measured is not None:
        return compare(given.measured)
    device, names = DEVICES[given.device], list(PUBLISHED) if given.model == "all" else given.model.split(",")
    if unknown := [name for name in names if name not in PUBLISHED]:
        parser.error(f"unknown model {unknown[0]!r}; it must be one of {', '.join(PUBLISHED)}")
    rates = [float(rate) for rate in given.acceptance.split(",")]
    rows = [int(count) for count in given.batch.split(",")]
    windows = [window(text, rates) for text in given.window.split(",")]
    print(f"{NOTE} {device.title}; acceptance by slot: {given.acceptance}")
    for name in names:
        print(f"\n{name}\n{table(predict(PUBLISHED[name], device, rows, windows))}")


def window(text: str, rates: list[float]) -> tuple[int, float]:
    """A width, and the tokens that a window of it gives."""
    width, _, tokens = text.partition(":")
    return int(width), float(tokens) if tokens else tokens_per_window(rates, int(width))


def table(found: Prediction) -> str:
    """The steps of a prediction with their gains, as text."""
    steps = {(step.rows, step.width): step for step in found.steps}
    lines = [f"{'rows':>5}{'window':>8}{'tokens':>8}{'kernels':>9}{'ms/call':>9}{'eager':>9}{'gain':>7}"]
    for gain in found.gains:
        step = steps[gain.rows, gain.width]
        times = f"{1e3 * step.seconds:9.2f}{1e3 * step.eager:9.2f}"
        lines.append(f"{gain.rows:>5}{gain.width:>8}{gain.tokens:8.2f}{step.launches:>9}{times}{gain.speedup:7.2f}")
    last = found.ends_at()
    lines.append("some window pays at every batch" if last is None else f"no window pays from {last} rows on")
    return "\n".join(lines)


def compare(path: Path) -> None:
    """Prints predicted against measured steps of a record."""
    record = json.loads(path.read_text(encoding="utf-8"))
    found = compared(record)
    print(f"{record['environment']['device']}: {len(found)} steps were both predicted and measured\n")
    print(f"{'model':<28}{'rows':>5}{'window':>8}{'predicted, ms':>15}{'measured, ms':>14}{'ratio':>8}")
    for one in found:
        times = f"{1e3 * one.predicted:15.3f}{1e3 * one.measured:14.3f}{one.ratio:8.2f}"
        print(f"{one.model:<28}{one.rows:>5}{one.width:>8}{times}{'' if one.captured else '  not captured'}")


if __name__ == "__main__":
    main()
