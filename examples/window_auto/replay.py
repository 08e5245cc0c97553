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
from mmspec.decoding.window_policy import Committed, FixedWindow, WindowPolicy

HERE = Path(__file__).parent
WIDTHS = (1, 2, 4, 8, 16, 32)
KEPT = 4  # as in `mmspec.decoding.loop`: finished rows are dropped once they are one in so many
RUNS = 10  # one after the other on a new model
NOISE = 0.05  # of measured seconds
SPELL, EVERY = 30, 150  # plain steps that a slow spell takes, one in so many
SLOW = 2.5  # times what calls take otherwise
STOPS = (0.03, 0.13, 0.2)  # shares of plain decoding's time, what the best width may lose before it stops

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
        shared: The same on a machine with slow spells, which the policy measures but which are not counted.
        best: With the best fixed width of the setting, plain decoding included.
        stopped: With that width until the run cannot stay below a bound otherwise, by bounds of `STOPS`.
    """

    auto: NDArray[np.float64]
    shared: NDArray[np.float64]
    best: NDArray[np.float64]
    stopped: list[NDArray[np.float64]]


@cache
def recorded() -> dict[str, dict[tuple[int, bool], NDArray[np.int64]]]:
    """By model and recipe, by width and whether a plain step comes before: gains int64 [images, places]."""
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
    for record in json.loads((HERE.parent / "gpu/h100.json").read_text())["parts"]["models"]["records"]:
        if "device" not in record:  # a decode, not a call
            continue
        found.setdefault(record["model"], {}).setdefault(record["rows"], []).append(record["device"] * 1e3)
    return found


@cache
def cost(device: Device, rows: int, width: int, apart: bool) -> float:
    """Milliseconds of one call; plain steps take more once rows stand at different positions."""
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
    policy: WindowPolicy,
    setting: Setting,
    seed: tuple[int, int],
    noise: float = 0.0,
    slow: float = 1.0,
    bound: float = float("inf"),
) -> float:
    """Milliseconds of a run, which follows `mmspec.decoding.loop.RunningBatch.step`.

    Args:
        policy: The policy.
        setting: What is decoded, and where.
        seed: The sequence of runs, and the run. The same images gain the same at the same places, whatever the policy.
        noise: The share by which what the policy measures differs, at most, from what is counted.
        slow: What calls take in slow spells, over what is counted. A first run begins with a spell.
        bound: Milliseconds beyond which the run would take longer with one more window that gains one token than by
            plain steps alone: these follow.
    """
    gains, device, rows, tokens = setting
    tables = recorded()[gains]
    count, places = next(iter(tables.values())).shape
    rng, noisy = np.random.default_rng(seed), np.random.default_rng((*seed, 1))
    images, nearby = rng.integers(0, count, rows), rng.integers(-2, 3, (rows, tokens))
    phase = float(noisy.uniform(0, EVERY)) if seed[1] else 0.0
    if isinstance(policy, AdaptiveWindow):
        policy.begin(tokens, rows)
    lengths, time = np.ones(rows, dtype=np.int64), 0.0
    running = np.arange(rows)  # rows in the batch, some of which may have finished
    before, step, stopped = 1, cost(device, rows, 1, False), False
    while (alive := running[lengths[running] < tokens]).size:
        alive = alive[np.argsort(lengths[alive], kind="stable")]
        whole, at = len(alive) == rows, lengths[alive]
        apart = bool(at[0] != at[-1])
        width = policy.choose() if whole else policy.settled()
        if bound < float("inf"):
            window, single = (cost(device, len(running), w, apart) for w in (width, 1))
            stopped = stopped or time + window + single * (tokens - at[0] - 1) > bound
            width = 1 if stopped else width
        calls = 1
        if width == 1:
            calls = min(policy.steps(), int(tokens - at[0]))
            gained = np.full(len(alive), calls)
        else:
            table = tables[width, True] if before == 1 else tables[min(before, width), False]
            place = at * places // tokens + nearby[alive, at]
            gained = table[images[alive], place.clip(0, places - 1)]
        together = width > 1 and whole and not apart and policy.together()
        alone, gained = gained, np.full(len(alive), gained.min()) if together else gained
        after = np.minimum(at + gained, tokens)
        drafts = min(width - 1, int(gained[0])) if together else 0  # that are tested in each row
        accepted = int(np.minimum(alone - 1, drafts).sum()) if together else 0
        lengths[alive] = after
        call = cost(device, len(running), width, apart)
        spell = (time / step + phase) % EVERY < SPELL
        time += call * calls
        before = width
        seconds = call * float(noisy.uniform(1 - noise, 1 + noise)) * (slow if spell else 1.0)
        progress, tests = int(after.min() - at[0]), (drafts * len(alive), accepted)
        committed = Committed(after - at, progress, seconds, calls, *tests, together)
        (policy.record if whole else policy.rest)(width, committed)
        finished = lengths[running] >= tokens
        if finished.sum() * KEPT >= len(running):
            running = running[~finished]
    return time


def measure(setting: Setting, seeds: int) -> Result:
    """Runs one after the other on a new model, and each fixed width with the same images."""
    plain = cost(setting.device, setting.rows, 1, False) * (setting.tokens - 1)
    numbers = [(seed, number) for seed in range(seeds) for number in range(RUNS)]

    def times(runs: list[float]) -> NDArray[np.float64]:
        return np.array(runs).reshape(seeds, RUNS) / plain

    def auto(slow: float) -> NDArray[np.float64]:
        policies = [AdaptiveWindow() for _ in range(seeds)]
        return times([replay(policies[seed[0]], setting, seed, NOISE, slow) for seed in numbers])

    def fixed(width: int, bound: float = float("inf")) -> NDArray[np.float64]:
        return times([replay(FixedWindow(width, 16), setting, seed, bound=bound) for seed in numbers])

    found = {1: np.ones((seeds, RUNS))} | {width: fixed(width) for width in WIDTHS[1:]}
    best = min(found, key=lambda width: float(found[width].mean()))
    stopped = [fixed(best, (1 + stop) * plain) if best > 1 else found[1] for stop in STOPS]
    return Result(auto(1.0), auto(SLOW), found[best], stopped)


def lost(time: NDArray[np.float64], best: NDArray[np.float64], span: slice) -> float:
    """The share of a best width's time that is lost to it in some of the runs."""
    return float(time[:, span].sum() / best[:, span].sum() - 1)


