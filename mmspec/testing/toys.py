"""Toy models that are small enough to enumerate or to sample exhaustively, wrapped as targets.

They keep a cache of what they have read, so that a loop that forgets to roll back, or that reads a token at the wrong
position, gets other distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.codebook import Codebook
from mmspec.continuous.sampler import Gaussian, LatentModel
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit, spread_layers
from mmspec.drafters.ngram import NGramTable
from mmspec.environment.importing import resolve
from mmspec.heads.draft_vocabulary import restrict
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.heads.head import Head, ToySizes
from mmspec.registry import heads
from mmspec.sampling.logits import Logits
from mmspec.sampling.multi_codebook import entries
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rows import PerRow, RowNames
from mmspec.sampling.tree import Tree
from mmspec.ways_to_draft import ways_to_draft

FEATURES = 16  # width of the features of `ToyTarget`, and its largest vocabulary where features are used
FRAME = 2  # tokens of a frame of `ToyTarget`, for frame heads
LAYERS = 4  # of `ToyTarget` and `ColumnToy`


class ToyTarget:
    """A model whose logits are stored in a table, one row for each prefix of tokens.

    An early exit after n layers reads another table, so that first layers are a draft model of their own.

    Args:
        batch_size: B.
        vocab_size: V.
        length: Sequence length N.
        seed: Seed of the tables.
        guided: Whether the model has unconditional logits too.
        spread: Standard deviation of the logits.
        memory: Tokens M that a distribution depends on, the last ones; None for all. A table has a row for each prefix
            of up to M tokens, or N - 1.
    """

    ROWS: ClassVar[RowNames] = ("_number", PerRow("_features", latest=True), PerRow("_layer_features", latest=True))
    SAME = ("_sides",)

    forces_firsts = False

    def __init__(
        self,
        batch_size: int,
        vocab_size: int,
        length: int,
        seed: int,
        guided: bool = False,
        spread: float = 1.2,
        memory: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.length = length
        self.layers = LAYERS
        self.frame_size = FRAME
        self.short_cache = self.can_skip_layers = self.can_reuse_updates = True
        self.device = torch.device("cpu")
        # The row of the first prefix of each length, the number of rows, and that of prefixes that are told apart.
        self._first, rows, self._count = prefix_rows(vocab_size, length, memory)
        # The table of the whole model, then those of its first layer, of its first two layers, and so on.
        generators = [torch.Generator().manual_seed(s) for s in table_seeds(seed)]
        shape = rows, vocab_size
        self._sides = 1 + guided
        self._tables = [[torch.randn(shape, generator=g) * spread for _ in range(1 + guided)] for g in generators]
        self._features = self._layer_features = self._exit_features = torch.empty(0)
        self._collected: tuple[int, ...] = ()
        self._read = torch.empty(0, dtype=torch.int64)  # rows of the tables that the last full call has read, [B, W]
        # The cache: the prefix x_1 .. x_n, or its last M tokens, as a number in base V, by row and n.
        self._number = torch.zeros(batch_size, length + 1, dtype=torch.int64)

    def logits(self, length: Tensor, number: Tensor, early_exit: EarlyExit | None = None) -> Logits:
        """The logits after prefixes, given by their lengths and numbers."""
        # All layers with a short cache, or without some of them, are a draft model too, with the first layer's table.
        table = self._tables[0 if early_exit is None else early_exit.layers % LAYERS or 1]
        index = self._first[length] + number
        guided = len(table) > 1 and (early_exit is None or early_exit.guided)
        sides = [side[index] for side in table]
        if early_exit is not None and early_exit.reuse:
            # What the other layers add is the difference of the whole model and the first layer, at the old prefix.
            old, whole = [side[self._read] for side in table], [side[self._read] for side in self._tables[0]]
            states = [F.pad(torch.cat(x), (0, FEATURES - self.vocab_size)) for x in (sides, old, whole)]
            sides = list(early_exit.after_gap(*states)[..., : self.vocab_size].chunk(len(table)))
        elif early_exit is None:
            self._read = index
        logits = Logits(sides[0], sides[1] if guided else None)
        if early_exit is not None:
            self._exit_features = logits.cond if logits.uncond is None else torch.cat([logits.cond, logits.uncond])
        if early_exit is None:
            self._features = logits.cond if logits.uncond is None else torch.cat([logits.cond, logits.uncond])
            if self._collected:
                tables = [self._tables[n % LAYERS] for n in self._collected]  # LAYERS is the whole model
                found = [torch.cat([side[index] for side in table]) for table in tables]
                padded = [F.pad(x, (0, FEATURES - self.vocab_size)) for x in found]
                self._layer_features = torch.cat(padded, dim=-1)
        return logits

    def features(self) -> Tensor:
        """The logits of the last call, padded to `FEATURES`."""
        return F.pad(self._features, (0, FEATURES - self.vocab_size))

    def exit_features(self) -> Tensor:
        """The logits of the last early exit, padded to `FEATURES`."""
        return F.pad(self._exit_features, (0, FEATURES - self.vocab_size))

    @property
    def fused_layers(self) -> tuple[int, ...]:
        return spread_layers(LAYERS)

    def collect_layers(self, layers: Sequence[int]) -> None:
        """The layers are 1 to `LAYERS`."""
        self._collected = tuple(layers)

    def layer_features(self) -> Tensor:
        """The logits of early exits after the last call, padded to `FEATURES` each."""
        return self._layer_features

    def head(self, features: Tensor) -> Tensor:
        return features[..., : self.vocab_size]

    def frame_features(self, frames: NDArray[np.int64]) -> Tensor:
        """The logits of the first token of each frame, padded to `FEATURES`."""
        length = torch.from_numpy(frames * FRAME).clamp(max=self.length - 1)
        number = self._number.gather(1, length[:, None])[:, 0]
        return F.pad(self._tables[0][0][self._first[length] + number], (0, FEATURES - self.vocab_size))

    def frame_logits(self, logits: Tensor, books: NDArray[np.int64]) -> Tensor:
        return logits

    def forced_firsts(self, firsts: Tensor, counts: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(firsts), -1)

    def prefill(self) -> Logits:
        start = torch.zeros(len(self._number), 1, dtype=torch.int64)
        return self.logits(start, start)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        row_ids = torch.arange(len(tokens))
        start = torch.from_numpy(at)
        number = self._number[row_ids, start.clamp(max=self.length)]
        lengths, numbers = [], []
        for i in range(tokens.shape[1]):
            length = (start + i + 1).clamp(max=self.length)
            longer = (number * self.vocab_size + tokens[:, i]) % self._count
            number = torch.where(start + i < self.length, longer, number)
            self._number[row_ids, length] = number
            inside = length < self.length  # past the end there is no distribution, and any row serves
            lengths.append(torch.where(inside, length, 0))
            numbers.append(torch.where(inside, number, 0))
        return self.logits(torch.stack(lengths, 1), torch.stack(numbers, 1), early_exit)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        row_ids, width = np.arange(len(tokens)), tokens.shape[1]
        tokens = tokens % self.vocab_size  # see `read_prompts`
        parents = np.broadcast_to(tree.parents, (len(tokens), tree.parents.shape[1]))
        if (missing := int(at.max()) + first + width + 1 - self._number.shape[1]) > 0:
            self._number = F.pad(self._number, (0, missing))
        lengths, numbers = [], []
        for i in range(width):
            entry = first + i
            # The prefix of an entry is that of its parent and the parent's token.
            before = at if entry == 0 else at + 1 + parents[:, entry - 1]
            length = torch.from_numpy(at + 1 + tree.depth[:, entry])
            number = self._number[row_ids, before]
            longer = (number * self.vocab_size + tokens[:, i]) % self._count
            number = torch.where(length <= self.length, longer, number)
            self._number[row_ids, at + 1 + entry] = number
            inside = length < self.length
            lengths.append(torch.where(inside, length, 0))
            numbers.append(torch.where(inside, number, 0))
        return self.logits(torch.stack(lengths, 1), torch.stack(numbers, 1), early_exit)

    def read_prompts(self, embeddings: Tensor) -> None:
        """Prompt token i is read as token i modulo V, whatever its embedding."""

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        row_ids, steps = np.arange(len(path))[:, None], np.arange(1, 1 + path.shape[1])
        self._number[row_ids, at[:, None] + 1 + steps] = self._number[row_ids, at[:, None] + 1 + path]


class ColumnToy:
    """A model of columns of several cells whose logits are stored in a table, one row for each prefix of columns.

    An early exit after n layers reads another table, as in `ToyTarget`.

    Args:
        batch_size: B.
        vocab_size: Entries V of a cell.
        codebooks: Cells K of a column.
        length: Sequence length N.
        seed: Seed of the tables.
        guided: Whether the model has unconditional logits too.
        spread: Standard deviation of the logits.
        memory: Columns that a distribution depends on, the last ones; None for all.
    """

    ROWS = ("_number",)
    SAME = ("_sides",)

    def __init__(
        self,
        batch_size: int,
        vocab_size: int,
        codebooks: int,
        length: int,
        seed: int,
        guided: bool = False,
        spread: float = 1.2,
        memory: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.codebooks = codebooks
        self.length = length
        self.layers = LAYERS
        self.device = torch.device("cpu")
        self.columns = vocab_size**codebooks
        self._first, rows, self._count = prefix_rows(self.columns, length, memory)
        shape = rows, codebooks, vocab_size
        generators = [torch.Generator().manual_seed(s) for s in table_seeds(seed)]
        self._sides = 1 + guided
        self._tables = [[torch.randn(shape, generator=g) * spread for _ in range(1 + guided)] for g in generators]
        # The cache: the prefix of n columns as a number in base V**K, by row and n.
        self._number = torch.zeros(batch_size, length + 1, dtype=torch.int64)

    def number(self, tokens: Tensor) -> Tensor:
        """Columns int64 [..., K] as numbers in base V, int64 [...]."""
        place = self.vocab_size ** torch.arange(self.codebooks - 1, -1, -1)
        return (entries(tokens, self.vocab_size) * place).sum(-1)

    def all_columns(self) -> Tensor:
        """All columns in the order of their numbers, int64 [V**K, K]."""
        return torch.cartesian_prod(*[torch.arange(self.vocab_size)] * self.codebooks).view(self.columns, -1)

    def logits(self, length: Tensor, number: Tensor, early_exit: EarlyExit | None = None) -> Logits:
        """The logits after prefixes, given by their lengths and numbers."""
        table = self._tables[0 if early_exit is None else early_exit.layers]
        index = self._first[length] + number
        guided = len(table) > 1 and (early_exit is None or early_exit.guided)
        return Logits(table[0][index], table[1][index] if guided else None)

    def prefill(self) -> Logits:
        start = torch.zeros(len(self._number), 1, dtype=torch.int64)
        return self.logits(start, start)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        row_ids, start = torch.arange(len(tokens)), torch.from_numpy(at)
        number = self._number[row_ids, start.clamp(max=self.length)]
        lengths, numbers = [], []
        for i, column in enumerate(self.number(tokens).unbind(1)):
            length = (start + i + 1).clamp(max=self.length)
            longer = (number * self.columns + column) % self._count
            number = torch.where(start + i < self.length, longer, number)
            self._number[row_ids, length] = number
            inside = length < self.length  # past the end there is no distribution, and any row serves
            lengths.append(torch.where(inside, length, 0))
            numbers.append(torch.where(inside, number, 0))
        return self.logits(torch.stack(lengths, 1), torch.stack(numbers, 1), early_exit)


def prefix_rows(vocab_size: int, length: int, memory: int | None) -> tuple[Tensor, int, int]:
    """The rows of a toy's tables, one for each prefix of up to N - 1 tokens; longer ones than M share those of M.

    Args:
        vocab_size: V.
        length: N.
        memory: M; None for N.

    Returns:
        The first row of prefixes of each length, int64 [N]; the number of rows; the largest number of a prefix plus 1.
    """
    longest = length if memory is None else min(memory, length)
    starts = np.cumsum([0] + [vocab_size**n for n in range(min(longest + 1, length))])
    return torch.from_numpy(starts[np.arange(length).clip(max=longest)]), int(starts[-1]), vocab_size**longest


def table_seeds(seed: int) -> Sequence[int]:
    """Seeds of a toy's tables: of the whole model, then of its first layer, of its first two layers, and so on."""
    return seed, *range(seed + 10**6, seed + 10**6 + LAYERS - 1)


