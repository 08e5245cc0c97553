"""Files of weights: read without running code from them, and compared with the module that they are for.

No size that a file states is believed: blocks are counted by their tensors, and no tensor is longer than its file.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from mmspec.errors import MMSpecError, ModelError
from mmspec.files.inputs import check_regular, open_regular

_LISTED = 6  # names in a message
# Tensors of a pickle may share their memory, as tied embeddings do, but not without bounds.
_SHARED = 4
# Names of settings that are a number of blocks. Building blocks takes time even where no memory is allocated.
_DEPTH = re.compile(r"n_layers?|num_(\w+_)?layers|(en|de)coder_(layers|depth)|head_depth|depth|layers_per_block")


def read_weights(file: Path, what: str) -> Any:
    """The content of a `.safetensors` file, which is a dictionary of tensors, or of a pickle of tensors and values.

    Args:
        what: Its role in errors, such as "checkpoint".

    Raises:
        ModelError: If the file cannot be read, its pickle would run code, or tensors are longer than the file.
    """
    named = f"{what} {str(file)!r}"
    try:
        check_regular(file)
        if file.suffix == ".safetensors":
            return load_file(file)
        if zipfile.is_zipfile(file):
            _check_archive(file, named)
        # Training scripts store their parsed arguments with the weights; a Namespace contains values, not code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
        _check_lengths(content, file, named)
    except ModelError:
        raise
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"its pickle calls {wanted[1]}" if wanted else "it is not a plain file of tensors"
        raise ModelError(
            f"{named} is refused: {reason}, and mmspec runs no code from checkpoints; "
            "convert it to safetensors with a tool you trust"
        ) from None
    except Exception as error:  # the unpickler may raise anything for a file that is not a pickle
        raise ModelError(f"{named} cannot be read: {describe(error)}") from None
    return content


def read_tensors(file: Path, what: str, wrappers: Collection[str] = ()) -> dict[str, Tensor]:
    """The tensors of a file of weights, by name.

    Args:
        what: Its role in errors, such as "checkpoint".
        wrappers: Keys under which a pickle may store its tensors, in order of preference.

    Raises:
        ModelError: If the file cannot be read, see `read_weights`, or contains no tensors.
    """
    content = read_weights(file, what)
    for wrapper in wrappers:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    found = content.items() if isinstance(content, dict) else ()
    tensors = {name: value for name, value in found if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        places = f", neither flat nor under {', '.join(wrappers)}" if wrappers else ""
        raise ModelError(f"{what} {str(file)!r} contains no tensors{places}")
    return tensors


def read_model_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a published model, by name, from the files `model*.safetensors` of its folder.

    Raises:
        ModelError: If there are none, or a file cannot be read.
    """
    state: dict[str, Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        state.update(read_tensors(file, "model"))
    if not state:
        raise ModelError(f"model {str(folder)!r} has no weights; there must be model.safetensors, or its parts")
    return state


def read_header(file: Path, what: str) -> dict[str, Tensor]:
    """The tensors of a file of weights, on the device "meta" if the format allows it: names, shapes and dtypes.

    Raises:
        ModelError: If the file cannot be read, or contains no tensors.
    """
    if file.suffix != ".safetensors":
        return read_tensors(file, what)
    try:
        check_regular(file)
        # Opening the file checks that its tensors cover it exactly.
        with safe_open(file, framework="pt"):
            pass
        with open_regular(file) as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return {
            name: torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]], device="meta")
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except Exception as error:  # safetensors and the dtypes of later versions
        raise ModelError(f"{what} {str(file)!r} cannot be read: {describe(error)}") from None


# Names of dtypes in safetensors.
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16, "U32": torch.uint32,
    "U64": torch.uint64, "C64": torch.complex64,
}  # fmt: skip


def check_tensors(what: str, tensors: Mapping[str, Tensor], module: nn.Module) -> None:
    """Compares the names, shapes and kinds of tensors with those of a module's state.

    Args:
        what: The checkpoint, for the error.

    Raises:
        ModelError: If tensors are missing or unknown, have another shape, or are integers instead of floats or the
            reverse; the message lists them.
    """
    expected = module.state_dict()
    both = {name: (tensors[name], value) for name, value in expected.items() if name in tensors}
    shapes = [
        f"{name} {list(found.shape)} instead of {list(value.shape)}"
        for name, (found, value) in both.items()
        if found.shape != value.shape
    ]
    kinds = [
        f"{name} {dtype_name(found)} instead of {dtype_name(value)}"
        for name, (found, value) in both.items()
        if found.is_floating_point() != value.is_floating_point() or found.is_complex() != value.is_complex()
    ]
    differences = {
        "missing": [name for name in expected if name not in tensors],
        "unknown": [name for name in tensors if name not in expected],
        "wrong shape": shapes,
        "wrong dtype": kinds,
    }
    if problems := listed(differences):
        raise ModelError(f"{what} does not fit a {type(module).__name__}; {problems}")


