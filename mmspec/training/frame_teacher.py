"""Targets whose frames a head can be trained on."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from mmspec.decoding.target import FrameFeatureTarget
from mmspec.errors import ArgumentError
from mmspec.training.prepared import PreparedPrompts


@runtime_checkable
class FrameTeacher(FrameFeatureTarget, Protocol):
    """A target that frame heads can be trained for; its largest token ends a row.

    Attributes:
        temperatures: float32 [K], the temperature of each token of a frame, 1 for greedy ones.
    """

    temperatures: Tensor

    def teach(self, frames: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Features [B, n, D] and distributions float32 [B, n, K, V] of the frames number `start` to `end - 1`.

        The distributions are those that the tokens are sampled from, but without top-k and top-p.

        Args:
            frames: int64 [B, F, K], a sequence per row; called once, before the prefill.
            start: The first frame of the span.
            end: The frame after its last one.
        """
        ...


def frame_teacher(prepared: PreparedPrompts) -> FrameTeacher:
    """The target of a batch of prompts.

    Raises:
        ArgumentError: If it does not generate frames with a depth decoder.
    """
    target = prepared.make()
    if not isinstance(target, FrameTeacher):
        raise ArgumentError(
            f"--kind frame is for models whose frames have a depth decoder; {type(target).__name__} has none"
        )
    return target
