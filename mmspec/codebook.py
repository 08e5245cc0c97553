"""Which tokens of a codebook lie next to each other.

Only the k nearest are kept, as int32. A table takes seconds for a large codebook, so it is kept on disk under the hash
of the codebook: in `$MMSPEC_CACHE`, else in `~/.cache/mmspec`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.files import replacing

_CHUNK = 2**24  # distances at a time: 64 MiB
_WORTH_KEEPING = 2**22  # distances from which on a table is kept on disk
_MOST_RECENT = 16  # tables kept in memory, so that every call of a pipeline need not read them again
_recent: dict[str, Tensor] = {}


class Codebook:
    """What each token stands for.

    `vectors` [V, D] and `known` [V] are by token.

    Args:
        vectors: float [K, D], the entries of a VQ, EnCodec, DAC or Mimi codebook, or the digits of FSQ codes.
        tokens: int64 [K], the token of each entry; None when entry i is token i.
        vocab_size: V, all tokens of the model; those without an entry have no neighbours. None: K.
    """

    def __init__(self, vectors: Tensor, tokens: Tensor | None = None, vocab_size: int | None = None) -> None:
        if vectors.ndim != 2 or not bool(vectors.isfinite().all()):
            raise ArgumentError(f"vectors has shape {list(vectors.shape)}; it must be [K, D], of finite numbers")
        vectors = vectors.detach().float()
        tokens = torch.arange(len(vectors)) if tokens is None else tokens
        size = len(vectors) if vocab_size is None else vocab_size
        self.vectors = vectors.new_zeros(size, vectors.shape[1]).index_copy_(0, tokens.to(vectors.device), vectors)
        self.known = torch.zeros(size, dtype=torch.bool, device=vectors.device).index_fill_(0, tokens, True)

    def digest(self) -> str:
        """A hash of the entries, hexadecimal."""
        content = hashlib.sha256(f"{list(self.vectors.shape)}".encode())
        for part in (self.vectors, self.known):
            content.update(part.cpu().contiguous().numpy().tobytes())
        return content.hexdigest()


def needed(codebook: Codebook | None) -> Codebook:
    """The codebook, where there is one.

    Raises:
        ArgumentError: When a rule asks which tokens are alike and the model cannot tell.
    """
    if codebook is None:
        raise ArgumentError("the acceptance rule needs the model's codebook, and this model brings none")
    return codebook


def nearest(codebook: Codebook, k: int) -> Tensor:
    """The k nearest other tokens of each, nearest first, by Euclidean distance.

    Returns:
        int32 [V, min(k, K - 1)]; a token without an entry has only itself.
    """
    k = max(min(k, int(codebook.known.sum()) - 1), 0)
    return _kept(codebook, f"nearest{k}", lambda: _nearest(codebook.vectors, codebook.known, k))


def similar(codebook: Codebook, size: int, theta: float) -> Tensor:
    """For each token itself and at most `size` others whose vectors have a cosine above `theta` with its own.

    Two tokens are similar when each is among the `size` most similar of the other, so that the relation is symmetric.

    Returns:
        int32 [V, size + 1], -1 after the last.
    """

    def compute() -> Tensor:
        unit = torch.nn.functional.normalize(codebook.vectors, dim=-1)
        around = _nearest(unit, codebook.known, max(min(size, int(codebook.known.sum()) - 1), 0)).long()
        itself = torch.arange(len(unit), device=unit.device)[:, None]
        cosine = (unit[around] * unit[itself]).sum(-1)
        mutual = (around[around] == itself[..., None]).any(-1)  # [V, size]
        others = torch.where(mutual & (cosine > theta) & (around != itself), around, -1)
        return torch.cat([itself, others.sort(dim=-1, descending=True).values], dim=1).int()

    return _kept(codebook, f"similar{size}-{theta}", compute)


def _nearest(vectors: Tensor, known: Tensor, k: int) -> Tensor:
    """Computed in chunks of rows, so that memory stays bounded."""
    entries = known.nonzero()[:, 0]
    points = vectors[entries]
    table = torch.arange(len(vectors), dtype=torch.int32, device=vectors.device)[:, None].repeat(1, k)
    for rows in torch.arange(len(points), device=points.device).split(max(_CHUNK // max(len(points), 1), 1)):
        # Not by way of products: cancellation would shuffle near neighbours.
        gap = torch.cdist(points[rows], points, compute_mode="donot_use_mm_for_euclid_dist")
        gap[torch.arange(len(rows)), rows] = torch.inf
        found = gap.topk(k, largest=False, sorted=True).indices
        table[entries[rows]] = entries[found].int()
    return table


def _kept(codebook: Codebook, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """The table from memory or disk, or computed and put there; processes that do so at once write the same file."""
    key = f"{name}-{codebook.digest()}"
    if key in _recent:
        return _recent[key].to(codebook.vectors.device)
    table = _from_disk(codebook, key, compute)
    _recent[key] = table
    while len(_recent) > _MOST_RECENT:
        _recent.pop(next(iter(_recent)))
    return table


def _from_disk(codebook: Codebook, key: str, compute: Callable[[], Tensor]) -> Tensor:
    if int(codebook.known.sum()) ** 2 < _WORTH_KEEPING:
        return compute()
    folder = Path(os.environ.get("MMSPEC_CACHE") or Path.home() / ".cache" / "mmspec")
    path = folder / f"{key}.safetensors"
    try:
        return load_file(path)["table"].to(codebook.vectors.device)
    except (OSError, SafetensorError, KeyError):
        table = compute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            save_file({"table": table.cpu().contiguous()}, partial)
    except (OSError, ArgumentError):
        pass  # a cache that cannot be written costs time, nothing else
    return table
