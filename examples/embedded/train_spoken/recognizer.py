"""Trains the recognizer on sentences read by espeak-ng, not on the voice itself, and saves it.

Command: python -m train_spoken.recognizer        (about 3 core-minutes)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from train_spoken.config import SEED_EVAL, RecognizerTraining
from train_spoken.data import Utterance, utterances
from train_spoken.save import save_module

from mmspec.audio.spoken.analysis import BANDS, FLOOR
from mmspec.audio.spoken.config import FRAME, SAMPLING_RATE, WEIGHTS
from mmspec.audio.spoken.recognizer import SpokenRecognizer, merge_homophones, normalize_peak, token_bands
from mmspec.audio.spoken.text import lexicon
from mmspec.metrics.audio.word_error_rate import word_error_rate


def augmented_bands(audio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Bands [T, 2 * BANDS] of audio with noise, a shift of less than a frame, and a random frequency response."""
    shift = int(rng.integers(-FRAME // 2, FRAME // 2))
    moved = np.roll(audio, shift)
    noise = rng.standard_normal(len(audio)) * moved.std() * 10 ** (-rng.uniform(15, 45) / 20)
    bands = token_bands(normalize_peak((moved + noise).astype(np.float32)))
    tone = np.interp(np.linspace(0, 5, BANDS), np.arange(6), rng.normal(0, 0.35, 6))
    blur = rng.normal(0, rng.uniform(0, 0.35), bands.shape)
    return np.maximum(bands + np.tile(tone, 2) + blur, np.log(FLOOR)).astype(np.float32)


def espeak_error_rate(net: SpokenRecognizer, utterances: list[Utterance]) -> float:
    """Word error rate on speech of espeak-ng."""
    net.eval()
    return word_error_rate(
        [net.transcribe(u.audio, SAMPLING_RATE) for u in utterances], [merge_homophones(u.text) for u in utterances]
    )


def train(config: RecognizerTraining, weights: Path) -> None:
    """Trains the recognizer and saves it in `weights`."""
    torch.manual_seed(2)
    number = {phone: i for i, phone in enumerate(lexicon()[1])}
    known = [u for u in utterances(config.sentences, seed=11) if all(p in number for p in u.phones)]
    labels = [torch.tensor([number[p] for p in u.phones])[torch.from_numpy(u.phone_at)] for u in known]
    held_out = list(utterances(300, SEED_EVAL, held_out=True))
    net = SpokenRecognizer()
    counts = torch.bincount(torch.cat(labels), minlength=len(number)).float() + 1
    net.prior.copy_((counts / counts.sum()).log())
    optimizer = torch.optim.AdamW(net.parameters(), config.lr, betas=(0.9, 0.98), weight_decay=0.01)
    rng, recent = np.random.default_rng(0), 0.0
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min((step + 1) / 50, 1.0, 0.02 + 1.6 * (1 - step / config.steps))
        picks = rng.integers(len(known), size=config.batch)
        bands = [torch.from_numpy(augmented_bands(known[i].audio, rng)) for i in picks]
        x = torch.nn.utils.rnn.pad_sequence(bands, batch_first=True, padding_value=float(np.log(FLOOR)))
        y = torch.nn.utils.rnn.pad_sequence([labels[i] for i in picks], batch_first=True, padding_value=-100)
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), label_smoothing=0.02)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        recent = 0.98 * recent + 0.02 * loss.item() if step else loss.item()
        if (step + 1) % 200 == 0:
            rate = espeak_error_rate(net, held_out[: 300 if step + 1 == config.steps else 60])
            net.train()
            print(f"step {step + 1} loss {recent:.4f} word error rate {rate:.2%}", file=sys.stderr, flush=True)
            save_module(net, weights / "recogniser")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--steps", type=int, default=RecognizerTraining().steps)
    args = parser.parse_args()
    train(RecognizerTraining(steps=args.steps), args.weights)


if __name__ == "__main__":
    main()