def table(results: dict[Setting, Result]) -> str:
    """The time lost to the best fixed width, and the longest times over plain decoding, by batch and tokens."""
    lines = [
        "| batch | tokens | settings | run 1 | runs 2-10 | worst | slow spells: run 1 | runs 2-10 "
        "| to plain: run 1 | runs 2-10 | single | best width |",
        "|" + " ---: |" * 12,
    ]
    first, later = slice(0, 1), slice(1, None)
    sizes = sorted({(setting.rows, setting.tokens) for setting in results})
    for rows, tokens in [*sizes, (0, 0)]:
        found = [r for s, r in results.items() if not rows or (s.rows, s.tokens) == (rows, tokens)]
        own = [[lost(r.auto, r.best, span) for r in found] for span in (first, later)]
        shared = [np.mean([lost(r.shared, r.best, span) for r in found]) for span in (first, later)]
        to_plain = [max(r.auto[:, span].mean() for r in found) - 1 for span in (first, later)]
        single = [max(time.max() for time in times) - 1 for times in ([r.auto for r in found], [r.best for r in found])]
        cells = [np.mean(own[0]), np.mean(own[1]), max(own[1]), *shared, *to_plain, *single]
        name = f"{rows} | {tokens}" if rows else "all | all"
        lines.append(f"| {name} | {len(found)} | " + " | ".join(f"{100 * cell:.1f} %" for cell in cells) + " |")
    for at, stop in enumerate(STOPS):
        mean = np.mean([lost(r.stopped[at], r.best, slice(None)) for r in results.values()])
        longest = max(float(r.stopped[at].max()) for r in results.values()) - 1
        lines.append(
            f"\nThe best width with a stop at {stop:.0%}: {mean:.1%} lost, longest run {longest:.1%} over plain."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="sequences of ten runs per setting (default: 4)")
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
