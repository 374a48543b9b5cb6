"""Compile the kernels of the Triton head without a GPU, and say what the compiler made of them.

    python tests/kernels/splade_head/triton/compile_kernels.py 90        # one configuration of each kernel
    python tests/kernels/splade_head/triton/compile_kernels.py 90 --all  # every one that tuning may choose

Prints one JSON line per compiled kernel: its name, dtype and configuration, registers per thread, bytes that
each thread spills, bytes of shared memory, machine instructions (each counted once, however often it runs)
and the most frequent of them, the kinds of matrix instruction, and the 32-bit products in addresses.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lexforge.kernels.splade_head.triton import kernels

FLAGS = {
    "HAS_BIAS": True, "KEEP_WINNER": True, "EVEN_D": True, "DOUBLE": False, "LIST": True, "BIAS": True,
    "ROWS": 1, "BUCKET": kernels.BUCKET, "PLACE": True,
}  # fmt: skip
POINTERS = {
    "bias_ptr": "*fp32", "order_ptr": "*i64", "positions_ptr": "*i32", "lengths_ptr": "*i32",
    "score_ptr": "*fp32", "winner_ptr": "*i16", "activation_ptr": "*fp32", "grad_ptr": "*fp32",
    "terms_ptr": "*i32", "cells_ptr": "*i32", "ends_ptr": "*i32", "rows_ptr": "*i16", "count_ptr": "*i32",
    "grad_hidden_ptr": "*fp32", "grad_weight_ptr": "*fp32", "grad_bias_ptr": "*fp32",
}  # fmt: skip
BLOCKS = {"terms_by_token": kernels.LIST_BLOCK, "rows_by_term": kernels.ROWS_BLOCK}
DTYPES = {"bf16": tl.bfloat16, "fp32": tl.float32}
MATRIX = ("HGMMA", "HMMA")  # the instruction of Hopper's groups of four warps, and that of one warp
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compile_for(capability: int, name: str, config: Any, **flags: Any) -> Any:
    """A kernel compiled under one tile config (None: it has none); a tile of 32 features is for float32."""
    kernel = getattr(kernels, f"{name}_kernel")
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    floats, precision = dtype_of(config)
    flags = {"BLOCK": BLOCKS.get(name), "PRECISION": precision, "DTYPE": DTYPES[floats], **FLAGS, **flags}
    constants = {**flags, **(config.kwargs if config else {})}
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    pointers = POINTERS | dict.fromkeys(("hidden_ptr", "weight_ptr"), f"*{floats}")
    if name == "grad_hidden":  # of a float32 model under autocast
        pointers["weight_ptr"] = "*fp32"
    signature = {argument: pointers.get(argument, "i32") for argument in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    # As Triton finds at the launch: pointers, strides and D are multiples of 16, V and the batch are not.
    odd = {*constants, "V", "B", "L", "buckets", "blocks", "rows_per_group"}
    divisible = [i for i, argument in enumerate(kernel.arg_names) if argument not in odd]
    source = ASTSource(kernel, signature, constants, {(i,): [["tt.divisibility", 16]] for i in divisible})
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages} if config else {}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def dtype_of(config: Any) -> tuple[str, str]:
    """The dtype of the products that a config is for, and their precision."""
    return ("fp32", "tf32x3") if config and config.kwargs["BLOCK_D"] == 32 else ("bf16", "ieee")


def resources(cubin: bytes) -> dict[str, Any]:
    """Registers, spilled bytes, instructions and the kinds of matrix instruction of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, sass = (
            subprocess.run([TOOLS / "cuobjdump", flag, file.name], capture_output=True, text=True, check=True)
            for flag in ("-res-usage", "-sass")
        )
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage.stdout))
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", sass.stdout)
    counts = Counter(name for name in found if name != "NOP")
    return {
        "registers": int(used["REG"]),
        "spilled": int(used["STACK"]) + int(used["LOCAL"]),
        "instructions": counts.total(),
        "matrix": [name for name in MATRIX if counts[name]],
        "most": dict(counts.most_common(9)),
    }


def narrow_products(ttir: str) -> list[str]:
    """The 32-bit products of two numbers known only at the launch that reach an address.

    Such a product overflows where B * V or V * D exceeds 2**31. A quotient or a remainder ends the search: it
    is no larger than what was divided.
    """
    defined = {}
    for line in ttir.splitlines():
        matched = re.match(r"\s*(%[\w#]+)(?::\d+)? = ([\w.]+) (.*)", line)
        if matched:
            defined[matched[1]] = matched[2], re.findall(r"%[\w#]+", matched[3]), line.split(" loc(")[0]
    through = {"addi", "subi", "muli", "extsi", "extui", "minsi", "maxsi", "select"}
    through |= {"splat", "broadcast", "expand_dims", "reshape"}
    waiting = [operands[1] for operation, operands, _ in defined.values() if operation == "tt.addptr"]
    seen, found = set(), []
    while waiting:
        operation, operands, line = defined.get(waiting.pop(), ("", [], ""))
        if line in seen or operation.split(".")[-1] not in through:
            continue
        seen.add(line)
        waiting += operands
        unknown = [one for one in operands if defined.get(one, ("",))[0] != "arith.constant"]
        if operation == "arith.muli" and "i32" in line.rsplit(":", 1)[1] and len(unknown) == 2:
            found.append(line.strip())
    return found


def main() -> None:
    if "nvidia" not in triton.backends.backends:
        sys.exit("no NVIDIA backend")
    for name in ("forward", "terms_by_token", "grad_hidden", "rows_by_term", "grad_weight"):
        configs = getattr(kernels, f"{name.upper()}_CONFIGS", [None])
        if "--all" not in sys.argv:
            configs = list({dtype_of(config): config for config in reversed(configs)}.values())
        for config in configs:
            packed = [1, config.kwargs["BLOCK_T"] // kernels.SEGMENTS[0]] if name == "forward" else [1]
            for rows in packed:
                compiled = compile_for(int(sys.argv[1]), name, config, ROWS=rows)
                sizes = (
                    {**config.kwargs, "warps": config.num_warps, "stages": config.num_stages}
                    if config
                    else {}
                )
                print(
                    json.dumps(
                        {
                            "kernel": name,
                            "dtype": dtype_of(config)[0],
                            **({"ROWS": rows} if name == "forward" else {}),
                            **sizes,
                            **resources(compiled.asm["cubin"]),
                            "shared": compiled.metadata.shared,
                            "narrow": narrow_products(compiled.asm["ttir"]),
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
