"""Training a drafter, step by step; it can be killed at any time and goes on as if nothing had happened."""

from __future__ import annotations

import copy
import json
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from mmspec.errors import ArgumentError, ModelError
from mmspec.files import replacing
from mmspec.heads.eagle import EagleHead
from mmspec.heads.medusa import MedusaHeads
from mmspec.recipes import parse
from mmspec.training.acceptance_probe import Acceptance, measure
from mmspec.training.losses import LOSSES
from mmspec.training.objectives import TeacherOutput, eagle_loss, feature_target, medusa_loss, read, small_loss
from mmspec.training.prepared import Pipe, Prepared
from mmspec.training.sequences import Sequences, read_sequences, write_sequences

KINDS = {"eagle": "eagle", "medusa": "medusa", "small": "draft"}  # and the recipe that each drafts in
SCHEMA_VERSION = 1
_WARM_UP = 0.03


@dataclass(frozen=True)
class Settings:
    """What decides the result.

    Attributes:
        kind: "eagle", "medusa" or "small".
        loss: A name in `LOSSES`.
        prompts: To train on.
        held_out: To measure on.
        sequences: The target's own, made from the prompts in turn.
        steps: Of AdamW, with a linear warm-up and a linear decay to nothing.
        batch: Of AdamW, with a linear warm-up and a linear decay to nothing.
        lr: Of AdamW, with a linear warm-up and a linear decay to nothing.
        depth: How deep drafts are foretold in training (eagle), or how many heads there are (medusa).
        hidden: Width of an EAGLE head's feed-forward part; 0: 8/3 of the features.
        seed: Of sequences, weights and order.
        keep_features: Whether the target's features are kept on the disk, in 16 bits, or read anew in each step.
        init: The folder of the small model that it begins as; None: the pipeline's own, or a new one.
    """

    kind: str
    loss: str
    prompts: tuple[str, ...]
    held_out: tuple[str, ...]
    sequences: int
    steps: int
    batch: int
    lr: float
    depth: int
    hidden: int
    seed: int
    keep_features: bool = True
    init: str | None = None

    def __post_init__(self) -> None:
        if self.loss == "smooth-l1+ce" and self.kind == "small":
            raise ArgumentError(
                "--loss: 'smooth-l1+ce' compares features, and a small model has its own; use kl or tvd"
            )


@dataclass(frozen=True)
class Point:
    """A drafter after so many steps: the mean training loss since the last point, and what it is worth."""

    step: int
    loss: float | None
    acceptance: list[float | None]
    tokens_per_call: float


