"""Compiles every kernel to machine code for an H100 or H200, on any machine; `test_kernels` runs it in a subprocess."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from mmspec.kernels import accept, columns, fused_sampler, philox, residual, tree

POINTERS = {
    "cond": "bf16", "uncond": "bf16", "q_cond": "bf16", "q_uncond": "bf16", "allowed": "i1", "q_allowed": "i1",
    "floats": "fp32", "q_floats": "fp32", "ints": "i32", "q_ints": "i32", "scales": "fp32", "temperatures": "fp32",
    "top_ks": "i32", "top_ps": "fp32", "kinds": "i32", "us": "fp32", "drafts": "i64", "seeds": "i64",
    "positions": "i64", "iterations": "i64", "indices": "i64", "tokens": "i64", "chances": "fp32", "active": "i1",
    "near": "i32", "vectors": "fp32", "known": "i1", "accepted": "i64", "excess": "fp32", "children": "i64",
    "draft_probs": "fp32", "accept_us": "fp32", "resample_us": "fp32", "tested": "i64", "path": "i64", "free": "i1",
    "resampled": "i64",
}  # fmt: skip
COMMON = {
    "GUIDED": True,
    "MASKED": True,
    "UNIT": True,
    "Q_GUIDED": True,
    "Q_MASKED": True,
    "Q_UNIT": True,
    "GROUP": 128,
}


def variants() -> list[tuple[Any, dict[str, Any], int]]:
    """The kernels, with their compile-time constants (and the type of `out`) and numbers of warps."""
    kernels: list[tuple[Any, dict[str, Any], int]] = [(philox._uniforms, {"BLOCK": 256, "out": "fp32"}, 4)]
    for whole, block in ((True, 16384), (False, 8192)):
        for cuts in (False, True):
            more = {"TOP_K": cuts, "TOP_P": cuts, "DRAFTED": True, "GUMBEL": cuts, "WHOLE": whole, "BLOCK": block}
            kernels.append((fused_sampler._fused_sample, more, block // 512))
        kernels.append((residual._resample, {"WHOLE": whole, "BLOCK": block}, block // 512))
    for rule in range(7):
        kernels.append((accept._count_accepted, {"RULE": rule, "NEAR": rule == 6, "BLOCK": 1024, "DIM": 8}, 4))
    for mode in range(3):
        kernels.append((tree._walk_tree, {"MODE": mode, "RANKS": 4, "BLOCK": 8192, "out": "i64"}, 16))
    return [*kernels, (columns._verify_columns, {"CELLS": 4, "BLOCK": 4096}, 8)]


def main() -> None:
    """Compiles all variants; exceptions of the compiler pass through."""
    for kernel, more, warps in variants():
        names = kernel.arg_names
        known = {k: v for k, v in (COMMON | more).items() if k in names and k != "out"}
        pointers = POINTERS | ({"out": more["out"]} if "out" in more else {})
        signature = {
            name: "constexpr" if name in known else f"*{pointers[name]}" if name in pointers
            else "fp32" if name in ("a", "b") else "i32" for name in names
        }  # fmt: skip
        compiled = compile(
            ASTSource(fn=kernel, signature=signature, constexprs=known),
            target=GPUTarget("cuda", 90, 32), options={"num_warps": warps},
        )  # fmt: skip
        print(kernel.__name__, more, len(compiled.asm["cubin"]), "bytes", flush=True)


if __name__ == "__main__":
    main()
