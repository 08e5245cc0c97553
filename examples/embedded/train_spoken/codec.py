"""Trains the decoder of the codec on the recorded sentences, and saves it.

Command: python -m train_spoken.codec        (about 3 core-minutes, after prepare_data)
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from train_spoken.config import RUNS, CodecTraining
from train_spoken.prepare_data import PITCH_WEIGHT, nearest
from train_spoken.save import save_module

from mmspec.audio.spoken.analysis import BANDS
from mmspec.audio.spoken.codec import SpokenCodec
from mmspec.audio.spoken.config import FRAMES_PER_TOKEN, HOP, WEIGHTS
from mmspec.audio.spoken.vocoder import Vocoder

_RESOLUTIONS = ((256, 64), (512, 128), (1024, 256))  # FFT size and hop length


def magnitudes(audio: Tensor, size: int, hop: int) -> Tensor:
    """Magnitudes of a short-time Fourier transform."""
    window = torch.hann_window(size, device=audio.device)
    return torch.stft(audio, size, hop, window=window, return_complex=True, pad_mode="constant").abs() / window.sum()


def spectral_distance(output: Tensor, real: Tensor) -> Tensor:
    """Multi-resolution L1 distance of log magnitudes and, for loud parts, of magnitudes."""
    total = output.new_zeros(())
    for size, hop in _RESOLUTIONS:
        a, b = magnitudes(output, size, hop), magnitudes(real, size, hop)
        total = total + (torch.log(a + 1e-4) - torch.log(b + 1e-4)).abs().mean() + 20 * (a - b).abs().mean()
    return total / len(_RESOLUTIONS)


def pitch_track(features: Tensor) -> tuple[Tensor, Tensor]:
    """Pitch in Hz at the end of each frame, float32 [n], and whether it is voiced, bool [n], from features [T, D]."""
    by_frame = features.reshape(-1, BANDS + 2)
    voiced = (by_frame[:, -1] > 0).numpy()
    hertz = 150 * np.exp(by_frame[:, BANDS].numpy() / PITCH_WEIGHT)
    index = np.arange(len(hertz))
    if voiced.any():
        hertz = np.interp(index + 0.5, index[voiced], hertz[voiced])
    return torch.from_numpy(hertz.astype(np.float32)), torch.from_numpy(voiced)


def train(config: CodecTraining, out: Path, weights: Path) -> None:
    """Trains the decoder.

    Args:
        config: Optimization settings.
        out: Work folder, with recorded.pt and codes.pt.
        weights: Folder of the weights.
    """
    torch.manual_seed(1)
    recorded, centers = torch.load(out / "recorded.pt"), torch.load(out / "codes.pt")
    points = torch.cat(recorded["features"])
    codec = SpokenCodec()
    codec.book.copy_((centers - points.mean(0)) / points.std(0).clamp(min=1e-3))
    codes = [nearest(f, centers) for f in recorded["features"]]
    tracks = [pitch_track(f) for f in recorded["features"]]
    held, usable = 40, [i for i in range(len(codes)) if len(codes[i]) > config.crop]
    optimizer = torch.optim.AdamW(codec.parameters(), config.lr, betas=(0.9, 0.98), weight_decay=1e-3)
    generator = np.random.default_rng(0)
    start, recent = time.monotonic(), 0.0

    def loss(picks: list[tuple[int, int]], crop: int) -> tuple[Tensor, Tensor]:
        """Spectral distance and relative pitch error of crops, given by sentence and first token."""
        row_codes = torch.stack([codes[i][t : t + crop] for i, t in picks])
        span = [slice(t * FRAMES_PER_TOKEN, (t + crop) * FRAMES_PER_TOKEN) for _, t in picks]
        hertz = torch.stack([tracks[i][0][s] for (i, _), s in zip(picks, span, strict=True)])
        voiced = torch.stack([tracks[i][1][s] for (i, _), s in zip(picks, span, strict=True)])
        real = torch.stack([recorded["sounds"][i][t * HOP : (t + crop) * HOP].float() for i, t in picks])
        pitch, pulses, noise = codec.vocoder_inputs(row_codes)
        vocoder = Vocoder(real.device)
        output = torch.cat([vocoder.push(hertz, pulses, noise), vocoder.finish()], dim=1)
        edge = codec.reach * HOP  # the context of these samples reaches beyond the crop
        error = ((pitch.log() - hertz.log()).abs() * voiced).sum() / voiced.sum().clamp(min=1)
        return spectral_distance(output[:, edge:-edge], real[:, edge:-edge]), error

    for step in range(config.steps):
        done = step / config.steps
        lr = config.lr * min((step + 1) / 50, 1.0, 0.02 + 0.98 * (1 - done) / (1 - config.decay_from))
        for group in optimizer.param_groups:
            group["lr"] = lr
        picks = []
        for i in generator.choice(usable[held:], config.batch):
            picks.append((int(i), int(generator.integers(len(codes[i]) - config.crop))))
        spectral, error = loss(picks, config.crop)
        optimizer.zero_grad()
        (spectral + config.pitch_weight * error).backward()
        torch.nn.utils.clip_grad_norm_(codec.parameters(), 1.0)
        optimizer.step()
        recent = 0.98 * recent + 0.02 * spectral.item() if step else spectral.item()
        if (step + 1) % 100 == 0:
            with torch.no_grad():
                torch.manual_seed(0)
                quality = loss([(i, 0) for i in usable[:held]], config.crop)
            seconds = time.monotonic() - start
            report = f"step {step + 1} loss {recent:.4f}, held out {quality[0]:.4f}, pitch {float(quality[1]):.2%}"
            print(f"{report}, {seconds:.0f} s", file=sys.stderr, flush=True)
            save_module(codec, weights / "codec")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--steps", type=int, default=CodecTraining().steps)
    args = parser.parse_args()
    train(CodecTraining(steps=args.steps), args.out, args.weights)


if __name__ == "__main__":
    main()