class Trainer:
    """Trains one drafter for one pipeline.

    Args:
        pipe: The target, with everything around it.
        settings: What to do.
        folder: Where the result goes, and in `work` the sequences and the checkpoint that a restart goes on from.
        rank: The number of this process among those that train together.
        ranks: How many processes train together.

    Raises:
        ArgumentError: When the folder holds another training, or the pipeline lacks what the kind needs.
    """

    def __init__(self, pipe: Pipe, settings: Settings, folder: Path, rank: int = 0, ranks: int = 1) -> None:
        self.pipe = pipe
        self.settings = settings
        self.folder = folder
        self.rank, self.ranks = rank, ranks
        self.step = 0
        self.seconds = 0.0
        self.curve: list[Point] = []
        self._checkpoint = folder / "work" / "checkpoint.pt"
        self._losses: list[float] = []
        state = self._saved()  # before anything slow
        self.model = new_model(pipe, settings).train()
        self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, betas=(0.9, 0.95))
        if state is not None:
            self.model.load_state_dict(state["model"])
            self._optimiser.load_state_dict(state["optimiser"])
            self.step, self.seconds, self._losses = state["step"], state["seconds"], state["losses"]
            self.curve = [Point(**point) for point in state["curve"]]

    def collect(self, on_chunk: Callable[[int], None] | None = None) -> Sequences:
        """The target's own sequences; what is not there yet is made first."""
        s, home = self.settings, self.folder / "work" / "sequences"
        home.mkdir(parents=True, exist_ok=True)
        write_sequences(
            self.pipe, s.prompts, s.sequences, s.seed, home, s.keep_features, self.rank, self.ranks, on_chunk
        )
        if self.ranks > 1:
            torch.distributed.barrier()
        return read_sequences(home, s.sequences, s.keep_features)

    def train(
        self,
        sequences: Sequences,
        validate_every: int,
        save_every: int,
        on_step: Callable[[int, float], None] | None = None,
        on_point: Callable[[Point], None] | None = None,
    ) -> None:
        """Takes the steps that are left, and writes the result.

        Args:
            sequences: Of `collect`.
            validate_every: Steps between measurements.
            save_every: Steps between checkpoints.
            on_step: Called with the step and its loss.
            on_point: With every measurement.
        """
        s = self.settings
        if not self.curve:
            self._measure(on_point)
        while self.step < s.steps:
            began = time.monotonic()
            loss = self._take_step(self._picks(len(sequences.tokens)), sequences)
            self._losses.append(loss)
            self.step += 1
            self.seconds += time.monotonic() - began
            if on_step is not None:
                on_step(self.step, loss)
            if self.step % validate_every == 0 or self.step == s.steps:
                self._measure(on_point)
            if self.step % save_every == 0 or self.step == s.steps:
                self._save()
        self.write()

    def write(self) -> None:
        """The drafter, in 16-bit floats, and its record into the folder, by the first process."""
        if self.rank:
            return
        copy.deepcopy(self.model).half().save_pretrained(self.folder)
        with replacing(self.folder / "training.json") as partial:
            partial.write_text(json.dumps(self.record(), indent=1) + "\n", encoding="utf-8")

    def record(self) -> dict[str, Any]:
        """Settings and curve, as plain JSON values."""
        settings = {**asdict(self.settings), "prompts": len(self.settings.prompts)}
        curve = [asdict(point) for point in self.curve]
        return {"schema_version": SCHEMA_VERSION, "settings": settings, "seconds": self.seconds, "curve": curve}

    def _picks(self, count: int) -> list[int]:
        """The sequences of this step: each once, in an order that changes, before any comes again."""
        s, picks = self.settings, []
        for n in range(self.step * s.batch, (self.step + 1) * s.batch):
            generator = torch.Generator().manual_seed(s.seed + n // count)
            picks.append(int(torch.randperm(count, generator=generator)[n % count]))
        return picks

    def _take_step(self, picks: list[int], sequences: Sequences) -> float:
        s = self.settings
        mine = picks[self.rank :: self.ranks]
        prepared = self.pipe.prepare([s.prompts[i % len(s.prompts)] for i in mine], 1)
        teacher = read(prepared, sequences.tokens[mine], sequences.features_of(mine))
        # Matrix products in bf16, twice as fast where it matters; distributions and losses are float32 all the same.
        with torch.autocast(teacher.tokens.device.type, torch.bfloat16, enabled=s.kind != "small"):
            loss = loss_of(self.model, prepared, teacher, s)
        self._optimiser.zero_grad()
        loss.backward()
        value = self._share(loss.item())
        if not value < float("inf"):
            raise ModelError(f"the loss of step {self.step + 1} is {value}; use a smaller --lr")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self._optimiser.param_groups:
            group["lr"] = s.lr * rate(self.step, s.steps)
        self._optimiser.step()
        return value

    def _share(self, loss: float) -> float:
        """The mean over processes of the gradients, in place, and of the loss."""
        if self.ranks == 1:
            return loss
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten().cpu() for g in gradients] + [torch.tensor([loss])])
        torch.distributed.all_reduce(flat)
        flat /= self.ranks
        for gradient, mean in zip(gradients, flat[:-1].split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
        return float(flat[-1])

    def _measure(self, on_point: Callable[[Point], None] | None) -> None:
        """Adds a point to the curve; all processes measure the same, so that none waits."""
        found = worth(self.pipe, self.model, self.settings)
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        self.curve.append(Point(self.step, loss, found.by_position, found.tokens_per_call))
        if on_point is not None:
            on_point(self.curve[-1])

    def _save(self) -> None:
        if self.rank:
            return
        state = {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self._losses,
            "curve": [asdict(point) for point in self.curve],
        }
        with replacing(self._checkpoint) as partial:
            torch.save(state, partial)

    def _saved(self) -> dict[str, Any] | None:
        """The checkpoint of an earlier run, if there is one.

        Raises:
            ArgumentError: When it is of another.
        """
        if not self._checkpoint.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ArgumentError(f"-o/--output: '{self._checkpoint}' cannot be read; delete it: {error}") from None
        mine, other = asdict(self.settings), state["settings"]
        if different := [name for name in mine if other.get(name) != mine[name]]:
            raise ArgumentError(
                f"-o/--output: '{self.folder}' holds a training with another {' and '.join(different)}; "
                "name another folder, or delete it"
            )
        return state


def rate(step: int, steps: int) -> float:
    """The share of the learning rate that a step gets."""
    warm = max(round(_WARM_UP * steps), 1)
    return min((step + 1) / warm, (steps - step) / max(steps - warm, 1))


def new_model(pipe: Pipe, settings: Settings) -> Any:
    """An untrained drafter.

    Raises:
        ArgumentError: When the target cannot have one of that kind.
    """
    if settings.kind == "small":
        return pipe.new_small()
    prepared = pipe.prepare(settings.held_out[:1], 1)
    target = feature_target(prepared)
    with torch.no_grad():
        target.prefill()
        dim, layout = target.features().shape[-1], prepared.layout
    if settings.kind == "medusa":
        return MedusaHeads(target.vocab_size, dim, settings.depth).to(target.device)
    heads = next(h for h in range(max(dim // 64, 1), 0, -1) if dim % (4 * h) == 0)
    grid = isqrt(layout.length)
    square = layout.width == grid and grid * grid == layout.length
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = EagleHead(
            target.vocab_size,
            dim,
            settings.hidden or -(-8 * dim // 3 // 32) * 32,
            heads,
            rope_theta=100.0 if square else 10000.0,
            grid_size=grid if square else None,
            max_position_embeddings=layout.length,
        )
        head.init_weights()
        if prepared.embedding is not None:
            head.embed_tokens.weight.data.copy_(prepared.embedding)
    return head.to(target.device)


def loss_of(model: Any, prepared: Prepared, teacher: TeacherOutput, settings: Settings) -> Tensor:
    """The loss of one batch."""
    loss = LOSSES[settings.loss]
    if isinstance(model, EagleHead):
        return eagle_loss(model, teacher, loss, settings.depth)
    if isinstance(model, MedusaHeads):
        return medusa_loss(model, teacher, loss)
    return small_loss(model, prepared, teacher, loss)


def worth(pipe: Pipe, model: nn.Module, settings: Settings) -> Acceptance:
    """What a drafter is worth on the held-out prompts."""
    recipe = parse(KINDS[settings.kind]).with_knobs(window=settings.depth + 1)
    prepared = with_drafter(pipe.prepare(settings.held_out, recipe.window), model, settings.kind)
    return measure(prepared, recipe, [settings.seed - 1 - i for i in range(len(settings.held_out))])


def with_drafter(prepared: Prepared, model: Any, kind: str) -> Prepared:
    """The same prompts with this drafter instead of the pipeline's own."""
    if kind != "small":
        return replace(prepared, resources=replace(prepared.resources, heads={kind: model}))
    assert prepared.small_target is not None
    make = prepared.small_target
    return replace(prepared, resources=replace(prepared.resources, draft_model=lambda: make(model)))


def split_prompts(prompts: Sequence[str], held_out: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Prompts to train on, and the last `held_out` to measure on.

    Raises:
        ArgumentError: For too few.
    """
    if len(prompts) <= held_out:
        raise ArgumentError(f"--held-out: {held_out} of {len(prompts)} prompts leaves none to train on")
    return tuple(prompts[:-held_out]), tuple(prompts[-held_out:])
