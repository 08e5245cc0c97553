"""What `mmspec train-drafter` knows of a kind before anything is imported that takes long."""

from __future__ import annotations

from dataclasses import dataclass


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
