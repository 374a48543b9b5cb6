"""The Triton head: in the interpreter, through the compiler, and (mark `gpu`) at its real sizes on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
pytest.importorskip("triton", reason="the extra `triton` is not installed")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in a process of its own, from the root of the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    version("triton").startswith("3.6."),
    reason="the interpreter of the installed Triton 3.6 takes an array for a number, which NumPy refuses",
)
def test_every_case_in_the_interpreter() -> None:
    """The kernels' own code, run on the CPU by Triton's interpreter, against loops in float64."""
    cases = str(HERE / "interpreter_cases.py")
    done = python("-m", "pytest", "-p", "no:cacheprovider", cases, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize(("capability", "instruction"), [("90", "wgmma.mma_async"), ("80", "mma.sync")])
def test_every_kernel_compiles_to_tensor_core_code(capability: str, instruction: str) -> None:
    """The compiler needs no GPU: a type error or a product that misses the tensor cores shows here."""
    done = python("-W", "ignore", str(HERE / "compile_kernels.py"), capability, TRITON_INTERPRET="0")
    if "no NVIDIA backend" in done.stderr:
        pytest.skip("the installed Triton was built without its NVIDIA backend")
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = dict(line.split() for line in done.stdout.splitlines())
    assert set(compiled) == {"forward", "active_terms", "grad_hidden", "grad_weight", "grad_bias"}
    assert instruction in compiled["forward"].split(",")
    assert instruction in compiled["grad_hidden"].split(",")


def test_without_triton_the_error_names_the_extra() -> None:
    """A user without the extra learns what to install, in one line."""
    code = "import sys; sys.modules['triton'] = None; import lexforge.kernels.triton.splade_head"
    last = python("-c", code).stderr.strip().splitlines()[-1]
    needed = "ImportError: the Triton SPLADE head needs triton: pip install 'lexforge[triton]' "
    assert last == needed + "(import of triton halted; None in sys.modules)"


def test_importing_needs_no_gpu_and_a_cpu_tensor_is_refused() -> None:
    """On a machine without a GPU the import succeeds and the call says what it takes."""
    code = (
        "import torch; from lexforge.kernels.triton.splade_head import splade_head_triton as head; "
        "head(torch.ones(1, 2, 3), torch.ones(4, 3), None, torch.ones(1, 2))"
    )
    last = python("-c", code, TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="").stderr.strip().splitlines()[-1]
    assert last == "ValueError: the Triton SPLADE head takes tensors on one CUDA device, got ['cpu']"


def test_configs_fit_the_dtype_and_the_row_length() -> None:
    """A fp32 product never gets a 16-bit tile, short rows get short token tiles, and one is always left."""
    from lexforge.kernels.triton.splade_head_kernels import (
        FORWARD_CONFIGS,
        GRAD_HIDDEN_CONFIGS,
        fitting_configs,
    )

    for configs in (FORWARD_CONFIGS, GRAD_HIDDEN_CONFIGS):
        for dtype in (torch.float32, torch.bfloat16):
            for bucket in (1, 16, 64, 128, 512):
                weight = SimpleNamespace(element_size=lambda dtype=dtype: dtype.itemsize)
                found = fitting_configs(configs, {"weight_ptr": weight, "length_bucket": bucket})
                assert found
                assert all((one.kwargs["BLOCK_D"] == 32) == (dtype == torch.float32) for one in found)
                assert all(one.kwargs["BLOCK_T"] <= max(16, bucket) for one in found)


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


@pytest.mark.gpu
@pytest.mark.parametrize("density", ["sparse", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("V", "D"), [(30_522, 128), (30_522, 384), (30_522, 768), (250_002, 768)])
def test_real_sizes(V: int, D: int, dtype: torch.dtype, density: str) -> None:
    """At the vocabularies of BERT and XLM-R the error stays within twice the plain path's own."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    from lexforge.kernels.triton.splade_head import splade_head_triton

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
    out = splade_head_triton(*leaves, mask)
    out.backward(grad)
    found = [out.detach(), *[leaf.grad for leaf in leaves]]
    exact = rows_in_float64(hidden.double(), weight.double(), bias.double(), mask, grad)
    plain = rows_in_float64(hidden, weight, bias, mask, grad)
    active = (out > 0).float().mean().item()
    assert active > 0.7 if density == "dense" else 0 < active < 0.2
    assert not out[1].any()
    # of two tokens within fp32 rounding either may win, and the gradient of that pair moves: some 4 pairs
    flips = (16 / (out > 0).sum().item()) ** 0.5
    for one, truth, other, moved in zip(found, exact, plain, (0.0, flips, flips, 0.0), strict=True):
        error = ((one.double() - truth).norm() / truth.norm()).item()
        own = ((other.double() - truth).norm() / truth.norm()).item()
        assert (
            error <= 2 * own + moved + 1e-7
        )  # 1e-7: where the plain path happens to be exact to the last bit
    again = splade_head_triton(*leaves, mask)
    assert torch.equal(again, out)
    for one, other in zip(torch.autograd.grad(again, leaves, grad), found[1:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_pairs_beyond_32_bits() -> None:
    """B * V and V * D above 2**31 need 64-bit offsets; the last row must equal the same row alone."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    if torch.cuda.get_device_properties(0).total_memory < 64e9:
        pytest.skip("the CUDA device has less than 64 GB of memory")
    from lexforge.kernels.triton.splade_head import splade_head_triton

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
