"""Judge decoding (arXiv 2501.19309): a classifier on the target's features accepts drafts that the test would reject.

The classifier of the paper is a linear layer on the target's last hidden state at the draft, trained on drafts that
people called good or bad; here a metric compares what follows from them (`mmspec.methods.judge.training`). Reflective
Verification (arXiv 2505.18629) asks the target itself by a prompt instead, which image and audio models cannot answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.acceptance import FeatureAccept
from mmspec.sampling.rejection import ratio

if TYPE_CHECKING:
    from mmspec.methods.judge.head import Judge


def judged(head: Judge | None, leniency: float) -> FeatureAccept:
    """The acceptance function of a trained judge.

    Args:
        head: The model's `Judge`.
        leniency: A draft with a score above 1 - leniency is accepted; 0 accepts none by its score and is exact.

    Raises:
        ArgumentError: If the model has no judge.

    The function raises a ModelError where the judge was trained on features of another width.
    """
    if head is None:
        raise ArgumentError(
            "the acceptance rule 'judge' needs a judge, and this model has none; 'mmspec train-judge' trains one, and "
            "add_drafter or --drafter adds it"
        )

    def accept(p: Tensor, q: Tensor, x: Tensor, h: Tensor) -> Tensor:
        chance = ratio(p, q, x)
        if not leniency:
            return chance
        if h.shape[-1] != head.hidden_size:
            raise ModelError(
                f"the judge reads features of {head.hidden_size} values, and this model's have {h.shape[-1]}; it was "
                "trained for another model"
            )
        # A token that top-k, top-p or a constraint has cut off is never accepted by its score.
        possible = p.gather(-1, x[..., None])[..., 0] > 0
        return chance.masked_fill((head(h) > 1 - leniency) & possible, 1.0)

    return accept
