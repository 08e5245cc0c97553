"""The weights of FID's Inception from the TensorFlow graph that ADM's evaluator reads (classify_image_graph_def.pb).

They equal the weights of torch-fidelity's file, under other names and with other orders of axes. A frozen graph is a
protocol buffer; only the fields that hold weights are parsed here, so that TensorFlow is not needed:
GraphDef.node = 1, NodeDef {name = 1, op = 2, attr = 5}, an entry of that map {key = 1, value = 2},
AttrValue.tensor = 8, TensorProto {dtype = 1, shape = 2, content = 4, floats = 5}, shape.dim = 2, dim.size = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.errors import ModelError
from mmspec.files.inputs import read_bytes

Weights = dict[str, NDArray[np.float32]]
_FLOAT = 1

_STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
# For each kind of block, the graph's name of each convolution -> torch-fidelity's.
_A = {
    "conv": "branch1x1", "tower/conv": "branch5x5_1", "tower/conv_1": "branch5x5_2", "tower_1/conv": "branch3x3dbl_1",
    "tower_1/conv_1": "branch3x3dbl_2", "tower_1/conv_2": "branch3x3dbl_3", "tower_2/conv": "branch_pool",
}  # fmt: skip
_B = {
    "conv": "branch3x3", "tower/conv": "branch3x3dbl_1", "tower/conv_1": "branch3x3dbl_2",
    "tower/conv_2": "branch3x3dbl_3",
}  # fmt: skip
_C = {
    "conv": "branch1x1", "tower/conv": "branch7x7_1", "tower/conv_1": "branch7x7_2", "tower/conv_2": "branch7x7_3",
    "tower_1/conv": "branch7x7dbl_1", "tower_1/conv_1": "branch7x7dbl_2", "tower_1/conv_2": "branch7x7dbl_3",
    "tower_1/conv_3": "branch7x7dbl_4", "tower_1/conv_4": "branch7x7dbl_5", "tower_2/conv": "branch_pool",
}  # fmt: skip
_D = {
    "tower/conv": "branch3x3_1", "tower/conv_1": "branch3x3_2", "tower_1/conv": "branch7x7x3_1",
    "tower_1/conv_1": "branch7x7x3_2", "tower_1/conv_2": "branch7x7x3_3", "tower_1/conv_3": "branch7x7x3_4",
}  # fmt: skip
_E = {
    "conv": "branch1x1", "tower/conv": "branch3x3_1", "tower/mixed/conv": "branch3x3_2a",
    "tower/mixed/conv_1": "branch3x3_2b", "tower_1/conv": "branch3x3dbl_1", "tower_1/conv_1": "branch3x3dbl_2",
    "tower_1/mixed/conv": "branch3x3dbl_3a", "tower_1/mixed/conv_1": "branch3x3dbl_3b", "tower_2/conv": "branch_pool",
}  # fmt: skip
_BLOCKS: Sequence[tuple[str, Mapping[str, str]]] = (
    ("5b", _A), ("5c", _A), ("5d", _A), ("6a", _B), ("6b", _C), ("6c", _C), ("6d", _C), ("6e", _C), ("7a", _D),
    ("7b", _E), ("7c", _E),
)  # fmt: skip
_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def convolutions() -> dict[str, str]:
    """The graph's name of each convolution -> torch-fidelity's."""
    found = {("conv" if i == 0 else f"conv_{i}"): name for i, name in enumerate(_STEM)}
    for i, (block, names) in enumerate(_BLOCKS):
        mixed = "mixed" if i == 0 else f"mixed_{i}"
        found |= {f"{mixed}/{theirs}": f"Mixed_{block}.{ours}" for theirs, ours in names.items()}
    return found


def state_dict(path: Path) -> dict[str, torch.Tensor]:
    """The state dict of torch-fidelity's network, from the graph.

    Raises:
        ModelError: If the file is not a graph, or lacks weights.
    """
    try:
        weights = read_constants(read_bytes(path, "--inception"))
        found: dict[str, torch.Tensor] = {}
        for theirs, ours in convolutions().items():
            kernel = torch.from_numpy(weights[f"{theirs}/conv2d_params"])  # [height, width, in, out]
            found[f"{ours}.conv.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
            for name, own in _NORM.items():
                found[f"{ours}.bn.{own}"] = torch.from_numpy(weights[f"{theirs}/batchnorm/{name}"])
        found["fc.weight"] = torch.from_numpy(weights["softmax/weights"]).T.contiguous()
        found["fc.bias"] = torch.from_numpy(weights["softmax/biases"])
    except (OSError, IndexError, ValueError, KeyError) as error:
        raise ModelError(f"extractor 'inception': '{path}' is not the graph of FID's Inception: {error!r}") from None
    return found


def read_constants(graph: bytes) -> Weights:
    """The float constants of a frozen graph, by node.

    Raises:
        ValueError: If the bytes are not a protocol buffer, or are cut off.
        IndexError: If they end inside a number.
    """
    found: Weights = {}
    for node in _parts(graph, 1):
        if _one(node, 2) != b"Const":
            continue
        for entry in _parts(node, 5):
            if _one(entry, 1) == b"value":
                tensor = _one(_one(entry, 2), 8)
                if _number(tensor, 1) == _FLOAT:
                    found[_one(node, 1).decode()] = _floats(tensor)
    return found


def _floats(tensor: bytes) -> NDArray[np.float32]:
    shape = [_number(dim, 1) for dim in _parts(_one(tensor, 2), 2)]
    content = _one(tensor, 4) or b"".join(_parts(tensor, 5))
    values = np.frombuffer(content, dtype="<f4").astype(np.float32)
    return (np.broadcast_to(values, shape) if values.size == 1 else values.reshape(shape)).copy()


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"field of unknown kind {kind}")
        if at + length > len(message):
            raise ValueError("the file is cut off")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _parts(message: bytes, field: int) -> list[bytes]:
    return [value for number, value in _fields(message) if number == field and isinstance(value, bytes)]


def _one(message: bytes, field: int) -> bytes:
    return next(iter(_parts(message, field)), b"")


def _number(message: bytes, field: int) -> int:
    return next((value for number, value in _fields(message) if number == field and isinstance(value, int)), 0)