def load_tensors(
    what: str, tensors: Mapping[str, Tensor], module: nn.Module, device: str, dtype: torch.dtype | str
) -> None:
    """Puts the tensors of a checkpoint into a module, in place of its own.

    Args:
        what: The checkpoint, for the error.
        module: The module, which may be on the meta device.
        device: Where to put them.
        dtype: Their dtype, or "auto" for that of the files.

    Raises:
        ModelError: As of `check_tensors`.
    """
    check_tensors(what, tensors, module)
    own = None if isinstance(dtype, str) else dtype
    module.load_state_dict({name: value.to(device, own) for name, value in tensors.items()}, assign=True)


def listed(differences: Mapping[str, Collection[str]]) -> str:
    """Groups of names as one text, the first six of each; empty groups are left out."""
    parts = []
    for kind, names in differences.items():
        rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        if names:
            parts.append(f"{kind}: {', '.join(list(names)[:_LISTED])}{rest}")
    return "; ".join(parts)


def count_blocks(names: Iterable[str], prefix: str) -> int:
    """The number of blocks that tensors `PREFIX.0.`, `PREFIX.1.`, ... belong to, up to the first gap.

    Tensors after a gap are left to `check_tensors`, which lists them as unknown.

    Args:
        names: The names of the tensors.
        prefix: The prefix, literally.
    """
    start = re.compile(rf"{re.escape(prefix)}\.(\d{{1,9}})\.")
    numbers = {int(match[1]) for name in names if (match := start.match(name))}
    return next(n for n in range(len(numbers) + 1) if n not in numbers)


def check_depths(what: str, config: Any, tensors: int) -> None:
    """Checks that a config, with the configs inside it, states no more blocks than a file has tensors.

    Args:
        what: The file, for the error.
        config: The JSON value.
        tensors: The number of tensors.

    Raises:
        ModelError: If it does, or if a number of blocks is negative or no integer.
    """
    pending = [config]
    while pending:
        values = pending.pop()
        if isinstance(values, list):
            pending += values
        if not isinstance(values, dict):
            continue
        for name, value in values.items():
            pending.append(value)
            if not _DEPTH.fullmatch(name) or value is None or isinstance(value, list):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= tensors:
                raise ModelError(
                    f"{what}: config has {name}={value!r}, which is not a number of layers that {tensors} tensors "
                    "can make up"
                )


@contextmanager
def sizes_of(what: str, kind: str) -> Iterator[None]:
    """Turns errors of a block that reads sizes off tensors into one line; errors of mmspec pass.

    Args:
        what: The file, for the error.
        kind: What the file should contain, such as "a VQGAN".

    Raises:
        ModelError: If a tensor is missing, has too few dimensions, or the sizes do not fit each other.
    """
    try:
        yield
    except MMSpecError:
        raise
    except KeyError as error:
        raise ModelError(f"{what} is not {kind}: {error.args[0]} is missing") from None
    except (
        IndexError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RuntimeError, MemoryError,
        StrictDataclassError,
    ) as error:  # fmt: skip
        raise ModelError(f"{what} is not {kind}: {describe(error)}") from None


@contextmanager
def building(what: str, kind: str) -> Iterator[None]:
    """Builds modules of a block on the device "meta", and turns its errors into one line; see `sizes_of`.

    Raises:
        ModelError: If a module cannot be built with the sizes of the file.
    """
    try:
        with sizes_of(what, kind), torch.device("meta"):
            yield
    except MMSpecError as error:
        raise error if isinstance(error, ModelError) else ModelError(f"{what} is not {kind}: {error}") from None


def describe(error: BaseException) -> str:
    """The class and the message of an error, on one line."""
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def dtype_name(tensor: Tensor) -> str:
    """The dtype of a tensor, such as "float16"."""
    return str(tensor.dtype).removeprefix("torch.")


def _check_archive(file: Path, named: str) -> None:
    """Refuses archives that unpack to more than the file's length; torch stores tensors uncompressed."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > file.stat().st_size:
        raise ModelError(f"{named} is refused: it is compressed, to less than the {unpacked} bytes it unpacks to")


def _check_lengths(content: Any, file: Path, named: str) -> None:
    """Refuses tensors of a pickle that are longer than the file, such as views that repeat one number."""
    length, total = file.stat().st_size, 0
    pending = [content]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, (dict, list, tuple)):
            if id(value) not in seen:
                seen.add(id(value))
                pending += value.values() if isinstance(value, dict) else value
        elif isinstance(value, Tensor):
            if value.layout != torch.strided or value.is_meta or value.is_quantized:
                raise ModelError(f"{named} is refused: it contains tensors that are sparse, quantized or without data")
            total += value.numel() * value.element_size()
            if total > _SHARED * length:
                raise ModelError(f"{named} is refused: its tensors have more bytes than the file, {length}")
