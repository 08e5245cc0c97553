"""Replays recorded gains on a simulated clock, and prints what `window=auto` loses to fixed windows.

python examples/window_auto/replay.py
"""

from __future__ import annotations

import argparse
import json
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmspec.decoding.adaptive_window import AdaptiveWindow
from mmspec.decoding.window_policy import FixedWindow, WindowPolicy

HERE = Path(__file__).parent
WIDTHS = (1, 2, 4, 8, 16, 32)
KEPT = 4  # as in `mmspec.decoding.loop`: finished rows are dropped once they are one in so many
RUNS = 10  # one after the other on a new model
NOISE = 0.05  # of measured seconds

# Milliseconds of calls of 1, 2, ... 32 tokens with their drafts, by rows: one thread of a CPU.
CPU = {
    "rough:scd": {1: [3.07, 3.84, 4.28, 4.69, 5.35, 6.74], 8: [4.26, 6.17, 7.76, 10.35, 15.35, 28.3],
                   25: [7.44, 12.7, 16.8, 26.8, 39.0, 77.4], 64: [10.8, 26.4, 57.8, 107.6, 203.0, 412.0]},
    "spoken:draft": {1: [3.73, 5.92, 7.56, 11.85, 19.1, 34.6], 8: [4.76, 8.69, 13.35, 20.3, 35.7, 79.8],
                     25: [6.60, 12.4, 21.3, 41.6, 63.8, 127.8], 64: [12.2, 23.7, 48.4, 110.0, 250.0, 500.0]},
}  # fmt: skip


class Device(NamedTuple):
    """Where calls take time: a model's calls on a device, and what a window costs beside the call.

    Attributes:
        calls: A key of `CPU`, or a model whose calls were measured on an H100 (`examples/gpu/h100.json`).
        host: Milliseconds of the host per window.
        drafting: Milliseconds per draft token.
    """

    calls: str
    host: float = 0.0
    drafting: float = 0.0


# Recorded gains, and where they are replayed.
CHOSEN_ON = [
    ("rough:scd", Device("rough:scd")),
    ("rough:scd", Device("llamagen-b", 0.3)),
    ("rough:scd", Device("janus-7b", 0.3)),
    ("rough:scd", Device("emu3", 0.5)),
    ("shapes:scd", Device("rough:scd")),
    ("shapes:scd", Device("llamagen-b", 2.0)),
    ("shapes:scd", Device("llamagen-xl", 0.5)),
    ("shapes:draft", Device("spoken:draft")),
    ("spoken:draft", Device("spoken:draft")),
    ("spoken:draft", Device("janus-7b", 0.5, 0.5)),
    ("spoken:scd", Device("lumina-7b", 1.0)),
]
OTHERS = [
    ("scenes:scd", Device("rough:scd")),
    ("scenes:scd", Device("musicgen-large", 0.5)),
    ("shapes:recycle", Device("llasa-1b", 0.3)),
    ("shapes:recycle", Device("cosyvoice2", 1.0)),
    ("spoken:recycle", Device("llasa-1b", 0.5)),
]


class Setting(NamedTuple):
    """What is decoded, and where."""

    gains: str
    device: Device
    rows: int
    tokens: int


class Result(NamedTuple):
    """Times of runs, over those of plain decoding, float [seeds, runs].

    Attributes:
        auto: With `window=auto`.
        best: With the best fixed width of the setting, plain decoding included.
    """

    auto: NDArray[np.float64]
    best: NDArray[np.float64]


@cache
def recorded() -> dict[str, dict[tuple[int, bool], NDArray[np.int64]]]:
    """By model and recipe, by width and whether a single step comes before: gains int64 [images, places]."""
    found: dict[str, dict[tuple[int, bool], NDArray[np.int64]]] = {}
    for setting, tables in json.loads((HERE / "gains.json").read_text()).items():
        found[setting] = {
            (int(name.split()[0]), name.endswith("step")): np.array([[int(digit, 36) for digit in row] for row in rows])
            for name, rows in tables.items()
        }
    return found


@cache
def measured() -> dict[str, dict[int, list[float]]]:
    """Milliseconds of calls by model, rows and width."""
    found: dict[str, dict[int, list[float]]] = {name: dict(table) for name, table in CPU.items()}
    for record in json.loads((HERE.parent / "gpu/h100.json").read_text())["parts"]["steps"]["records"]:
        found.setdefault(record["model"], {}).setdefault(record["rows"], []).append(record["device"] * 1e3)
    return found


@cache
def cost(device: Device, rows: int, width: int, apart: bool) -> float:
    """Milliseconds of one call; single steps take more once rows stand at different positions."""
    table = measured()[device.calls]
    at, index = list(table), WIDTHS.index(width)
    calls = [table[n][index] for n in at]
    if rows <= at[-1]:
        call = float(np.interp(rows, at, calls))
    else:
        call = calls[-1] + max(0.0, calls[-1] - calls[-2]) / (at[-1] - at[-2]) * (rows - at[-1])
    if width == 1:
        return call * (1 + (0.1 if device.calls in CPU else 0.02) * apart)
    return call + device.host + device.drafting * (width - 1)


