"""The loop for drafts that branch; `mmspec.loop.decode` is the one for windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from mmspec.law import Law
from mmspec.loop import OnStep, keep_all
from mmspec.noise import ACCEPT, REDRAW
from mmspec.rows import Rows
from mmspec.rules import Accept
from mmspec.rules.looking import look
from mmspec.stats import Meter
from mmspec.tree import TreeDraft, TreeTarget
from mmspec.tree_verify import TreeVerdict, verify_tree
from mmspec.verify import Draft

TreeTest = Callable[[Tensor, TreeDraft, Accept, Tensor, Tensor], TreeVerdict]


class TreeDrafter(Protocol):
    """Proposes trees; knows neither the target nor the rule."""

    @property
    def calls(self) -> int:
        """Calls of a model of its own."""
        ...

    def propose(self, rows: Rows, iteration: int) -> TreeDraft:
        """Drafts what may follow the last token of each row, of which there is at least one.

        Random numbers are those of `rows.noise` in this `iteration`, of the stream DRAFT.
        """
        ...

    def observe(self, verdict: TreeVerdict, rows: Rows) -> None:
        """Learns what became of the draft; `rows` still stand where the window began."""
        ...

    def keep(self, rows: list[int]) -> None:
        """Drops all rows but these."""
        ...


def decode_tree(
    target: TreeTarget,
    drafter: TreeDrafter,
    rule: Accept,
    law: Law,
    rows: Rows,
    meter: Meter,
    on_step: OnStep | None,
    test: TreeTest = verify_tree,
) -> None:
    """Draft a tree and verify it in one target call, until every row is done.

    Entries behind the end of a row are read and ignored: were trees cut there, a row would depend on its mates.

    **Arguments:**

    - `target`, `drafter`, `rule`, `law`: which know nothing of each other.
    - `rows`: the batch; holds the result afterwards.
    - `meter`: counts calls, tokens and seconds.
    - `on_step`: called after every target call. What it raises leaves the loop.
    - `test`: how siblings are tested.
    """
    meter.clock.lap("other")
    logits = target.prefill()
    meter.clock.lap("target")
    start = rows.positions(1)
    nothing = Draft(torch.empty(0), torch.empty(0))
    first = law.verify(law(logits, start), nothing, rule, rows.noise.window(start, 0))
    meter.clock.lap("rule")
    gained = rows.commit(first.tokens, first.accepted)
    meter.count(first, gained, rows.ids)
    while True:
        if on_step is not None:
            on_step(rows.step(meter.nfe))
        running = rows.running()
        if not running:
            return
        if len(running) < len(gained):
            keep_all(running, rows, target, None, law)
            drafter.keep(running)
        meter.clock.lap("other")
        draft = drafter.propose(rows, meter.nfe)
        meter.clock.lap("drafter")
        tree, at = draft.tree, rows.length - 1
        logits = target.forward_tree(torch.cat([rows.last(), draft.tokens], dim=1), at, tree)
        meter.clock.lap("target")
        p = law(logits, rows.length[:, None] + tree.depth)
        accept_u = tree.uniforms(rows, meter.nfe)[ACCEPT]
        redraw_u = rows.noise.uniforms(rows.positions(tree.height + 1), meter.nfe)[REDRAW]
        verdict = test(p, draft, look(rule, target, len(rows.ids)), accept_u, redraw_u)
        meter.clock.lap("rule")
        target.settle(at, verdict.path)
        meter.clock.lap("target")
        drafter.observe(verdict, rows)
        meter.clock.lap("drafter")
        gained = rows.commit(verdict.tokens, verdict.accepted)
        meter.count(verdict, gained, rows.ids)
