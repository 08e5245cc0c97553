"""What a GPU day runs: the sizes of every part, for a device and for a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_bench.published import PUBLISHED, PublishedModel


@dataclass(frozen=True)
class KernelCase:
    """One window to verify: rows, tokens per row with the bonus token, tokens of the vocabulary, and guidance."""

    rows: int
    width: int
    vocab_size: int
    guided: bool


@dataclass(frozen=True)
class Plan:
    """The sizes of a run.

    Attributes:
        seconds: The limit of each part.
        workers: Processes that compile and compare tiny models.
        smoke: The recipes that tiny models decode with; empty for all.
        tests: Files of tests, below the checkout; empty for all that need a device.
        models: Published sizes that are decoded, with random weights.
        recipes: By number of rows, what they are decoded with; steps of these windows are timed too.
        tokens: Of a row of a decode.
        embedded: The models that ship with mmspec, and what they are decoded with.
        batches: Prompts of their calls.
        kernels: Windows to verify.
        attention: Query heads, key heads, head width and rows of attention.
        lengths: New cache lengths at which every attention backend is called.
        repeats: Measured repeats of everything.
        cache: Bytes that the inputs of one kernel case exceed, so that no cache holds them.
        copy: Bytes that the copy moves.
        product: Rows of the square matrices whose product is timed.
    """

    seconds: Mapping[str, float]
    workers: int
    smoke: tuple[str, ...]
    tests: tuple[str, ...]
    models: Mapping[str, PublishedModel]
    recipes: Mapping[int, tuple[str, ...]]
    tokens: int
    embedded: Mapping[str, tuple[str, ...]]
    batches: tuple[int, ...]
    kernels: tuple[KernelCase, ...]
    attention: tuple[tuple[int, int, int, int], ...]
    lengths: int
    repeats: int
    cache: int
    copy: int
    product: int


SECONDS = {"smoke": 90.0, "tests": 240.0, "models": 190.0, "embedded": 100.0, "kernels": 100.0}
RECIPES = ("plain", "scd:window=8", "scd:window=16", "scd:window=32", "scd:window=64")
WHOLE = Plan(
    seconds=SECONDS,
    workers=12,
    smoke=(),
    tests=(),
    models={name: PUBLISHED[name] for name in ("llamagen-xl", "janus-1b", "llasa-1b", "qwen3-tts", "musicgen-large")},
    recipes={
        1: (*RECIPES, "draft:window=8", "draft:window=16", "table:window=8", "table:window=16"),
        8: (*RECIPES, "draft:window=8", "table:window=8"),
        32: ("plain", "scd:window=8", "scd:window=16", "table:window=8"),
    },
    tokens=192,
    embedded={
        "shapes": ("plain", "scd:window=16", "scd:window=32", "draft:window=8", "table:window=8"),
        "scenes": ("plain", "scd:window=16", "scd:window=32", "draft:window=8"),
        "spoken": ("plain", "table:window=8", "draft:window=8"),
    },
    batches=(1, 8, 64),
    kernels=(
        KernelCase(1, 17, 16384, True),
        KernelCase(8, 17, 16384, True),
        KernelCase(64, 17, 16384, True),
        KernelCase(64, 97, 16384, True),
        KernelCase(1, 17, 32768, True),
        KernelCase(1, 9, 65539, False),
    ),
    attention=((20, 20, 64, 2), (32, 32, 128, 2), (32, 8, 64, 1), (32, 8, 64, 64), (14, 2, 64, 1), (32, 32, 64, 16)),
    lengths=20,
    repeats=30,
    cache=2**27,
    copy=2**31,
    product=8192,
)


def tiny() -> Plan:
    """Every part at a size that a CPU finishes in seconds: a rehearsal of the same code."""
    llasa, musicgen = PUBLISHED["llasa-1b"], PUBLISHED["musicgen-large"]
    small = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    narrow = {
        "hidden_size": 32,
        "ffn_dim": 32,
        "num_attention_heads": 2,
        "vocab_size": 24,
        "num_codebooks": 2,
        "pad_token_id": 0,
        "bos_token_id": 0,
    }
    return replace(
        WHOLE,
        workers=1,
        smoke=("scd",),
        tests=("tests/decoding/test_cuda_graphs.py",),
        models={
            "llamagen-xl": replace(
                PUBLISHED["llamagen-xl"], layers=2, length=16, arguments={"dim": 32, "n_head": 2, "grid_size": 4}
            ),
            "llasa-1b": replace(
                llasa, layers=2, length=16, prompt=4, arguments={**llasa.arguments, **small, "head_dim": 8, "codes": 40}
            ),
            "musicgen-large": replace(musicgen, layers=2, length=16, prompt=4, arguments=narrow),
        },
        recipes={1: ("plain", "scd:window=4", "draft:window=3", "table:window=3"), 2: ("scd:window=4",)},
        tokens=8,
        embedded={"spoken": ("plain", "table:window=8")},
        batches=(1,),
        kernels=(KernelCase(1, 3, 40, True), KernelCase(2, 3, 33, False)),
        attention=((4, 4, 8, 2), (4, 2, 8, 1)),
        lengths=2,
        repeats=2,
        cache=2**12,
        copy=2**16,
        product=32,
    )