@lru_cache(maxsize=32)
def toy_heads(vocab_size: int, width: int | None, seed: int) -> Mapping[str, Head]:
    """Draft heads for `ToyTarget`, with random weights so that their output depends on all of their input.

    Building them takes longer than decoding a row, so that equal arguments give the same heads.

    Args:
        vocab_size: V.
        width: Tokens per image row, for a 2-D rotary embedding; None for a 1-D one.
        seed: Seed of the weights.
    """
    sizes = ToySizes(vocab_size, FEATURES, width, LAYERS, FRAME)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {name: resolve(info.head).toy(sizes) for name, info in heads().usable().items()}


def toy_models(vocab_size: int, layout: Layout, seed: int) -> Mapping[str, Callable[..., Any]]:
    """The models of `DraftResources.models`, which recipes make for this."""
    return {
        name: partial(_toy_model, info.toy, vocab_size, layout, seed)
        for name, info in ways_to_draft().usable().items()
        if info.toy
    }


def _toy_model(where: str, vocab_size: int, layout: Layout, seed: int) -> Any:
    return resolve(where)(vocab_size, layout, seed)


def toy_eagle3(vocab_size: int, seed: int, draft_vocab_size: int | None = None) -> Eagle3Head:
    """An EAGLE-3 head for `ToyTarget`, with random weights; it drafts the last `draft_vocab_size` tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(
            vocab_size, FEATURES, 24, 4, 2, layer_ids=(1, 2, 4), draft_vocab_size=draft_vocab_size, prefix=1
        )
        for p in head.parameters():
            torch.nn.init.normal_(p, std=0.35)
    if head.d2t is not None and head.t2d is not None:
        restrict(head.d2t, head.t2d, torch.arange(vocab_size - head.draft_vocab_size, vocab_size))
    return head.eval()


def toy_resources(
    batch_size: int, vocab_size: int, layout: Layout, seed: int, sampling: Sequence[SamplingParams]
) -> DraftResources:
    """Everything that drafters and rules may use with `ToyTarget`, at random: the draft model is another toy.

    Args:
        batch_size: B.
        vocab_size: V.
        layout: Layout of the sequences.
        seed: Seed of the resources.
        sampling: Sampling parameters of the draft model, one per row.
    """
    generator = torch.Generator().manual_seed(seed)
    table = NGramTable(torch.randint(vocab_size, (vocab_size + 1, vocab_size), generator=generator))
    codebook = Codebook(torch.randn(vocab_size, 2, generator=generator))
    return DraftResources(
        table,
        partial(ToyTarget, batch_size, vocab_size, layout.length, seed + 1000),
        sampling,
        lambda: codebook,
        heads=dict(toy_heads(vocab_size, layout.width, seed)),
        guided_draft_model=partial(ToyTarget, batch_size, vocab_size, layout.length, seed + 1000, True),
        models=toy_models(vocab_size, layout, seed + 2000),
    )


def toy_codebooks(vocab_size: int, codebooks: int, seed: int) -> list[Codebook]:
    """A random codebook for each cell of `ColumnToy`, of vectors in two dimensions."""
    generator = torch.Generator().manual_seed(seed)
    return [Codebook(torch.randn(vocab_size, 2, generator=generator)) for _ in range(codebooks)]


class ToyBackbone:
    """A backbone of latents with the state h_n = tanh(h_(n-1) @ A + x_n @ B), cached by position.

    Args:
        batch_size: B.
        dim: D, of latents and state.
        length: Sequence length N.
        seed: Seed of A and B.
        spread: Scale of A and B: how strongly a latent changes the state.
    """

    ROWS = ("_states",)
    SAME = ()

    def __init__(self, batch_size: int, dim: int, length: int, seed: int, spread: float = 1.0) -> None:
        self.vocab_size = 0
        self.device = torch.device("cpu")
        generator = torch.Generator().manual_seed(seed)
        self._a, self._b = torch.randn(2, dim, dim, generator=generator) * spread / dim**0.5
        self._dim = dim
        self._states = torch.zeros(batch_size, length + 1, dim)

    def prefill(self) -> Logits:
        return Logits(self._states[:, :1], None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        row_ids, start = torch.arange(len(tokens)), torch.from_numpy(at)
        last = self._states.shape[1] - 1
        state, states = self._states[row_ids, start.clamp(max=last)], []
        for i in range(tokens.shape[1]):
            state = torch.tanh(state @ self._a + tokens[:, i, : self._dim] @ self._b)
            self._states[row_ids, (start + i + 1).clamp(max=last)] = state
            states.append(state)
        return Logits(torch.stack(states, dim=1), None)


class ToyHead:
    """A latent head of two steps for `ToyBackbone`: the mean of the last step depends on state and noise.

    Args:
        dim: D.
        shift: Added to every coordinate of the mean; the difference between the heads of draft and target.
        sigma: Standard deviation of the last step; 0 for a head that adds no noise there.
        path: Standard deviation of the first step, which only the rule `cspd` reads.
    """

    marks = 0

    def __init__(self, dim: int, shift: float = 0.0, sigma: float = 0.0, path: float = 1.0) -> None:
        self.dim = self.normals = dim
        self.shift = shift
        self.sigma = sigma
        self.path = path

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        h = logits.cond
        mean = 1.5 * h + 0.5 * self.path * noise * (1 + 0.5 * h) + self.shift
        dist = Gaussian.deterministic(mean)
        if not self.sigma:
            return dist
        log_sigma = torch.full_like(mean, float(np.log(self.sigma)))
        return Gaussian(mean, log_sigma, torch.full_like(dist.path, self.dim * float(np.log(self.path))), dist.marks)


def toy_latent_resources(batch_size: int, dim: int, length: int, seed: int, draft: ToyHead) -> DraftResources:
    """Everything that drafters may use with `ToyBackbone`: backbones with a weaker state, and the head `draft`."""

    def model(spread: float) -> LatentModel:
        return LatentModel(ToyBackbone(batch_size, dim, length, seed, spread), draft)

    return DraftResources(
        latent_models={
            "draft": lambda _: model(0.9),
            "layer-skip": lambda _: model(0.8),
            "few-steps": lambda _: model(1),
        }
    )
