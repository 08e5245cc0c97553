"""The settings of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.training.prepared import PreparedPrompts, TrainablePipeline


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that determines the result of a training.

    Attributes:
        kind: "eagle", "eagle3", "small", or a name in `mmspec.methods.trained.TRAINED`.
        loss: A name in `LOSSES`.
        prompts: Prompts to train on.
        held_out: Prompts to measure acceptance on.
        sequences: Number of training sequences; the target generates them from the prompts in turn.
        steps: Number of AdamW updates.
        batch: Sequences per update, over all processes.
        lr: Peak learning rate of AdamW, which rises linearly at first and then decays linearly to 0.
        depth: Number of draft depths that are trained (eagle), of heads (medusa, hydra), of tokens in a draft (block,
            grid, one-step), of prompt tokens, or of frames (frame).
        hidden: Width of the MLP of a head or an adapter; 0 for 8/3 of the feature width.
        seed: Seed of the sequences, the weights and the order of the sequences.
        keep_features: Whether the target's features are stored on disk, in float16, or recomputed in every step.
        rotary: "auto" for a 2-D rotary embedding where tokens fill a square, else 1-D; "1d" always for 1-D.
        mask_token: The token of the target that a block head reads as mask; it then keeps the target's embedding. None
            for an embedding of its own.
        init: Folder of the small model that training starts from; None for the pipeline's own, or a new one.
        layers: Number of layers of a block head or a one-step generator, or of the target's layers before a Kangaroo
            adapter.
        markov_rank: Rank of the sequential head of a block head; 0 for none.
        temperature: Temperature of the sequences and of the target distribution; None for the pipeline's default.
        guidance_scale: Guidance of both; None for the pipeline's default.
        reference: Folder of a trained small model; a small model then learns from some positions only, see
            `mmspec.training.objectives.improvable`. None for all positions.
        select: The share of these positions; None without a reference.
        speech_options: What else the tokens of a speech model depend on, by option and as JSON values: its codec, its
            options and its voice. None for the model as it is.
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
    layers: int = 2
    markov_rank: int = 64
    temperature: float | None = None
    guidance_scale: float | None = None
    rotary: str = "auto"
    mask_token: int | None = None
    reference: str | None = None
    select: float | None = None
    speech_options: Mapping[str, Any] | None = None

    def prepare(self, pipe: TrainablePipeline, prompts: Sequence[str], slack: int) -> PreparedPrompts:
        """Prompts that are ready to be decoded at these settings.

        Raises:
            ArgumentError: If the model generates columns or blocks, which no drafter is trained for.
        """
        prepared = pipe.prepare(prompts, slack, self.temperature, self.guidance_scale)
        if prepared.layout.cell:
            raise ArgumentError("--model: drafters are trained for single tokens; this model generates several at once")
        return prepared

    def __post_init__(self) -> None:
        if not 0 < self.lr <= 1:  # also refuses "nan", which older releases of typer let through
            raise ArgumentError(f"--lr: {self.lr} is not allowed; it must be above 0, and 1 at most")
        if self.reference is not None and self.kind != "small":
            raise ArgumentError(f"--reference requires --kind small; a drafter of kind '{self.kind}' learns from all")
