"""The head within a compiled function is the head itself, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lexforge.kernels import splade_head


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """What one test compiled decides nothing in the next one."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        yield


def inputs(rows: int, tokens: int, dtype: torch.dtype, bias: bool) -> tuple[Tensor, ...]:
    """States, weight, bias or None, and a mask with padding, a hole and an empty row."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, tokens, 8, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(11, 8, generator=generator).to(dtype).requires_grad_()
    mask = torch.ones(rows, tokens, dtype=torch.int64)
    mask[0, 1], mask[1, 2:], mask[-1] = 0, 0, 0
    offsets = torch.randn(11, generator=generator).to(dtype).requires_grad_() if bias else None
    return hidden, weight, offsets, mask


def gradients(out: Tensor, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    return torch.autograd.grad(out.square().sum(), wanted)


@pytest.mark.parametrize(("double", "bias"), [(False, True), (True, False)])
def test_compiled_equals_eager_bit_for_bit(double: bool, bias: bool) -> None:
    """The compiler calls the same code; two shapes, so that a second compilation or a dynamic one is met."""
    compiled = torch.compile(splade_head, backend="aot_eager")
    for rows, tokens in ((3, 4), (5, 6)):
        tensors = inputs(rows, tokens, torch.float32, bias)
        out, expected = (head(*tensors, double_log1p=double) for head in (compiled, splade_head))
        assert torch.equal(out, expected)
        for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
            assert torch.equal(found, wanted)
    with torch.no_grad():
        assert torch.equal(compiled(*tensors, double_log1p=double), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_are_those_of_the_eager_head(dtype: torch.dtype) -> None:
    """The compiler must hand the head its inputs, and its gradients on, without a cast."""
    compiled = torch.compile(splade_head, backend="aot_eager")
    tensors = inputs(3, 4, dtype, True)
    out, expected = compiled(*tensors), splade_head(*tensors)
    assert torch.equal(out, expected)
    assert out.dtype == expected.dtype
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        assert torch.equal(found, wanted)
        assert found.dtype == wanted.dtype


def test_autocast_reaches_the_compiled_head() -> None:
    """Under autocast the products run in bfloat16, and the gradients stay float32."""
    compiled = torch.compile(splade_head, backend="aot_eager")
    tensors = inputs(3, 4, torch.float32, True)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = compiled(*tensors), splade_head(*tensors)
    assert torch.equal(out, expected)
    assert not torch.equal(out, splade_head(*tensors))
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, wanted)


def test_frozen_inputs_get_no_gradient() -> None:
    """A frozen output embedding is common; its gradient must be neither computed nor returned."""
    compiled = torch.compile(splade_head, backend="aot_eager")
    hidden, weight, bias, mask = inputs(3, 4, torch.float32, True)
    weight.requires_grad_(False)
    found = gradients(compiled(hidden, weight, bias, mask), (hidden, bias))
    expected = gradients(splade_head(hidden, weight, bias, mask), (hidden, bias))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
