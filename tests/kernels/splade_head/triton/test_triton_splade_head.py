"""The Triton head: in the interpreter, through the compiler, and (mark `gpu`) at its real sizes on a GPU."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from warm_processes import WarmProcesses

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
pytest.importorskip("triton", reason="the extra `triton` is not installed")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in a process of its own, from the root of the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.processors
@pytest.mark.skipif(
    version("triton").startswith("3.6."),
    reason="the interpreter of the installed Triton 3.6 takes an array for a number, which NumPy refuses",
)
@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_every_case_in_the_interpreter(chosen: str) -> None:
    """The kernels' own code, run on the CPU by Triton's interpreter, against loops in float64."""
    cases = str(HERE / "interpreter_cases.py")
    done = python("-m", "pytest", "-p", "no:cacheprovider", "-m", chosen, cases, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def compiled(*arguments: str) -> list[dict[str, Any]]:
    """What `compile_kernels.py` prints, or a skip where the compiler is missing."""
    done = python("-W", "ignore", str(HERE / "compile_kernels.py"), *arguments, TRITON_INTERPRET="0")
    if "no NVIDIA backend" in done.stderr:
        pytest.skip("the installed Triton was built without its NVIDIA backend")
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


ALL = pytest.param("--all", marks=pytest.mark.slow)


@pytest.mark.processors
@pytest.mark.parametrize("configs", ["", ALL])
@pytest.mark.parametrize(("capability", "instruction"), [("90", "HGMMA"), ("80", "HMMA")])
def test_every_kernel_compiles_to_tensor_core_code(capability: str, instruction: str, configs: str) -> None:
    """The compiler needs no GPU: a type error, a product that misses the tensor cores, an offset of 32 bits
    and, on sm_90, a register that does not fit show here.
    """
    kernels = compiled(capability, *configs.split())
    assert {one["kernel"] for one in kernels} == {
        "forward", "terms_by_token", "grad_hidden", "rows_by_term", "grad_weight",
    }  # fmt: skip
    for one in kernels:
        assert one["narrow"] == [], one
        if one["kernel"] == "forward" or one.get("BLOCK_T") == 64:
            assert instruction in one["matrix"], one
        if capability == "90":
            assert one["spilled"] == 0, one


NARROW = """
    %row = tt.get_program_id x : i32
    %one = arith.muli %row, %V : i32
    %two = arith.extsi %one : i32 to i64
    %three = tt.splat %two : i64 -> tensor<16xi64>
    %four = tt.addptr %five, %three : tensor<16x!tt.ptr<f32>>, tensor<16xi64>