def replay(
    policy: WindowPolicy, setting: Setting, images: NDArray[np.int64], rng: np.random.Generator, noise: float
) -> float:
    """Milliseconds of a run; what the policy measures differs from it by a share of up to `noise`.

    Follows `mmspec.decoding.loop.RunningBatch.step`.
    """
    gains, device, rows, tokens = setting
    tables, places = recorded()[gains], next(iter(recorded()[gains].values())).shape[1]
    if isinstance(policy, AdaptiveWindow):
        policy.begin(tokens, rows)
    lengths, time = np.ones(rows, dtype=np.int64), 0.0
    running = np.arange(rows)  # rows in the batch, some of which may have finished
    before = 1
    while (alive := running[lengths[running] < tokens]).size:
        whole, at = len(alive) == rows, lengths[alive]
        apart = bool((at != at[0]).any())
        width = policy.choose() if whole else policy.settled()
        calls = 1
        if width == 1:
            calls = min(policy.steps(), int(tokens - at.min()))
            gained = np.full(len(alive), calls)
        else:
            table = tables[width, True] if before == 1 else tables[min(before, width), False]
            place = at * places // tokens + rng.integers(-2, 3, len(alive))
            gained = table[images[alive], place.clip(0, places - 1)]
        untied = None
        if width > 1 and whole and not apart and policy.together():
            untied, gained = float(gained.mean()), np.full(len(alive), gained.min())
        after = np.minimum(at + gained, tokens)
        # As measured in a decode: the gain of the quarter with the fewest tokens.
        slowest = np.argsort(at, kind="stable")[: -(-len(alive) // 4)]
        advanced = float((after - at)[slowest].mean()) / calls
        call = cost(device, len(running), width, apart)
        lengths[alive] = after
        time += call * calls
        before = width
        if whole:
            seconds = call * float(rng.uniform(1 - noise, 1 + noise))
            policy.record(width, seconds, advanced if untied is None else untied, calls, advanced)
        finished = lengths[running] >= tokens
        if finished.sum() * KEPT >= len(running):
            running = running[~finished]
    return time


def measure(setting: Setting, seeds: int) -> Result:
    """Runs one after the other on a new model, and each fixed width with the same images."""
    plain = cost(setting.device, setting.rows, 1, False) * (setting.tokens - 1)
    images = len(next(iter(recorded()[setting.gains].values())))

    def run(policy: WindowPolicy, seed: int, number: int, noise: float = 0.0) -> float:
        chosen = np.random.default_rng((seed, number)).integers(0, images, setting.rows)
        return replay(policy, setting, chosen, np.random.default_rng((seed, number, 1)), noise) / plain

    times = {width: np.ones((seeds, RUNS)) for width in (0, *WIDTHS)}
    for seed in range(seeds):
        policy = AdaptiveWindow()
        for number in range(RUNS):
            times[0][seed, number] = run(policy, seed, number, NOISE)
            for width in WIDTHS[1:]:
                times[width][seed, number] = run(FixedWindow(width), seed, number)
    return Result(times[0], min((times[width] for width in WIDTHS), key=np.mean))


def table(results: dict[Setting, Result]) -> str:
    """The time lost to the best fixed width, and the longest time over plain decoding, by batch and tokens."""
    lines = [
        "| batch | tokens | settings | run 1 | run 2 | runs 2-10 | worst setting | to plain: run 1 | runs 2-10 |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    sizes = sorted({(setting.rows, setting.tokens) for setting in results})
    for rows, tokens in [*sizes, (0, 0)]:
        found = [r for s, r in results.items() if not rows or (s.rows, s.tokens) == (rows, tokens)]
        spans = slice(0, 1), slice(1, 2), slice(1, None)
        lost = np.array([[r.auto[:, span].sum() / r.best[:, span].sum() - 1 for span in spans] for r in found])
        means = np.array([r.auto.mean(0) for r in found]) - 1
        cells = [*lost.mean(0), lost[:, 2].max(), means[:, 0].max(), means[:, 1:].max()]
        name = f"{rows} | {tokens}" if rows else "all | all"
        lines.append(f"| {name} | {len(found)} | " + " | ".join(f"{100 * cell:.1f} %" for cell in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="sequences of ten runs per setting (default: 2)")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    groups = (("Settings like those that the constants were chosen on", CHOSEN_ON, (1, 8, 25), (64, 256)),
              ("Other settings", OTHERS, (1, 2, 16, 64), (128, 576)))  # fmt: skip
    with Pool(args.processes) as pool:
        for title, pairs, batches, lengths in groups:
            settings = [Setting(*pair, rows, tokens) for pair in pairs for rows in batches for tokens in lengths]
            results = pool.map(partial(measure, seeds=args.seeds), settings, chunksize=1)
            print(f"{title}:\n\n{table(dict(zip(settings, results, strict=True)))}\n", flush=True)


if __name__ == "__main__":
    main()
