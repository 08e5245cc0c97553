"""Train the decoder of the codec on the recorded sentences, and export it.

Command: python -m mmspec.audio.spoken.train_codec        (about 3 core-minutes, after prepare)
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.audio.spoken.analysis import BANDS
from mmspec.audio.spoken.checkpoint import export
from mmspec.audio.spoken.codec import SpokenCodec
from mmspec.audio.spoken.config import FRAMES_PER_TOKEN, HOP, RUNS, WEIGHTS, CodecTraining
from mmspec.audio.spoken.prepare_data import PITCH_WEIGHT, nearest
from mmspec.audio.spoken.vocoder import Vocoder

_RESOLUTIONS = ((256, 64), (512, 128), (1024, 256))  # size and hop of the transforms that are compared


def magnitudes(sound: Tensor, size: int, hop: int) -> Tensor:
    window = torch.hann_window(size, device=sound.device)
    return torch.stft(sound, size, hop, window=window, return_complex=True, pad_mode="constant").abs() / window.sum()


def distance(made: Tensor, real: Tensor) -> Tensor:
    """Between log magnitudes, and between magnitudes for what is loud."""
    total = made.new_zeros(())
    for size, hop in _RESOLUTIONS:
        a, b = magnitudes(made, size, hop), magnitudes(real, size, hop)
        total = total + (torch.log(a + 1e-4) - torch.log(b + 1e-4)).abs().mean() + 20 * (a - b).abs().mean()
    return total / len(_RESOLUTIONS)


def pitch_track(features: Tensor) -> tuple[Tensor, Tensor]:
    """Pitch [n] in Hz at the end of each frame, and where frames are voiced, of features [T, D]."""
    kept = features.reshape(-1, BANDS + 2)
    voiced = (kept[:, -1] > 0).numpy()
    hertz = 150 * np.exp(kept[:, BANDS].numpy() / PITCH_WEIGHT)
    index = np.arange(len(hertz))
    if voiced.any():
        hertz = np.interp(index + 0.5, index[voiced], hertz[voiced])
    return torch.from_numpy(hertz.astype(np.float32)), torch.from_numpy(voiced)


def train(config: CodecTraining, out: Path, weights: Path) -> None:
    torch.manual_seed(1)
    recorded, centres = torch.load(out / "recorded.pt"), torch.load(out / "codes.pt")
    points = torch.cat(recorded["features"])
    codec = SpokenCodec()
    codec.book.copy_((centres - points.mean(0)) / points.std(0).clamp(min=1e-3))
    codes = [nearest(f, centres) for f in recorded["features"]]
    tracks = [pitch_track(f) for f in recorded["features"]]
    held, usable = 40, [i for i in range(len(codes)) if len(codes[i]) > config.crop]
    optimiser = torch.optim.AdamW(codec.parameters(), config.lr, betas=(0.9, 0.98), weight_decay=1e-3)
    generator = np.random.default_rng(0)
    start, recent = time.monotonic(), 0.0

    def loss(picks: list[tuple[int, int]], crop: int) -> tuple[Tensor, Tensor]:
        row_codes = torch.stack([codes[i][t : t + crop] for i, t in picks])
        span = [slice(t * FRAMES_PER_TOKEN, (t + crop) * FRAMES_PER_TOKEN) for _, t in picks]
        hertz = torch.stack([tracks[i][0][s] for (i, _), s in zip(picks, span, strict=True)])
        voiced = torch.stack([tracks[i][1][s] for (i, _), s in zip(picks, span, strict=True)])
        real = torch.stack([recorded["sounds"][i][t * HOP : (t + crop) * HOP].float() for i, t in picks])
        found, pulses, noise = codec.parameters_of(row_codes)
        vocoder = Vocoder(real.device)
        made = torch.cat([vocoder.push(hertz, pulses, noise), vocoder.finish()], dim=1)
        edge = codec.reach * HOP  # where the crop cuts what the codes around it would tell
        error = ((found.log() - hertz.log()).abs() * voiced).sum() / voiced.sum().clamp(min=1)
        return distance(made[:, edge:-edge], real[:, edge:-edge]), error

    for step in range(config.steps):
        done = step / config.steps
        lr = config.lr * min((step + 1) / 50, 1.0, 0.02 + 0.98 * (1 - done) / (1 - config.decay_from))
        for group in optimiser.param_groups:
            group["lr"] = lr
        picks = []
        for i in generator.choice(usable[held:], config.batch):
            picks.append((int(i), int(generator.integers(len(codes[i]) - config.crop))))
        spectral, error = loss(picks, config.crop)
        optimiser.zero_grad()
        (spectral + config.pitch_weight * error).backward()
        torch.nn.utils.clip_grad_norm_(codec.parameters(), 1.0)
        optimiser.step()
        recent = 0.98 * recent + 0.02 * spectral.item() if step else spectral.item()
        if (step + 1) % 100 == 0:
            with torch.no_grad():
                torch.manual_seed(0)
                quality = loss([(i, 0) for i in usable[:held]], config.crop)
            seconds = time.monotonic() - start
            report = f"step {step + 1} loss {recent:.4f}, held out {quality[0]:.4f}, pitch {float(quality[1]):.2%}"
            print(f"{report}, {seconds:.0f} s", file=sys.stderr, flush=True)
            export(codec, weights / "codec")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--steps", type=int, default=CodecTraining().steps)
    args = parser.parse_args()
    train(CodecTraining(steps=args.steps), args.out, args.weights)


if __name__ == "__main__":
    main()
