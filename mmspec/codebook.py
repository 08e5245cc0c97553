"""Similarity of tokens: nearest neighbors, groups of similar tokens, and clusters in a model's codebook.

Only the k nearest tokens are stored, as int32. Computing a table takes seconds for a large codebook, so it is cached on
disk under the hash of the codebook: in `$MMSPEC_CACHE`, by default `~/.cache/mmspec`.
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
from mmspec.files.folders import replacing_inside

_CHUNK = 2**24  # distances computed at a time: 64 MiB
_MIN_CACHED = 2**22  # number of distances from which on a table is cached on disk
_ITERATIONS = 25  # of k-means
_MAX_RECENT = 16  # tables held in memory, so that not every call of a pipeline reads them again
_recent: dict[str, Tensor] = {}


class Codebook:
    """The codebook vectors of a model's tokens.

    Args:
        vectors: float [K, D], the entries of a VQ, EnCodec, DAC or Mimi codebook, or the digits of FSQ codes.
        tokens: int64 [K], the token of each entry; None if entry i is token i.
        vocab_size: V, the number of tokens of the model; tokens without an entry have no neighbors. None: K.

    Attributes:
        vectors: float32 [V, D], the vector of each token; zeros for tokens without an entry.
        known: bool [V], whether a token has an entry.

    Raises:
        ArgumentError: If `vectors` has another shape or contains infinities or NaN.
    """

    def __init__(self, vectors: Tensor, tokens: Tensor | None = None, vocab_size: int | None = None) -> None:
        if vectors.ndim != 2 or not bool(vectors.isfinite().all()):
            raise ArgumentError(f"vectors has shape {list(vectors.shape)}; it must be [K, D], of finite numbers")
        vectors = vectors.detach().float()
        tokens = torch.arange(len(vectors)) if tokens is None else tokens
        tokens = tokens.to(vectors.device)
        size = len(vectors) if vocab_size is None else vocab_size
        self.vectors = vectors.new_zeros(size, vectors.shape[1]).index_copy_(0, tokens, vectors)
        self.known = torch.zeros(size, dtype=torch.bool, device=vectors.device).index_fill_(0, tokens, True)

    def digest(self) -> str:
        """A hash of the entries, in hexadecimal."""
        content = hashlib.sha256(f"{list(self.vectors.shape)}".encode())
        for part in (self.vectors, self.known):
            content.update(part.cpu().contiguous().numpy().tobytes())
        return content.hexdigest()


def require_codebook(codebook: Codebook | None) -> Codebook:
    """Returns the codebook of a model that an acceptance rule needs.

    Raises:
        ArgumentError: If the model has no codebook.
    """
    if codebook is None:
        raise ArgumentError("the acceptance rule needs the model's codebook, and this model has none")
    return codebook


def nearest(codebook: Codebook, k: int) -> Tensor:
    """The k nearest other tokens of each token by Euclidean distance, nearest first.

    Returns:
        int32 [V, min(k, K - 1)]; the row of a token without an entry is filled with the token itself.
    """
    k = max(min(k, int(codebook.known.sum()) - 1), 0)
    return _cached(codebook, f"nearest{k}", lambda: _nearest(codebook.vectors, codebook.known, k))


def similar(codebook: Codebook, size: int, theta: float) -> Tensor:
    """For each token, itself and at most `size` others whose vectors have a cosine above `theta` with its own.

    Two tokens are similar only if each is among the `size` most similar ones of the other, so the relation is
    symmetric.

    Returns:
        int32 [V, size + 1], filled with -1 at the end.
    """

    def compute() -> Tensor:
        unit = torch.nn.functional.normalize(codebook.vectors, dim=-1)
        near = _nearest(unit, codebook.known, max(min(size, int(codebook.known.sum()) - 1), 0)).long()
        itself = torch.arange(len(unit), device=unit.device)[:, None]
        cosine = (unit[near] * unit[itself]).sum(-1)
        mutual = (near[near] == itself[..., None]).any(-1)  # [V, size]
        others = torch.where(mutual & (cosine > theta) & (near != itself), near, -1)
        return torch.cat([itself, others.sort(dim=-1, descending=True).values], dim=1).int()

    return _cached(codebook, f"similar{size}-{theta}", compute)


def kmeans(codebook: Codebook, size: int) -> Tensor:
    """The k-means cluster of each token, for clusters of `size` tokens on average.

    The first centers are a sample of the entries with a fixed seed, so that a codebook always gives the same clusters.

    Returns:
        int32 [V]; each token without an entry is a cluster of its own.
    """

    def compute() -> Tensor:
        entries = codebook.known.nonzero()[:, 0]
        points = codebook.vectors[entries]
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0)).to(points.device)
        centers = points[order[: -(-len(points) // size)]].clone()
        cluster = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        for _ in range(_ITERATIONS if len(points) else 0):
            parts = points.split(max(_CHUNK // max(len(centers), 1), 1))
            found = torch.cat([torch.cdist(part, centers).argmin(1) for part in parts])
            if torch.equal(found, cluster):
                break
            cluster = found
            counts = cluster.bincount(minlength=len(centers))[:, None]
            sums = torch.zeros_like(centers).index_add_(0, cluster, points)
            centers = torch.where(counts > 0, sums / counts, centers)
        # Numbers from V on are those of clusters of entries.
        table = torch.arange(len(codebook.known), device=points.device)
        table[entries] = cluster + len(table)
        return table.int()

    return _cached(codebook, f"kmeans{size}", compute)


def _nearest(vectors: Tensor, known: Tensor, k: int) -> Tensor:
    """The k nearest tokens, int32 [V, k], computed in chunks of rows so that memory stays bounded."""
    entries = known.nonzero()[:, 0]
    points = vectors[entries]
    table = torch.arange(len(vectors), dtype=torch.int32, device=vectors.device)[:, None].repeat(1, k)
    for rows in torch.arange(len(points), device=points.device).split(max(_CHUNK // max(len(points), 1), 1)):
        # Not from matrix products: cancellation would change the order of close neighbors.
        gap = torch.cdist(points[rows], points, compute_mode="donot_use_mm_for_euclid_dist")
        gap[torch.arange(len(rows)), rows] = torch.inf
        found = gap.topk(k, largest=False, sorted=True).indices
        table[entries[rows]] = entries[found].int()
    return table


def _cached(codebook: Codebook, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """Returns the table from memory or disk, or computes and stores it; concurrent processes write the same file."""
    key = f"{name}-{codebook.digest()}"
    if key in _recent:
        return _recent[key].to(codebook.vectors.device)
    table = _load_or_compute(codebook, key, compute)
    _recent[key] = table
    while len(_recent) > _MAX_RECENT:
        _recent.pop(next(iter(_recent)))
    return table


def _load_or_compute(codebook: Codebook, key: str, compute: Callable[[], Tensor]) -> Tensor:
    """Returns the table from disk, or computes and stores it; small tables are not stored."""
    if int(codebook.known.sum()) ** 2 < _MIN_CACHED:
        return compute()
    folder = Path(os.environ.get("MMSPEC_CACHE") or Path.home() / ".cache" / "mmspec")
    path = folder / f"{key}.safetensors"
    try:
        return load_file(path)["table"].to(codebook.vectors.device)
    except (OSError, SafetensorError, KeyError):
        table = compute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing_inside(folder, path.name) as partial:
            save_file({"table": table.cpu().contiguous()}, partial)
    except (OSError, ArgumentError):
        pass  # without a writable cache only time is lost
    return table
