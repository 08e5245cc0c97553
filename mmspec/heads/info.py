"""What the tables know of a kind of trained drafter. This module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HeadInfo:
    """A kind of trained drafter, a `mmspec.heads.head.Head`.

    Its class has a method `toy(cls, sizes)`, which makes one with random weights for `mmspec check`; see
    `mmspec.heads.head.ToySizes`.

    Attributes:
        head: Its class, or "module:class".
        saved: A key of its `config.json` that that of no other kind has.
        runner: A `mmspec.drafters.runners.BuildRunner`, or "module:function"; "" if only a recipe of its own reads it.
        continues: Whether the knobs `start` and `refresh` may name it.
        speculators: The arguments of its class for a folder and its configuration, or "module:function", by an
            algorithm of the package `speculators`.
        frames: Whether it reads features of frames; see `mmspec.decoding.target.FrameFeatureTarget`.
    """

    head: str | type[Any]
    saved: str
    runner: str | Callable[..., Any] = ""
    continues: bool = False
    frames: bool = False
    speculators: Mapping[str, str | Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """A kind of drafter that is made for a model by `mmspec train-drafter`.

    Attributes:
        where: "module:attribute" of its `mmspec.training.drafter_kind.DrafterKind`; with `write` of a function
            (pipe, settings, output, on_chunk, on_point) that writes the drafter without training.
        noun: The drafter in messages, such as "block head", if its features cannot be compared; else "".
        depth: The number of tokens ahead by default; of frames, if it drafts frames.
        chain: Whether it drafts chains in training, which the loss "lk" is for.
        online: Whether it can go on learning from what a server generates.
        write: Whether it needs no training.
    """

    where: str
    noun: str = ""
    depth: int = 4
    chain: bool = True
    online: bool = False
    write: bool = False
