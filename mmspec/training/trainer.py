"""Training of a drafter. It can be killed at any time and resumes from its last checkpoint with the same result."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.errors import ArgumentError, ModelError
from mmspec.files import replacing_folder
from mmspec.files.checkpoint import check_tensors, describe, read_weights
from mmspec.files.folders import replacing_inside
from mmspec.training.curve import SCHEMA_VERSION, CurvePoint
from mmspec.training.drafter_kind import Batch
from mmspec.training.kinds import KINDS, evaluate_drafter, layer_ids, new_drafter
from mmspec.training.prepared import TrainablePipeline
from mmspec.training.sequences import (
    OUTPUT,
    TrainingSequences,
    claim_folder,
    read_sequences,
    sequences_folder,
    write_sequences,
)
from mmspec.training.settings import TrainingSettings

_WARMUP = 0.03  # share of the steps
# Content of a checkpoint, by type.
_STATE: dict[str, type | tuple[type, ...]] = {
    "settings": dict, "model": dict, "optimiser": dict, "step": int, "seconds": (int, float), "losses": list,
    "curve": list, "best": dict,
}  # fmt: skip


class Trainer:
    """Trains one drafter for one pipeline.

    Args:
        pipe: The pipeline of the target.
        settings: Everything that determines the result.
        folder: Folder of the result; its subfolder `work` holds the sequences and the checkpoint.
        rank: Index of this process.
        world_size: Number of processes that train together.

    Raises:
        ArgumentError: If the folder holds a training with other settings, or if the pipeline lacks what the kind needs.
    """

    def __init__(
        self, pipe: TrainablePipeline, settings: TrainingSettings, folder: Path, rank: int = 0, world_size: int = 1
    ) -> None:
        self.pipe = pipe
        self.settings = settings
        self.folder = folder
        self.rank, self.world_size = rank, world_size
        self.step = 0
        self.seconds = 0.0
        self.curve: list[CurvePoint] = []
        self._checkpoint = folder / "work" / "checkpoint.pt"
        self._losses: list[float] = []
        if world_size > 1 and KINDS[settings.kind].decodes is not None:
            # Processes would take different numbers of updates, and wait for each other.
            raise ArgumentError(f"--kind {settings.kind} is trained in one process; {world_size} were started")
        state = self._load_checkpoint()  # refuses other settings before any slow work
        self.model = new_drafter(pipe, settings).train()
        self._best: Any = None  # the model at `best`, in float16
        self._reference: torch.nn.Module | None = None
        if settings.reference is not None:
            pipe.add_drafter(settings.reference)
            self._reference = pipe.new_small().eval().requires_grad_(False)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, betas=(0.9, 0.95))
        if state is not None:
            self._best = _in_half(self.model)
            for name, model in (("model", self.model), ("best", self._best)):
                check_tensors(f"{OUTPUT}: checkpoint '{self._checkpoint}'", state[name], model)
            try:
                self.model.load_state_dict(state["model"])
                self._best.load_state_dict(state["best"])
                self._optimizer.load_state_dict(state["optimiser"])
                self.curve = [CurvePoint(**point) for point in state["curve"]]
            except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
                raise ArgumentError(
                    f"{OUTPUT}: '{self._checkpoint}' is damaged; delete it, or name another folder: {describe(error)}"
                ) from None
            self.step, self.seconds, self._losses = state["step"], state["seconds"], state["losses"]

    @property
    def best(self) -> CurvePoint:
        """The measurement with the most tokens per call, the latest of equals; the drafter of that step is written."""
        return max(self.curve, key=lambda point: (point.tokens_per_call, point.step))

    def collect(self, on_chunk: Callable[[int], None] | None = None) -> TrainingSequences:
        """Loads the training sequences, after generating those that are not on disk yet.

        Args:
            on_chunk: Called after each chunk with its number of sequences.
        """
        s = self.settings
        if KINDS[s.kind].decodes is not None:
            return TrainingSequences(torch.empty(s.sequences, 0, dtype=torch.int64), None)
        keep = s.keep_features and KINDS[s.kind].keeps_features
        folder = sequences_folder(self.folder)
        claim_folder(folder, s, self.pipe)
        write_sequences(
            partial(s.prepare, self.pipe),
            s.prompts,
            s.sequences,
            s.seed,
            folder,
            keep,
            self._layer_ids,
            self.rank,
            self.world_size,
            on_chunk,
        )
        if self.world_size > 1:
            torch.distributed.barrier()
        return read_sequences(folder, s.sequences, keep)

    def train(
        self,
        sequences: TrainingSequences,
        validate_every: int,
        save_every: int,
        on_step: Callable[[int, float], None] | None = None,
        on_point: Callable[[CurvePoint], None] | None = None,
    ) -> None:
        """Takes the remaining steps and writes the drafter of the step that measured best.

        Args:
            sequences: From `collect`.
            validate_every: Steps between measurements of acceptance.
            save_every: Steps between checkpoints.
            on_step: Called after every step with its number and its loss.
            on_point: Called with every measurement.
        """
        s = self.settings
        if not self.curve:
            self._evaluate(on_point)
        while self.step < s.steps:
            start = time.monotonic()
            loss = self._take_step(self._batch_indices(len(sequences.tokens)), sequences)
            self._losses.append(loss)
            self.step += 1
            self.seconds += time.monotonic() - start
            if on_step is not None:
                on_step(self.step, loss)
            if self.step % validate_every == 0 or self.step == s.steps:
                self._evaluate(on_point)
            if self.step % save_every == 0 or self.step == s.steps:
                self._save_checkpoint()
        self.write()

    def write(self) -> None:
        """Writes the drafter of the best step, in float16, and its record to the folder; only rank 0 writes."""
        if self.rank:
            return
        with replacing_folder(self.folder) as partial:
            self._best.save_pretrained(partial)
        with replacing_inside(self.folder, "training.json") as partial:
            partial.write_text(json.dumps(self.record(), indent=1) + "\n", encoding="utf-8")

    def record(self) -> dict[str, Any]:
        """Settings, the step whose drafter is written, and the curve as JSON values."""
        settings = {**asdict(self.settings), "prompts": len(self.settings.prompts)}
        curve = [asdict(point) for point in self.curve]
        return {
            "schema_version": SCHEMA_VERSION,
            "settings": settings,
            "seconds": self.seconds,
            "best_step": self.best.step,
            "curve": curve,
        }

    def _batch_indices(self, count: int) -> list[int]:
        """The sequences of this step: every epoch uses each of `count` sequences once, in a new order."""
        s, indices = self.settings, []
        for n in range(self.step * s.batch, (self.step + 1) * s.batch):
            generator = torch.Generator().manual_seed((s.seed + n // count) % 2**63)
            indices.append(int(torch.randperm(count, generator=generator)[n % count]))
        return indices

    def _take_step(self, indices: list[int], sequences: TrainingSequences) -> float:
        """Updates the drafter on a batch and returns the loss, the mean over processes."""
        s = self.settings
        own = indices[self.rank :: self.world_size]
        slack = KINDS[s.kind].slack(s.depth)
        prepared = s.prepare(self.pipe, [s.prompts[i % len(s.prompts)] for i in own], slack)
        generator = torch.Generator().manual_seed(
            (s.seed * 1_000_003 + self.step * self.world_size + self.rank) % 2**63
        )
        if (decodes := KINDS[s.kind].decodes) is not None:
            losses = decodes(self.model, Batch(prepared, None, s, generator))
            values = [self._update(loss) for loss in losses]
            return sum(values) / max(len(values), 1)
        tokens, features = sequences.tokens[own], sequences.features_of(own)
        length = longest(tokens, prepared.layout)
        teacher = KINDS[s.kind].teach(
            prepared,
            tokens[:, :length],
            None if features is None else features[:, :length],
            self._layer_ids,
            generator,
        )
        # bfloat16 matrix products are twice as fast; distributions and losses stay in float32.
        with torch.autocast(next(self.model.parameters()).device.type, torch.bfloat16, enabled=s.kind != "small"):
            loss = KINDS[s.kind].loss(self.model, Batch(prepared, teacher, s, generator, self._reference))
        return self._update(loss)

    def _update(self, loss: Tensor) -> float:
        """Updates the drafter and returns the loss, the mean over processes."""
        s = self.settings
        self._optimizer.zero_grad()
        # The target's parameters, which the loss may depend on as well, get no gradients.
        loss.backward(inputs=[p for p in self.model.parameters() if p.requires_grad])
        value = self._average_gradients(loss.item())
        if not value < float("inf"):
            raise ModelError(f"the loss of step {self.step + 1} is {value}; use a smaller --lr")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = s.lr * lr_factor(self.step, s.steps)
        self._optimizer.step()
        return value

    @property
    def _layer_ids(self) -> tuple[int, ...]:
        """The target's layers that the drafter reads."""
        return layer_ids(self.model)

    def _average_gradients(self, loss: float) -> float:
        """Averages the gradients over processes, in place, and returns the mean loss."""
        if self.world_size == 1:
            return loss
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten().cpu() for g in gradients] + [torch.tensor([loss])])
        torch.distributed.all_reduce(flat)
        flat /= self.world_size
        for gradient, mean in zip(gradients, flat[:-1].split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
        return float(flat[-1])

    def _evaluate(self, on_point: Callable[[CurvePoint], None] | None) -> None:
        """Adds a point to the curve, and keeps the drafter if it is the best so far; equal in all processes."""
        measured = evaluate_drafter(self.pipe, self.model, self.settings)
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        self.curve.append(CurvePoint(self.step, loss, measured.by_position, measured.tokens_per_call))
        if self.best is self.curve[-1]:
            self._best = _in_half(self.model)
        if on_point is not None:
            on_point(self.curve[-1])

    def _save_checkpoint(self) -> None:
        if self.rank:
            return
        state = {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimiser": self._optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self._losses,
            "curve": [asdict(point) for point in self.curve],
            "best": self._best.state_dict(),
        }
        with replacing_inside(self.folder, "work/checkpoint.pt") as partial:
            torch.save(state, partial)

    def _load_checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint of an earlier run, or None; one of other settings is refused."""
        if not self._checkpoint.is_file():
            return None
        file = f"'{self._checkpoint}'"
        try:
            state = read_weights(self._checkpoint, f"{OUTPUT}: checkpoint")
        except ModelError as error:
            raise ArgumentError(f"{error}; delete it, or name another folder") from None
        if problem := _checkpoint_problem(state):
            raise ArgumentError(f"{OUTPUT}: {file} is not the checkpoint of a training: {problem}; name another folder")
        own, stored = asdict(self.settings), state["settings"]
        if different := [name for name in own if stored.get(name) != own[name]]:
            raise ArgumentError(
                f"{OUTPUT}: '{self.folder}' holds a training with another {' and '.join(different)}; "
                "name another folder, or delete it"
            )
        return state


def _checkpoint_problem(state: Any) -> str | None:
    """What a checkpoint lacks, or has of another type; None if nothing."""
    if not isinstance(state, dict):
        return f"it contains a {type(state).__name__}"
    for name, kind in _STATE.items():
        if name not in state:
            return f"it has no {name!r}"
        if not isinstance(state[name], kind):
            return f"its {name!r} is a {type(state[name]).__name__}"
    for weights in ("model", "best"):
        if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state[weights].items()):
            return f"its {weights!r} has values that are no tensors"
    return None


def _in_half(model: torch.nn.Module) -> Any:
    """A copy of a model in float16, without its gradients."""
    return copy.deepcopy(model).half()


def longest(tokens: Tensor, layout: Layout) -> int:
    """The length of the longest of sequences int64 [B, N], which are padded after their ends."""
    ends = torch.isin(tokens, torch.tensor(sorted(layout.eos), dtype=tokens.dtype))
    lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, tokens.shape[1])
    return min(int(lengths.max()), layout.length)


def lr_factor(step: int, steps: int) -> float:
    """The learning rate of a step as a share of its peak: linear warm-up, then linear decay to 0."""
    warmup = max(round(_WARMUP * steps), 1)
    return min((step + 1) / warmup, (steps - step) / max(steps - warmup, 1))


def split_prompts(prompts: Sequence[str], held_out: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits prompts into those to train on and the last `held_out` to measure on.

    Raises:
        ArgumentError: If no prompt is left to train on.
    """
    if len(prompts) <= held_out:
        raise ArgumentError(f"--held-out: {held_out} of {len(prompts)} prompts leaves none to train on")
    return tuple(prompts[:-held_out]), tuple(prompts[-held_out:])
