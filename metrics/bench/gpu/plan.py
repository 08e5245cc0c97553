"""What `mmspec bench gpu` runs: the sizes of every part, for a device and for a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmspec.metrics.bench.gpu.published import PUBLISHED, PublishedModel


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
        models: Whose steps are timed, in this order.
        rows: Rows of a step.
        widths: Tokens per row of a step.
        kernels: Windows to verify.
        attention: Query heads, key heads, head width and rows of attention.
        lengths: New cache lengths at which every attention backend is called.
        loop: The LlamaGen models that are decoded, and the tokens of a run.
        repeats: Measured repeats of everything.
        cache: Bytes that the inputs of one kernel case exceed, so that no cache holds them.
        copy: Bytes that the copy moves.
        product: Rows of the square matrices whose product is timed.
        tests: Files of tests, below the checkout.
        seconds: The longest time of each part.
    """

    models: dict[str, PublishedModel]
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    kernels: tuple[KernelCase, ...]
    attention: tuple[tuple[int, int, int, int], ...]
    lengths: int
    loop: tuple[str, ...]
    tokens: int
    repeats: int
    cache: int
    copy: int
    product: int
    tests: tuple[str, ...]
    seconds: dict[str, float]


TESTS = (
    "tests/kernels",
    "tests/sampling/test_lazy_probs.py",
    "tests/decoding/test_cuda_graphs.py",
    "tests/vision/test_fused_layers.py",
    "tests/hf/test_fused_decoder_layers.py",
)
SECONDS = {
    "speed": 20.0,
    "tests": 140.0,
    "attention": 60.0,
    "kernels": 100.0,
    "steps": 130.0,
    "loop": 60.0,
    "predicted": 60.0,
}
MODELS = (
    "llamagen-b",
    "llamagen-xl",
    "llasa-1b",
    "cosyvoice2",
    "csm",
    "janus-7b",
    "musicgen-large",
    "emu3",
    "lumina-7b",
)

WHOLE = Plan(
    models={name: PUBLISHED[name] for name in MODELS},
    rows=(1, 8),
    widths=(1, 2, 4, 8, 16, 32),
    kernels=(
        KernelCase(1, 17, 16384, True),
        KernelCase(1, 97, 16384, True),
        KernelCase(8, 17, 16384, True),
        KernelCase(64, 17, 16384, True),
        KernelCase(64, 97, 16384, True),
        KernelCase(1, 17, 32768, True),
        KernelCase(1, 9, 65539, False),
    ),
    attention=((20, 20, 64, 2), (32, 32, 128, 2), (32, 8, 64, 1), (32, 8, 64, 64), (14, 2, 64, 1), (32, 32, 64, 16)),
    lengths=20,
    loop=("llamagen-b", "llamagen-xl"),
    tokens=192,
    repeats=30,
    cache=2**27,
    copy=2**31,
    product=8192,
    tests=TESTS,
    seconds=SECONDS,
)


def tiny() -> Plan:
    """Every part at a size that a CPU finishes in seconds: a rehearsal of the same code."""
    llamagen, llasa = PUBLISHED["llamagen-b"], PUBLISHED["llasa-1b"]
    small = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    models = {
        "llamagen-b": replace(llamagen, layers=2, length=16, arguments={"dim": 32, "n_head": 2, "grid_size": 4}),
        "llasa-1b": replace(
            llasa, layers=2, length=16, prompt=4, arguments={**llasa.arguments, **small, "head_dim": 8, "codes": 40}
        ),
    }
    return replace(
        WHOLE,
        models=models,
        rows=(1,),
        widths=(1, 4),
        kernels=(KernelCase(1, 3, 40, True), KernelCase(2, 3, 33, False)),
        attention=((4, 4, 8, 2), (4, 2, 8, 1)),
        lengths=2,
        loop=("llamagen-b",),
        tokens=6,
        repeats=2,
        cache=2**12,
        copy=2**16,
        product=32,
        tests=("tests/decoding/test_cuda_graphs.py",),
    )
