"""The draft of a tree whose shape the host does not know."""

from __future__ import annotations

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree import DeviceShape, Siblings, Tree, TreeDraft, TreeDraws


def grown_tree(
    state: BatchState,
    shape: DeviceShape,
    height: int,
    window: Tensor,
    siblings: Siblings,
    draws: WindowRNG,
    iterations: Numbers,
) -> TreeDraft:
    """The draft of a tree on the device, with its positions and random numbers.

    Args:
        state: The batch, whose window is open.
        height: The largest depth that a node may have.
        window: int64 [B, 1 + m], the tokens of the entries.
        siblings: How siblings were sampled.
        draws: The random numbers of the open window, of `height` + 1 positions.
        iterations: [B, m], the iterations of the random numbers of the nodes.
    """
    tree, count = Tree.on_device(shape, None, height, chain=False), window.shape[1]
    if state.device.type == "cpu":  # the numbers of the host must be the device's
        after = Numbers(state.length[:, None] + tree.depth)
        at = Numbers(after.host[:, 1:] - 1)
    else:
        after = tree.positions_after(state.length, 0, count)
        at = Numbers(after.host[:, 1:] - 1, shape.at)
    return TreeDraft(tree, window[:, 1:], siblings, TreeDraws(tree, draws, after, at, iterations), window)
