"""The protocol of extractors: a name and a fingerprint, which identify networks in results and reference files."""

from __future__ import annotations

import hashlib
from typing import Protocol

import torch


class NamedExtractor(Protocol):
    """A network with a name.

    Attributes:
        name: The part after @ in names of metrics, such as "clip".
        fingerprint: Changes with the weights; features of different fingerprints must not be compared.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


def identity(extractor: NamedExtractor) -> str:
    """Name and fingerprint in one word, as results and reference files hold it."""
    return f"{extractor.name}-{extractor.fingerprint}"


def fingerprint_of(module: torch.nn.Module) -> str:
    """The first 12 digits of the SHA-256 of a module's weights and buffers, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
