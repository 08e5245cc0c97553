"""Compiles every kernel to machine code for an H100 or H200, on any machine; `test_kernels` runs it in a subprocess."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from mmspec.kernels import (
    accept,
    attention,
    column_drafts,
    column_rules,
    columns,
    commit,
    coupling,
    draft_tree,
    end_channel,
    forced_cells,
    fused_sampler,
    grow_tree,
    head_window,
    k_seq,
    layers,
    likeliest,
    linear,
    philox,
    residual,
    siblings,
    softmax_stats,
    token_init,
    tree,
    tree_shape,
)
from mmspec.kernels.specialization import WIDE
from mmspec.methods.draft_stop import kernel as stopping
from mmspec.methods.dyspec import kernel as sampled_tree
from mmspec.methods.recycle import kernel as recycle
from mmspec.methods.stand import kernel as stand

POINTERS = {
    "cond": "bf16", "uncond": "bf16", "q_cond": "bf16", "q_uncond": "bf16", "allowed": "i1", "q_allowed": "i1",
    "floats": "fp32", "q_floats": "fp32", "ints": "i32", "q_ints": "i32", "scales": "fp32", "temperatures": "fp32",
    "top_ks": "i32", "top_ps": "fp32", "kinds": "i32", "us": "fp32", "drafts": "i64", "seeds": "i64",
    "positions": "i64", "iterations": "i64", "indices": "i64", "tokens": "i64", "chances": "fp32", "active": "i1",
    "near": "i32", "vectors": "fp32", "known": "i1", "accepted": "i64", "entries": "i64", "excess": "fp32",
    "children": "i64", "coupled": "i64",
    "draft_probs": "fp32", "accept_us": "fp32", "resample_us": "fp32", "tested": "i64", "path": "i64", "free": "i1",
    "resampled": "i64", "sampled": "i64", "found": "i32", "rows": "i64", "table": "i16",
    "forced": "i64", "columns": "i64", "starts": "i64", "must": "i64", "flags": "i1",
    "opening": "i64", "rule": "i64", "before": "i64", "before_floats": "fp32", "before_ints": "i32", "window": "i64",
    "qkv": "bf16", "cos": "fp32", "sin": "fp32", "keys": "bf16", "values": "bf16", "gate": "bf16", "up": "bf16",
    "places": "i64", "q": "bf16", "k": "bf16", "v": "bf16", "x": "bf16", "weight": "bf16",
    "mask": "bf16", "sums": "fp32", "tops": "fp32", "shares": "fp32", "storage": "i64",
    "limits": "i64", "plan": "i64", "levels": "i64", "logits": "fp32",
    "before_place": "i64", "before_joints": "fp32", "c_tokens": "i64", "c_joints": "fp32",
    "c_parents": "i64", "place": "i64", "b_tokens": "i64", "b_joints": "fp32", "owners": "i64", "parents": "i64",
    "sees": "i8", "order": "i64", "depths": "i64", "after": "i64",
    "before_window": "i64", "before_shares": "fp64", "before_probs": "fp32", "new_shares": "fp64",
    "guesses": "i64", "last": "i64", "new_floats": "fp32", "new_ints": "i32",
    "norm": "bf16", "second": "bf16", "bias": "bf16", "q_weight": "bf16", "k_weight": "bf16",
    "v_weight": "bf16", "q_bias": "bf16", "k_bias": "bf16", "v_bias": "bf16",
}  # fmt: skip
COMMON = {
    "GUIDED": True, "MASKED": True, "UNIT": True, "Q_GUIDED": True, "Q_MASKED": True, "Q_UNIT": True, "GROUP": 128,
}  # fmt: skip


RULES: list[dict[str, Any]] = [
    {"RULE": rule, "NEAR": rule == 6, "NEIGHBORS": 32 if rule == 9 else 1024, "DIM": 1 if rule == 9 else 8}
    for rule in range(11)
]


TREE_RULES = ((0, 9, 6), (0, 6), (0, 7))  # by kind of siblings; `_verify_tree` leaves GSD on chosen ones to torch


def variants() -> list[tuple[Any, dict[str, Any], int]]:
    """The kernels, with their compile-time constants (and the type of `out`) and numbers of warps."""
    kernels: list[tuple[Any, dict[str, Any], int]] = [
        (philox._uniforms, {"INDEXED": indexed, "BLOCK": 256, "out": "fp32"}, 4) for indexed in (False, True)
    ]
    for chunks, vocab in ((1, 16384), (4, 32768)):
        for top_k, top_p in ((False, False), (True, False), (True, True)):
            block, many, registers = fused_sampler.launch_shape(vocab, top_k, top_p)
            more = {
                "TOP_K": top_k, "TOP_P": top_p, "DRAFTED": True, "CHUNKS": chunks, "BLOCK": block,
                "maxnreg": registers,
            }  # fmt: skip
            kernels.append((fused_sampler._fused_sample, more, many))
        size = {"CHUNKS": chunks, "BLOCK": 8192}
        kernels.append((residual._resample, size, 16))
        kernels.append((coupling._couple_maximally, {**size, "out": "i64"}, 16))
        kernels.append((accept._verify_window, {**size, "RULE": 0, "NEAR": False, "NEIGHBORS": 1, "DIM": 1}, 16))
    kernels.append((softmax_stats._log_probs, {"BLOCK": softmax_stats._BLOCK, "out": "fp32"}, 4))
    kernels.append((coupling._couple_by_noise, {"BLOCK": 8192, "out": "i64", "FORCED": True}, 16))
    for init in range(5):
        more = {"INIT": init, "LINES": init > 0, "FORCED": True, "REUSES": True, "BLOCK": 32}
        kernels.append((token_init._draft_window, more, 1))
    kernels.append((draft_tree._draft_tree, {"LINES": True, "FORCED": True, "BLOCK": 64}, 1))
    kernels.append((recycle._recycle, {"LINES": True, "PLACE": 4, "table": "i32"}, 1))
    table: dict[str, Any] = {"LINES": True, "KEPT": 16, "table": "i32"}
    kernels.append((stand._draft_stored, {**table, "FORCED": True, "BLOCK": 32}, 1))
    kernels.append((stand._store, {**table, "BLOCK": 8192}, 16))
    kernels.append((likeliest._likeliest, {"KEPT": 16, "BLOCK": 8192}, 16))
    for root in (True, False):
        kernels.append((grow_tree._grow_level, {"ROOT": root, "BLOCK": 128}, 4))
    kernels.append((grow_tree._choose_nodes, {"BLOCK": 512}, 8))
    kernels.append((tree_shape._tree_shape, {"BLOCK": 64}, 2))
    for root in (True, False):
        kernels.append((sampled_tree._sample_depth, {"ROOT": root, "ENTRIES": 16, "BLOCK": sampled_tree.CHUNK}, 16))
    for is_tree in (True, False):
        kernels.append((head_window._attention_bias, {"TREE": is_tree, "BLOCK": head_window.BLOCK, "out": "bf16"}, 2))
    kernels.append((head_window._store_window, {"BLOCK": 128}, 1))
    kernels.append((stopping._stop_draft, {"BLOCK": 8192}, 16))
    for distinct in (False, True):
        kernels.append((siblings._sample_siblings, {"DISTINCT": distinct, "RANKS": 4, "BLOCK": 8192}, 16))
    kernels.append((commit._begin_window, {"BLOCK": 32, "out": "i64"}, 1))
    kernels.append((commit._reread_window, {"BLOCK": 32, "out": "i64"}, 1))
    kernels += [(accept._verify_window, more | {"CHUNKS": 2, "BLOCK": 8192}, 16) for more in RULES[1:]]
    for mode in (2, 1, 0):  # the last variant is compiled for all devices
        shape: dict[str, Any] = {"MODE": mode, "RANKS": 4, "BLOCK": 8192 if mode == 1 else 4096, "out": "i64"}
        kernels += [(tree._walk_tree, shape | RULES[rule], 16) for rule in TREE_RULES[mode]]
    shape = {"RANKS": 4, "BLOCK": 4096, "out": "i64"}
    kernels += [(k_seq._verify_drafts, shape | RULES[rule], 16) for rule in (0, 6)]
    kernels.append((layers._rotate_and_store, {"BLOCK": 1024, "out": "bf16"}, 4))
    kernels.append((layers._rotate_halves_and_store, {"BLOCK": 1024, "out": "bf16"}, 4))
    kernels.append((layers._swiglu, {"BLOCK": 1024, "out": "bf16"}, 4))
    kernels.append((layers._rms_norm, {"BLOCK": 4096, "out": "bf16"}, 16))
    for init in range(3):
        of_columns: dict[str, Any] = {"INIT": init, "FORCED": True, "REUSES": True, "CELLS": 16, "BLOCK": 128}
        kernels.append((column_drafts._draft_columns, of_columns | {"table": "i32"}, 1))
    whole = {"WRITES": True, "ENDS": True, "OPENS": True, "READ": 16, "CELLS": 16, "BLOCK": 256, "out": "i64"}
    kernels.append((column_rules._cells_after, whole, 4))
    kernels.append((column_rules._forced_logits, {"BLOCK": 4096, "out": "fp32"}, 8))
    kernels.append((end_channel._end_channel_logits, {"CUT": True, "BLOCK": 2048, "out": "fp32"}, 4))
    kernels.append((column_drafts._recycle_columns, {"PLACE": 4, "CELLS": 16, "table": "i32"}, 1))
    kernels.append((forced_cells._force_cells, {"BLOCK": 256}, 4))
    shape = {"FORCED": True, "CELLS": 16, "BLOCK": 4096, "out": "i64"}
    kernels.append((columns._couple_columns, shape | {"DRAFTED": True, "COUNTED": True}, 8))
    return [*kernels, (columns._verify_columns, shape, 8)]


def attention_variants(capability: int) -> list[tuple[Any, dict[str, Any], int]]:
    """Those of `variants` that need most shared memory, and the kernel that joins parts."""
    kernels: list[tuple[Any, dict[str, Any], int]] = []
    for dtype, size, bytes_each in (
        ("bf16", 64, 2),
        ("bf16", 128, 2),
        ("bf16", 256, 2),
        ("fp32", 64, 4),
        ("fp32", 128, 4),
    ):
        slots, early = attention.slots_at_once(size, bytes_each, capability == 90), capability >= 90
        more = {"dtype": dtype, "D": size, "BLOCK_D": size, "QUERIES": attention.MOST_QUERIES, "SLOTS": slots}
        kernels.append((attention._attend_part, more | {"EARLY": early}, 4))
    joined = {"D": 128, "BLOCK_D": 128, "QUERIES": 16, "SPLITS": attention.JOINED, "out": "bf16", "EARLY": False}
    return [*kernels, (attention._join_parts, joined, 2)]


def linear_variants(capability: int) -> list[tuple[Any, dict[str, Any], int]]:
    """Linear layers of LlamaGen-B and XL and of CosyVoice 2, which they are used for."""
    kernels: list[tuple[Any, dict[str, Any], int]] = []
    for size, hidden, all_heads, halves in (
        (768, 2048, 2304, False), (1280, 3584, 3840, False), (896, 4864, 1152, True),
    ):  # fmt: skip
        for kernel, width, count, gated in (
            (linear._qkv, size, all_heads, False),
            (linear._linear, size, hidden, True),
            (linear._linear, hidden, size, False),
        ):
            tiling = linear.tiling_of(width, count, gated)
            early = capability >= 90
            more: dict[str, Any] = linear.constants(tiling, width, early) | {
                "SIZE": width, "NORM": gated, "GATED": gated, "BIAS": not gated, "ADD": not gated, "EARLY": early,
                "ROWS": linear.ROWS, "HEAD": 64, "HALVES": halves, "dtype": "bf16", "out": "bf16",
            }  # fmt: skip
            kernels.append((kernel, more, more.pop("num_warps")))
            more.pop("launch_pdl", None)
    return kernels


SHARED = {80: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}  # bytes of a program; those of 8.6 and 8.9 for 80
STACK = 64  # bytes of registers per thread that a kernel may keep in memory instead
CAPABILITIES = (80, 120)  # of the devices, besides 90, for which one variant of each kernel is compiled too


def compiled(kernel: Any, more: dict[str, Any], warps: int, capability: int = 90) -> Any:
    """A kernel compiled as it is launched on contiguous logits whose vocabulary is divisible by 16."""
    names = kernel.arg_names
    known = {k: v for k, v in (COMMON | more).items() if k in names and k not in ("out", "table")}
    known |= {name: 1 for name in names if name.endswith("stride_column")}
    pointers = POINTERS | {name: more[name] for name in ("out", "table") if name in more}
    pointers |= dict.fromkeys(("q", "keys", "values", "mask"), more["dtype"]) if "dtype" in more else {}
    signature = {
        name: "constexpr" if name in known else f"*{pointers[name]}" if name in pointers
        else "fp32" if name in ("a", "b", "eps", "scale", "stop") else "i32" for name in names
    }  # fmt: skip
    wide = WIDE | {"vocab"} | {name for name in names if "stride" in name}
    if kernel is attention._attend_part:
        wide |= {"q", "keys", "values", "mask"} | {name for name in names if name[:2] in ("q_", "k_", "v_")}
    if kernel in (linear._linear, linear._qkv):
        wide |= {name for name in names if name in pointers} | {"n"}
    divisible = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in wide - known.keys()}
    return compile(
        ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=divisible),
        target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "maxnreg": more.get("maxnreg")},
    )  # fmt: skip


def stack_of(cubin: bytes) -> int:
    """Bytes per thread that a kernel keeps in memory, by NVIDIA's `cuobjdump`, which comes with Triton."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        out = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return max(int(stack) for stack in re.findall(r"STACK:(\d+)", out))