"""


def test_an_offset_of_32_bits_is_found() -> None:
    """The search must see a product that was widened too late, and let pass one by a tile size, one in 64
    bits, and one that only divides.
    """
    script = runpy.run_path(str(HERE / "compile_kernels.py"))
    assert script["narrow_products"](NARROW) == ["%one = arith.muli %row, %V : i32"]
    constant = "    %V = arith.constant 16 : i32\n" + NARROW
    wide = NARROW.replace("muli %row, %V : i32", "muli %row, %V : i64")
    divided = NARROW.replace("%two = arith.extsi %one", "%two = arith.divsi %row, %one")
    assert [script["narrow_products"](text) for text in (constant, wide, divided)] == [[], [], []]


def truncated(exact: np.ndarray, bits: int) -> np.ndarray:
    """float32 with this many bits of the mantissa, cut off."""
    rounded = exact.astype(np.float32)
    away = np.abs(rounded.astype(np.float64)) > np.abs(exact)
    rounded = np.where(away, np.nextafter(rounded, np.float32(0)), rounded)
    return (rounded.view(np.uint32) & np.uint32(2**32 - 2 ** (23 - bits))).view(np.float32)


def three_products(a: np.ndarray, b: np.ndarray, features: int) -> np.ndarray:
    """a [M, D] @ b [D, N] as the float32 kernels compute it, if each step of the tensor cores is truncated.

    `features` are summed by the tensor cores, 8 at a time; the sums of so many are added in float32.
    """
    (a_high, a_low), (b_high, b_low) = (
        (truncated(one, 10), truncated(one - truncated(one, 10), 10)) for one in (a, b)
    )
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, a.shape[1], features):
        part = np.zeros_like(total)
        for left, right in ((a_low, b_high), (a_high, b_low), (a_high, b_high)):
            for k in range(first, first + features, 8):
                step = left[:, k : k + 8].astype(np.float64) @ right[k : k + 8].astype(np.float64)
                part = truncated(part + step, 23)
        total = total + part
    return total


def test_three_tf32_products_are_as_good_as_float32() -> None:
    """The tolerance of `test_real_sizes` (twice the plain product's own error and 1e-7) holds for sums of 32
    features, and does not if the tensor cores sum over all: this is why the kernel adds them up itself.
    """
    generator = np.random.default_rng(0)
    a = generator.standard_normal((48, 768), np.float32)
    b = generator.standard_normal((768, 64), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def error(product: np.ndarray) -> float:
        return float(np.linalg.norm(product - exact) / np.linalg.norm(exact))

    plain = error((torch.from_numpy(a) @ torch.from_numpy(b)).numpy())
    assert error(three_products(a, b, 32)) < 2 * plain + 1e-7 < error(three_products(a, b, 768))


def test_without_triton_the_error_names_the_extra(warm: WarmProcesses) -> None:
    """A user without the extra learns what to install, in one line."""
    code = "import sys; sys.modules['triton'] = None; import lexforge.kernels.splade_head.triton.head"
    last = warm.completed("-c", code, bare=True).stderr.strip().splitlines()[-1]
    needed = "ImportError: the Triton SPLADE head needs the extra 'triton': in a checkout of lexforge, "
    assert last == needed + "pip install '.[triton]' (import of triton halted; None in sys.modules)"


def test_importing_needs_no_gpu_and_a_cpu_tensor_is_refused(warm: WarmProcesses) -> None:
    """On a machine without a GPU the import succeeds and the call says what it takes."""
    code = (
        "import torch; from lexforge.kernels.splade_head.triton.head import splade_head_triton as head; "
        "head(torch.ones(1, 2, 3), torch.ones(4, 3), None, torch.ones(1, 2))"
    )
    done = warm.completed("-c", code, bare=True, environment={"TRITON_INTERPRET": "0"})  # and sees no GPU
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ValueError: the Triton SPLADE head takes tensors on one CUDA device, got cpu"


def test_configs_fit_the_dtype_and_the_row_length() -> None:
    """A fp32 product never gets a 16-bit tile, short rows get short token tiles, and one is always left."""
    from lexforge.kernels.splade_head.triton.kernels import (
        FORWARD_CONFIGS,
        GRAD_HIDDEN_CONFIGS,
        configs_of_dtype,
        fitting_configs,
    )

    for dtype in (torch.float32, torch.bfloat16):
        precision = "tf32x3" if dtype == torch.float32 else "ieee"
        found = configs_of_dtype(FORWARD_CONFIGS, {"PRECISION": precision})
        for bucket in (1, 16, 64, 128, 512):
            fitting = fitting_configs(GRAD_HIDDEN_CONFIGS, {"PRECISION": precision, "length_bucket": bucket})
            assert fitting
            assert all(one.kwargs["BLOCK_T"] <= max(16, bucket) for one in fitting)
            found += fitting
        assert found
        assert all((one.kwargs["BLOCK_D"] == 32) == (dtype == torch.float32) for one in found)


@pytest.mark.parametrize(
    ("L", "segment"), [(1, 32), (33, 32), (64, 64), (150, 32), (192, 64), (256, 256), (600, 128)]
)
def test_few_slots_of_a_tile_stay_empty(L: int, segment: int) -> None:
    """Worked by hand: 150 tokens take 5 x 32 slots (3 x 64 would be 28 % more), 600 take 5 x 128."""
    from lexforge.kernels.splade_head.triton.kernels import segment_of

    assert segment_of(L) == segment


def rows_in_float64(hidden, weight, bias, mask, grad):
    """Result and gradients of the plain formula in the dtype of the inputs, row by row to fit in memory."""
    leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight, bias)]
    out = []
    for row in range(len(hidden)):
        logits = F.linear(leaves[0][row], leaves[1], leaves[2])
        logits = torch.log1p(torch.relu(logits.masked_fill(mask[row, :, None] == 0, -torch.inf)))
        out.append(logits.max(0).values)
        out[-1].backward(grad[row].to(logits.dtype))
    return [torch.stack(out).detach(), *[leaf.grad for leaf in leaves]]


def compare_with_float64(leaves, mask, grad):
    """Result and gradients of the Triton head, each within twice the plain path's own error of float64."""
    from lexforge.kernels.splade_head.triton.head import splade_head_triton

    out = splade_head_triton(*leaves, mask)
    out.backward(grad)
    found = [out.detach(), *[leaf.grad for leaf in leaves]]
    exact = rows_in_float64(*[leaf.detach().double() for leaf in leaves], mask, grad)
    plain = rows_in_float64(*leaves, mask, grad)
    # of two tokens within fp32 rounding either may win, and the gradient of that pair moves: some 4 pairs
    flips = (16 / (out > 0).sum().item()) ** 0.5
    for one, truth, other, moved in zip(found, exact, plain, (0.0, flips, flips, 0.0), strict=True):
        error = ((one.double() - truth).norm() / truth.norm()).item()
        own = ((other.double() - truth).norm() / truth.norm()).item()
        # 1e-7: where the plain path happens to be exact to the last bit
        assert error <= 2 * own + moved + 1e-7
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("density", ["sparse", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("V", "D"), [(30_522, 128), (30_522, 384), (30_522, 768), (250_002, 768)])
def test_real_sizes(V: int, D: int, dtype: torch.dtype, density: str) -> None:
    """At the vocabularies of BERT and XLM-R the error stays within twice the plain path's own."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    from lexforge.kernels.splade_head.triton.head import splade_head_triton

    generator = torch.Generator("cuda").manual_seed(V + D)
    options = {"generator": generator, "device": "cuda"}
    hidden = torch.randn(4, 150, D, **options).to(dtype)
    weight = (torch.randn(V, D, **options) / D**0.5).to(dtype)
    bias = (torch.randn(V, **options) + (0.0 if density == "dense" else -4.5)).to(dtype)
    mask = (torch.rand(4, 150, **options) < 0.8).long()
    mask[1] = 0
    mask[2, 40:] = 0
    grad = torch.randn(4, V, **options)

    leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight, bias)]
    found = compare_with_float64(leaves, mask, grad)
    out = found[0]
    active = (out > 0).float().mean().item()
    assert active > 0.7 if density == "dense" else 0 < active < 0.2
    assert not out[1].any()
    again = splade_head_triton(*leaves, mask)
    assert torch.equal(again, out)
    for one, other in zip(torch.autograd.grad(again, leaves, grad), found[1:], strict=True):
        assert torch.equal(one, other)


def tuned() -> list[tuple[str, int]]:
    """The kernel and the number of every configuration that tuning may choose."""
    from lexforge.kernels.splade_head.triton.tiles import tuned_kernels

    return [(name, i) for name, kernel in tuned_kernels().items() for i in range(len(kernel.configs))]


@pytest.mark.gpu
@pytest.mark.parametrize("L", [30, 600])
@pytest.mark.parametrize(("name", "number"), tuned())
def test_every_configuration(name: str, number: int, L: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 tokens pass through every tile in several steps, and rows of 30 share one; whatever the tuning
    chooses, result and gradients are right, also where neither V nor D is a multiple of a tile.
    """
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    from lexforge.kernels.splade_head.triton.tiles import tuned_kernels

    kernel = tuned_kernels()[name]
    config = kernel.configs[number]
    monkeypatch.setattr(kernel, "configs", [config])
    monkeypatch.setattr(kernel, "cache", {})
    monkeypatch.setattr(kernel, "early_config_prune", None)
    for_float32 = name != "grad_weight" and config.kwargs["BLOCK_D"] == 32
    dtype = torch.float32 if for_float32 else torch.bfloat16
    generator = torch.Generator("cuda").manual_seed(number)
    options = {"generator": generator, "device": "cuda"}
    for V, D in ((1_003, 128), (640, 200)):
        hidden = torch.randn(5, L, D, **options).to(dtype)
        weight = (torch.randn(V, D, **options) / D**0.5).to(dtype)
        bias = (torch.randn(V, **options) - 2).to(dtype)
        mask = (torch.rand(5, L, **options) < 0.9).long()
        mask[1] = 0
        mask[2, L // 3 :] = 0
        grad = torch.randn(5, V, **options)
        compare_with_float64(
            [tensor.detach().requires_grad_() for tensor in (hidden, weight, bias)], mask, grad
        )


@pytest.mark.gpu
def test_pairs_beyond_32_bits() -> None:
    """B * V and V * D above 2**31 need 64-bit offsets; the last row must equal the same row alone."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    if torch.cuda.get_device_properties(0).total_memory < 64e9:
        pytest.skip("the CUDA device has less than 64 GB of memory")
    from lexforge.kernels.splade_head.triton.head import splade_head_triton

    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(9_000, 4, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(250_002, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
    hidden.requires_grad_()
    mask = torch.ones(9_000, 4, device="cuda")
    out = splade_head_triton(hidden, weight, None, mask)
    alone = hidden.detach()[-2:].requires_grad_()
    last = splade_head_triton(alone, weight, None, mask[-2:])
    assert torch.equal(out[-2:], last)
    grad = torch.zeros_like(out)
    grad[-2:] = 1.0
    (found,) = torch.autograd.grad(out, hidden, grad)
    (expected,) = torch.autograd.grad(last, alone, grad[-2:])
    assert torch.equal(found[-2:], expected)
