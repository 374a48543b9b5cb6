"""Compile every kernel of the Triton head for one compute capability, without a GPU.

    python tests/kernels/triton/compile_kernels.py 90

Prints a line a kernel: its name and the matrix instructions in its PTX, with commas ("-" for none).
"""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lexforge.kernels.triton import splade_head_kernels as kernels

FLAGS = {"HAS_BIAS": True, "KEEP_WINNER": True, "PRECISION": "ieee", "EVEN_D": False}
POINTERS = {
    "hidden_ptr": "*bf16", "weight_ptr": "*bf16", "bias_ptr": "*fp32", "positions_ptr": "*i32",
    "lengths_ptr": "*i32", "score_ptr": "*fp32", "winner_ptr": "*i16", "activation_ptr": "*fp32",
    "grad_ptr": "*fp32", "terms_ptr": "*i32", "count_ptr": "*i32", "grad_hidden_ptr": "*fp32",
    "grad_weight_ptr": "*fp32", "grad_bias_ptr": "*fp32",
}  # fmt: skip


def compile_for(capability: int, kernel, config) -> str:
    """The PTX of a kernel under one tile config."""
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    constants = {"DOUBLE": True, "BLOCK": 1024, **FLAGS, **(config.kwargs if config else {})}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {name: POINTERS.get(name, "i32") for name in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = [i for i, name in enumerate(kernel.arg_names) if name not in constants and name != "V"]
    divisible = {(i,): [["tt.divisibility", 16]] for i in aligned}
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages} if config else {}
    source = ASTSource(kernel, signature, constants, divisible)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]


def main() -> None:
    if "nvidia" not in triton.backends.backends:
        sys.exit("no NVIDIA backend")
    for name in ("forward", "active_terms", "grad_hidden", "grad_weight", "grad_bias"):
        configs = getattr(kernels, f"{name.upper()}_CONFIGS", [None])
        ptx = compile_for(int(sys.argv[1]), getattr(kernels, f"{name}_kernel"), configs[0])
        found = [word for word in ("wgmma.mma_async", "mma.sync") if word in ptx]
        print(name, ",".join(found) or "-")


if __name__ == "__main__":
    main()