def main() -> None:
    """Compiles all variants, and checks the spills of those of a decode; exceptions of the compiler pass through."""
    for kernel, more, warps in variants():
        cubin = compiled(kernel, more, warps).asm["cubin"]
        stack = stack_of(cubin)
        print(kernel.__name__, more, len(cubin), "bytes,", stack, "bytes of stack", flush=True)
        if not more.get("GUMBEL") and stack > STACK:
            raise SystemExit(f"{kernel.__name__} {more} spills {stack} bytes per thread")
    one_of_each = {kernel.__name__: (kernel, more, warps) for kernel, more, warps in variants()}
    check_memory(90)
    for capability in CAPABILITIES:
        for kernel, more, warps in one_of_each.values():
            stack = stack_of(compiled(kernel, more, warps, capability).asm["cubin"])
            print(kernel.__name__, "for compute capability", capability, stack, "bytes of stack", flush=True)
            if not more.get("GUMBEL") and stack > STACK:
                raise SystemExit(f"{kernel.__name__} {more} spills {stack} bytes per thread on {capability}")
        check_memory(capability)


def check_memory(capability: int) -> None:
    """Checks that attention and linear layers have the shared memory that they need, and do not spill."""
    for kernel, more, warps in attention_variants(capability) + linear_variants(capability):
        found = compiled(kernel, more, warps, capability)
        shared, stack = found.metadata.shared, stack_of(found.asm["cubin"])
        print(kernel.__name__, more, "for compute capability", capability, shared, "bytes shared,", stack, "of stack")
        if shared > SHARED[capability]:
            raise SystemExit(f"{kernel.__name__} {more} needs {shared} bytes of shared memory on {capability}")
        if stack > STACK:
            raise SystemExit(f"{kernel.__name__} {more} spills {stack} bytes per thread on {capability}")


if __name__ == "__main__":
    main()
